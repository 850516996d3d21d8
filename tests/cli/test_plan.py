"""`stepgrade plan` and the memory of `stepgrade estimate` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepgrade.cli import main
from tests.hardware import model_configs as configs

PLAN = ["plan", "--device", "h100-sxm5-80gb", "--devices", "64", "--global-batch", "512", "--seq", "8192"]
ESTIMATE = ["estimate", "--device", "h100-sxm5-80gb", "--batch", "2", "--seq", "8192"]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs.LLAMA3_8B))
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize("width", ["80", "200"])
def test_the_table_fits_a_terminal(
    config: str, width: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    assert main([*PLAN, "--model", config]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= int(width) for line in shown.splitlines())
    for text in ("tok/s", "Megatron-LM", "torchtitan", "DeepSpeed", "Accelerate", "start with"):
        assert text in shown


def test_plans_as_json(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, *PLAN, "--model", config, "--top", "3", "--trainer", "torchtitan")
    assert len(found["plans"]) == 3
    first = found["plans"][0]
    assert first["verdict"] == "fits"
    assert {"need_bytes", "tok_s", "why_not_better", "flags", "tensor", "pipeline"} <= set(first)


def test_plans_as_markdown(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*PLAN, "--model", config, "--format", "markdown"]) == 0
    assert "| Place | tok/s |" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flag", "number"),
    [("--global-batch", 10**30), ("--global-batch", 0), ("--devices", 10**20), ("--top", 0)],
)
def test_more_than_anyone_runs_is_refused_at_once(
    flag: str, number: int, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*PLAN, "--model", config, flag, str(number)]) == 2
    assert capsys.readouterr().err.startswith(f"stepgrade: {flag}: must be a whole number")


def test_a_batch_of_very_many_sequences_is_planned(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["plan", "--device", "h100-sxm5-80gb", "--devices", "8", "--global-batch", "1000000000"]
    found = answer(capsys, *plan, "--seq", "2048", "--model", config)
    assert found["plans"]


def test_devices_and_numbers_of_them_side_by_side(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each is planned as it would be alone; what is fastest and cheapest follows from the tables."""
    common = [
        "plan",
        "--model",
        config,
        "--global-batch",
        "512",
        "--seq",
        "8192",
        "--tokens",
        "1T",
        "--top",
        "2",
    ]
    cases = [(name, count) for name in ("h100-sxm5-80gb", "b200") for count in ("8", "64")]
    found = answer(
        capsys, *common, "--device", "h100-sxm5-80gb,b200", "--devices", "8,64", "--price", "2.5,9"
    )
    for (name, count), table in zip(cases, found["tables"], strict=True):
        price = {"h100-sxm5-80gb": "2.5", "b200": "9"}[name]
        alone = answer(capsys, *common, "--device", name, "--devices", count, "--price", price)
        assert table == alone
    rates = [table["plans"][0]["expected_tok_s"]["mid"] for table in found["tables"]]
    money = [table["cost"]["money"]["mid"] for table in found["tables"]]
    assert found["fastest"] == rates.index(max(rates))
    assert found["cheapest"] == money.index(min(money)) != found["fastest"]


def test_weak_scaling_grows_the_batch(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    plan = [
        "plan",
        "--device",
        "h100-sxm5-80gb",
        "--devices",
        "8,64",
        "--global-batch",
        "64",
        "--seq",
        "8192",
    ]
    weak = answer(capsys, *plan, "--model", config, "--weak", "--top", "1")
    assert [table["global_batch"] for table in weak["tables"]] == [64, 512]
    assert weak["cheapest"] is None  # no price
    strong = answer(capsys, *plan, "--model", config, "--top", "1")
    assert [table["global_batch"] for table in strong["tables"]] == [64, 64]
    each = [
        [table["plans"][0]["expected_tok_s"]["mid"] / table["devices"] for table in found["tables"]]
        for found in (weak, strong)
    ]
    assert each[0][0] == each[1][0]
    assert each[0][1] > each[1][1]  # a larger batch hides more of what more devices cost


def test_a_device_that_nothing_fits_is_never_the_best(
    config: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = ["plan", "--device", "rtx-4090,h100-sxm5-80gb", "--devices", "8", "--global-batch", "8"]
    found = answer(capsys, *plan, "--seq", "131072", "--model", config, "--trainer", "torchtitan")
    assert [bool(table["plans"]) for table in found["tables"]] == [False, True]
    assert found["fastest"] == 1
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*plan, "--seq", "131072", "--model", config, "--trainer", "torchtitan"]) == 0
    shown = capsys.readouterr().out
    assert "no plan for 8 sequences on 8 devices fits" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


