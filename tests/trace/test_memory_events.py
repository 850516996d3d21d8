"""The `[memory]` events of a trace, of every era and on every kind of device."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.model.memory import Memory
from tests.complexity.shapes import event, kernel, step

MIB = 1 << 20
EARLY = {"Addr", "Total Allocated", "Total Reserved", "Ev Idx", "finished"}  # what 2021 did not write


class Run:
    """A trace of steps: a forward pass that keeps two blocks, a backward pass, an optimizer."""

    def __init__(self, *, base: int, kind: int = 1, early: bool = False, on_host: bool = False) -> None:
        self.rows: list[dict[str, Any]] = []
        self.total, self.kind, self.early, self.on_host = base, kind, early, on_host
        self.sizes: dict[int, int] = {}
        self.next = 1
        self.device: dict[str, Any] | None = None

    def change(self, at: float, size: int, address: int) -> None:
        self.total += size
        args = {
            "Device Type": self.kind, "Device Id": -1 if self.kind == 0 else 0, "Bytes": size, "Addr": address,
            "Total Allocated": self.total, "Total Reserved": 0 if self.kind == 0 else 200 * MIB,
            "Ev Idx": len(self.rows), "finished": False,
        }  # fmt: skip
        args = {name: value for name, value in args.items() if not (self.early and name in EARLY)}
        row = {"ph": "i", "s": "t", "name": "[memory]", "pid": 1, "tid": 1, "ts": at, "args": args}
        self.rows.append(row if self.early else {**row, "cat": "cpu_instant_event"})

    def alloc(self, at: float, mib: int) -> int:
        self.next += 1
        self.sizes[self.next] = mib * MIB
        self.change(at, mib * MIB, self.next << 20)
        return self.next

    def free(self, at: float, block: int) -> None:
        self.change(at, -self.sizes.pop(block), block << 20)

    def step(self, number: int, at: float, leak: int = 0) -> None:
        self.rows += [step(number, at, 990), event("cpu_op", "aten::mm", at + 10, 100), event("cpu_op", "aten::_log_softmax", at + 120, 80)]  # fmt: skip
        self.rows.append(event("cpu_op", "autograd::engine::evaluate_function: MmBackward0", at + 300, 200))
        self.rows.append(event("user_annotation", "Optimizer.step#AdamW.step", at + 600, 100))
        self.rows.append(event("cpu_op", "aten::_fused_adamw_", at + 610, 80))
        self.rows.append(event("user_annotation", "Optimizer.zero_grad#AdamW.zero_grad", at + 800, 50))
        if not self.on_host:
            self.rows += kernel("gemm", at + 12, number, 400)
        kept = self.alloc(at + 20, 30)
        self.free(at + 40, self.alloc(at + 30, 5))
        loss = self.alloc(at + 130, 40)
        if leak:
            self.alloc(at + 140, leak)
        gradient = self.alloc(at + 310, 10)
        self.free(at + 330, self.alloc(at + 320, 7))
        self.free(at + 340, loss)
        self.free(at + 350, kept)
        self.free(at + 630, self.alloc(at + 620, 2))
        self.free(at + 810, gradient)

    def memory(self, folder: Path) -> Memory | None:
        path = folder / "t.json"
        devices = {} if self.device is None else {"deviceProperties": [self.device]}
        path.write_text(json.dumps({"schemaVersion": 1, **devices, "traceEvents": self.rows}))
        return sg.load(path).memory


@pytest.mark.parametrize("kind", [1, 6, 12, 13, 20], ids=["cuda", "hip", "xpu", "mps", "private"])
def test_memory_of_a_device_with_what_was_there_before(tmp_path: Path, kind: int) -> None:
    run = Run(base=30 * MIB, kind=kind)  # weights and AdamW's two states, of 10 MiB each
    for number in range(4):
        run.step(number, 1000.0 * number)
    memory = run.memory(tmp_path)
    assert memory is not None
    found = {name: size / MIB for name, size in memory.categories.items()}
    assert found == {"weights": 10, "optimizer": 20, "gradients": 10, "activations": 70, "temporary": 7}
    assert memory.peak_bytes == 117 * MIB
    assert memory.reserved_bytes == 200 * MIB
    assert memory.fragmentation == pytest.approx(1 - 117 / 200)
    assert memory.from_before_bytes == 30 * MIB
    assert memory.growth is None
    assert memory.curve is not None
    assert memory.curve.has_times
    assert max(map(sum, zip(*memory.curve.categories.values(), strict=True))) == 117 * MIB


def test_events_of_2021_tell_the_height_only(tmp_path: Path) -> None:
    run = Run(base=0, early=True)
    for number in range(4):
        run.step(number, 1000.0 * number)
    memory = run.memory(tmp_path)
    assert memory is not None
    assert memory.categories == {}
    assert memory.peak_bytes == 87 * MIB
    assert memory.curve is not None


def test_the_hosts_memory_is_not_the_devices(tmp_path: Path) -> None:
    run = Run(base=0, kind=0)
    run.step(0, 0.0)
    run.step(1, 1000.0)
    assert run.memory(tmp_path) is None
    host = Run(base=0, kind=0, on_host=True)
    host.step(0, 0.0)
    host.step(1, 1000.0)
    memory = host.memory(tmp_path)
    assert memory is not None
    assert memory.reserved_bytes is None


def test_events_may_stand_in_any_order_in_the_file(tmp_path: Path) -> None:
    run = Run(base=30 * MIB)
    for number in range(3):
        run.step(number, 1000.0 * number)
    first = run.memory(tmp_path)
    run.rows.reverse()
    assert run.memory(tmp_path) == first


def test_memory_that_grows_with_every_step(tmp_path: Path) -> None:
    run = Run(base=30 * MIB)
    for number in range(8):
        run.step(number, 1000.0 * number, leak=3)
    memory = run.memory(tmp_path)
    assert memory is not None
    assert memory.growth is not None
    assert memory.growth.bytes_per_step == 3 * MIB
    assert memory.growth.holders[0].op == "aten::_log_softmax"


@pytest.mark.parametrize(
    ("times", "capacity_mib", "retries"),
    [
        ((131, 132, 133, 134), 220, 4),  # one of each of the four steps
        ((131, 132, 133, 134), None, 4),
        ((131, 132, 350, 360), 220, 0),  # freed by itself, asked for by another operation
        ((131, 132, 133, 134), 4000, 0),  # a library sets itself up on a device that has room
    ],
)
def test_only_an_allocation_that_frees_and_asks_again_is_a_retry(
    tmp_path: Path, times: tuple[int, ...], capacity_mib: int | None, retries: int
) -> None:
    run = Run(base=0)
    for number in range(5):
        run.step(number, 1000.0 * number)
        names = ("cudaMalloc", "cudaFree", "cudaFree", "cudaMalloc")
        run.rows += [
            event("cuda_runtime", name, 1000.0 * number + at, 0.5)
            for name, at in zip(names, times, strict=True)
        ]
    if capacity_mib is not None:
        run.device = {"id": 0, "name": "NVIDIA H100", "totalGlobalMem": capacity_mib * MIB}
    memory = run.memory(tmp_path)
    assert memory is not None
    assert memory.retries == retries


@pytest.mark.parametrize("bad", [None, "x", [], {}, 1.5, -1, 1 << 62, (1 << 63) - 1, -1 << 63, 1 << 80, True])
@pytest.mark.parametrize(
    "name", ["Device Type", "Device Id", "Bytes", "Addr", "Total Allocated", "Total Reserved", "Ev Idx"]
)
def test_values_of_the_wrong_kind_end_in_a_profile(tmp_path: Path, name: str, bad: Any) -> None:
    run = Run(base=30 * MIB)
    run.step(0, 0.0)
    run.step(1, 1000.0)
    for row in run.rows:
        if row["name"] == "[memory]":
            row["args"][name] = bad
    memory = run.memory(tmp_path)
    assert memory is None or memory.peak_bytes is not None
