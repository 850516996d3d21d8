"""Real pipelines and exchanges of tokens over gloo: the planted stage and the planted rank are named."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model.scorecard import Scorecard
from tests.torch_runs.links_run import MICRO_BATCHES, ROWS, WIDTH

pytest.importorskip("torch", reason="PyTorch is not installed")
SCRIPT = Path(__file__).parent / "links_run.py"


def card_of(kind: str, planted: int, ranks: int, folder: Path) -> Scorecard:
    """Run the ranks and return the card of their traces."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT), kind, str(planted), str(rank), str(ranks), str(folder)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for rank in range(ranks)
    ]
    for process in running:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()[-2000:]
    return sg.score(sg.load(*(folder / f"rank{rank}.pt.trace.json" for rank in range(ranks))))


@pytest.mark.parametrize(("kind", "slow", "ranks"), [("gpipe", 1, 3), ("1f1b", 0, 2), ("gpipe", 2, 3)])
def test_the_slow_stage_is_named(kind: str, slow: int, ranks: int, tmp_path: Path) -> None:
    card = card_of(kind, slow, ranks, tmp_path)
    assert card.pipeline is not None
    assert card.pipeline.micro_batches == MICRO_BATCHES
    assert card.pipeline.ideal_bubble_share == pytest.approx((ranks - 1) / (MICRO_BATCHES + ranks - 1))
    busy = {stage.rank: stage.busy_ms for stage in card.pipeline.stages}
    assert max(busy, key=lambda rank: busy[rank]) == slow
    found = {finding.rule: finding for finding in card.findings}
    assert found["slow-stage"].evidence["rank"] == slow
    for stage in card.pipeline.stages:
        whole = stage.busy_ms + stage.bubble_ms + stage.transfer_ms
        assert stage.bubble_share == pytest.approx(stage.bubble_ms / whole)


def test_the_busiest_rank_of_an_exchange_is_named(tmp_path: Path) -> None:
    card = card_of("exchange", 1, 2, tmp_path)
    (use,) = card.experts
    assert use.busiest_rank == 1
    # Tokens there, tokens back, and the counts: each rank sends one part to rank 0 and three to rank 1.
    there, back, counts = {0: 2, 1: 6}, {0: 4, 1: 4}, 2 * 8
    token = 4 * WIDTH * ROWS
    assert use.received_bytes == tuple((there[rank] + back[rank]) * token + counts for rank in (0, 1))
    assert use.max_over_mean == pytest.approx(10 / 8, rel=1e-3)


def test_an_even_exchange_is_even(tmp_path: Path) -> None:
    card = card_of("exchange", -1, 2, tmp_path)
    assert [use.max_over_mean for use in card.experts] == [1.0]
    assert "uneven-experts" not in [finding.rule for finding in card.findings]
