"""One run as two profilers would write it: the same steps, ledger, phases and operations."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from tests.conftest import Ran
from tests.readers.nsys.export import MS, Export, two_ranks

Run = Callable[..., Ran]
STEPS, STEP_NS = 8, 10 * MS
# In each step: operation, when it is called, when its kernel runs and for how long; backward is another thread's.
WORK = [
    ("aten::mm", 0.1, 1.0, 3.0, 1, 5, [[256, 512], [512, 128]]),
    ("aten::add", 0.3, 4.0, 0.5, 1, 6, [[256, 128], [256, 128]]),
    ("autograd::engine::evaluate_function: MmBackward0", 0.6, 4.5, 2.0, 2, 5, []),
    ("aten::_foreach_add_", 0.9, 7.0, 1.0, 1, -1, [[128]]),
]


def as_nsys(path: Path) -> Path:
    export = Export(path)
    for step in range(STEPS):
        at = step * STEP_NS
        export.range(f"step {step}", at, at + STEP_NS - 1000, 7, tid=1)
        for place, (name, call, start, dur, thread, sequence, sizes) in enumerate(WORK):
            said = f", seq = {sequence}" if sequence >= 0 else ""
            called = at + int(call * MS)
            text = f"{name}{said}, op_id = {step}{place}, sizes = {json.dumps(sizes)}"
            export.range(text, called, called + 50_000, 7, tid=thread)
            begin = at + int(start * MS)
            export.kernel(f"kernel_{place}_gemm" if place == 0 else f"kernel_{place}", begin, begin + int(dur * MS), 7,
                          launch=called + 10_000, tid=thread, correlation=step * 10 + place)  # fmt: skip
    return export.close()


def as_kineto(path: Path) -> Path:
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, start: int, dur: int, tid: int, **args: Any) -> None:
        events.append({"ph": "X", "cat": cat, "name": name, "pid": 7, "tid": tid, "ts": start / 1000, "dur": dur / 1000, "args": args})  # fmt: skip

    for step in range(STEPS):
        at = step * STEP_NS
        add("user_annotation", f"ProfilerStep#{step}", at, STEP_NS - 1000, 1)
        for place, (name, call, start, dur, thread, sequence, sizes) in enumerate(WORK):
            called, number = at + int(call * MS), step * 10 + place
            args: dict[str, Any] = {"Input Dims": sizes, "External id": number + 1}
            if sequence >= 0:
                args |= {"Sequence number": sequence, "Fwd thread id": 1 if thread == 2 else 0}
            add("cpu_op", name, called, 50_000, thread, **args)
            add("cuda_runtime", "cudaLaunchKernel", called + 10_000, 1000, thread, correlation=number + 1)
            add("kernel", f"kernel_{place}_gemm" if place == 0 else f"kernel_{place}", at + int(start * MS), int(dur * MS), 70,
                correlation=number + 1, device=0, stream=7)  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_nsight_and_kineto_agree(tmp_path: Path, stepgrade: Run) -> None:
    paths = as_nsys(tmp_path / "run.sqlite"), as_kineto(tmp_path / "run.json")
    ours, theirs = (sg.load(path) for path in paths)
    assert (ours.recorded_steps, ours.steps, ours.work) == (theirs.recorded_steps, theirs.steps, theirs.work)
    assert ours.mean_step_ms == pytest.approx(theirs.mean_step_ms)
    assert ours.ledger is not None
    assert theirs.ledger is not None
    assert ours.ledger.shares() == pytest.approx(theirs.ledger.shares(), abs=1e-6)
    assert {phase.name: phase.ms for phase in ours.phases} == pytest.approx(
        {phase.name: phase.ms for phase in theirs.phases}
    )
    for name in ("ms", "calls", "flops"):
        found, wanted = ({op.name: getattr(op, name) for op in one.operations} for one in (ours, theirs))
        assert found == pytest.approx(wanted), name
    assert ours.matmul_flops == theirs.matmul_flops
    ran = stepgrade("parity", *paths)
    assert "NO PARITY" not in ran.out
    assert ran.code == 0, ran.err


def test_an_export_becomes_a_step_profile(tmp_path: Path, stepgrade: Run) -> None:
    path = as_nsys(tmp_path / "run.sqlite")
    ran = stepgrade("convert", path)
    (tmp_path / "run.json").write_text(ran.out)
    assert sg.load(tmp_path / "run.json").mean_step_ms == pytest.approx(sg.load(path).mean_step_ms)


def test_a_directory_of_exports_is_one_run(tmp_path: Path) -> None:
    """Each rank exported on its own; numbers of processes and devices may be the same in all of them."""
    (tmp_path / "run").mkdir()
    for rank in range(3):
        export = Export(tmp_path / "run" / f"report_rank{rank}.sqlite")
        for step in range(6):
            at = step * STEP_NS
            export.range(f"step {step}", at, at + 9 * MS, 7)
            export.kernel("gemm", at + MS, at + (5 + rank) * MS, 7, launch=at + 1000, correlation=step)
        export.close()
    card = sg.score(sg.load(tmp_path / "run"))
    assert [rank.rank for rank in card.ranks] == [0, 1, 2]
    # One of several may be gzipped, or come from a pipe.
    packed = tmp_path / "one.sqlite.gz"
    packed.write_bytes(gzip.compress((tmp_path / "run" / "report_rank0.sqlite").read_bytes()))
    assert sg.load(packed).recorded_steps == 6


def test_what_lies_beside_a_file_is_left_alone(tmp_path: Path) -> None:
    """Another tool's journal is neither played back nor removed."""
    path = two_ranks(tmp_path / "run.sqlite")
    want = sg.load(path).mean_step_ms
    for ending in ("-wal", "-shm", "-journal"):
        (tmp_path / f"run.sqlite{ending}").write_bytes(b"\xd9\xd5\x05\xf9 not a journal" * 100)
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    assert sg.load(path).mean_step_ms == want
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == before
    shutil.copy(path, tmp_path / "read only.sqlite")
    (tmp_path / "read only.sqlite").chmod(0o400)
    assert sg.load(tmp_path / "read only.sqlite").mean_step_ms == want


