"""Logs that end out of memory: what was asked, what held the memory, what else was on the device."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model.memory import OutOfMemory
from tests.complexity.shapes import FAILED, step_lines

SAMPLES = Path(__file__).parents[4] / "shared/samples/memory/logs"
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


@pytest.mark.skipif(not SAMPLES.exists(), reason="the samples are not here")
def test_real_messages() -> None:
    memory = sg.load(SAMPLES / "torchtitan_b200_oom_messages.txt").memory
    assert memory is not None
    assert memory.out_of_memory is not None
    assert memory.out_of_memory.capacity_bytes == pytest.approx(178.35 * GIB)
