"""XPlane files written field by field, by an encoder of their own: protobuf is not needed for it."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

US = 1_000_000  # picoseconds
Value = int | float | str | bytes


def number(value: int) -> bytes:
    """Return a varint; a negative one as its two's complement of 64 bits."""
    value &= 0xFFFFFFFFFFFFFFFF
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def whole(place: int, value: int) -> bytes:
    return number(place << 3) + number(value)


def text(place: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return number(place << 3 | 2) + number(len(data)) + data


def real(place: int, value: float) -> bytes:
    return number(place << 3 | 1) + struct.pack("<d", value)


def packed(place: int, values: Sequence[int]) -> bytes:
    return text(place, b"".join(map(number, values)))


@dataclass
class PlaneFile:
    """A plane that is being written."""

    name: str
    stats: dict[str, Value] = field(default_factory=dict)
    _names: dict[str, int] = field(default_factory=dict)
    _metadata: dict[int, bytes] = field(default_factory=dict)
    _stat_names: dict[str, int] = field(default_factory=dict)
    _lines: list[tuple[int, str, int, list[bytes]]] = field(default_factory=list)

    def _stat(self, name: str, value: Value, *, refer: bool = False) -> bytes:
        head = whole(1, self._stat_names.setdefault(name, len(self._stat_names) + 1))
        if isinstance(value, float):
            return head + real(2, value)
        if isinstance(value, int):
            return head + whole(4, value)
        if isinstance(value, bytes):
            return head + text(6, value)
        if refer:
            return head + whole(7, self._stat_names.setdefault(value, len(self._stat_names) + 1))
        return head + text(5, value)

    def line(self, name: str, timestamp_ns: int = 0) -> int:
        """Add a line and return its place."""
        self._lines.append((len(self._lines) + 1, name, timestamp_ns, []))
        return len(self._lines) - 1

    def metadata(self, name: str, shown: str = "", /, **stats: Value) -> int:
        """Add what all events of a name share."""
        key = self._names.setdefault(name, len(self._names) + 1)
        parts = [whole(1, key), text(2, name)]
        parts += [text(4, shown)] if shown else []
        parts += [text(5, self._stat(other.replace("__", " "), value)) for other, value in stats.items()]
        self._metadata[key] = b"".join(parts)
        return key

    def event(self, line: int, name: str, start_us: float, dur_us: float, /, **stats: Value) -> None:
        key = self._names.get(name) or self.metadata(name)
        parts = [whole(1, key), whole(2, round(start_us * US)), whole(3, round(dur_us * US))]
        parts += [text(4, self._stat(other, value, refer=True)) for other, value in stats.items()]
        self._lines[line][3].append(b"".join(parts))

    def encoded(self) -> bytes:
        own = [text(6, self._stat(name, value)) for name, value in self.stats.items()]
        out = [text(2, self.name)]
        for key, name, timestamp, events in self._lines:
            head = whole(1, key) + text(2, name) + whole(3, timestamp)
            out.append(text(3, head + b"".join(text(4, event) for event in events)))
        out += [text(4, whole(1, key) + text(2, value)) for key, value in self._metadata.items()]
        out += [
            text(5, whole(1, key) + text(2, whole(1, key) + text(2, name)))
            for name, key in self._stat_names.items()
        ]
        return text(1, b"".join(out + own))


def shape(dims: Sequence[int], kind: int = 11) -> bytes:
    return whole(2, kind) + packed(3, dims)


def instruction(
    identity: int, name: str, opcode: str, dims: Sequence[int], *, path: str = "", operands: Sequence[int] = (),
    called: Sequence[int] = (), contracted: Sequence[int] | None = None, config: str = "", kind: int = 11,
    groups: Sequence[int] = (), target: str = "",
) -> bytes:  # fmt: skip
    """Return an instruction of HLO."""
    parts = [text(1, name), text(2, opcode), text(3, shape(dims, kind))]
    parts += [text(7, text(2, path))] if path else []
    parts += [text(28, target)] if target else []
    parts += [text(30, packed(1, contracted) + packed(2, contracted))] if contracted is not None else []
    parts += [whole(35, identity)]
    parts += [packed(36, operands)] if operands else []
    parts += [packed(38, called)] if called else []
    parts += [text(43, config)] if config else []
    parts += [text(49, packed(1, groups))] if groups else []
    return b"".join(parts)


def hlo(name: str, computations: dict[int, Sequence[bytes]], entry: int = 1) -> bytes:
    """Return an HLO proto: the instructions of each computation by its number."""
    inner = [
        text(3, text(1, f"c{key}") + b"".join(text(2, one) for one in body) + whole(5, key))
        for key, body in computations.items()
    ]
    return text(1, text(1, name) + b"".join(inner) + whole(6, entry))


def train_step_hlo(trips: int = 4) -> bytes:
    """Return a step that scans over its layers: a product in each round, two in those of the way back."""
    jit = "jit(step)"
    loop = f'{{"known_trip_count":{{"n":"{trips}"}}}}'
    body = [
        instruction(10, "p.1", "parameter", (8, 16)),
        instruction(11, "dot.1", "dot", (8, 16), path=f"{jit}/jvp()/while/body/mlp/dot_general", operands=(10, 10), contracted=(1,)),
        instruction(12, "add.1", "add", (8, 16), path=f"{jit}/jvp()/while/body/mlp/add", operands=(11, 10)),
    ]  # fmt: skip
    back = f"{jit}/transpose(jvp())/while/body"
    backward = [
        instruction(20, "p.2", "parameter", (8, 16)),
        instruction(21, "dot.2", "dot", (8, 16), path=f"{back}/checkpoint/rematted_computation/mlp/dot_general", operands=(20, 20), contracted=(1,)),
        instruction(22, "dot.3", "dot", (8, 16), path=f"{back}/mlp/dot_general", operands=(21, 20), contracted=(1,)),
        instruction(23, "dot.4", "dot", (8, 16), path=f"{back}/mlp/dot_general", operands=(22, 20), contracted=(1,)),
    ]  # fmt: skip
    entry = [
        instruction(30, "p.0", "parameter", (8, 16)),
        instruction(31, "while.1", "while", (8, 16), path=f"{jit}/jvp()/while", operands=(30,), called=(2,), config=loop),
        instruction(32, "while.2", "while", (8, 16), path=f"{jit}/transpose(jvp())/while", operands=(31,), called=(3,), config=loop),
        instruction(33, "all-reduce.1", "all-reduce", (8, 16), path=f"{back}/psum", operands=(32,), groups=(0, 1)),
        instruction(34, "fusion.1", "fusion", (8, 16), path=f"{jit}/optimizer/sub", operands=(33,), called=(4,)),
    ]  # fmt: skip
    fused = [instruction(40, "sub.1", "subtract", (8, 16), path=f"{jit}/optimizer/sub")]
    return hlo("jit_step", {2: body, 3: backward, 4: fused, 1: entry})


FORWARD_FLOPS = 2 * 8 * 16 * 16  # of one round of `train_step_hlo`


def cpu_profile(steps: int = 3, trips: int = 4, devices: int = 1, *, marks: bool = True) -> bytes:
    """Return a profile of a training step on the processor."""
    about = PlaneFile("/host:metadata", {"jax_version": "0.10.2"})
    about.metadata("jit_step(7)", Hlo__Proto=train_step_hlo(trips), program_id=7)
    host = PlaneFile("/host:CPU")
    python = host.line("python", 5000)
    pools = [host.line(f"tf_XLAEigen/{device}", 5000) for device in range(devices)]
    at = 0.0
    for step in range(steps):
        began = at
        host.event(python, "input", at, 20)
        at += 20
        ran = at
        for device, pool in enumerate(pools):
            at = ran

            def run(name: str, took: float, line: int = pool, device: int = device, step: int = step) -> None:
                nonlocal at
                host.event(
                    line, name, at, took, hlo_op=name, hlo_module="jit_step", program_id=7, run_id=step - 2,
                    device_ordinal=device,
                )  # fmt: skip
                at += took

            run("while.1", 0)
            for layer in range(trips):
                run("dot.1", 10 + layer)
                run("add.1", 1)
            for layer in reversed(range(trips)):
                run("dot.2", 10 + layer)
                run("dot.3", 10 + layer)
                run("dot.4", 10 + layer)
            run("all-reduce.1", 7)
            run("fusion.1", 5)
        at += 3
        if marks:
            host.event(python, "train", began, at - began, step_num=step, _r=1)
        host.event(python, "ThreadpoolListener::Record", began, 1)
    start = PlaneFile("Task Environment", {"profile_start_time": 1_700_000_000_000_000_000})
    return about.encoded() + host.encoded() + start.encoded()


def gpu_profile(steps: int = 3, kernels: int = 6) -> bytes:
    """Return a profile of an inference step on a GPU: kernels that calls on a thread launched."""
    device = PlaneFile(
        "/device:GPU:0",
        {"device_vendor": "Nvidia", "core_count": 108, "compute_cap_major": 8, "compute_cap_minor": 0,
         "memory_size": 85_000_000_000},
    )  # fmt: skip
    stream, copies = device.line("Stream #16(Kernel)"), device.line("Stream #17(MemcpyH2D)")
    derived = device.line("XLA Ops")
    host = PlaneFile("/host:CPU")
    thread, python = host.line("Host Threads/7"), host.line("python")
    identity = 0
    for step in range(steps):
        began = step * 1000.0
        host.event(python, "train", began, 900, step_num=step, _r=1)
        for place in range(kernels):
            identity += 1
            at = began + 100 * place
            stats = {"hlo_op": f"fusion.{place}", "hlo_module": "jit_f", "program_id": 3}
            host.event(thread, "cuLaunchKernel", at, 5, correlation_id=identity, **stats)
            path = f"jit(f)/layer_{place % 2}/mlp/add"
            device.event(
                stream, f"loop_add_fusion_{place}", at + 10, 50, correlation_id=identity, name=path, **stats
            )
            device.event(derived, f"fusion.{place}", at + 10, 50)
        identity += 1
        host.event(thread, "cuMemcpyHtoDAsync", began + 800, 5, correlation_id=identity)
        device.event(
            copies,
            "MemcpyH2D",
            began + 810,
            20,
            correlation_id=identity,
            memcpy_details="kind:h2d size:4096 dest:0 async:1",
        )
    return device.encoded() + host.encoded()


def xla_allocations(blocks: int = 6, size: int = 1 << 20, **where: Value) -> bytes:
    """Return a plane of the host with what the allocator writes: blocks that are made, then given back."""
    plane = PlaneFile("/host:CPU allocator")
    line = plane.line("python")
    for number in range(2 * blocks):
        is_made = number < blocks
        held = (number + 1 if is_made else 2 * blocks - number - 1) * size
        name = "MemoryAllocation" if is_made else "MemoryDeallocation"
        told = {"bytes_allocated": held, "bytes_reserved": 0, "allocation_bytes": size, **where}
        plane.event(line, name, 10.0 + 5 * number, 0.0, **told)
    return plane.encoded()


def tpu_profile(steps: int = 4, devices: int = 2) -> bytes:
    """Return a profile of TPUs: a loop around operations, a collective, a wait for a copy from the host."""
    out = []
    for number_ in range(devices):
        plane = PlaneFile(
            f"/device:TPU:{number_}",
            {"device_type_string": "TPU v6 Lite", "peak_teraflops_per_second": 918.0},
        )
        modules, ops, later = plane.line("XLA Modules"), plane.line("XLA Ops"), plane.line("Async XLA Ops")
        plane.metadata("%while.1 = (s32[]) while()", "while.1", hlo_category="while", program_id=-5, flops=99)
        plane.metadata(
            "%fusion.1 = bf16[8,16]{1,0} fusion()", "fusion.1", hlo_category="convolution fusion", program_id=-5,
            model_flops=4096, bytes_accessed=768, tf_op="jit(f)/jvp(layer_0)/mlp/dot_general:",
        )  # fmt: skip
        plane.metadata(
            "%all-reduce.1 = f32[8]{0} all-reduce()", "all-reduce.1", hlo_category="all-reduce", program_id=-5
        )
        plane.metadata(
            "%copy-done.1 = f32[8]{0} copy-done((f32[8]{0}, f32[8]{0:S(5)}, u32[]) %copy-start.1)", "copy-done.1",
            hlo_category="copy-done", program_id=-5,
        )  # fmt: skip
        for step in range(steps):
            at = 1000.0 * step
            plane.event(modules, "jit_f(18446744073709551611)", at, 900, run_id=step)
            plane.event(ops, "%while.1 = (s32[]) while()", at, 500)
            plane.event(ops, "%fusion.1 = bf16[8,16]{1,0} fusion()", at + 10, 200)
            plane.event(ops, "%fusion.1 = bf16[8,16]{1,0} fusion()", at + 250, 200)
            plane.event(ops, "%all-reduce.1 = f32[8]{0} all-reduce()", at + 500, 100)
            plane.event(
                ops, "%copy-done.1 = f32[8]{0} copy-done((f32[8]{0}, f32[8]{0:S(5)}, u32[]) %copy-start.1)", at + 600, 250,
            )  # fmt: skip
            plane.event(later, "async", at, 900)
        out.append(plane.encoded())
    return b"".join(out)


def chrome_trace(steps: int = 3, devices: int = 1) -> bytes:
    """Return a Chrome trace as JAX makes it of a profile of the processor."""
    events: list[dict[str, object]] = [
        {"ph": "M", "pid": 701, "name": "process_name", "args": {"name": "/host:CPU"}},
        {"ph": "M", "pid": 701, "name": "process_sort_index", "args": {"sort_index": 701}},
        {"ph": "M", "pid": 701, "tid": 1, "name": "thread_name", "args": {"name": "python"}},
    ]

    def add(name: str, tid: int, ts: float, dur: float, **args: str) -> None:
        events.append({"ph": "X", "pid": 701, "tid": tid, "ts": ts, "dur": dur, "name": name, "args": args})

    for step in range(steps):
        at = 1000.0 * step
        add("train", 1, at, 990.5, step_num=str(step))
        for device in range(devices):
            for place in range(4):
                run = {"hlo_op": f"dot.{place}", "hlo_module": "jit_step", "run_id": str(step - 2)}
                add(f"dot.{place}", 2 + device, at + 100 * place, 80.25, device_ordinal=str(device), **run)
    head = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
    return json.dumps({**head, "traceEvents": [*events, {}]}).encode()
