"""What is kept of ranks that were read: found by content, trusted only where nobody else can write."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.costs import own
from stepgrade.engine.cache import MARKER, MARKER_TEXT, OWN_FOLDER, Cache, cache_folder, code_stamp
from tests.cluster import Planned, write_ranks
from tests.conftest import ROOT, Ran

PLAN = Planned(world=4, tensor=1, pipeline=1, steps=3)


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STEPGRADE_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept" / OWN_FOLDER


def key(number: object) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Count the files that are analysed, and not taken from the cache."""
    from stepgrade.loading import ranks as many

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


SINGLE = (
    ROOT / "examples" / "traces" / "gpt_fused.json.gz",
    ROOT / "examples" / "traces" / "h100_ddp.json.gz",
    ROOT / "examples" / "titan.log",
)


@pytest.mark.parametrize("run", SINGLE, ids=lambda path: path.name)
def test_one_trace_or_log_is_the_same_from_the_cache(kept: Path, tmp_path: Path, run: Path) -> None:
    uncached = sg.score(sg.load(run, cache=False)).to_dict()
    assert not kept.exists()
    first = sg.score(sg.load(run)).to_dict()
    entries = sorted(kept.glob("rank-*"))
    assert (first, len(entries)) == (uncached, 1)
    assert sg.score(sg.load(run)).to_dict() == uncached
    assert sorted(kept.glob("rank-*")) == entries
    entries[0].write_bytes(entries[0].read_bytes()[:-1])
    assert sg.score(sg.load(run)).to_dict() == uncached, "a damaged one is read again"


def test_a_changed_file_or_other_steps_are_read_again(kept: Path, tmp_path: Path) -> None:
    run = tmp_path / "train.log"
    run.write_bytes(SINGLE[-1].read_bytes())
    before = sg.load(run)
    lines = run.read_text().splitlines(keepends=True)
    run.write_text("".join(lines[:-1]))
    assert sg.load(run) != before
    trace = SINGLE[0]
    assert sg.load(trace, steps=(1, 3)).recorded_steps != sg.load(trace).recorded_steps


