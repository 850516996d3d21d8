"""Trainings that others wrote and that come in wheels, and the ways to start one: recorded whole, unharmed."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

import stepgrade as sg
from tests.scripts.running import (
    ALONE,
    FED,
    JOINED,
    Ended,
    free_port,
    is_graded,
    only_in_full,
    recordings,
    run_both,
)

TRAININGS = Path(__file__).parent / "trainings"
LOOPS = Path(__file__).parent / "loops"
# What differs from run to run in what they print themselves.
_TIMES = re.compile(r"\d+[.:]\d+ ?(?:s(?:econds)?\b|tok/s)|'train_\w+': '[\d.]+'|Tok/sec.*|Training Time.*")


class Training(NamedTuple):
    """A training of a package: how it is started, and what its recording must hold, counted by hand."""

    package: str
    words: tuple[str, ...]
    steps: int
    tokens: float | None = None
    samples: float | None = None
    bottlenecks: frozenset[str] = ALONE
    launcher: tuple[str, ...] = ()
    recordings: tuple[str, ...] = ("stepgrade.json",)


RANKS = ("stepgrade.rank0.json", "stepgrade.rank1.json")
ACCELERATE = ("accelerate", "launch", "--cpu", "--main_process_port", "{port}", "--num_processes")
ACCELERATE_SCRIPT = ("-m", "accelerate.test_utils.scripts.test_script")
# Two epochs of 64 batches of one sample, through a layer of 32 x 2.
BORING = Training("lightning", ("lightning_boring.py",), 128, samples=1, bottlenecks=FED)
# Two checks of five trainings (two of them in half precision), of three epochs of four batches of eight.
ACCELERATED = Training(
    "accelerate",
    ACCELERATE_SCRIPT,
    2 * 5 * 3 * 4,
    samples=8,
    bottlenecks=FED,
    launcher=("python",),
)
FAST = (BORING,)
ALL = (
    BORING,
    # 48 rows of 35 words in batches of two, two of which make a step.
    Training(
        "lightning",
        ("lightning_transformer.py",),
        12,
        tokens=2 * 2 * 35,
        samples=4,
        bottlenecks=FED,
    ),
    ACCELERATED,
    ACCELERATED._replace(launcher=(*ACCELERATE, "1")),
    # Each rank draws batches of 8, but the training that they are compared with has all 16.
    # On CPUs Accelerate's launcher starts several processes only where it is told of GPUs.
    ACCELERATED._replace(
        launcher=(*(word.replace("--cpu", "--multi_gpu") for word in ACCELERATE), "2"),
        samples=(16 + 4 * 8) / 5,
        recordings=RANKS,
        bottlenecks=FED | JOINED,
    ),
    # Sentences of 15 words and an end, in batches of four, two of which make a step.
    Training("trl", ("trl_sft.py",), 14, tokens=2 * 4 * 16, samples=8, bottlenecks=FED),
    Training("litgpt", ("litgpt_pretrain.py",), 12, tokens=8 * 16, samples=8, bottlenecks=FED),
    Training("hydra", ("hydra_app.py",), 12, samples=16),
    Training("hydra", ("hydra_app.py", "steps=9", "batch=4"), 9, samples=4, launcher=("python",)),
)


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(each, id=f"{number}-{each.package}", marks=[] if each in FAST else [only_in_full])
        for number, each in enumerate(ALL)
    ],
)
def test_a_training_of_a_package_ends_as_it_does_by_itself_and_is_recorded(
    tmp_path: Path, training: Training
) -> None:
    if importlib.util.find_spec(training.package) is None and "STEPGRADE_SCRIPTS" not in os.environ:
        pytest.skip(f"{training.package} is not installed")
    port = str(free_port())
    launcher = tuple(word.format(port=port) for word in training.launcher)
    plain, recorded = run_both(tmp_path, list(training.words), sorted(TRAININGS.iterdir()), launcher)
    assert plain.code == 0, plain.err
    assert recorded.code == 0, recorded.err
    assert in_order(recorded, launcher) == in_order(plain, launcher)
    made = set(recorded.files) - set(plain.files)
    assert made == set(training.recordings)
    found = recordings(tmp_path)
    assert tuple(found) == training.recordings
    for profile in found.values():
        assert profile.recorded_steps == training.steps
        assert profile.tokens_per_step == training.tokens
        assert not any(note.code in ("recorder_failed", "not_ended") for note in profile.notes)
        assert {"forward", "backward", "optimizer"} <= {phase.name for phase in profile.phases}
        # Accelerate's script also reads loaders that it does not train on, and not all its steps are alike.
        off = 0.05 if training.package == "accelerate" else 0.0
        assert profile.samples_per_step == pytest.approx(training.samples, rel=off)
        card = sg.score(profile)
        assert is_graded(card), card.ungraded_because
        assert card.bottleneck in training.bottlenecks, card.bottleneck_evidence
        assert f"stepgrade: recorded {training.steps} steps" in recorded.err


def in_order(ended: Ended, launcher: tuple[str, ...]) -> list[str]:
    """Return the lines that a training prints, without its times.

    Two processes write into each other's lines: of theirs only the letters can be held beside each other.
    """
    text = _TIMES.sub("", ended.out)
    return sorted("".join(text.split())) if launcher[-1:] == ("2",) else text.splitlines()


WAYS = {
    "script": (["convnet.py", "--epochs", "1"], ()),
    "after two dashes": (["--", "convnet.py", "--epochs", "1"], ()),
    "python script": (["convnet.py", "--epochs", "1"], ("python",)),
    "module": (["-m", "package.train"], ()),
    "python -m": (["-m", "package.train"], ("python",)),
    "package": (["package"], ()),
}


@pytest.mark.parametrize("way", [pytest.param(way, marks=[only_in_full]) for way in WAYS])
def test_a_training_is_recorded_however_it_is_started(tmp_path: Path, way: str) -> None:
    words, launcher = WAYS[way]
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    shutil.copy(LOOPS / "convnet.py", package / "train.py")
    (package / "__main__.py").write_text(
        "import pathlib, runpy, sys\n"
        "runpy.run_path(str(pathlib.Path(__file__).with_name('train.py')), run_name='__main__')\n"
    )
    files = [LOOPS / "convnet.py", package]
    plain, recorded = run_both(tmp_path, words, files, launcher)
    assert (recorded.code, recorded.out) == (plain.code, plain.out) == (0, plain.out), recorded.err
    assert plain.out.count("epoch 0") == 2
    (profile,) = recordings(tmp_path).values()
    assert profile.recorded_steps in (12, 24)
    assert profile.samples_per_step == 8
