"""Runs a scenario again and again, each time with another system call that fails, and looks at what is left.

It runs with `shim.c` preloaded, in a process that has imported everything and has no other thread: each run is a
fork of it, and so is whoever reads back what the run has written.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import importlib
import json
import mmap
import os
import pkgutil
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

import stepgrade
from stepgrade.store import sqlite

SOURCE = Path(__file__).with_name("shim.c")
PAGE, PROGRAM = "STEPGRADE_FAULTS_PAGE", "STEPGRADE_FAULTS_PROGRAM"
DEADLINE_S = 120.0  # for one run, on a machine however busy; the slowest takes seconds
SHORT, CRASH, END = -1, -2, -3  # as in shim.c
_HEADER = struct.Struct("8i")
_PREFIX_BYTES, _MOST_CALLS = 512, 1 << 16
_DRAFTS = ("*.stepgrade-*.tmp", "*-wal", "*-shm", "tmp/*")  # what a killed writer may leave behind
_OLD_S = 7200.0
_PR_SET_PDEATHSIG = 1
_UNIQUE = re.compile(r"(?<=stepgrade-)\w+")  # of a draft or a scratch folder
_TRIES = 3  # to reach a call that not every run makes
PROGRESS_S = 20.0

# How each kind of call fails. The first one also fails for good, as a full disk does.
HOW: dict[str, tuple[int, ...]] = {
    "open": (errno.EMFILE, errno.ENOSPC, errno.EACCES, errno.EINTR),
    "read": (errno.EIO, errno.EINTR, SHORT),
    "write": (errno.ENOSPC, errno.EIO, errno.EINTR, SHORT),
    "sync": (errno.EIO,),
    "truncate": (errno.EIO,),
    "close": (errno.EIO,),
    "stat": (errno.EIO, errno.EACCES),
    "lock": (errno.ENOLCK,),
    "map": (errno.ENOMEM,),
    "rename": (errno.EIO, errno.EACCES),
    "unlink": (errno.EIO,),
    "rmdir": (errno.EIO,),
    "mkdir": (errno.ENOSPC, errno.EACCES),
    "link": (errno.EPERM,),
    "chmod": (errno.EPERM,),
    "utime": (errno.EPERM,),
    "list": (errno.EIO,),
    "socket": (errno.EMFILE,),
    "connect": (errno.ECONNREFUSED, errno.ETIMEDOUT),
    "send": (errno.ECONNRESET, errno.EPIPE, SHORT),
    "receive": (errno.ECONNRESET, END, SHORT),
    "accept": (errno.EMFILE, errno.ECONNABORTED),
    "resolve": (errno.EAGAIN,),
    "wait": (errno.EINTR,),
    "pipe": (errno.EMFILE,),
    "dup": (errno.EMFILE,),
    "fork": (errno.EAGAIN,),
    "exec": (errno.ENOMEM,),
    "thread": (errno.EAGAIN,),
}
_HARMLESS = (errno.EINTR, SHORT)  # these the system may do at any time, and a program goes on
_NO_CRASH = (
    "read",
    "stat",
    "list",
    "close",
    "lock",
    "wait",
    "dup",
    "resolve",
)  # nothing changes before and after
_LEAVES = ("unlink", "rmdir", "list", "stat", "open", "close", "dup")  # without these nothing can be removed


class Fault(NamedTuple):
    """Which call fails, and how."""

    at: int
    kind: str
    how: int
    persists: bool = False

    def __str__(self) -> str:
        names = {SHORT: "half", CRASH: "killed", END: "end of stream"}
        how = names.get(self.how) or errno.errorcode[self.how]
        return f"call {self.at} ({self.kind}: {how}{' from then on' if self.persists else ''})"


class Place(NamedTuple):
    """Where a scenario runs: `here` is its directory, in which calls fail; `given` holds what it reads."""

    here: Path
    given: Path
    facts: dict[str, Any]  # addresses of servers and the like


class Scenario(NamedTuple):
    """Something that writes, and how to tell what became of it."""

    name: str
    prepare: Callable[[Place], None]
    act: Callable[[Place], int]
    state: Callable[[Place], Any]  # what a healthy reader finds there, as JSON has it
    owned: tuple[str, ...]  # the names of the files that it may touch; all others are somebody else's
    says: tuple[str, ...] = ()  # one of these words is in the line about a failure
    streams: int = 0  # which standard streams fail too: 2 for output, 4 for errors
    is_server: bool = False  # it ends well although it has refused requests
    is_optional: bool = False  # what fails here changes neither the answer nor the exit code
    between: Callable[[Any, Any, Any], bool] | None = None  # before, after and now: is that sound as well?
    done: Callable[[Any, Any], bool] | None = None  # after and now: was everything done, if in another way?
    beside: Callable[[Place], None] | None = None  # runs at the same time, in a process without faults
    each: Callable[[Place], None] | None = None  # makes what the directory does not hold, before each run
    is_program: bool = False  # it replaces its process by a program, in which calls count
    exits: tuple[int, ...] = (0, 1)  # how it ends when nothing fails
    needs: tuple[str, ...] = ()
    start: Callable[[dict[str, Any]], Callable[[], None]] | None = None  # begins what all runs share


class Ran(NamedTuple):
    """How a run ended: exit code, negative for a signal, None for a hang; its streams; what it left."""

    code: int | None
    out: str
    err: str
    state: Any
    files: dict[str, tuple[int, int, str]]


class Result(NamedTuple):
    """What came of a scenario."""

    scenario: str
    calls: int
    kinds: dict[str, int]
    runs: int
    wrong: list[str]
    seconds: float
    missed: int = 0  # runs in which the call was not made: threads take turns


class Share(NamedTuple):
    """Which of a scenario's faults are run: the i-th of so many parts, without those that a file records."""

    count: int | None = None
    part: int = 1
    parts: int = 1
    records: Path | None = None  # a line for each run; lets an interrupted run go on

    def done(self, scenario: str) -> dict[Fault, list[str] | None]:
        """Return what came of the faults of a scenario that were run before, as `Bench.judge` has it."""
        if self.records is None or not self.records.exists():
            return {}
        lines = [json.loads(line) for line in self.records.read_text().splitlines()]
        return {Fault(*one["fault"]): one["wrong"] for one in lines if one["scenario"] == scenario}

    def keep(self, scenario: str, fault: Fault, wrong: list[str] | None, seconds: float) -> None:
        """Add the line of a run."""
        if self.records is not None:
            line = {"scenario": scenario, "fault": fault, "wrong": wrong, "seconds": round(seconds, 2)}
            with self.records.open("a") as file:
                file.write(json.dumps(line) + "\n")