@pytest.mark.parametrize(
    ("more", "flag"),
    [
        (["--devices", "8,x"], "--devices"),
        (["--devices", "8", "--price", "1,2,3"], "--price"),
        (["--devices", "8", "--price", "free"], "--price"),
        (["--devices", "8", "--peak-tflops", "100"], "--device"),
    ],
)
def test_what_cannot_be_planned_side_by_side_is_refused(
    more: list[str], flag: str, config: str, capsys: pytest.CaptureFixture[str]
) -> None:
    common = [
        "plan",
        "--model",
        config,
        "--device",
        "h100-sxm5-80gb,b200",
        "--global-batch",
        "64",
        "--seq",
        "8192",
    ]
    assert main([*common, *more]) == 2
    assert capsys.readouterr().err.startswith(f"stepgrade: {flag}: ")


def test_a_plan_needs_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(PLAN) == 2
    assert "--model" in capsys.readouterr().err


def test_a_run_that_does_not_fit_is_out_of_reach(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ESTIMATE, "--model", config]) == 0
    shown = capsys.readouterr().out
    for text in ("out of reach", "does not fit", "The cheapest changes that make it fit", "when the loss is"):
        assert text in shown
    whole = answer(capsys, *ESTIMATE, "--model", config)
    found = whole["memory"]
    assert whole["is_reachable"] is False
    assert found["verdict"] == "does_not_fit"
    assert found["largest_micro_batch"] == 0
    assert found["low_bytes"] < found["need_bytes"] < found["high_bytes"]
    assert found["changes"][-1]["verdict"] == "fits"
    assert sum(found["parts"].values()) == pytest.approx(found["need_bytes"])


def test_sharding_makes_it_fit(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    shared = ["--world-size", "8", "--data-parallel", "fsdp", "--checkpointing", "op", "--loss", "chunked"]
    found = answer(capsys, *ESTIMATE, "--model", config, *shared, "--kernels", "compiled")["memory"]
    assert found["verdict"] == "fits"
    assert found["changes"] == []


LINES = {
    "torchtitan": ("step: 10  loss: 7.1  memory: 60.00GiB(75.0%)  tps: 5,000", 60 * 2**30, "reserved"),
    "megatron": ("[Rank 0] (after 2 iterations) memory (MB) | allocated: 1 | max allocated: 61440.0 |", 60 * 2**30, "allocated"),
    "deepspeed": ("MA 3.97 GB Max_MA 60 GB CA 9.12 GB Max_CA 9 GB", 60 * 2**30, "allocated"),
    "torchtune": ("GPU peak memory allocation: 60.00 GiB", 60 * 2**30, "allocated"),
    "litgpt": ("Memory used: 60.00 GB", 60e9, "allocated"),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_a_log_of_a_measured_run_anchors_the_memory(
    name: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, measured, kind = LINES[name]
    log = tmp_path / "run.log"
    log.write_text(f"starting\nnothing of interest\n{line}\n")
    shared = ["--world-size", "8", "--data-parallel", "fsdp", "--model", config]
    found = answer(capsys, *ESTIMATE, *shared, "--anchor", str(log))["memory"]
    said = found["reserved_bytes"] if kind == "reserved" else found["allocated_bytes"]
    difference = found["parts"]["measured_difference"]
    assert said + (0 if kind == "reserved" else difference) == pytest.approx(measured)
    assert found["is_anchored"]


def test_a_json_anchors_the_memory(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run.json"
    run.write_text(json.dumps({"memory": {"peak_bytes": 5e10, "reserved_bytes": 6e10}, "plan": {"batch": 1}}))
    shared = ["--world-size", "8", "--data-parallel", "fsdp", "--model", config]
    one = answer(capsys, *ESTIMATE, *shared, "--batch", "1", "--anchor", str(run))["memory"]
    two = answer(capsys, *ESTIMATE, *shared, "--anchor", str(run))["memory"]
    assert one["reserved_bytes"] == pytest.approx(6e10)
    assert two["reserved_bytes"] > one["reserved_bytes"]


@pytest.mark.parametrize(
    "text", ["", "{}", '{"memory": 3}', '{"memory": {"peak_bytes": -1}}', "memory: lots"]
)
def test_a_file_without_a_peak_is_refused(
    text: str, config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run.json"
    run.write_text(text)
    assert main([*ESTIMATE, "--model", config, "--anchor", str(run)]) == 2
    assert "no peak memory found" in capsys.readouterr().err
