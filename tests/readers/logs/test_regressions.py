"""The regression machinery on logs: samples, baselines, the gate and the history work as on traces."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.cli import main
from stepgrade.loading import load
from tests.readers.logs.generated import Plan, generate


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, Path]:
    made = {"before": Plan(seed=1), "same": Plan(seed=2), "slower": Plan(seed=3, step_s=0.6)}
    for name, plan in made.items():
        (tmp_path / f"{name}.log").write_bytes(generate(plan, "megatron")[0])
    return {name: tmp_path / f"{name}.log" for name in made}


def test_a_slower_run_is_a_regression_and_the_same_again_is_none(logs: dict[str, Path]) -> None:
    baseline = load(logs["before"])
    assert sg.score(load(logs["same"]), baseline=baseline).regressions == ()
    slower = sg.score(load(logs["slower"]), baseline=baseline)
    assert any(found.metric == "step_time" or "step" in found.metric for found in slower.regressions)


def test_the_gate_fails_on_a_slower_log(logs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    before, noise = str(logs["before"]), ("--run-noise", "1%")
    assert main(["gate", str(logs["same"]), "--baseline", before, *noise]) == 0
    assert main(["gate", str(logs["slower"]), "--baseline", before, *noise]) == 1
    capsys.readouterr()


def test_the_history_keeps_logs(
    logs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = ("--history", str(tmp_path / "h.db"))
    for path in logs.values():
        assert main(["history", "add", str(path), *place]) == 0
    assert main(["history", "list", *place]) == 0
    assert "427 samples/s" in capsys.readouterr().out


def test_a_path_in_a_header_is_not_told(tmp_path: Path) -> None:
    log = (
        b"train.py --model_name_or_path /home/somebody/secret/llama\n"
        + generate(Plan(steps=100), "megatron")[0]
    )
    (tmp_path / "a.log").write_bytes(log)
    assert "somebody" not in sg.score(load(tmp_path / "a.log")).to_json()


def test_a_log_and_options_make_a_grade(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = b"using world size: 8\n  seq_length ..... 2048\n  micro_batch_size ..... 4\n"
    (tmp_path / "a.log").write_bytes(header + generate(Plan(steps=400, step_s=12.0), "megatron")[0])
    config = "examples/models/llama-3-8b.json"
    main(
        [
            "score",
            str(tmp_path / "a.log"),
            "--device",
            "h100-sxm5-80gb",
            "--model",
            config,
            "--format",
            "json",
        ]
    )
    card = sg.Scorecard.from_json(capsys.readouterr().out)
    assert card.mfu == pytest.approx(
        2048 * 256 / 12.0 / 8 * (card.flops_per_token or 0.0) / 989.4e12, rel=0.02
    )
    assert card.grade != "ungraded"
