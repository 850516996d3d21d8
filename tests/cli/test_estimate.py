"""`stepgrade estimate` and `stepgrade score --model` from the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepgrade.cli import main
from tests.hardware import model_configs as configs

ESTIMATE = ["--device", "rtx-4060-laptop", "--batch", "4", "--seq", "512", "--method", "qlora"]


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs.QWEN25_15B))
    return str(path)


def answer(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--format", "json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_answer_in_a_terminal(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--model", config, *ESTIMATE]) == 0
    shown = capsys.readouterr().out
    for text in ("the most that arithmetic allows", "Ceilings", "Where the bytes go", "ridge point", "PaLM"):
        assert text in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_the_answer_as_json(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "estimate", "--model", config, *ESTIMATE, "--checkpointing", "full")
    assert found["bound_by"]["kind"] == "compute"
    assert found["costs"]["parameters"] == 1_543_714_304
    assert found["costs"]["flops"]["hardware"] == pytest.approx(9.08e9, rel=0.001)
    assert {limit["kind"] for limit in found["ceilings"]} == {"compute", "memory"}
    assert found["utilisation"] is None


def test_the_answer_as_markdown(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--model", config, *ESTIMATE, "--format", "markdown"]) == 0
    assert "| compute |" in capsys.readouterr().out


def test_a_throughput_above_the_ceiling_is_explained(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "--model", config, *ESTIMATE, "--throughput", "6628"]) == 0
    shown = capsys.readouterr().out
    assert "more than the hardware can do" in shown
    assert "padding was counted" in shown


def test_a_published_mfu_by_its_convention(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(configs.LLAMA3_8B))
    options = ["--device", "h100-sxm5-80gb", "--batch", "1", "--seq", "8192", "--throughput", "5762"]
    by_default = answer(capsys, "estimate", "--model", str(path), *options)
    by_titan = answer(capsys, "estimate", "--model", str(path), *options, "--convention", "torchtitan")
    assert by_default["utilisation"]["mfu"] == pytest.approx(0.300, abs=0.0005)
    assert by_titan["utilisation"]["mfu"] == pytest.approx(0.337, abs=0.0005)
    assert by_default["utilisation"]["mfu_palm"] == pytest.approx(0.356, abs=0.0005)


def test_many_devices_have_a_link(config: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--device", "h100-sxm5-80gb", "--batch", "4", "--seq", "512", "--world-size", "8"]
    found = answer(capsys, "estimate", "--model", config, *options)
    assert [limit["kind"] for limit in found["ceilings"] if limit["kind"] == "link"]
    assert found["link_bytes_per_step"] == pytest.approx(2 * 7 / 8 * 1_543_714_304 * 2)


def test_a_device_by_hand(config: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    device = tmp_path / "my.toml"
    device.write_text('name = "Mine"\npeak_bw_gb_s = 100\n[peak_tflops]\nbf16 = 10\n')
    options = ["--batch", "4", "--seq", "512"]
    by_file = answer(capsys, "estimate", "--model", config, *options, "--device-file", str(device))
    by_flags = answer(
        capsys, "estimate", "--model", config, *options, "--peak-bw", "100", "--peak-tflops", "10"
    )
    assert by_file["bound_by"]["tok_s"] == by_flags["bound_by"]["tok_s"]
    assert by_file["bound_by"]["basis"] == "given"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "--model"),
        (["--model", "CONFIG"], "--batch"),
        (["--model", "CONFIG", "--batch", "4", "--seq", "512"], "--device"),
        (["--model", "CONFIG", "--batch", "0", "--seq", "512", "--device", "gb10"], "--batch: must be"),
        (["--model", "CONFIG", "--batch", "x", "--seq", "512", "--device", "gb10"], "--batch"),
        (["--model", "CONFIG", *ESTIMATE, "--dtype", "int3"], "--dtype: 'int3' is unknown"),
        (["--model", "CONFIG", *ESTIMATE, "--dtype", "nf4"], "use the method qlora with bf16"),
        (["--model", "CONFIG", *ESTIMATE, "--peak-bw", "nan"], "--peak-bw: must be"),
        (["--model", "CONFIG", *ESTIMATE, "--peak-tflops", "-1"], "--peak-tflops: must be"),
        (["--model", "CONFIG", *ESTIMATE, "--world-size", "6", "--tensor-parallel", "4"], "does not divide"),
        (["--model", "CONFIG", *ESTIMATE, "--convention", "mine"], "--convention"),
        (["--model", "CONFIG", *ESTIMATE, "--throughput", "-5"], "--throughput: must be"),
        (["--model", "none.json", *ESTIMATE], "cannot be read"),
        (
            ["--model", "CONFIG", "--batch", "4", "--seq", "512", "--device", "h100"],
            "name one of them: h100-pcie",
        ),
        (
            ["--model", "CONFIG", *ESTIMATE, "--device-file", "x.toml"],
            "give --device KEY or --device-file TOML, not both",
        ),
    ],
)
def test_bad_options_are_one_line_and_exit_code_2(
    config: str, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    assert main(["estimate", *(config if text == "CONFIG" else text for text in arguments)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "model_type: is missing"),
        ('{"model_type": "bert"}', "'bert' is not modelled"),
        (json.dumps({**configs.QWEN25_15B, "hidden_size": None}), "hidden_size: is null"),
        (json.dumps({**configs.QWEN25_15B, "hidden_size": "1536"}), "hidden_size: must be a whole number"),
        (json.dumps({**configs.QWEN25_15B, "num_hidden_layers": -3}), "num_hidden_layers: must be between"),
        (json.dumps({**configs.QWEN25_15B, "vocab_size": 10**30}), "vocab_size: must be"),
        ("not json", "not a config.json"),
        (" " * (5 * 2**20), "not a model's config.json"),
    ],
)
def test_bad_configs_are_one_line_and_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    assert main(["estimate", "--model", str(path), *ESTIMATE]) == 2
    printed = capsys.readouterr()
    assert says in printed.err
    assert "config.json" in printed.err
    assert printed.err.count("\n") == 1


PROFILE = {
    "_source": "step_profiler_v2",
    "steps": 10,
    "avg_step_ms": 957.0,
    "wall_coverage": 0.98,
    "phases": {"forward": {"total_ms": 4000.0, "pct": 42.0, "avg_ms": 400.0}},
}


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(PROFILE))
    return str(path)


def test_score_by_model(profile: str, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--throughput", "2140", "--model", config, *ESTIMATE, "--checkpointing", "full"]
    card = answer(capsys, "score", profile, *options)
    assert card["mfu"] == pytest.approx(0.592, abs=0.001)
    assert card["hfu"] > card["mfu"]
    assert card["flops_convention"] == "causal-exact"
    assert card["flops_per_token"] == pytest.approx(6.42e9, rel=0.001)
    assert card["bytes_per_token"] == pytest.approx(30.1e6, rel=0.1)
    assert card["ceilings"][0]["kind"] == "compute"
    assert card["grade"] == "A"
    assert any("PaLM" in note for note in card["notes"])


def test_score_above_the_ceiling(profile: str, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    card = answer(capsys, "score", profile, "--throughput", "6628", "--model", config, *ESTIMATE)
    assert card["grade"] == "ungraded"
    assert any("padding" in reason for reason in card["ungraded_because"])


def test_score_of_many_devices(profile: str, config: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", config, *ESTIMATE]
    alone = answer(capsys, "score", profile, "--throughput", "1000", *options)
    shared = answer(capsys, "score", profile, "--throughput", "8000", *options, "--world-size", "8")
    assert shared["mfu"] == pytest.approx(alone["mfu"])
    assert shared["device"]["count"] == 8


def test_score_by_given_figures(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--throughput", "194", "--peak-bw", "256", "--bytes-per-token", "158e6"]
    card = answer(capsys, "score", profile, *options)
    assert card["efficiency"] == pytest.approx(194 / (256e9 / 158e6))
    options = ["--throughput", "1000", "--peak-tflops", "10", "--flops-per-token", "5e9"]
    card = answer(capsys, "score", profile, *options)
    assert (card["mfu"], card["flops_convention"]) == (0.5, "given")
