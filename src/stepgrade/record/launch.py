"""Run a training command, with a recorder in each Python process that takes a step."""

from __future__ import annotations

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from stepgrade.errors import BadInput, BadOption, MissingExtra, NotMeasured
from stepgrade.files import absolute_path, scratch_folder

SESSION, PARENT = "STEPGRADE_SESSION", "STEPGRADE_PARENT"
OPTIONS = ".options.json"
_IMPORTED = ".imported-"
COUNTER = struct.Struct("<q")  # the step count of a process, at the start of its file
INJECTED = Path(__file__).parent / "inject"
_PYTHON_FILES = (".py", ".pyw", ".pyc", ".pyz")
_NO_SCRIPTS = {  # common mistakes, and what is meant
    ".ipynb": ("is a notebook", "jupyter nbconvert makes a script of it"),
    ".sh": ("is a script for the shell", "name the shell first: bash {}"),
    ".json": ("is not a script", "to grade a profile: stepgrade score {}"),
    ".gz": ("is not a script", "to grade a profile: stepgrade score {}"),
}
_BETWEEN_LOOKS_SECONDS = 0.2
_SENT_ON = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_TO_END = ("SIGINT", "SIGQUIT", "SIGTERM", "SIGHUP")
_SI_KERNEL = 0x80
_SENT_TO_ALL_SECONDS = 0.05


class RecordedProcess(Struct, frozen=True):
    """The file of a recorded process, and how many steps it had ended when it exited."""

    path: Path
    steps: int


class Launched(Struct, frozen=True):
    """How a command ended: its return code, negative for a signal, and what was recorded.

    `frameworks` are the packages that its processes imported; `had_python` is whether any process was a
    Python that could be recorded; `asked_by` is the signal that asked for the end, if any.
    """

    code: int
    recorded: list[RecordedProcess]
    problem: str | None
    frameworks: tuple[str, ...] = ()
    had_python: bool = True
    asked_by: int | None = None

    def leave_if_asked(self) -> None:
        """Raise KeyboardInterrupt or SystemExit if this process was asked to end meanwhile."""
        if signal.SIGINT in (self.asked_by, -self.code):
            raise KeyboardInterrupt
        if self.asked_by is not None:
            raise SystemExit(128 + self.asked_by)


class Place(Struct, frozen=True):
    """Where a command runs: in this folder, before others with packages of these, its output to this file.

    Its session is in `scratch`, by default in the folder for temporary files.
    """

    folder: str | None = None
    packages: tuple[str, ...] = ()
    output: int | None = None
    scratch: str | None = None


def run_recorded(
    command: Sequence[str],
    path: Path,
    options: dict[str, object],
    *,
    as_module: bool = False,
    on_steps: Callable[[int], None] | None = None,
    place: Place | None = None,
) -> Launched:
    """Run a script, a module or any program that starts Python; each training process is recorded.

    Its interpreter, streams, signals and exit are as without the recorder. `path` is the file to write,
    numbered if several processes train; `on_steps` is called with the number of steps from time to time.
    """
    words, place = command_line(command, as_module=as_module), place or Place()
    try:
        os.getcwd()
    except FileNotFoundError:  # it is gone
        path = Path(absolute_path(path))
    with ExitStack() as stack:
        try:
            session = Path(stack.enter_context(scratch_folder(place.scratch)))
            (session / OPTIONS).write_text(json.dumps({**options, "path": absolute_path(path)}))
        except OSError as error:
            problem = f"no temporary files: {error.strerror or error}"
            hint = "set TMPDIR to a folder that can be written"
            raise BadInput(problem, where=words[0], hint=hint) from error

        def look() -> None:
            if on_steps is None:
                return
            with suppress(Exception):  # the training must go on
                if steps := max((each.steps for each in _recorded(session, path)), default=0):
                    on_steps(steps)

        code, asked_by = _run(
            words, {**os.environ, **session_environment(session, place.packages)}, look, place
        )
        try:
            failed, left = session / ".failed", session.glob(f"{_IMPORTED}*")
            return Launched(
                code=code,
                recorded=_recorded(session, path),
                problem=failed.read_text(encoding="utf-8") if failed.exists() else None,
                frameworks=tuple(sorted(found.name.removeprefix(_IMPORTED) for found in left)),
                had_python=(session / ".python").exists(),
                asked_by=asked_by,
            )
        except OSError as error:  # the training has ended; keep its exit code
            problem = f"what was recorded cannot be read: {error.strerror or error}"
            return Launched(code=code, recorded=[], problem=problem, asked_by=asked_by)


