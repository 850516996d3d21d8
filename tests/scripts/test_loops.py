"""Loops in the manner of the well-known examples: each ends as it does by itself, and is recorded whole."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import pytest

import stepgrade as sg
from tests.scripts.running import ALONE, FED, JOINED, free_port, is_graded, only_in_full, recordings, run_both

LOOPS = Path(__file__).parent / "loops"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


class Loop(NamedTuple):
    """What a script must leave: recordings, steps, samples and tokens of a step, layers, what holds it up."""

    script: str
    steps: int
    samples: float | None
    tokens: float | None = None
    bottlenecks: frozenset[str] = ALONE
    layers: int = 0
    recordings: tuple[str, ...] = ("stepgrade.json",)
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    code: int = 0


RANKS = ("stepgrade.rank0.json", "stepgrade.rank1.json")
TORCHRUN = ("torchrun", "--nproc-per-node", "2", "--master-port", "{port}")
FAST = [
    Loop("language_model.py", 18, samples=4, tokens=40),
    Loop("folds.py", 40, samples=12, bottlenecks=FED),
    Loop("workers.py", 12, samples=4, code=1, bottlenecks=FED),
    Loop("own_directory.py", 12, samples=16),
    Loop("own_updates.py", 15, samples=8, tokens=2 * 4 * 6),
]
LOOPS_RUN = [
    *FAST,
    Loop("gpt_with_accumulation.py", 12, samples=3 * 4, tokens=3 * 4 * 16, layers=3),
    Loop(
        "gpt_ddp.py",
        20,
        samples=4,
        tokens=32,
        layers=2,
        recordings=RANKS,
        launcher=TORCHRUN,
        bottlenecks=JOINED | FED,
    ),
    Loop("convnet.py", 24, samples=8, arguments=("--epochs", "2"), bottlenecks=FED),
    Loop("convnet.py", 12, samples=8, arguments=("--epochs", "1"), launcher=("python",), bottlenecks=FED),
    Loop("waves.py", 8, samples=4 * 6),
    Loop("gan.py", 40, samples=8, bottlenecks=FED),
    Loop("averaged.py", 30, samples=8, layers=3),
    Loop("compiled.py", 15, samples=4, tokens=48, layers=2),
    Loop(
        "spawned_ddp.py", 10, samples=4, layers=3, recordings=RANKS, arguments=("{port}",), bottlenecks=JOINED
    ),
    Loop("q_learning.py", 65, samples=16),
    Loop("closed_streams.py", 8, samples=2, code=5),
]


@pytest.mark.parametrize(
    "loop",
    [
        pytest.param(loop, id=f"{loop.script}-{number}", marks=[] if loop in FAST else [only_in_full])
        for number, loop in enumerate(LOOPS_RUN)
    ],
)
def test_a_loop_ends_as_it_does_by_itself_and_is_recorded(tmp_path: Path, loop: Loop) -> None:
    port = str(free_port())
    words, launcher = (
        tuple(word.format(port=port) for word in some)
        for some in ((loop.script, *loop.arguments), loop.launcher)
    )
    plain, recorded = run_both(tmp_path, list(words), [LOOPS / loop.script], launcher)
    assert plain.code == loop.code, plain.err
    assert recorded.code == loop.code, recorded.err
    assert recorded.out == plain.out  # which holds losses to four digits
    assert set(recorded.files) - set(plain.files) == set(loop.recordings)
    if "torchrun" not in launcher:  # whose own lines hold times and addresses
        assert recorded.err.startswith(plain.err), recorded.err
    found = recordings(tmp_path)
    assert tuple(found) == loop.recordings
    for profile in found.values():
        assert profile.recorded_steps == loop.steps
        assert profile.steps > 0
        assert profile.tokens_per_step == loop.tokens
        assert len(profile.layers) == (0 if loop.script == "compiled.py" else loop.layers)
        assert not any(note.code in ("recorder_failed", "not_ended") for note in profile.notes)
        assert {"forward", "backward", "optimizer"} <= {phase.name for phase in profile.phases}
        assert profile.samples_per_step == loop.samples
        card = sg.score(profile)
        assert is_graded(card), card.ungraded_because
        assert card.bottleneck in loop.bottlenecks, card.bottleneck_evidence
        assert f"stepgrade: recorded {loop.steps} steps" in recorded.err
