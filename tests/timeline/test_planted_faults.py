"""Faults planted in a copy of the analysis: the independent check of steps and ledgers fails for each of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stepgrade

PACKAGE = Path(stepgrade.__file__).parent
TESTS = Path(__file__).parents[2]
# File, what stands there, what the fault makes of it.
FAULTS = {
    "a step begins with the last work": (
        "timeline/ledger.py",
        "np.minimum.at(begin, attribution.step[leading], work.start_ns[leading])",
        "begin[attribution.step[leading]] = work.start_ns[leading] + 1",
    ),
    "a step ends a nanosecond late": (
        "timeline/ledger.py",
        "end = np.where(seen, begin[1:], np.minimum(shown, begin[1:]))",
        "end = np.where(seen, begin[1:] + 1, np.minimum(shown, begin[1:]))",
    ),
    "work belongs to the step before": (
        "timeline/steps.py",
        'found = np.searchsorted(steps.start_ns, times, side="right").astype(np.int32)\n    found -= 1',
        'found = np.searchsorted(steps.start_ns, times, side="right").astype(np.int32)\n    found -= 2',
    ),
    "an optimizer's step begins the next one late": (
        "timeline/steps.py",
        "end = ranges.end_ns[rows]\n    calls =",
        "end = ranges.start_ns[rows]\n    calls =",
    ),
    "a stream is dropped": (
        "timeline/timeline.py",
        "chosen = work.device == (NONE if device is None else device)",
        "chosen = (work.device == (NONE if device is None else device)) & (work.stream != 13)",
    ),
    "hidden communication counts twice": (
        "timeline/ledger.py",
        '"exposed_communication": iv.subtract(shown_communication, compute),',
        '"exposed_communication": shown_communication,',
    ),
    "copies are compute": (
        "timeline/ledger.py",
        "copies = among(work.kind, HOST_COPIES) & ~communicates\n    compute",
        "copies = among(work.kind, HOST_COPIES) & False\n    compute",
    ),
    "a wait has no limit": (
        "timeline/ledger.py",
        "drained = iv.union(opened, np.minimum(ready[held], opened + limit))",
        "drained = iv.union(opened, ready[held])",
    ),
    "waiting for input is the host's": (
        "timeline/ledger.py",
        "fetched = iv.intersect(late, host.fetching)",
        "fetched = NOTHING",
    ),
    "a launch is done when it begins": (
        "timeline/ledger.py",
        "launched[has_call] += trace.calls.dur_ns[links.call[has_call]]",
        "launched[has_call] += 0",
    ),
    "operations of the loader are compute": (
        "timeline/ledger.py",
        "iv.subtract(apart(ops, ~communicates), iv.merge(collectives, load, compiling))",
        "iv.subtract(apart(ops, ~communicates), iv.merge(collectives, compiling))",
    ),
    "overlapping work is added up": (
        "timeline/intervals.py",
        "def union(",
        "def union(starts, ends):\n    order = np.argsort(starts)\n    return Spans(starts[order], ends[order])\n\n\ndef _union(",
    ),
}


def check_of(package: Path) -> subprocess.CompletedProcess[str]:
    """Run the independent check over made traces with this copy of the package."""
    return subprocess.run(
        [sys.executable, "-m", "tests.timeline.independent_check"],
        cwd=TESTS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(package.parent), str(TESTS)))},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def test_the_check_passes_without_a_fault() -> None:
    done = check_of(PACKAGE)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_check_finds_a_planted_fault(tmp_path: Path, fault: str) -> None:
    file, sound, faulty = FAULTS[fault]
    shutil.copytree(PACKAGE, tmp_path / "stepgrade", ignore=shutil.ignore_patterns("__pycache__"))
    text = (PACKAGE / file).read_text(encoding="utf-8")
    assert text.count(sound) == 1
    (tmp_path / "stepgrade" / file).write_text(text.replace(sound, faulty), encoding="utf-8")
    done = check_of(tmp_path / "stepgrade")
    assert done.returncode == 1, done.stderr
    assert "AssertionError" in done.stderr
    assert str(tmp_path / "stepgrade") in done.stdout
