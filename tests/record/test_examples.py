"""The example that needs nothing but torch runs, and its profile can be scored."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import stepgrade as sg
from tests.record.loop import gpt


@pytest.mark.parametrize("extra", [[], ["--checkpointing"]])
def test_train_gpt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, extra: list[str]) -> None:
    small = ["--steps", "6", "--layers", "2", "--width", "32", "--sequence", "16", *extra]
    monkeypatch.setattr(sys, "argv", ["train_gpt.py", "--out", str(tmp_path / "run.json"), *small])
    gpt.main()
    assert "6 steps, loss" in capsys.readouterr().out
    card = sg.score(sg.load(tmp_path / "run.json"))
    assert card.throughput.tokens_per_step == 64
    assert [bool(layer.recompute_ms) for layer in card.layers] == [bool(extra)] * 2