def test_costs_of_ones_own_turn_it_off(kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(own.REGISTERED, "mylib::mm", print)
    sg.load(SINGLE[0])
    assert not kept.exists()


def test_what_is_damaged_or_writable_by_others_is_not_used(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path / "run", PLAN)
    read = count_reads(monkeypatch)
    first = sg.load(tmp_path / "run", engine="here")
    assert kept.stat().st_mode & 0o077 == 0
    for file in kept.glob("rank-*"):
        assert file.stat().st_mode & 0o077 == 0
        file.write_bytes(file.read_bytes()[:-1] + b"?")
    assert sg.load(tmp_path / "run", engine="here") == first
    assert len(read) == 8
    for change in (lambda: kept.chmod(0o777), lambda: [one.chmod(0o666) for one in kept.glob("rank-*")]):
        change()
        before = len(read)
        assert sg.load(tmp_path / "run", engine="here") == first
        assert len(read) == before + 4
        kept.chmod(0o700)


def test_a_planted_result_that_is_no_result_is_read_again(kept: Path, tmp_path: Path) -> None:
    write_ranks(tmp_path / "run", PLAN)
    first = sg.load(tmp_path / "run", engine="here")
    cache = Cache(str(kept))
    for file in list(kept.glob("rank-*")):
        cache.put(file.name.removeprefix("rank-"), b"\x81\xa6schema\x01")
    assert sg.load(tmp_path / "run", engine="here") == first


def test_it_stays_small_and_two_may_share_it(tmp_path: Path) -> None:
    folder = tmp_path / "c"

    def write(first: int) -> None:
        own = Cache(str(folder), most_bytes=50_000)
        for number in range(first, first + 130):
            own.put(key(number), os.urandom(1000))
            own.get(key(number))

    threads = [threading.Thread(target=write, args=(first,)) for first in (0, 1000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cache = Cache(str(folder), most_bytes=50_000)
    cache.put(key("last"), b"x")
    assert sum(file.stat().st_size for file in folder.glob("rank-*")) <= 50_000 * 1.1
    assert len(list(folder.iterdir())) == len(list(folder.glob("rank-*"))) + 1, (
        "all but the marker are results"
    )
    assert cache.get(key("last")) == b"x"
    assert cache.get(key("never")) is None


@pytest.mark.parametrize("processes", [4])
def test_processes_that_start_it_at_once_all_keep_their_results(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "c"
    script = (
        "import sys; from stepgrade.engine.cache import Cache; sys.stdin.read()\n"
        f"for n in range(20): Cache({str(folder)!r}).put(f'{{int(sys.argv[1]):032x}}{{n:032x}}', b'x')"
    )
    started = [
        subprocess.Popen([sys.executable, "-c", script, str(number)], stdin=subprocess.PIPE)
        for number in range(processes)
    ]
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
    assert [process.wait(timeout=60) for process in started] == [0] * processes
    assert len(list(folder.glob("rank-*"))) == 20 * processes


def test_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.chdir(tmp_path)
    for value in ("1", "on", "Yes", " true "):
        monkeypatch.setenv("STEPGRADE_CACHE", value)
        assert cache_folder() == f"/x/stepgrade/{OWN_FOLDER}"
    for value, base in (
        ("a/b", f"{tmp_path}/a/b"),
        ("/y", "/y"),
        ("~/z", "/home/me/z"),
        ("offline", f"{tmp_path}/offline"),
    ):
        monkeypatch.setenv("STEPGRADE_CACHE", value)
        assert cache_folder() == f"{base}/{OWN_FOLDER}"
    monkeypatch.delenv("STEPGRADE_CACHE")
    assert cache_folder() == f"/x/stepgrade/{OWN_FOLDER}"


@pytest.mark.parametrize(
    "value", ["off", "OFF", " off ", "0", "no", "No", "false", "FALSE", "none", "", "  "]
)
def test_words_that_turn_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stepgrade: Callable[..., Ran], value: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    monkeypatch.setenv("STEPGRADE_CACHE", value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    write_ranks(tmp_path / "run", PLAN)
    assert stepgrade("score", tmp_path / "run").code == 0
    assert list((tmp_path / "empty").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "run"]


def test_a_checkpoint_in_the_named_folder_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stepgrade: Callable[..., Ran]
) -> None:
    """An older file of 1200 MB was removed to make room, whatever it was."""
    folder = tmp_path / "c"
    folder.mkdir(mode=0o700)
    with (folder / "checkpoint.pt").open("wb") as file:
        file.truncate(1200 << 20)
    os.utime(folder / "checkpoint.pt", (0, 0))
    monkeypatch.setenv("STEPGRADE_CACHE", str(folder))
    ranks = write_ranks(tmp_path / "run", PLAN)
    assert stepgrade("score", *ranks).code == 0
    assert (folder / "checkpoint.pt").stat().st_size == 1200 << 20
    assert {path.name for path in folder.iterdir()} == {"checkpoint.pt", OWN_FOLDER}
    assert len(list((folder / OWN_FOLDER).glob("rank-*"))) == len(ranks)


def test_it_is_marked_for_backup_programs(kept: Path) -> None:
    Cache(str(kept)).put(key(1), b"x")
    assert (kept / MARKER).read_bytes() == MARKER_TEXT
    assert MARKER_TEXT.startswith(b"Signature: 8a477f597d28d172789f06886806bc55\n")


@pytest.mark.parametrize(
    "foreign", ["file", "marker", "empty marker", "link", "marker is a link", "result without marker"]
)
def test_a_folder_that_is_not_ours_is_not_used(kept: Path, tmp_path: Path, foreign: str) -> None:
    real = tmp_path / "theirs"
    real.mkdir(mode=0o700)
    (real / "data").write_bytes(b"theirs")
    if foreign == "link":
        kept.parent.mkdir()
        kept.symlink_to(real)
        (real / MARKER).write_bytes(MARKER_TEXT)
    else:
        kept.mkdir(mode=0o700, parents=True)
    if foreign == "file":
        (kept / "data").write_bytes(b"theirs")
    elif foreign == "marker":
        (kept / MARKER).write_bytes(MARKER_TEXT[:44] + b"# of cargo\n")
    elif foreign == "empty marker":
        (kept / MARKER).touch()
    elif foreign == "marker is a link":
        (real / "tag").write_bytes(MARKER_TEXT)
        (kept / MARKER).symlink_to(real / "tag")
    elif foreign == "result without marker":
        (kept / f"rank-{key(1)}").write_bytes(b"x" * 64)
    before = [sorted(one.iterdir()) for one in (kept, real)]
    cache = Cache(str(kept), most_bytes=10)
    cache.put(key(2), b"new")
    assert cache.get(key(2)) is None
    assert [sorted(one.iterdir()) for one in (kept, real)] == before


def test_only_our_own_files_are_removed_and_counted(kept: Path, tmp_path: Path) -> None:
    cache = Cache(str(kept), most_bytes=3000)
    cache.put(key("first"), bytes(1000))
    target = tmp_path / "target"
    target.write_bytes(bytes(5000))
    foreign = [
        kept / "checkpoint.pt",
        kept / key("old layout"),
        kept / f"rank-{key(1)}.bak",
        kept / f"rank-{key(1).upper()}",
        kept / f"rank-{key(1)[:-1]}",
        kept / f" rank-{key(1)}",
        kept / f"rank-{key(1)}\n",
    ]
    for path in foreign:
        path.write_bytes(bytes(9000))
    (kept / f"rank-{key('link')}").symlink_to(target)
    (kept / f"rank-{key('folder')}").mkdir()
    (kept / f"rank-{key('folder')}" / "data").write_bytes(bytes(9000))
    os.mkfifo(kept / f"rank-{key('pipe')}")
    for path in kept.iterdir():
        os.utime(path, (0, 0), follow_symlinks=False)
    before = {path.name for path in kept.iterdir()} - {f"rank-{key('first')}"}
    for name in ("link", "folder", "pipe"):
        cache.put(key(name), b"replaced?")
        assert cache.get(key(name)) is None
    for number in range(10, 20):
        cache.put(key(number), bytes(1000))
    names = {path.name for path in kept.iterdir()}
    assert before <= names
    left = names - before
    assert f"rank-{key('first')}" not in left, "the oldest of ours goes first"
    assert f"rank-{key(19)}" in left, "and foreign files do not count"
    assert 2 <= len(left) <= 3
    assert target.read_bytes() == bytes(5000)
    assert (kept / f"rank-{key('link')}").is_symlink()


def test_files_of_the_old_layout_are_left(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("STEPGRADE_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old = tmp_path / "stepgrade" / "ranks" / key(1)
    old.parent.mkdir(parents=True)
    old.write_bytes(b"x")
    folder = cache_folder()
    assert folder is not None
    Cache(folder, most_bytes=1).put(key(2), b"x")
    assert old.read_bytes() == b"x"


def test_our_code_is_looked_through_once_in_a_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_ranks(tmp_path / "run", PLAN)
    code_stamp.cache_clear()
    sg.load(tmp_path / "run", engine="here")
    found = code_stamp.cache_info()
    assert (found.misses, found.hits) == (1, PLAN.world - 1)


def test_some_ranks_for_a_first_look(tmp_path: Path, stepgrade: Callable[..., Ran]) -> None:
    write_ranks(tmp_path / "run", Planned(world=16, tensor=1, pipeline=1, steps=3))
    profile = sg.load(tmp_path / "run", sample_ranks=4, engine="here")
    assert [one.rank for one in profile.ranks] == [0, 5, 10, 15]
    assert profile.warnings[0].code == "ranks_sampled"
    assert "4 of 16 ranks were looked at" in profile.warnings[0].text
    ran = stepgrade("score", tmp_path / "run", "--sample-ranks", "1")
    assert (ran.code, "--sample-ranks: must be 2 or more" in ran.err) == (2, True)
    assert stepgrade("score", tmp_path / "run", "--sample-ranks", "4", "--no-cache").code == 0
