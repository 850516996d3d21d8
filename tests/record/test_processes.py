"""Recordings that end in other ways than by themselves, several processes, and the command."""

from __future__ import annotations

import json
import os
import pty
import shutil
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import stepgrade as sg
from tests.conftest import ROOT
from tests.record.forked import Ran, start

LOOP = """
import sys
import torch
import stepgrade as sg
sys.path.insert(0, {examples!r})
from train_gpt import GPT, Text, loss_of
from torch.utils.data import DataLoader
torch.set_num_threads(1)
model = GPT(layers=2, width=32, sequence=16)
optimizer = torch.optim.AdamW(model.parameters())
loader = DataLoader(Text(2 * {steps}, 16), batch_size=2)
def train(each=lambda loss: None):
    for ids, targets in loader:
        loss = loss_of(model(ids), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        each(loss)
"""


def write_script(folder: Path, body: str, steps: int = 10) -> Path:
    head = LOOP.format(examples=str(ROOT / "examples"), steps=steps)
    (folder / "train.py").write_text(head + textwrap.dedent(body))
    return folder / "train.py"


def run(*command: object, cwd: Path, **environment: str) -> Ran:
    return start(*command, cwd=cwd, **environment).wait()


def wait_until(has_come: Callable[[], bool], what: str, seconds: float = 600.0) -> None:
    until = time.monotonic() + seconds
    while not has_come():
        assert time.monotonic() < until, f"{what} did not come"
        time.sleep(0.02)


def wait_for(path: Path) -> None:
    wait_until(path.exists, path.name)


def has_sampled_step(path: Path) -> bool:
    with suppress(sg.errors.BadInput):  # no step is in it yet
        return sg.load(path).ledger is not None
    return False


def has_steps(path: Path, steps: int) -> bool:
    with suppress(sg.errors.BadInput):
        return sg.load(path).recorded_steps >= steps
    return False


def wait_for_end(pid: int, seconds: float = 600.0) -> None:
    until = time.monotonic() + seconds
    with suppress(ProcessLookupError, FileNotFoundError):
        while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
            os.kill(pid, 0)
            assert time.monotonic() < until, "the process did not end"
            time.sleep(0.02)


