"""Run a script by itself and under `stepgrade record`, and return all that can be seen of each run."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import stepgrade as sg
from tests.conftest import ROOT

DEADLINE_SECONDS = 600.0
OURS = ("STEPGRADE_SESSION", "STEPGRADE_PARENT", "PYTHONPATH")  # what a script finds in its environment

TRAIN = """
import hashlib, os, sys
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
    def forward(self, x):
        return x + torch.nn.functional.dropout(torch.relu(self.linear(x)), 0.1, self.training)
model = torch.nn.Sequential(*(Block() for _ in range(3)))
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
def train(steps):
    for _ in range(steps):
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss.item().hex()
def bits():
    whole = hashlib.sha256()
    for tensor in (*model.state_dict().values(), torch.get_rng_state()):
        whole.update(tensor.numpy().tobytes())
    return whole.hexdigest()
def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


class Case(NamedTuple):
    """A script and how it is started: with torch and a model, what it reads, and what is sent to it.

    `line` is a command line with `{run}` for all of it, or `{start}` and `{here}/train.py` for its parts; `sent`
    goes to it, or to its group, when it says "ready". A recording of one that trains has `steps`, if they are known.
    """

    body: str
    trains: bool = False
    given: str = ""
    line: str = ""
    sent: int = 0
    to_group: bool = False
    steps: int | None = None
    is_recorded: bool = True
    is_watched: bool = True  # by coverage, which is a trace function to a script that looks for one


class Seen(NamedTuple):
    """How a run ended, and everything that it wrote or left behind."""

    code: int
    out: str
    err: str
    files: dict[str, str]
    still_running: list[str]


def run_both(case: Case, folder: Path) -> tuple[Seen, Seen]:
    """Return what is seen of the plain run and of the recorded one, each in the same empty folder."""
    plain = _run(case, folder, [sys.executable])
    recorded = _run(case, folder, [sys.executable, "-m", "stepgrade", "record", "--quiet"])
    return plain, recorded


def unwatched() -> dict[str, str]:
    """Return the environment without what lets coverage follow a process: it traces, and writes a file."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_PROCESS")}


def recorded_steps(folder: Path) -> list[int]:
    """Return how many steps the recordings of the recorded run hold."""
    return [sg.load(path).recorded_steps for path in (folder / "ran-2").rglob("stepgrade*.json")]


def _run(case: Case, folder: Path, command: list[str]) -> Seen:
    here = folder / "here"
    here.mkdir()
    script = here / "train.py"
    script.write_text((TRAIN if case.trains else "import os, sys\n") + textwrap.dedent(case.body))
    words = [*command, "train.py"]
    if case.line:
        given = case.line.format(
            run=" ".join(words), start=" ".join(command), here=here, python=sys.executable
        )
        words = ["/bin/sh", "-c", given]
    environment = os.environ.copy() if case.is_watched else unwatched()
    environment = {name: value for name, value in environment.items() if not name.startswith("PYTHON")}
    environment |= {"PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
    environment |= {"GLOO_SOCKET_IFNAME": "lo", "PYTHONHASHSEED": "0"}
    out, err = folder / "out", folder / "err"
    with out.open("wb") as stdout, err.open("wb") as stderr:
        process = subprocess.Popen(
            words,
            cwd=here,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
    try:
        if case.sent:
            _wait_until(lambda: b"ready" in out.read_bytes() or process.poll() is not None, process, "ready")
            (os.killpg if case.to_group else os.kill)(process.pid, case.sent)
        with suppress(BrokenPipeError):
            process.stdin.write(case.given.encode())
            process.stdin.close()
        _wait_until(lambda: process.poll() is not None, process, "an end")
        with suppress(TimeoutError):
            _wait_until(lambda: not _session(process.pid), process, "the end of its children", 10.0)
        left = [_name(pid) for pid in _session(process.pid)]
    finally:
        _end_session(process)
    files = {
        str(path.relative_to(here)): path.read_bytes().hex() if path.is_file() else "a folder"
        for path in sorted(here.rglob("*"))
        if "__pycache__" not in path.parts and not path.name.startswith("stepgrade")
    }
    seen = Seen(process.returncode, out.read_text(), err.read_text(), files, left)
    shutil.move(here, folder / f"ran-{len(list(folder.glob('ran-*'))) + 1}")
    return seen


def _wait_until(has_come, process: subprocess.Popen[bytes], what: str, seconds=DEADLINE_SECONDS) -> None:
    until = time.monotonic() + seconds
    while not has_come():
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not come in {seconds:.0f} s\n{_stacks(process.pid)}")
        time.sleep(0.01)


def _session(leader: int) -> list[int]:
    """Return the processes of a session that have not ended; zombies have."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError):
            state, _, _, session = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state != "Z":
                found.append(int(entry.name))
    return found


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return "gone"


def _stacks(leader: int) -> str:
    """Return where each process of a session stands, for whoever has to find out why it hangs."""
    parts = []
    for pid in _session(leader):
        command = ["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"]
        shown = "(gdb would show its stacks)"
        if shutil.which("gdb"):
            ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
            shown = "\n".join(line for line in ran.stdout.splitlines() if line.startswith(("#", "Thread")))
        parts.append(f"process {pid}: {_name(pid)}\n{shown}")
    return "\n".join(parts)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    for pid in _session(process.pid):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.stdin.close()
    process.wait()