def build(folder: Path) -> Path:
    """Compile the shim; raise RuntimeError where that is not possible."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if sys.platform != "linux" or compiler is None:
        raise RuntimeError("making system calls fail needs Linux and a C compiler")
    made = folder / "shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-w", "-o", str(made), str(SOURCE), "-ldl", "-lpthread"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{SOURCE.name} does not compile: {done.stderr[-500:]}")
    return made


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of a process whose calls can fail; `folder` is its own."""
    page = folder / "page"
    page.write_bytes(bytes(_HEADER.size + 2 * _PREFIX_BYTES + _MOST_CALLS))
    quiet = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return {**os.environ, **quiet, "LD_PRELOAD": str(build(folder)), PAGE: str(page)}


class Plan:
    """The page that the shim reads."""

    def __init__(self) -> None:
        with Path(os.environ[PAGE]).open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), 0)
        self._shim = ctypes.CDLL(os.environ["LD_PRELOAD"])
        self.kinds = ctypes.c_char_p.in_dll(self._shim, "faults_kinds").value.decode().split()  # type: ignore[union-attr]

    def set(self, prefix: Path, fault: Fault | None) -> None:
        """Make a plan; nothing counts before `begin`."""
        plan = (0, 0, False, 0)
        if fault is not None:
            plan = (fault.at, fault.how, fault.persists, self.kinds.index(fault.kind))
        self._page[: _HEADER.size] = _HEADER.pack(0, 0, 0, *plan, 0)
        words = os.fsencode(prefix).ljust(_PREFIX_BYTES, b"\0") + bytes(_PREFIX_BYTES)
        self._page[_HEADER.size : _HEADER.size + 2 * _PREFIX_BYTES] = words

    def begin(self, streams: int) -> None:
        """Count from now on, in this process and those that it starts."""
        self._shim.faults_begin(streams)

    def end(self) -> None:
        """Count no more."""
        self._page[:4] = bytes(4)

    def calls(self) -> list[str]:
        """Return the kinds of the calls that were made, in their order."""
        count = _HEADER.unpack_from(self._page)[1]
        first = _HEADER.size + 2 * _PREFIX_BYTES + 1
        return [self.kinds[code] for code in self._page[first : first + min(count, _MOST_CALLS - 1)]]

    def has_failed(self) -> bool:
        """Tell whether the call was reached."""
        return bool(_HEADER.unpack_from(self._page)[2])

    def what(self) -> str:
        """Return the path of the call that failed, where it had one."""
        start = _HEADER.size + _PREFIX_BYTES
        return os.fsdecode(self._page[start : start + _PREFIX_BYTES].split(b"\0")[0])


