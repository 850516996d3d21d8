"""Scripts that end, start again, catch signals or start others do so under `stepgrade record` as without it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import NamedTuple

import pytest

import stepgrade as sg
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

HEAD = """
import atexit, faulthandler, os, signal, sys, threading, time
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
def train(steps, each=lambda number: None):
    for number in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
        each(number)
"""


class Script(NamedTuple):
    """A script, what it is given to read, and its last steps; None where what was not flushed is lost."""

    body: str
    steps: int | None
    given: str = ""


SCRIPTS = {
    "handlers": Script(
        """
        seen = []
        signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(frame is not None))
        signal.signal(signal.SIGALRM, lambda number, frame: seen.append("alarm"))
        signal.setitimer(signal.ITIMER_REAL, 0.001)
        train(6, lambda number: os.kill(os.getpid(), signal.SIGUSR1))
        time.sleep(0.05)
        print(seen.count(True), seen.count("alarm"))
        print([str(signal.getsignal(number)) for number in (1, 2, 3, 10, 12, 13, 15, 17) if number != 10])
        print(faulthandler.is_enabled(), [each.name for each in threading.enumerate()], signal.pthread_sigmask(0, []))
        print(sys.argv, __name__, os.path.basename(__file__), sys.flags, sys.path[0] == os.getcwd(), sys.orig_argv[1:])
        """,
        6,
    ),
    "the order of its end": Script(
        """
        atexit.register(print, "first registered")
        train(4)
        atexit.register(print, "last registered")
        class Last:
            def __del__(self): print("freed")
        kept = Last()
        sys.exit(300)
        """,
        4,
    ),
    "an end without ceremony": Script("train(4)\nprint('bye', flush=True)\nos._exit(5)", None),
    "started again": Script(
        """
        if len(sys.argv) == 1:
            train(3)
            sys.stdout.flush()
            os.execv(sys.executable, [sys.executable, __file__, "again"])
        train(5)
        print(sys.argv[1:])
        """,
        5,
    ),
    "an error with a hook of its own": Script(
        """
        sys.excepthook = lambda kind, error, trace: print("its own", kind.__name__, error)
        threading.excepthook = lambda given: print("in a thread", given.exc_type.__name__)
        thread = threading.Thread(target=lambda: model(torch.ones(1, 9)))
        thread.start(); thread.join()
        train(4)
        model(torch.ones(1, 9))
        """,
        4,
    ),
    "a debugger": Script("train(3)\nbreakpoint()\nprint('after')\ntrain(3)\n", 6, "p 40 + 2\nup\nw\nc\n"),
    "processes": Script(
        """
        import multiprocessing as mp
        from concurrent.futures import ProcessPoolExecutor
        def work(number):
            train(2)
            return number * 2
        if __name__ == "__main__":
            with mp.get_context("fork").Pool(2) as pool:
                print(pool.map(work, range(4)))
            with ProcessPoolExecutor(1, mp.get_context("spawn")) as pool:
                print(list(pool.map(work, range(2))))
            train(5)
        """,
        5,
    ),
    "asyncio": Script(
        """
        import asyncio
        async def work():
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.SIGTERM, lambda: print("asked to end"))
            for _ in range(5):
                train(1)
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            await asyncio.to_thread(train, 2)
        asyncio.run(work())
        """,
        5,
    ),
    "nobody listens": Script("os.close(1)\nos.close(2)\ntrain(4)\nsys.exit(9)", 4),
    "a segmentation fault": Script(
        """
        import ctypes
        faulthandler.disable()
        train(4)
        ctypes.string_at(0)
        """,
        None,
    ),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_as_without(tmp_path: Path, name: str) -> None:
    script = SCRIPTS[name]
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("PYTHONFAULT")},
        "PYTHONPATH": str(ROOT / "src"),
        "NO_COLOR": "1",
    }
    ran = []
    for before in ([], ["-m", "stepgrade", "record", "--quiet"]):
        folder = tmp_path / "here"
        folder.mkdir()
        (folder / "train.py").write_text(HEAD + textwrap.dedent(script.body))
        ended = subprocess.run(
            [sys.executable, *before, "train.py"],
            cwd=folder,
            env=environment,
            input=script.given,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        ran.append((ended.returncode, ended.stdout, ended.stderr))
        folder.rename(tmp_path / f"ran-{len(ran)}")
    assert ran[1] == ran[0]
    recorded = [sg.load(path).recorded_steps for path in (tmp_path / "ran-2").glob("stepgrade*.json")]
    assert (script.steps in recorded) if script.steps is not None else recorded