def test_a_killed_run_is_there_up_to_its_last_flush(tmp_path: Path) -> None:
    body = """
        recorder = sg.start_recording(model, optimizer, loader, path="run.json", flush_seconds=0.2)
        train()
    """
    process = start(write_script(tmp_path, body, steps=1_000_000 // 8), cwd=tmp_path)
    wait_for(tmp_path / "run.json")
    wait_until(lambda: has_steps(tmp_path / "run.json", 9), "nine steps")
    process.send_signal(signal.SIGKILL)
    process.wait()
    profile = sg.load(tmp_path / "run.json")
    assert profile.steps > 5
    assert len(profile.layers) == 2
    assert profile.layers[0].name == "blocks.0"
    assert profile.wall_coverage > 0.5
    assert profile.tokens_per_step == 32
    assert any("was not finished" in note.text for note in profile.notes)
    assert 0.0 < sg.score(profile).step_time_ms <= max(profile.samples_ms)


def test_a_watch_that_nobody_closes_writes_at_exit(tmp_path: Path) -> None:
    body = """
        sg.start_recording(model, optimizer, loader, path="run.json")
        train()
        raise RuntimeError("the script's own")
    """
    script = write_script(tmp_path, body)  # an interpreter of its own: forked processes have no such exit
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600
    )
    assert "the script's own" in ran.stderr
    assert json.loads((tmp_path / "run.json").read_text())["stepgrade"]["recorded_steps"] == 10


def test_a_full_disk_is_told_once_and_the_training_goes_on(tmp_path: Path) -> None:
    body = """
        import resource, tempfile
        tempfile.tempdir = "/proc"
        resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
        with sg.Recorder(model, path="run.json", flush_seconds=0) as recorder:
            train(recorder.step)
        print("trained", recorder.steps, recorder.profile().steps)
    """
    ran = run(write_script(tmp_path, body, steps=400), cwd=tmp_path)
    assert ran.out == "trained 400 397\n"
    assert ran.err.count("stepgrade will try again") == 1
    assert sg.load(tmp_path / "run.json").recorded_steps < 400  # the journal until the disk was full


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = shutil.which("mount") and os.geteuid() == 0
    command = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", folder]
    if not mounted or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_a_disk_that_fills_up_keeps_what_was_written_and_the_profile_goes_elsewhere(
    tmp_path: Path, small_disk: Path
) -> None:
    (tmp_path / "elsewhere").mkdir()
    body = """
        import tempfile
        tempfile.tempdir = "elsewhere"
        with sg.Recorder(model, path="small/run.json", flush_seconds=0) as recorder:
            train(recorder.step)
        print(recorder.path)
    """
    ran = run(write_script(tmp_path, body, steps=400), cwd=tmp_path)
    assert ran.out == "elsewhere/run.json\n"
    assert "No space left on device" in ran.err
    assert ran.err.count("stepgrade will try again") == 1
    assert 0 < sg.load(small_disk / "run.json").recorded_steps < 400
    assert sg.load(tmp_path / "elsewhere" / "run.json").recorded_steps == 400


def test_a_directory_that_may_not_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    body = """
        import os, tempfile
        if os.getuid() == 0:
            os.setegid(65534); os.seteuid(65534)
        tempfile.tempdir = "elsewhere"
        with sg.Recorder(model, path="locked/run.json") as recorder:
            train(recorder.step)
        print(recorder.path)
    """
    script = write_script(tmp_path, body)
    folder.chmod(0o555)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    tmp_path.chmod(0o755)
    ran = run(script, cwd=tmp_path)
    assert "locked/run.json cannot be written (Permission denied)" in ran.err
    assert ran.out == "elsewhere/run.json\n", ran.err[-1500:]
    assert list(folder.iterdir()) == []


DISTRIBUTED = """
import os
import torch.distributed as dist
dist.init_process_group("gloo")
torch.manual_seed(0)
if sys.argv[1] == "ddp":
    model = torch.nn.parallel.DistributedDataParallel(model)
elif sys.argv[1] == "fsdp1":
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from train_gpt import Block
    model = FSDP(model, auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))
else:
    from torch.distributed.fsdp import fully_shard
    for block in model.blocks:
        fully_shard(block)
    fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
recorder = sg.start_recording(model, optimizer, loader, path="run.json")
train()
recorder.close()
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.parametrize("kind", ["ddp", "fsdp1", "fsdp2"])
def test_each_rank_writes_its_own_file(tmp_path: Path, kind: str) -> None:
    script = write_script(tmp_path, DISTRIBUTED)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [start(script, kind, cwd=tmp_path, RANK=str(rank), **address) for rank in range(2)]
    for rank, ran in enumerate([process.wait() for process in ranks]):
        assert ran.code == 0, ran.err
        profile = sg.load(tmp_path / f"run.rank{rank}.json")
        assert (profile.recorded_steps, profile.world_size, len(profile.layers)) == (10, 2, 2)
        assert [layer.name for layer in profile.layers] == ["blocks.0", "blocks.1"]
        assert all(layer.fwd_ms and layer.bwd_ms for layer in profile.layers)
        phases = {phase.name: phase.ms for phase in profile.phases}
        assert phases["communication"] > 0
        # FSDP's collectives run inside the layers, DDP's all-reduce does not.
        whole = phases["backward"] + (phases["communication"] if kind != "ddp" else 0.0)
        assert sum(layer.bwd_ms for layer in profile.layers) <= whole * 1.01
        assert profile.wall_coverage <= 1.0


def test_the_command_on_two_ranks(tmp_path: Path) -> None:
    body = """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
        train()
        dist.destroy_process_group()
    """
    script = write_script(tmp_path, body)
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    command = ("stepgrade", "record", "-o", "run.json", script)
    ranks = [start(*command, cwd=tmp_path, RANK=str(rank), **address) for rank in range(2)]
    first, second = [process.wait() for process in ranks]
    assert (first.code, second.code) == (0, 0), first.err + second.err
    assert first.out == second.out == ""
    assert "What the device does in a step" in first.err
    assert "What the device does in a step" not in second.err  # one scorecard is enough
    assert {path.name for path in tmp_path.glob("run*")} == {"run.rank0.json", "run.rank1.json"}
    assert sg.load(tmp_path / "run.rank1.json").world_size == 2


class TestCommand:
    """`stepgrade record`, as it is called."""

    def test_an_unchanged_script_is_recorded_and_scored(self, tmp_path: Path) -> None:
        script = write_script(tmp_path, 'train(); print("done", sys.argv[1:], __name__)')
        ran = run("stepgrade", "record", "-o", "run.json", script, "--lr", "1", cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert ran.out == "done ['--lr', '1'] __main__\n"  # its own, and nothing else
        assert "What the device does in a step" in ran.err
        assert "recorded 10 steps in run.json" in ran.err
        profile = sg.load(tmp_path / "run.json")
        phases = {phase.name for phase in profile.phases} - {"host", "gradients"}
        assert phases == {"input", "forward", "loss", "backward", "optimizer"}
        assert len(profile.layers) == 2
        assert "model GPT" in profile.contents["configuration"]

    def test_batches_made_by_hand_are_the_hosts_time(self, tmp_path: Path) -> None:
        body = """
            import time
            for _ in range(10):
                time.sleep(0.05)
                ids = torch.randint(0, 64, (2, 17))
                loss = loss_of(model(ids[:, :-1]), ids[:, 1:])
                optimizer.zero_grad()
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
        """
        ran = run("stepgrade", "record", "-o", "run.json", write_script(tmp_path, body), cwd=tmp_path)
        phases = {phase.name: phase.ms for phase in sg.load(tmp_path / "run.json").phases}
        assert phases["host"] >= 50.0
        assert {"loss", "gradients"} <= set(phases)
        assert "Bottleneck  host" in ran.err
        assert "outside of operations" in ran.err
        assert "DataLoader" not in ran.err  # the loop has none
        assert "with_stack" not in ran.err  # of another profiler
        assert "NF4_" not in ran.err  # the advice of another runtime, whose format this is
        assert "contract v1" not in ran.err

    def test_modules_that_backward_calls_again_are_no_models(self, tmp_path: Path) -> None:
        body = """
            model = torch.nn.Sequential(GPT(layers=2, width=32, sequence=16, checkpointing=True))
            train()
        """
        ran = run("stepgrade", "record", "-o", "run.json", write_script(tmp_path, body), cwd=tmp_path)
        assert "repeated blocks" not in ran.err
        layers = sg.load(tmp_path / "run.json").layers
        assert [layer.name for layer in layers] == ["0.blocks.0", "0.blocks.1"]
        assert all(layer.recompute_ms for layer in layers)

    def test_two_models_of_one_class(self, tmp_path: Path) -> None:
        body = """
            other = GPT(layers=2, width=32, sequence=16)
            optimizer.add_param_group({"params": other.parameters()})
            first, model = model, lambda ids: first(ids) + other(ids)
            train()
        """
        ran = run("stepgrade", "record", "-o", "run.json", write_script(tmp_path, body), cwd=tmp_path)
        assert ran.code == 0, ran.err
        names = [layer.name for layer in sg.load(tmp_path / "run.json").layers]
        assert names == ["blocks.0", "blocks.1", "GPT.blocks.0", "GPT.blocks.1"]

    def test_a_compiled_model_stays_one_graph(self, tmp_path: Path) -> None:
        body = """
            model = torch.compile(model, backend="eager", fullgraph=True)
            train()
        """
        ran = run("stepgrade", "record", "-o", "run.json", write_script(tmp_path, body), cwd=tmp_path)
        assert ran.code == 0, ran.err
        assert any("torch.compile" in note.text for note in sg.load(tmp_path / "run.json").notes)

    def test_a_module(self, tmp_path: Path) -> None:
        write_script(tmp_path, "train()")
        ran = run("stepgrade", "record", "--quiet", "-o", "run.json", "-m", "train", cwd=tmp_path)
        assert (ran.code, ran.out, ran.err) == (0, "", "")
        assert sg.load(tmp_path / "run.json").recorded_steps == 10

    @pytest.mark.parametrize(
        ("body", "code", "words"),
        [
            ("train(); sys.exit(7)", 7, "recorded 10 steps"),
            ("train(); sys.exit('bad')", 1, "bad"),
            ("train(); raise ValueError('its own')", 1, "ValueError: its own"),
            ("pass", 0, "no step was recorded"),
        ],
    )
    def test_the_scripts_own_end(self, tmp_path: Path, body: str, code: int, words: str) -> None:
        ran = run("stepgrade", "record", "-o", "run.json", write_script(tmp_path, body), cwd=tmp_path)
        assert (ran.code, words in ran.err) == (code, True), ran.err
        assert "stepgrade/record" not in ran.err  # tracebacks begin in the script

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
    def test_an_interruption_still_writes_and_scores(self, tmp_path: Path, number: int) -> None:
        body = "import os; open('pid', 'w').write(str(os.getpid())); train()"
        script = write_script(tmp_path, body, steps=100_000)
        process = start("stepgrade", "record", "-o", "run.json", script, cwd=tmp_path)
        wait_for(tmp_path / "run.json")  # the first flush, which may be of warm-up steps only
        wait_until(lambda: has_sampled_step(tmp_path / "run.json"), "a sampled step")
        process.send_signal(number)
        ran = process.wait()
        assert (ran.code, ran.out) == (-number, "")  # as whoever waits for the script would see it
        if number == signal.SIGKILL:  # of the command itself: what it started ends too
            wait_for_end(int((tmp_path / "pid").read_text()))
            return
        assert "What the device does in a step" in ran.err
        assert f"ended by {number.name}" in ran.err
        assert sg.load(tmp_path / "run.json").steps > 0

    def test_a_line_on_a_terminal_says_how_far_it_is(self, tmp_path: Path) -> None:
        script = write_script(tmp_path, "train(lambda loss: time.sleep(0.02))", steps=120)
        script.write_text("import time\n" + script.read_text())
        main, terminal = pty.openpty()
        process = start(
            "stepgrade", "record", "-o", "run.json", script, cwd=tmp_path, terminal=os.ttyname(terminal)
        )
        parts: list[bytes] = []

        def read_all() -> None:
            with suppress(OSError):  # nobody has the terminal open any more
                while part := os.read(main, 65536):
                    parts.append(part)

        # A terminal holds few KiB that nobody has read yet; then whoever writes to it waits.
        reader = threading.Thread(target=read_all)
        reader.start()
        code = process.wait().code
        os.close(terminal)
        reader.join()
        os.close(main)
        shown = b"".join(parts).decode()
        assert code == 0, shown
        assert "recording: step " in shown
        assert "Ctrl-C ends it" in shown
        assert "recorded 120 steps in run.json" in shown.rsplit("\x1b[K", 1)[-1]

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ((), "no script given"),
            (("absent.py",), "absent.py: no such file, nor a program"),
            (("--ops-every", "0", "x.py"), "--ops-every must be at least 1"),
        ],
    )
    def test_bad_options(self, tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
        ran = run("stepgrade", "record", *arguments, cwd=tmp_path)
        assert (ran.code, words in ran.err) == (2, True), ran.err


def test_importing_the_names_needs_no_torch() -> None:
    code = """if True:
        import sys, stepgrade
        stepgrade.Recorder, stepgrade.watch
        print("torch" in sys.modules)
        sys.modules["torch"] = None
        stepgrade.Recorder().start()
    """
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=600
    )
    assert ran.stdout == "False\n"
    assert "recording needs torch (pip install 'stepgrade[torch]')" in ran.stderr


def to_those_called(pid: int, number: int) -> None:
    """Signal the processes of a group that are called as the first one, as `pkill -f "stepgrade record"` does."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            same_group = os.getpgid(int(process.name)) == pid
            if same_group and b"\0record\0" in (process / "cmdline").read_bytes():
                os.kill(int(process.name), number)


@pytest.mark.parametrize("send", [os.kill, os.killpg, to_those_called])
def test_a_signal_reaches_the_script_once(tmp_path: Path, send: Callable[[int, int], None]) -> None:
    """Also one for all processes, as `timeout`, Slurm and systemd send it: the script has it already then."""
    (tmp_path / "train.py").write_text(
        textwrap.dedent(
            """
            import signal, time
            got = []
            signal.signal(signal.SIGUSR1, lambda number, _: got.append(number))
            signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
            print("ready", flush=True)
            while signal.SIGTERM not in got:
                time.sleep(0.01)
            print(got)
            """
        )
    )
    command = [sys.executable, "-m", "stepgrade", "record", "--quiet", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == "ready\n"
        send(running.pid, signal.SIGUSR1)
        time.sleep(1.0)  # a second one would have come by now
        os.kill(running.pid, signal.SIGTERM)
        assert running.stdout.read() == f"{[int(signal.SIGUSR1), int(signal.SIGTERM)]}\n"
        assert running.wait() == 0
