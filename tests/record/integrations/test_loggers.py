"""A scorecard's numbers in the real trackers, written and read back."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import MissingExtra
from stepgrade.record import loggers
from tests.conftest import ROOT

pytestmark = pytest.mark.filterwarnings("ignore")  # trackers warn of what they depend on


@pytest.fixture
def card() -> sg.Scorecard:
    return sg.score(
        sg.load(ROOT / "examples" / "runs" / "gpt_fused.json"), peak_bw_gb_s=20, bytes_per_token=1e6
    )


def test_numbers_and_words(card: sg.Scorecard) -> None:
    numbers = loggers.metrics_of(card)
    assert numbers["stepgrade/step_time_ms"] == card.step_time_ms
    assert numbers["stepgrade/phase/forward_share"] == card.phases["forward"].share
    assert "stepgrade/mfu" not in numbers  # not known is left out, never 0
    assert loggers.words_of(card)["stepgrade/grade"] == card.grade


def test_what_is_not_installed_is_named(card: sg.Scorecard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "mlflow", None)
    with pytest.raises(MissingExtra, match="pip install mlflow"):
        loggers.log_to_mlflow(card)


def test_tensorboard(card: sg.Scorecard, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="tensorboard is not installed: make test-integrations")
    pytest.importorskip("torch", reason="torch is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        loggers.log_to_tensorboard(card, writer, step=7)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == set(loggers.metrics_of(card))
    (scalar,) = found.Scalars("stepgrade/step_time_ms")
    assert (scalar.step, scalar.value) == (7, pytest.approx(card.step_time_ms))


def test_mlflow(card: sg.Scorecard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: make test-integrations")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path / 'runs.db'}")
    mlflow.create_experiment("here", artifact_location=(tmp_path / "artifacts").as_uri())
    mlflow.set_experiment("here")
    with mlflow.start_run() as run:
        loggers.log_to_mlflow(card, step=3)
    stored = mlflow.get_run(run.info.run_id).data
    assert stored.metrics == pytest.approx(loggers.metrics_of(card))
    assert stored.tags["stepgrade.grade"] == card.grade
    assert (next((tmp_path / "artifacts").rglob("stepgrade.json"))).read_text() == card.to_json()


def test_wandb_offline(card: sg.Scorecard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb", reason="wandb is not installed: make test-integrations")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # wandb leaves its own there
    with pytest.raises(RuntimeError, match=r"wandb\.init"):
        loggers.log_to_wandb(card)
    with wandb.init(mode="offline", dir=tmp_path, project="stepgrade") as run:
        loggers.log_to_wandb(card, step=1)
        assert run.summary["stepgrade/grade"] == card.grade
    written = next(tmp_path.rglob("*.wandb"))
    until = time.monotonic() + 300.0  # its service writes in a process of its own
    while b"stepgrade/step_time_ms" not in written.read_bytes():
        assert time.monotonic() < until
        time.sleep(0.05)