def import_all(*, with_torch: bool) -> None:
    """Import what commands import when they need it, so that a fork has it; locks are waited for shortly."""
    sqlite.WAIT_S = 2.0
    unwanted = ("__main__", "inject", "huggingface", "lightning", "loggers")
    for found in pkgutil.walk_packages(stepgrade.__path__, "stepgrade."):
        parts = found.name.split(".")
        if any(part in unwanted for part in parts) or (parts[1] == "record" and not with_torch):
            continue
        try:
            importlib.import_module(found.name)
        except ImportError:
            continue  # of an extra that is not installed
    for name in (
        *(("torch._dynamo",) if with_torch else ()),  # the first step of an optimizer imports it
        "numpy",
        "psycopg",
        "uvicorn.protocols.http.h11_impl",
        "uvicorn.lifespan.on",
        "jinja2",
        "gzip",
        "mcp.server",
        "mcp.server.mcpserver.exceptions",
        "mcp.server.transport_security",
        "mcp.server.streamable_http_manager",
        "rich.logging",
    ):
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def in_fork(work: Callable[[], Any], folder: Path) -> Any:
    """Return what a function returns in a process of its own; raise AssertionError with what it raises."""
    return in_background(work, folder)()


def in_background(work: Callable[[], Any], folder: Path) -> Callable[[], Any]:
    """Begin a function in a process of its own; what is returned waits for it, as `in_fork` does."""
    answer = folder / f"answer-{os.urandom(4).hex()}"
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            answer.write_text(json.dumps(work()))
            code = 0
        except BaseException:  # noqa: BLE001  it is shown
            answer.write_text(traceback.format_exc())
        finally:
            os._exit(code)

    def answered() -> Any:
        is_done = _wait(pid) == 0
        text = answer.read_text() if answer.exists() else "a process of the harness has died"
        answer.unlink(missing_ok=True)
        if not is_done:
            raise AssertionError(text)
        return json.loads(text)

    return answered


def _wait(pid: int) -> int | None:
    """Wait for a process and return its exit code; end it, and return None, when it takes too long."""
    handle = os.pidfd_open(pid)
    try:
        is_over = bool(select.select([handle], [], [], DEADLINE_S)[0])
    finally:
        os.close(handle)
    if not is_over:
        os.kill(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status) if is_over else None


