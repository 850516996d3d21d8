"""What torch's profiler leaves in a process does not outlive the step that was sampled with it."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.record.forked import start

LOOP = """
import ctypes, os, sys, time
import torch
import stepgrade as sg
from stepgrade.record import kineto
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
def train(steps):
    for _ in range(steps):
        model(torch.ones(2, 8)).sum().backward()
        optimizer.step()
def threads():
    return len(os.listdir("/proc/self/task"))
"""


def run(tmp_path: Path, body: str, loop: str = LOOP) -> tuple[int, str, list[str]]:
    (tmp_path / "train.py").write_text(loop + textwrap.dedent(body))
    ran = start(tmp_path / "train.py", cwd=tmp_path).wait()
    return ran.code, ran.out, ran.err.splitlines()


def test_its_thread_is_gone_after_the_window_and_profilers_work_without(tmp_path: Path) -> None:
    body = """
        from torch.profiler import profile
        train(1)
        before = threads()
        recorder = sg.start_recording(model, optimizer, path="run.json", warmup=2)
        train(1)
        assert recorder._recording.window.is_open and threads() > before
        train(1)
        recorder._recording.lines.pause()
        while kineto._threads:  # it did not wait yet when the window was closed
            train(1)
        until = time.monotonic() + 600
        while threads() > before and time.monotonic() < until:  # a joined thread leaves /proc a little later
            time.sleep(0.01)
        print(threads() - before)
        recorder.close()
        with profile() as found:
            train(1)
        print("aten::linear" in {event.name for event in found.events()})
    """
    code, out, err = run(tmp_path, body)
    assert (code, out) == (0, "0\nTrue\n"), err
    said = [line for line in err if "profiler_st" in line]
    assert len(said) in (0, 2), said  # as much as without us, for its own profiler: ours has written nothing


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_child_exits_where_the_thread_cannot_be_ended(tmp_path: Path) -> None:
    """A torch that has no such function: then the child leaves out what would wait for the thread."""
    body = """
        kineto._STOP = "absent"
        sg.start_recording(model, optimizer, path="run.json", warmup=2)
        train(8)
        print(len(kineto._threads), flush=True)
        pid = os.fork()
        if pid == 0:
            # Here the interpreter is another one's, and ends by os._exit: the way out is that of C.
            libc = ctypes.CDLL(None)
            libc.printf(b"flushed\\n")
            libc.exit(3)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """
    assert run(tmp_path, body)[:2] == (0, "1\nflushed\n3\n")


def test_a_sampled_step_does_not_import_the_compiler(tmp_path: Path) -> None:
    """It takes two seconds, and nothing was compiled."""
    body = """
        recorder = sg.start_recording(model, path="run.json", warmup=2)
        for _ in range(6):
            loss = model(torch.ones(2, 8)).sum()
            gradients = torch.autograd.grad(loss, list(model.parameters()))
            recorder.step()
        print(recorder._recording.window.sampled is not None, "torch._dynamo" in sys.modules)
        recorder.close()
        print(torch.profiler.profiler.torch is torch)
    """
    code, out, err = run(tmp_path, body, LOOP.replace("torch.optim.SGD(model.parameters(), 1e-3)", "None"))
    assert (code, out) == (0, "True False\nTrue\n"), err
