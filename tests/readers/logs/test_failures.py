"""Logs that end out of memory: what was asked, what held the memory, what else was on the device."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model.memory import OutOfMemory
from tests.complexity.shapes import FAILED, step_lines
from tests.samples import shared

GIB, MIB = 2.0**30, 2.0**20
STEPS = step_lines(40)["f"] + b"\n"


def failure(tmp_path: Path, text: bytes) -> OutOfMemory | None:
    path = tmp_path / "run.log"
    path.write_bytes(text)
    memory = sg.load(path).memory
    return memory.out_of_memory if memory else None


def test_every_figure_of_a_message_is_read(tmp_path: Path) -> None:
    failed = failure(tmp_path, STEPS + FAILED)
    assert failed is not None
    assert failed.asked_bytes == pytest.approx(1.06 * GIB)
    assert failed.capacity_bytes == pytest.approx(178.35 * GIB)
    assert failed.free_bytes == pytest.approx(343.44 * MIB)
    assert failed.other_processes_bytes == pytest.approx(96.66 * GIB)
    assert failed.allocated_bytes == pytest.approx(79.17 * GIB)
    assert failed.unallocated_bytes == pytest.approx(575.27 * MIB)
    assert failed.context_bytes == pytest.approx((81.32 - 79.17) * GIB - 575.27 * MIB)


@pytest.mark.parametrize(
    ("message", "asked", "unallocated"),
    [
        (b"RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 15.90 GiB total capacity; 14.75 GiB already allocated; 17.88 MiB free; 15.12 GiB reserved in total by PyTorch)", 20 * MIB, 0.37 * GIB),
        (b"RuntimeError: CUDA out of memory. Tried to allocate 1.12 GiB (GPU 0; 11.17 GiB total capacity; 9.29 GiB already allocated; 625.31 MiB free; 1.04 GiB cached)", 1.12 * GIB, 1.04 * GIB),
        (b"torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 191.98 GiB of which 1.00 GiB is free. Of the allocated memory 180.00 GiB is allocated by PyTorch, and 3.00 GiB is reserved by PyTorch but unallocated.", 2 * GIB, 3 * GIB),
        (b"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 8589934592 bytes.", 8 * GIB, None),
    ],
)  # fmt: skip
def test_messages_of_every_era(
    tmp_path: Path, message: bytes, asked: float, unallocated: float | None
) -> None:
    failed = failure(tmp_path, STEPS + message + b"\n")
    assert failed is not None
    assert failed.asked_bytes == pytest.approx(asked)
    assert failed.unallocated_bytes == (None if unallocated is None else pytest.approx(unallocated))


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (b"RuntimeError: MPS backend out of memory (MPS allocated: 9.50 GiB, other allocations: 17.25 GiB, max allowed: 27.00 GiB). Tried to allocate 256.00 MiB on private pool.", {"asked_bytes": 256 * MIB, "allocated_bytes": 9.5 * GIB, "capacity_bytes": 27 * GIB, "context_bytes": 17.25 * GIB}),
        (b"torch.OutOfMemoryError: XPU out of memory. Tried to allocate 48.00 MiB. GPU 0 has a total capacity of 15.50 GiB. Of the allocated memory 14.50 GiB is allocated by PyTorch, and 500.00 MiB is reserved by PyTorch but unallocated.", {"asked_bytes": 48 * MIB, "capacity_bytes": 15.5 * GIB, "free_bytes": None}),
        (b"RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 0; 60.50 GiB total capacity; 57.25 GiB already allocated; 57.25 GiB current active; 1.25 GiB free; 58.00 GiB reserved in total by PyTorch)", {"free_bytes": 1.25 * GIB, "unallocated_bytes": 0.75 * GIB}),
        (b"torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.50 GiB. GPU 0 has a total capacty of 6.00 GiB of which 0 bytes is free. Of the allocated memory 2.75 GiB is allocated by PyTorch, and 2.25 GiB is reserved by PyTorch but unallocated.", {"capacity_bytes": 6 * GIB, "free_bytes": 0}),
        (b"jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.50G of 15.25G hbm. Exceeded hbm capacity by 6.25G.", {"asked_bytes": 21.5 * GIB, "capacity_bytes": 15.25 * GIB}),
        (b"XlaRuntimeError: RESOURCE_EXHAUSTED: Error allocating device buffer: Attempting to allocate 4.50G. That was not possible. There are 2.25G free.; (0x0x0_HBM0)", {"asked_bytes": 4.5 * GIB, "free_bytes": 2.25 * GIB}),
        (b"XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 5368709120 bytes.", {"asked_bytes": 5 * GIB}),
        (b"ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\nFailed to CUDA calloc async 608 bytes", {"asked_bytes": 608}),
        (b"RuntimeError: CUDA error: out of memory", {"asked_bytes": None}),
        (b"torch.AcceleratorError: CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation'", {"asked_bytes": None}),
        (b"RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", {"asked_bytes": None}),
    ],
)  # fmt: skip
def test_messages_of_other_devices_and_libraries(
    tmp_path: Path, message: bytes, told: dict[str, float | None]
) -> None:
    failed = failure(tmp_path, STEPS + message + b"\n")
    assert failed is not None
    for name, size in told.items():
        assert getattr(failed, name) == (None if size is None else pytest.approx(size)), name


def test_a_process_in_a_container_is_not_among_the_others(tmp_path: Path) -> None:
    """It lists every process of the device, its own too, and does not know which it is."""
    message = (
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 96.00 MiB. GPU 3 has a total capacity "
        b"of 79.25 GiB of which 45.00 MiB is free. Process 12345 has 20.00 GiB memory in use. Process 999 has "
        b"59.00 GiB memory in use. Of the allocated memory 58.00 GiB is allocated by PyTorch, and 256.00 MiB "
        b"is reserved by PyTorch but unallocated.\n"
    )
    failed = failure(tmp_path, STEPS + message)
    assert failed is not None
    assert failed.other_processes_bytes == 20 * GIB
    assert failed.context_bytes == 0.75 * GIB


@pytest.mark.parametrize(
    ("lines", "peak"),
    [
        (b"[Rank 0] (after 10 iterations) memory (MB) | allocated: 100.5 | max allocated: 2048.0 | reserved: 3000.0 | max reserved: 3000.0\n[Rank 1] (after 10 iterations) memory (MB) | allocated: 100.5 | max allocated: 4096.0 | reserved: 5000.0 | max reserved: 5000.0\n", 4 * GIB),
        (b"[INFO] [utils.py:589:see_memory_usage] MA 2.25 GB         Max_MA 3.5 GB         CA 5.4 GB         Max_CA 5 GB\nMA 2.25 GB         Max_MA 2.25 GB         CA 5.4 GB         Max_CA 5 GB\n", 3.5 * GIB),
        (b"Memory used: 13.90 GB\n", 13.9e9),
    ],
)  # fmt: skip
def test_peaks_in_lines_of_their_own_are_read_the_highest_of_all_ranks(
    tmp_path: Path, lines: bytes, peak: float
) -> None:
    path = tmp_path / "run.log"
    plain = b"".join(line for line in STEPS.splitlines(keepends=True) if b"memory" not in line)
    bare = b"".join(
        b"iteration %8d/ 100 | consumed samples: %8d | elapsed time per iteration (ms): 1380.0 | global batch size: 4 |\n"
        % (step, 4 * step)
        for step in range(1, 20)
    )
    path.write_bytes((plain or bare) + bare + lines)
    assert sg.load(path).peak_memory_bytes == pytest.approx(peak)


def test_a_run_that_went_on_did_not_end_there(tmp_path: Path) -> None:
    assert failure(tmp_path, FAILED + STEPS) is None
    assert failure(tmp_path, STEPS) is None
    assert failure(tmp_path, STEPS + b"try a smaller batch if you run out of memory\n") is None


def test_the_steps_before_are_still_told(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(STEPS + FAILED)
    with_it = sg.load(path)
    path.write_bytes(STEPS)
    without = sg.load(path)
    assert with_it.samples_ms == without.samples_ms


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (b"", "other processes hold 96.7 GiB"),
        (b"own", "in tensors"),
        (b"fragments", "expandable_segments"),
    ],
)
def test_the_cheapest_way_out_is_said(tmp_path: Path, more: bytes, words: str) -> None:
    message = FAILED
    if more:
        message = message.replace(b"Process 1 has 96.66 GiB memory in use. ", b"")
    if more == b"fragments":
        message = message.replace(b"575.27 MiB", b"5.27 GiB")
    path = tmp_path / "run.log"
    path.write_bytes(STEPS + message)
    finding = next(found for found in sg.score(sg.load(path)).findings if found.rule == "out-of-memory")
    assert words in f"{finding.claim} {finding.remedy}"
    assert finding.severity == "critical"


def test_a_run_that_failed_before_its_first_step_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"loading the model\n" + FAILED)
    card = sg.score(sg.load(path))
    assert card.grade == "ungraded"
    text = sg.render(card, to="terminal")
    assert "Out of memory" in text
    assert "1.1 GiB were asked for" in text


@pytest.mark.samples
def test_real_messages() -> None:
    memory = sg.load(shared("samples/memory/logs") / "torchtitan_b200_oom_messages.txt").memory
    assert memory is not None
    assert memory.out_of_memory is not None
    assert memory.out_of_memory.capacity_bytes == pytest.approx(178.35 * GIB)