def test_memory_is_kept_to(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "run.sqlite", steps=200)
    with pytest.raises(sg.StepgradeError, match="memory"):
        sg.load(path, max_memory=50_000)


def test_reports_are_named_with_their_version(tmp_path: Path, stepgrade: Run) -> None:
    for name, head, said in (
        ("a.nsys-rep", b"NVIDIA Tegra Profiler Report 2024@6@2@225-246235244400v0\n\0\1", "2024.6.2"),
        ("b.qdrep", b"NVIDIA Tegra Profiler Report 2021@3@1@54-ee9c30a OSX.\0", "2021.3.1"),
        ("c.nsys-rep", b"NVIDIA Nsight Systems Report\0", "a report of Nsight Systems"),
    ):
        (tmp_path / name).write_bytes(head + b"SECRET=canary\0")
        ran = stepgrade("score", tmp_path / name)
        assert ran.code == 2
        assert said in ran.err
        assert "nsys export --type sqlite --include-json=true" in ran.err
        assert "canary" not in ran.err


@pytest.mark.parametrize(
    ("text", "is_said"),
    [("Not all CUDA events might have been collected.", True), ("Number of CUDA events collected: \t100000.", True),
     ("Number of CUDA events collected: \t32.", False), ("No NVTX events collected. Does the process use NVTX?", False),
     ("Not all NVTX events might have been collected.", False), ("Process launched, see /home/canary/log", False)],
)  # fmt: skip
@pytest.mark.parametrize("process", [100, 999])
def test_what_nsight_doubts_is_said_of_processes_that_used_the_device(
    text: str, is_said: bool, process: int, tmp_path: Path
) -> None:
    path = two_ranks(tmp_path / "run.sqlite", steps=8)
    import sqlite3

    connection = sqlite3.connect(path)
    connection.execute("create table DIAGNOSTIC_EVENT (text text, globalPid integer, severity integer)")
    connection.execute("insert into DIAGNOSTIC_EVENT values (?, ?, 2)", (text, process << 24))
    connection.commit()
    connection.close()
    notes = [note for note in sg.load(path).warnings if note.code == "not_collected"]
    assert bool(notes) == (is_said and process == 100)
    assert not any("canary" in note.text for note in notes)
