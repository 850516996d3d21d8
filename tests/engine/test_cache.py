"""What is kept of ranks that were read: found by content, trusted only where nobody else can write."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.engine.cache import Cache, cache_folder
from tests.cluster import Planned, write_ranks
from tests.conftest import Ran

PLAN = Planned(world=4, tensor=1, pipeline=1, steps=3)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "kept"
    monkeypatch.setenv("STEPGRADE_CACHE", str(folder))
    return folder


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the files that are analysed, and not taken from the cache."""
    from stepgrade.readers import many

    read: list[str] = []
    analyse = many._analyse
    monkeypatch.setattr(
        many, "_analyse", lambda task, report: read.append(task.file.name) or analyse(task, report)
    )
    return read


def test_the_second_read_is_from_the_cache_and_a_changed_file_is_read_again(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = write_ranks(tmp_path / "run", PLAN)
    read = count_reads(monkeypatch)
    first = sg.load(tmp_path / "run", engine="here")
    assert len(read) == 4
    assert sg.load(tmp_path / "run", engine="here") == first
    assert len(read) == 4
    (tmp_path / "run").rename(tmp_path / "moved")
    moved = sg.load(tmp_path / "moved", engine="here")
    assert (moved.ranks, len(read)) == (first.ranks, 4)
    assert moved.source.files[0] == str(tmp_path / "moved" / paths[0].name)
    changed = tmp_path / "moved" / paths[0].name
    changed.write_bytes(changed.read_bytes() + b" ")
    sg.load(tmp_path / "moved", engine="here")
    assert len(read) == 5
    sg.load(tmp_path / "moved", engine="here", steps=(0, 2))
    assert len(read) == 9
    sg.load(tmp_path / "moved", engine="here", cache=False)
    assert len(read) == 13


def test_what_is_damaged_or_writable_by_others_is_not_used(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path / "run", PLAN)
    read = count_reads(monkeypatch)
    first = sg.load(tmp_path / "run", engine="here")
    assert kept.stat().st_mode & 0o077 == 0
    for file in kept.iterdir():
        assert file.stat().st_mode & 0o077 == 0
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert sg.load(tmp_path / "run", engine="here") == first
    assert len(read) == 8
    for change in (lambda: kept.chmod(0o777), lambda: [one.chmod(0o666) for one in kept.iterdir()]):
        change()
        before = len(read)
        assert sg.load(tmp_path / "run", engine="here") == first
        assert len(read) == before + 4
        kept.chmod(0o700)


def test_a_planted_result_that_is_no_result_is_read_again(kept: Path, tmp_path: Path) -> None:
    write_ranks(tmp_path / "run", PLAN)
    first = sg.load(tmp_path / "run", engine="here")
    cache = Cache(str(kept))
    for file in list(kept.iterdir()):
        cache.put(file.name, b"\x81\xa6schema\x01")
    assert sg.load(tmp_path / "run", engine="here") == first


def test_it_stays_small_and_two_may_share_it(tmp_path: Path) -> None:
    cache = Cache(str(tmp_path / "c"), most_bytes=50_000)

    def write(first: int) -> None:
        own = Cache(str(tmp_path / "c"), most_bytes=50_000)
        for number in range(first, first + 130):
            own.put(f"{number:04d}", os.urandom(1000))
            own.get(f"{number:04d}")

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache.put("last", b"x")
    assert sum(file.stat().st_size for file in (tmp_path / "c").iterdir()) <= 60_000
    assert cache.get("last") == b"x"
    assert cache.get("never") is None


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPGRADE_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == "/x/stepgrade/ranks"


def test_some_ranks_for_a_first_look(tmp_path: Path, stepgrade: Callable[..., Ran]) -> None:
    write_ranks(tmp_path / "run", Planned(world=16, tensor=1, pipeline=1, steps=3))
    profile = sg.load(tmp_path / "run", sample_ranks=4, engine="here")
    assert [one.rank for one in profile.ranks] == [0, 5, 10, 15]
    assert profile.warnings[0].code == "ranks_sampled"
    assert "4 of 16 ranks were looked at" in profile.warnings[0].text
    ran = stepgrade("score", tmp_path / "run", "--sample-ranks", "1")
    assert (ran.code, "--sample-ranks: must be 2 or more" in ran.err) == (2, True)
    assert stepgrade("score", tmp_path / "run", "--sample-ranks", "4", "--no-cache").code == 0
