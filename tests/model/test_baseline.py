"""What a later run is compared with: taken from the card, whichever version wrote it."""

from __future__ import annotations

import msgspec
import pytest

import stepgrade as sg
from stepgrade.model.scorecard import Baseline
from tests.conftest import ROOT

CARD = sg.score(sg.load(ROOT / "examples" / "runs" / "gpt_naive.json"))


def test_operations_are_of_the_typical_step() -> None:
    kept = {op.name: op.ms for op in CARD.operations if op.ms}
    assert Baseline.of(CARD).operations_ms == pytest.approx(kept)


def test_an_older_card_with_means_over_all_steps_gives_the_same() -> None:
    older = tuple(msgspec.structs.replace(op, ms=op.ms and op.ms * 1.04) for op in CARD.operations)
    baseline = Baseline.of(msgspec.structs.replace(CARD, operations=older))
    assert baseline.operations_ms == pytest.approx(Baseline.of(CARD).operations_ms)
