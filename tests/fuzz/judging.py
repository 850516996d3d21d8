"""Run one input in a folder of its own, and say what must not have happened."""

from __future__ import annotations

import gzip
import io
import os
import re
import shutil
import sys
import tempfile
import threading
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from stepgrade.cli import dispatch
from tests.fuzz.inputs import Input
from tests.fuzz.outputs import check_output
from tests.fuzz.peers import WAITS, HostileServer, ask_server, impatient, is_on_disk, talk_http
from tests.fuzz.samples import CANARY
from tests.fuzz.talk import TOKEN

READ_MEMORY = "200M"
CODES = (0, 1, 2, 3)
_THREAD_S = 60.0  # for one that is about to end, on a machine however busy
_IN_MEMORY = Path("/dev/shm")  # noqa: S108  a folder of our own in it: on a disk, making and removing takes longest
_LEAST_ROOM = 4 << 30
FOREIGN = b"somebody else's work"
# What lies where a command may write: a cache, a home, the folder above. None of it is ours.
_BESIDE = (
    "cache/checkpoint.pt",
    "cache/run-1.json",
    "home/.netrc",
    "neighbour.json",
    "work/.stepgrade/notes.txt",
)
_MAY_CHANGE = re.compile(
    r"cache/stepgrade-ranks/|home/|work/(h\.db(-wal|-shm|-journal)?|copy\.db|\.stepgrade/.*|box/.*)$"
)


class Happened:
    """What an input did: its exit code, what it printed, and what is wrong around it."""

    def __init__(self) -> None:
        self.code, self.out, self.err = -1, "", ""
        self.wrong: list[str] = []


@contextmanager
def a_world(item: Input) -> Iterator[Path]:
    """Make a folder with the files of an input, and what belongs to others; work in it, and remove it afterwards."""
    has_room = _IN_MEMORY.is_dir() and shutil.disk_usage(_IN_MEMORY).free > _LEAST_ROOM
    where = _IN_MEMORY if has_room else None
    folder, here = Path(tempfile.mkdtemp(prefix="stepgrade-fuzz-", dir=where)), Path.cwd()
    places = {
        "HOME": str(folder / "home"),
        "STEPGRADE_CACHE": str(folder / "cache"),
        "XDG_CACHE_HOME": str(folder / "home" / "cache"),
        "XDG_STATE_HOME": str(folder / "home" / "state"),
        "TMPDIR": str(folder / "tmp"),
        **item.environment,
    }
    before = {name: os.environ.get(name) for name in places}
    temporary = tempfile.tempdir
    try:
        for name in ("home", "cache", "tmp", "work/.stepgrade"):
            (folder / name).mkdir(parents=True, mode=0o700)
        for name in _BESIDE:
            (folder / name).write_bytes(FOREIGN)
        os.chdir(folder / "work")
        for name, content in item.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_bytes(content)
        os.environ.update(places)
        tempfile.tempdir = str(folder / "tmp")
        yield folder
    finally:
        tempfile.tempdir = temporary
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.update({name: value})
        os.chdir(here)
        shutil.rmtree(folder, ignore_errors=True)


