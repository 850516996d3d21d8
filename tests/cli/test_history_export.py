"""`stepgrade history export` as a stream: memory that does not grow with the runs, pipes that close, whole files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.cli import main
from stepgrade.errors import BadHistory
from stepgrade.store import NewRun, open_history
from stepgrade.store.history import History
from tests.builders import make_profile
from tests.conftest import Ran

FEW, MANY = 200, 2000


@pytest.fixture(scope="module")
def histories(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("histories")
    card = sg.score(make_profile())
    made = {}
    for count in (FEW, MANY):
        made[count] = folder / f"{count}.db"
        with open_history(str(made[count])) as history:
            history.add_all(NewRun(card=card, branch="main", commit=f"{n:040x}") for n in range(count))
    return made


def peak_bytes(command: Callable[[], int]) -> int:
    tracemalloc.start()
    try:
        assert command() == 0
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("to", ["file", "standard output"])
def test_memory_does_not_grow_with_what_is_written(
    histories: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    # Not a stream that pytest captures in memory.
    out = tmp_path / "out.jsonl"
    sizes, peaks = {}, {}
    for count in (FEW, FEW, MANY):  # once more, for what is imported and kept the first time
        words = ["history", "export", "--history", str(histories[count])]
        with out.open("w", encoding="utf-8") as stream:
            if to == "file":
                words += ["-o", str(tmp_path / "file.jsonl")]
            else:
                monkeypatch.setattr("sys.stdout", stream)
            peaks[count] = peak_bytes(lambda words=words: main(words))
        sizes[count] = (tmp_path / "file.jsonl" if to == "file" else out).stat().st_size
    assert sizes[MANY] > 9 * sizes[FEW]
    assert peaks[MANY] - peaks[FEW] < (sizes[MANY] - sizes[FEW]) / 20  # the numbers of the runs alone


def test_a_reader_that_leaves_ends_it(histories: dict[int, Path]) -> None:
    """No error, no traceback, and no run is read that nobody wants."""
    script = (
        "import sys; from stepgrade.store.history import History; cards = History.cards; asked = []\n"
        "def counting(self, numbers): asked.append(len(numbers)); return cards(self, numbers)\n"
        "History.cards = counting\n"
        "from stepgrade.cli import main; code = main(sys.argv[1:])\n"
        "print(code, sum(asked), file=sys.stderr)"
    )
    command = [sys.executable, "-c", script, "history", "export", "--history", str(histories[MANY])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(b'{"id":1,')
        process.stdout.close()
        said = process.stderr.read().decode().split()
        assert process.wait(timeout=60) == 0
    assert said[0] == "0"
    assert int(said[1]) < MANY / 2


def test_a_full_disk_is_said(histories: dict[int, Path]) -> None:
    with Path("/dev/full").open("w") as full:
        words = [
            sys.executable,
            "-P",
            "-m",
            "stepgrade",
            "history",
            "export",
            "--history",
            str(histories[FEW]),
        ]
        ran = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert ran.stderr.startswith("stepgrade: standard output: cannot be written: No space left on device")
    assert ran.stderr.count("\n") == 1


def test_a_failure_in_the_middle_leaves_the_old_file(
    histories: dict[int, Path], tmp_path: Path, stepgrade: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "runs.jsonl"
    out.write_text("old")
    export = History.export

    def failing(self: History, which: Any) -> Iterator[dict[str, Any]]:
        for number, run in enumerate(export(self, which)):
            if number == 60:
                raise BadHistory("the database went away", where=self.name)
            yield run

    monkeypatch.setattr(History, "export", failing)
    ran = stepgrade("history", "export", "--history", histories[FEW], "-o", out)
    assert (ran.code, "went away" in ran.err) == (2, True)
    assert out.read_text() == "old"
    assert os.listdir(tmp_path) == ["runs.jsonl"]  # noqa: PTH208


def test_runs_that_are_removed_meanwhile_are_passed_over(
    tmp_path: Path, stepgrade: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "history.db")
    with open_history(place) as history:
        numbers = history.add_all(NewRun(card=sg.score(make_profile())) for _ in range(5))
    batches = History.batches

    def then_removed(self: History, which: Any) -> Any:
        for some in batches(self, which):
            with open_history(place) as other:
                other.remove(numbers[1:3])
            yield some

    monkeypatch.setattr(History, "batches", then_removed)
    ran = stepgrade("history", "export", "--history", place)
    assert ran.code == 0
    assert [json.loads(line)["id"] for line in ran.out.splitlines()] == [numbers[0], *numbers[3:]]
    assert "removed meanwhile" in ran.err