def _files(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Return mode, time and content of everything in a folder by name."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else "" if path.is_dir() else _digest(path)
        modified = 0 if path.is_dir() else status.st_mtime_ns
        found[str(path.relative_to(folder))] = (status.st_mode, modified, content)
    return found


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "special"


class Bench:
    """One scenario, prepared once and run as often as needed, always in the same directory."""

    def __init__(self, scenario: Scenario, folder: Path, plan: Plan) -> None:
        self.scenario, self._folder, self._plan = scenario, folder, plan
        self._facts: dict[str, Any] = {"run": 0, "attempt": 0}
        self._stop = scenario.start(self._facts) if scenario.start else None
        self.place = Place(folder / "here", folder / "given", self._facts)
        template = folder / "template"
        for one in (template, self.place.given):
            one.mkdir()
        (template / "tmp").mkdir()
        _plant_foreign(template)
        shaped = Place(template, self.place.given, self._facts)
        in_fork(lambda: scenario.prepare(shaped), folder)
        self._put_back()
        state = in_fork(lambda: scenario.state(self.place), folder)
        self.before = Ran(0, "", "", state, _files(self.place.here))
        self.healthy = self.run(None)
        if self.healthy.code not in scenario.exits:
            raise RuntimeError(f"{scenario.name} fails without a fault: {self.healthy.err.strip()}")
        self.calls = plan.calls()
        self.twice = self._again()
        self._second_tries: dict[object, Ran] = {}  # by what the first try has left

    def close(self) -> None:
        """End what all runs share."""
        if self._stop is not None:
            self._stop()

    def _put_back(self) -> None:
        """Put the directory back as it was."""
        self._plan.end()
        shutil.rmtree(self.place.here, ignore_errors=True)
        shutil.copytree(self._folder / "template", self.place.here, symlinks=True)
        self._facts["run"] += 1
        if self.scenario.each is not None:
            each = self.scenario.each
            in_fork(lambda: each(self.place), self._folder)

    def run(self, fault: Fault | None) -> Ran:
        """Run once in a directory as it was; `fault` says which call fails."""
        self._put_back()
        return self._again(fault)

    def _again(self, fault: Fault | None = None, *, is_counted: bool = True) -> Ran:
        self._plan.set(self.place.here, fault)
        self._facts["attempt"] += 1
        self._facts["persists"] = fault is not None and fault.persists
        streams = [self._folder / name for name in ("out", "err")]
        for path in streams:
            path.write_bytes(b"")
        beside = self.scenario.beside
        helper = in_background(lambda: beside(self.place), self._folder) if beside else None
        pid = os.fork()
        if pid == 0:
            self._act(streams, is_counted=is_counted)
        code = _wait(pid)
        self._plan.end()
        problem = None
        try:
            if helper is not None:
                helper()
        except AssertionError as error:
            problem = f"who talked to it: {error}"
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what it has started
        # The names of what a run has of its own differ from run to run.
        own = re.compile(rf"\b([fp]){self._facts['run']}\b")
        out, err = (own.sub(r"\1N", path.read_text(errors="replace")) for path in streams)
        try:
            state = problem or in_fork(lambda: self.scenario.state(self.place), self._folder)
        except AssertionError as error:
            state = f"cannot be read: {error}"
        return Ran(code, out, err, state, _files(self.place.here))

    def _act(self, streams: Sequence[Path], *, is_counted: bool) -> None:
        """Be the process under test."""
        code = 99
        try:
            os.setsid()
            ctypes.CDLL(None).prctl(
                _PR_SET_PDEATHSIG, signal.SIGKILL
            )  # not to outlive an interrupted harness
            os.chdir(self.place.here)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number, path in enumerate(streams, start=1):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600), number)
            os.environ.update(private_environment(self.place.here))
            tempfile.tempdir = None  # to be found again
            if is_counted and self.scenario.is_program:
                os.environ[PROGRAM] = str(self.scenario.streams)
            elif is_counted:
                self._plan.begin(self.scenario.streams)
            code = self.scenario.act(self.place)
        except BaseException:  # noqa: BLE001  what a caller of Python would see
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def judge(self, fault: Fault) -> list[str] | None:
        """Run with a fault and return what is wrong afterwards; None when its call was never made."""
        for _ in range(_TRIES):
            ran = self.run(fault)
            if self._plan.has_failed():
                break
        else:
            return None  # threads take turns: there were fewer calls
        what = self._plan.what()
        where = f"{self.scenario.name}, {fault} {what.replace(f'{self.place.here}/', '')}"
        return [f"{where}: {problem}" for problem in self._problems(ran, fault, what)]

    def _problems(self, ran: Ran, fault: Fault, what: str) -> Iterator[str]:
        kind, is_crash = fault.kind, fault.how == CRASH
        is_training_killed = is_crash and self.scenario.is_program and ran.code == 128 + signal.SIGKILL
        if ran.code is None:
            yield "hangs"
        elif ran.code < 0 and not (is_crash and ran.code == -signal.SIGKILL):
            yield f"was ended by signal {-ran.code}"
        elif ran.code >= 0 and not is_training_killed:
            yield from self._answer(ran, fault, what)
        cannot_remove = kind in _LEAVES[:2] or (kind in _LEAVES and fault.persists)
        yield from self._disk(ran, may_leave=is_crash or cannot_remove)
        for name in self._leftovers(ran):
            old = time.time() - _OLD_S
            os.utime(self.place.here / name, (old, old), follow_symlinks=False)
        again = self._second_try(ran)
        sound = (self.healthy, self.twice) if self.scenario.between is None else ()
        if again.code not in (self.healthy.code, self.twice.code):
            yield f"a second try ends with {again.code}: {again.err.strip()[-300:]}"
        elif sound and not any((again.out, again.state) == (one.out, one.state) for one in sound):
            yield f"a second try answers {again.out[-300:]!r} and leaves {_shown(again.state)}"
        elif left := [n for n in self._leftovers(again) if ".stepgrade-" in n and kind not in _LEAVES]:
            yield f"drafts are never removed: {left}"

    def _second_try(self, ran: Ran) -> Ran:
        """Run once more without a fault; a slow program only once for all that leave the same state and files."""
        if not self.scenario.is_program:
            return self._again(is_counted=False)
        names = frozenset((_UNIQUE.sub("*", name), mode) for name, (mode, _, _) in ran.files.items())
        key = (json.dumps(ran.state), names)
        if key not in self._second_tries:
            self._second_tries[key] = self._again(is_counted=False)
        return self._second_tries[key]

    def _answer(self, ran: Ran, fault: Fault, what: str) -> Iterator[str]:
        """Yield what is wrong with what the user sees."""
        if ran.code not in (2, 3, 0, 1, *self.scenario.exits):
            yield f"exit code {ran.code}: {ran.err.strip()[-600:]}"
        elif "Traceback" in ran.err or "Exception ignored" in ran.err:
            yield f"exit code {ran.code} with a traceback: {ran.err.strip()[-600:]}"
        elif ran.code == self.healthy.code:
            yield from self._acknowledged(ran, fault, what)
        else:
            yield from self._refused(ran, fault)

    def _acknowledged(self, ran: Ran, fault: Fault, what: str) -> Iterator[str]:
        """Yield what is wrong where the user is told that it was done."""
        scenario = self.scenario
        lost_reader = fault.how == errno.EPIPE and scenario.streams
        if ran.out != self.healthy.out and not lost_reader:
            yield f"exit code {ran.code}, but its output is another: {ran.out[-200:]!r}"
        is_done = ran.state == self.healthy.state or (
            scenario.done and scenario.done(self.healthy.state, ran.state)
        )
        if scenario.is_optional:
            if not is_done and scenario.says and not any(word in ran.err for word in scenario.says):
                yield f"nothing is said of what was not written: {ran.err.strip()[-300:]!r}"
            return
        # SQLite goes on when only the name of its journal is not known to be on the disk.
        if fault.kind == "sync" and not what.endswith("/h") and not scenario.is_server:
            yield f"exit code {ran.code}, although the disk did not take it"
        if not is_done:
            yield f"exit code {ran.code}, but it was not done: {_shown(ran.state)}"

    def _refused(self, ran: Ran, fault: Fault) -> Iterator[str]:
        """Yield what is wrong where the user is told that it failed."""
        never_began = self.scenario.is_program and not ran.out  # and it says so, before anything was done
        if (self.scenario.is_optional and not never_began) or fault.how in _HARMLESS:
            yield f"exit code {ran.code} for what should do no harm: {ran.err.strip()[-300:]}"
        expected = self.healthy.err.splitlines()
        problems = [line for line in ran.err.splitlines() if line not in expected]
        # The gate gives the reason for its verdict, whatever then fails as well.
        problems = [line for line in problems if not line.startswith("stepgrade: gate: ")] or problems
        if len(problems) != 1 and not (self.scenario.streams & 4 and fault.kind == "write"):
            yield f"exit code {ran.code} with {len(problems)} lines: {ran.err.strip()[-300:]}"
        elif problems and self.scenario.says:
            names = (*self.scenario.says, str(self.place.here / "tmp"))
            if not any(name in problems[0] for name in names):
                yield f"does not say where: {problems[0]}"

    def _disk(self, ran: Ran, *, may_leave: bool) -> Iterator[str]:
        """Yield what is wrong with the files that are left."""
        for name, found in self.before.files.items():
            if not self._is_owned(name) and ran.files.get(name) != found:
                yield f"{name} is not ours, and was {'changed' if name in ran.files else 'removed'}"
        if isinstance(ran.state, str):
            yield ran.state
        elif ran.state not in (self.before.state, self.healthy.state):
            between = self.scenario.between
            if between is None or not between(self.before.state, self.healthy.state, ran.state):
                yield f"neither as before nor as after: {_shown(ran.state)}"
        for name in self._leftovers(ran):
            if not may_leave or not any(fnmatch(name, pattern) for pattern in _DRAFTS):
                yield f"left behind: {name}"

    def _leftovers(self, ran: Ran) -> list[str]:
        """Return the names of files that were not there and are no result; a journal is SQLite's to recover from."""
        known = (*self.before.files, *self.healthy.files)
        return [
            name
            for name in ran.files
            if name not in known
            and not name.endswith("-journal")
            and (fnmatch(name, _DRAFTS[0]) or not self._is_owned(name))
        ]

    def _is_owned(self, name: str) -> bool:
        return any(fnmatch(name, pattern) for pattern in self.scenario.owned)

    def faults(self) -> list[Fault]:
        """Return every fault of every call."""
        found = []
        for at, kind in enumerate(self.calls, start=1):
            how = HOW[kind]
            found += [Fault(at, kind, one) for one in how]
            if how[0] not in _HARMLESS:
                found.append(Fault(at, kind, how[0], persists=True))
            if kind not in _NO_CRASH:
                found.append(Fault(at, kind, CRASH))
        return found