def session_environment(session: Path, packages: Sequence[str] = ()) -> dict[str, str]:
    """Return the variables by which every Python started with them loads stepgrade's `sitecustomize` first.

    `packages` are folders whose packages come before those that are installed.
    """
    before = os.environ.get("PYTHONPATH", "")
    folders = dict.fromkeys([os.fspath(INJECTED), *packages, *(before.split(os.pathsep) if before else ())])
    return {
        SESSION: os.fspath(session),
        PARENT: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join(folders),
    }


def command_line(command: Sequence[str], *, as_module: bool = False) -> list[str]:
    """Return the program to run and its arguments: Python for a script or module, else as given."""
    words = list(command[1:] if command[:1] == ["--"] else command)
    if not words:
        raise BadOption("no script given", hint="name it, followed by its arguments")
    if as_module:
        return [_python(), "-m", *words]
    first = Path(words[0])
    is_package = (first / "__main__.py").is_file()
    is_program = os.access(first, os.X_OK) and first.suffix not in _PYTHON_FILES
    if first.is_file() and not is_program and first.suffix in _NO_SCRIPTS:
        problem, hint = _NO_SCRIPTS[first.suffix]
        raise BadInput(problem, where=words[0], hint=hint.format(first))
    if is_package or (first.is_file() and not is_program):
        return [_python(), *words]
    program = shutil.which(words[0])
    if program is None:
        hint = "to run a module use -m"
        raise BadInput("no such file, nor a program of that name", where=words[0], hint=hint)
    return [program, *words[1:]]


def die_by(signal_number: int) -> None:
    """End this process by the signal that ended the training, so that the parent sees the same."""
    with suppress(ValueError, OSError):
        signal.signal(signal_number, signal.SIG_DFL)
        if sys.platform != "win32":
            _leave_no_core()
        os.kill(os.getpid(), signal_number)


def _leave_no_core() -> None:
    import resource  # not on Windows

    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))


def _python() -> str:
    if find_spec("torch") is None:
        raise MissingExtra("recording needs torch", hint="pip install 'stepgrade[torch]'")
    return sys.executable


def _run(
    words: list[str], environment: dict[str, str], look: Callable[[], None], place: Place
) -> tuple[int, int | None]:
    """Run the program, forward signals to it, and return its code, and the signal that asked for its end."""
    asked_by = None
    try:
        if hasattr(signal, "sigtimedwait"):  # on Linux
            return _run_with_signals(words, environment, look, place)
        process = subprocess.Popen(  # noqa: S603  what the user asked for
            words, env=environment, close_fds=False, cwd=place.folder, stdout=place.output
        )
    except OSError as error:
        raise BadInput(f"cannot be run: {error.strerror or error}", where=words[0]) from error
    with suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    while True:
        try:
            return process.wait(_BETWEEN_LOOKS_SECONDS), asked_by
        except subprocess.TimeoutExpired:
            look()
        except KeyboardInterrupt:
            asked_by = signal.SIGINT  # the terminal has also sent it to the training


def _run_with_signals(
    words: list[str], environment: dict[str, str], look: Callable[[], None], place: Place
) -> tuple[int, int | None]:
    asked_by = None
    numbers = [getattr(signal, name) for name in _SENT_ON]
    expected = {number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN}
    awaited = {*expected, signal.SIGCHLD, signal.SIGALRM}
    to_end = {getattr(signal, name) for name in _TO_END}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
    unblock = partial(signal.pthread_sigmask, signal.SIG_SETMASK, mask)
    ignores_children = signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN
    if ignores_children:  # exit codes of children are lost then
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def prepare() -> None:
        if ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        unblock()

    witness = _Witness(expected)
    # No timeout: after a stop and continue, Python would report a signal that never came.
    signal.setitimer(signal.ITIMER_REAL, _BETWEEN_LOOKS_SECONDS, _BETWEEN_LOOKS_SECONDS)
    try:
        # Open descriptors are inherited by the training.
        process = subprocess.Popen(  # noqa: S603  what the user asked for
            words,
            env=environment,
            preexec_fn=prepare,  # noqa: PLW1509  one thread
            close_fds=False,
            cwd=place.folder,
            stdout=place.output,
        )
        while process.poll() is None:
            arrived = signal.sigwaitinfo(awaited)
            if arrived.si_signo in to_end:
                asked_by = arrived.si_signo
            if arrived.si_signo == signal.SIGALRM:
                look()
            elif arrived.si_signo == signal.SIGCHLD or arrived.si_code == _SI_KERNEL:
                continue  # the terminal has also sent it to the training
            elif not witness.has_got(arrived.si_signo):
                process.send_signal(arrived.si_signo)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.sigtimedwait({signal.SIGALRM}, 0)  # it would end this process once unblocked
        witness.close()
        unblock()
    return process.returncode, asked_by