def _files_of(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and time of everything in a folder."""
    found = {}
    for where, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(where, name)  # noqa: PTH118  many of them
            facts = os.lstat(path)
            found[os.path.relpath(path, folder)] = (facts.st_size, facts.st_mtime_ns)
    return found


def what_changed(folder: Path, before: dict[str, tuple[int, int]], written: str | None) -> list[str]:
    """Return what a command did to files that are not its own, and what it left behind."""
    after = _files_of(folder)
    wrong = [
        f"touched: {name} is somebody else's"
        for name in _BESIDE
        if not (folder / name).exists() or (folder / name).read_bytes() != FOREIGN
    ]
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) == after.get(name) or _MAY_CHANGE.match(name) or name == f"work/{written}":
            continue
        what = "was left behind" if name not in before else "is gone" if name not in after else "was changed"
        wrong.append(f"touched: {name[:100]!r} {what}")
    return wrong


def left_over(threads: set[threading.Thread], files: set[str], children: set[str]) -> list[str]:
    """Return threads, children and open files that were not there before."""
    wrong = []
    for thread in threading.enumerate():
        if thread not in threads:
            thread.join(_THREAD_S)
    if more := [thread.name for thread in threading.enumerate() if thread not in threads]:
        wrong.append(f"left over: threads {more[:5]}")
    if more := sorted(open_files() - files):
        wrong.append(f"left over: open files {more[:5]}")
    if children_of_this() - children:
        wrong.append("left over: a child")
    return wrong


def children_of_this() -> set[str]:
    """Return the processes that this one has started and not waited for; tests may have some of their own."""
    found: set[str] = set()
    for listed in Path("/proc/self/task").glob("*/children"):
        with suppress(FileNotFoundError, ProcessLookupError):  # of a thread that has just ended
            found.update(listed.read_text().split())
    return found


def open_files() -> set[str]:
    """Return the open files of this process, by number and target."""
    found = set()
    place = Path("/proc/self/fd")
    for one in place.iterdir() if place.is_dir() else ():
        try:
            found.add(f"{one.name}: {one.readlink()}")
        except OSError:  # that of the listing itself
            continue
    return found


def run_command(argv: list[str], happened: Happened) -> None:
    """Run a command line in this process, and keep its exit code and what it printed."""
    streams = sys.stdin, sys.stdout, sys.stderr
    out, err = (
        io.TextIOWrapper(io.BytesIO(), "utf-8", "surrogateescape", write_through=True) for _ in range(2)
    )
    try:
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO()), out, err
        happened.code = dispatch.run(argv)
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
    happened.out, happened.err = (
        stream.buffer.getvalue().decode("utf-8", "surrogateescape")  # type: ignore[attr-defined]
        for stream in (out, err)
    )


def run_client(item: Input, folder: Path, happened: Happened) -> None:
    """Run a command against a server that answers as it likes; what it sends is there, or on this disk."""
    server = HostileServer(item.peer)
    argv = [word.replace("{server}", server.url) for word in item.argv]
    labels = [word.partition("=")[2] for word in argv if word.startswith("run=")]
    try:
        with impatient():
            if "waits" in item.peer:
                adding = ["history", "add", "p.json", "--label", f"run={WAITS}", "--history", server.url]
                token = os.environ["STEPGRADE_TOKEN"]
                os.environ["STEPGRADE_TOKEN"] = TOKEN
                run_command(adding, happened)
                os.environ["STEPGRADE_TOKEN"] = token
                if happened.code != 0 or not is_on_disk(folder, WAITS):
                    happened.wrong.append("lost: a run does not wait while the server does not answer")
                labels.append(WAITS)
            with server.listening():
                run_command(argv, happened)
    finally:
        server.close()
    for label in labels:
        is_safe = happened.code != 0 and label != WAITS  # an error says so
        if not (is_safe or is_on_disk(folder, label) or any(label.encode() in body for body in server.kept)):
            happened.wrong.append(f"lost: the run {label} is neither there nor here")


def run_input(item: Input) -> Happened:
    """Run one input in this process and return what happened."""
    happened = Happened()
    there = set(threading.enumerate()), open_files(), children_of_this()
    argv = list(item.argv)
    if argv[0] in ("score", "gate", "parity", "inspect", "convert") and "--help" not in argv:
        argv += ["--max-memory", READ_MEMORY]
    with a_world(item) as folder:
        before = _files_of(folder)
        if item.peer.startswith("server"):
            happened.code, happened.wrong = ask_server(item.files, folder, item.peer.partition(":")[2])
        elif item.peer == "http":
            happened.code, happened.wrong = talk_http(item.files, folder)
        elif item.peer:
            run_client(item, folder, happened)
        else:
            run_command(argv, happened)
        happened.wrong += what_changed(folder, before, item.written) + left_over(*there)
        if (
            item.written is not None
            and happened.code in (0, 1, 3)
            and (folder / "work" / item.written).exists()
        ):
            data = (folder / "work" / item.written).read_bytes()
            data = gzip.decompress(data) if item.written.endswith(".gz") else data
            happened.out = data.decode("utf-8", "surrogateescape")
    return happened


def judge(item: Input) -> tuple[int, list[str]]:
    """Run an input and return its exit code and what is wrong with what happened."""
    happened = run_input(item)
    code, out, err, wrong = happened.code, happened.out, happened.err, happened.wrong
    if code not in CODES:
        lines = [line for line in err.splitlines() if line.strip()]
        wrong.append(f"exit code {code}: {lines[-2][:150] if len(lines) > 1 else err[:150]}")
    if "not enough memory" in err:
        wrong.append("memory: more than the limit was asked for")
    has_secret = (
        item.environment.get("STEPGRADE_TOKEN") != ""
    )  # a server may know a token, a client without one not
    if has_secret and (CANARY in out or CANARY in err):
        wrong.append("canary")
    if code in (0, 1, 3) and out:
        try:
            check_output(out, item.out)
        except (ValueError, ET.ParseError, RecursionError) as error:
            wrong.append(f"refused output ({item.out}): {str(error)[:100]}")
    if code == 2 and item.argv[0] != "serve" and (err.count("\n") != 1 or not err.startswith("stepgrade: ")):
        wrong.append(f"an error that is not one line: {err[:100]!r}")
    return code, wrong
