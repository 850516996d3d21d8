"""The callbacks in the frameworks they are made for, on a tiny model."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stepgrade as sg
from tests.conftest import ROOT

EXAMPLES = str(ROOT / "examples")
# Frameworks warn of each other's changes; that is not what is tested.
pytestmark = pytest.mark.filterwarnings("ignore")


def run_example(name: str, monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    import importlib

    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    importlib.import_module(name).main()


def check(path: Path, prefix: str) -> None:
    profile = sg.load(path)
    assert (profile.recorded_steps, profile.steps) == (8, 5)
    assert profile.tokens_per_step == 2 * 4 * 64
    phases = {phase.name: phase.ms for phase in profile.phases}
    assert set(phases) >= {"input", "forward", "backward", "optimizer"}
    assert [layer.name for layer in profile.layers] == [f"{prefix}blocks.{number}" for number in range(4)]
    assert all(layer.fwd_ms and layer.bwd_ms for layer in profile.layers)
    assert "accumulation 2" in profile.contents["configuration"]
    assert 0.3 < profile.wall_coverage <= 1.0


def test_hugging_face_trainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed: make test-integrations")
    pytest.importorskip("accelerate", reason="accelerate is not installed: make test-integrations")
    run_example("train_gpt_hf", monkeypatch, "--steps", 8, "--accumulate", 2, "--out", tmp_path / "run.json")
    check(tmp_path / "run.json", prefix="")
    assert "loss" in sg.load(tmp_path / "run.json").contents


def test_hugging_face_models_are_understood(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    model.gradient_checkpointing_enable()
    model.train()
    ids = torch.randint(64, (2, 16))
    with sg.Recorder(model, path=tmp_path / "run.json") as recorder:
        for _ in range(5):
            model(input_ids=ids, labels=ids).loss.backward()
            recorder.step()
    profile = sg.load(tmp_path / "run.json")
    assert [layer.name for layer in profile.layers] == [f"model.layers.{number}" for number in range(3)]
    assert all(layer.fwd_ms and layer.bwd_ms and layer.recompute_ms for layer in profile.layers)
    assert profile.tokens_per_step == 32


def test_lightning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lightning", reason="lightning is not installed: make test-integrations")
    run_example(
        "train_gpt_lightning", monkeypatch, "--steps", 8, "--accumulate", 2, "--out", tmp_path / "run.json"
    )
    check(tmp_path / "run.json", prefix="gpt.")
    assert "loss" in sg.load(tmp_path / "run.json").contents


def test_a_failing_lightning_run_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pl = pytest.importorskip("lightning.pytorch", reason="lightning is not installed: make test-integrations")
    monkeypatch.syspath_prepend(EXAMPLES)
    from torch.utils.data import DataLoader
    from train_gpt import Text
    from train_gpt_lightning import Task

    from stepgrade.record.lightning import StepgradeCallback

    class Failing(Task):
        def training_step(self, batch, batch_idx: int):
            if batch_idx == 5:
                raise RuntimeError("out of memory")
            return super().training_step(batch)

    quiet = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
    callback = StepgradeCallback(path=tmp_path / "run.json")
    with pytest.raises(RuntimeError, match="out of memory"):
        pl.Trainer(max_steps=9, callbacks=[callback], **quiet).fit(
            Failing(), DataLoader(Text(40, 64), batch_size=4)
        )
    assert sg.load(tmp_path / "run.json").recorded_steps == 5