class _Witness:
    """A process that only dies of signals, to see whether a signal went to the whole process group.

    `timeout`, Slurm and systemd signal every process of a group or job: then the training must not get the
    signal twice. The name of this process differs from ours and the training's, since some signal by name.
    """

    def __init__(self, deadly: set[int]) -> None:
        self._deadly = deadly
        self._program = shutil.which("cat")  # ends with this process, when its input closes
        self._process = self._begin()

    def _begin(self) -> subprocess.Popen[bytes] | None:
        if self._program is None:
            return None

        def prepare() -> None:
            for number in self._deadly:
                signal.signal(number, signal.SIG_DFL)
            _leave_no_core()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._deadly)

        quiet = subprocess.DEVNULL  # readers of our output would wait for it
        return subprocess.Popen(  # noqa: S603  as above
            [self._program],
            stdin=subprocess.PIPE,
            stdout=quiet,
            stderr=quiet,
            preexec_fn=prepare,  # noqa: PLW1509  as above
        )

    def has_got(self, number: int) -> bool:
        """Return whether a signal was sent to the whole process group."""
        if self._process is None:
            return False
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SENT_TO_ALL_SECONDS)  # processes are signalled one by one
        is_sent = self._process.poll() == -number
        if self._process.returncode is not None:
            self.close()
            self._process = self._begin()
        signal.sigtimedwait({number}, 0)  # some senders signal the process and its group
        return is_sent

    def close(self) -> None:
        """End it."""
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):  # it is closed nevertheless; the training keeps its exit code
                self._process.stdin.close()
            self._process.wait()


def _recorded(session: Path, path: Path) -> list[RecordedProcess]:
    """Return what the processes of the session recorded, ordered by name; the training may delete it."""
    found, claims = [], []
    with suppress(FileNotFoundError):
        claims = sorted(session.iterdir(), key=lambda claim: (len(claim.name), claim.name))
    for claim in claims:
        content = b""
        if not claim.name.startswith("."):
            with suppress(FileNotFoundError):
                content = claim.read_bytes()
        if len(content) >= COUNTER.size:
            elsewhere = os.fsdecode(content[COUNTER.size :])  # its path, if it could not be written here
            where = Path(elsewhere) if elsewhere else path.with_name(claim.name)
            found.append(RecordedProcess(path=where, steps=COUNTER.unpack_from(content)[0]))
    return found


def turns(most: int, until: float) -> Iterator[tuple[int, bool]]:
    """Yield the number of each turn, and whether it runs backwards: what grows with time affects all alike.

    No turn begins that would end after `until`, by the monotonic clock.
    """
    began = time.monotonic()
    for number in range(1, most + 1):
        yield number, number % 2 == 0
        if time.monotonic() + (time.monotonic() - began) / number > until:
            break


def run_in_turns(
    commands: Sequence[Sequence[str]],
    times: int,
    output: Path,
    options: dict[str, object],
    progress: Callable[[str], None],
) -> list[list[list[Path]]]:
    """Record each command several times, in turns, so that changes of the machine affect all alike.

    Return the files of each run of each command, which may begin with -m; raise NotMeasured when a run ends
    without a recording.
    """
    files: list[list[list[Path]]] = [[] for _ in commands]
    for turn in range(1, times + 1):
        for index, command in enumerate(commands):
            letter = chr(ord("a") + index) if len(commands) > 1 else ""
            path = output.with_name(f"{output.stem}.{letter}{turn}{output.suffix}")
            progress(f"run {turn} of {times}{f' of command {letter}' if letter else ''}")
            as_module = list(command[:1]) == ["-m"]
            launched = run_recorded(command[as_module:], path, options, as_module=as_module)
            launched.leave_if_asked()
            if not launched.recorded:
                problem = f"run {turn} ended with code {launched.code} and no recording"
                raise NotMeasured(problem, where=" ".join(command), hint=launched.problem)
            files[index].append([each.path for each in launched.recorded])
    return files