def private_environment(here: Path) -> dict[str, str]:
    """Return an environment in which nothing leads out of the directory."""
    tmp, cache = str(here / "tmp"), str(here.parent / "cache")
    own = dict.fromkeys(("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_STATE_HOME"), tmp)
    own["TORCHINDUCTOR_CACHE_DIR"] = cache  # torch makes it when it is imported
    return {**own, "STEPGRADE_CACHE": cache, "STEPGRADE_OUTBOX": f"{tmp}/outbox"}


def _plant_foreign(folder: Path) -> None:
    """Put files of others beside ours, one of them called almost like our drafts, all of them old."""
    for name in (
        "checkpoint.pt",
        "notes.txt",
        ".stepgrade.tmp",
        "stepgrade-old.tmp",
        "run-1.json",
        "history.db.bak",
    ):
        path = folder / name
        path.write_bytes(name.encode() * 100)
        path.chmod(0o640)
        os.utime(path, (1_700_000_000, 1_700_000_000))


def _shown(state: Any) -> str:
    text = json.dumps(state)
    return text if len(text) <= 400 else f"{text[:250]} … {text[-150:]}"


def spread(faults: Sequence[Fault], count: int | None) -> list[Fault]:
    """Return some faults, evenly spread; all for None, and for 0 one of each call, the ways in turn."""
    if count == 0:
        ways: dict[int, list[Fault]] = {}
        for fault in faults:
            ways.setdefault(fault.at, []).append(fault)
        return [ways[at][at % len(ways[at])] for at in ways]
    if count is None or len(faults) <= count:
        return list(faults)
    return [faults[place * len(faults) // count] for place in range(count)]


def run_scenario(scenario: Scenario, folder: Path, plan: Plan, share: Share) -> Result:
    """Run a scenario with the faults of a share, and print how far it is now and then."""
    began, wrong, missed, shown = time.monotonic(), [], 0, time.monotonic()
    bench = Bench(scenario, folder, plan)
    try:
        kinds = {kind: bench.calls.count(kind) for kind in dict.fromkeys(bench.calls)}
        faults = spread(bench.faults(), share.count)[share.part - 1 :: share.parts]
        known = share.done(scenario.name)
        for number, fault in enumerate(faults, start=1):
            if fault not in known:
                start = time.monotonic()
                known[fault] = bench.judge(fault)
                share.keep(scenario.name, fault, known[fault], time.monotonic() - start)
            wrong += known[fault] or []
            missed += known[fault] is None
            if time.monotonic() - shown > PROGRESS_S:
                shown = time.monotonic()
                part = f" ({share.part}/{share.parts})" if share.parts > 1 else ""
                line = f"{scenario.name}{part}: {number} of {len(faults)}, {len(wrong)} wrong"
                print(line, file=sys.stderr, flush=True)
    finally:
        bench.close()
    spent = time.monotonic() - began
    return Result(scenario.name, len(bench.calls), kinds, len(faults), wrong, spent, missed)
