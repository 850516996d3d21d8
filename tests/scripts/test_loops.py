"""Loops in the manner of the well-known examples: each ends as it does by itself, and is recorded whole."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import NamedTuple

import pytest

import stepgrade as sg
from tests.scripts.running import free_port, only_in_full, recordings, run_both

LOOPS = Path(__file__).parent / "loops"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")


class Loop(NamedTuple):
    """What a script must leave: recordings, steps, tokens of a step, layers."""

    script: str
    steps: int
    tokens: float | None = None
    layers: int = 0
    recordings: tuple[str, ...] = ("stepgrade.json",)
    arguments: tuple[str, ...] = ()
    launcher: tuple[str, ...] = ()
    code: int = 0


RANKS = ("stepgrade.rank0.json", "stepgrade.rank1.json")
TORCHRUN = ("torchrun", "--nproc-per-node", "2", "--master-port", "{port}")
FAST = [
    Loop("language_model.py", 18, tokens=40),
    Loop("folds.py", 40),
    Loop("workers.py", 12, code=1),
    Loop("own_directory.py", 12),
]
LOOPS_RUN = [
    *FAST,
    Loop("gpt_with_accumulation.py", 12, tokens=3 * 4 * 16, layers=3),
    Loop("gpt_ddp.py", 20, tokens=32, layers=2, recordings=RANKS, launcher=TORCHRUN),
    Loop("convnet.py", 24, arguments=("--epochs", "2")),
    Loop("convnet.py", 12, arguments=("--epochs", "1"), launcher=("python",)),
    Loop("waves.py", 8),
    Loop("gan.py", 40),
    Loop("averaged.py", 30, layers=3),
    Loop("compiled.py", 15, tokens=48, layers=2),
    Loop("spawned_ddp.py", 10, layers=3, recordings=RANKS, arguments=("{port}",)),
    Loop("q_learning.py", 65),
    Loop("closed_streams.py", 8, code=5),
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
        card = sg.score(profile)
        assert card.bottleneck in (
            "unknown",
            "host",
            "input",
            "communication",
            "compute",
            "memory_bw",
            "launch",
        )
        assert f"stepgrade: recorded {loop.steps} steps" in recorded.err
