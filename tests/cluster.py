"""A run of many ranks, simulated: who computes how long, who waits for whom, and the trace of each rank.

A step is forward work, an all-reduce in the tensor-parallel group, a hand-over to the next pipeline stage,
backward work, and an all-reduce in the data-parallel group. A collective ends for its members together: when
the last has arrived and the data has moved.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PER_HOST = 8
BASE_NS = 1_760_000_000_000_000_000
US = 1_000


class Planned(NamedTuple):
    """The shape of a run, and what is wrong in it."""

    world: int = 16
    tensor: int = 4
    pipeline: int = 2
    steps: int = 4
    layers: int = 2  # forward and backward all-reduces in the tensor-parallel group
    slow_rank: int | None = None
    slow_ranks: range = range(0)
    slow_host: int | None = None
    slow_hosts: range = range(0)
    slow_switch: range = range(0)  # hosts: groups that are wholly in them are slow
    slow_stage: int | None = None
    slow_link: int | None = None  # the first rank of a data-parallel group
    wandering: bool = False  # another rank is late in each step
    seed: int = 0


class Group(NamedTuple):
    """A process group as Kineto writes it."""

    name: str
    what: str
    ranks: tuple[int, ...]

    @property
    def listed(self) -> str:
        shown = [str(rank) for rank in self.ranks[:30]]
        return f"[{', '.join([*shown, '...'] if len(self.ranks) > 30 else shown)}]"


class Event(NamedTuple):
    """One piece of work of one rank."""

    step: int
    name: str
    start: float  # microseconds
    dur: float
    group: Group | None = None
    elements: int = 0


def groups_of(plan: Planned) -> dict[str, list[Group]]:
    """Return the process groups: neighbours share tensors, stages are the outermost dimension."""
    data = plan.world // plan.tensor // plan.pipeline
    grid = np.arange(plan.world).reshape(plan.pipeline, data, plan.tensor)
    lines = {
        "tp": grid.reshape(-1, plan.tensor),
        "dp": grid.transpose(0, 2, 1).reshape(-1, data),
        "pp": grid.transpose(1, 2, 0).reshape(-1, plan.pipeline),
    }
    return {
        what: [Group(what, f"mesh_{what}", tuple(map(int, line))) for line in rows if len(line) > 1]
        for what, rows in lines.items()
    }


def simulate(plan: Planned) -> Iterator[tuple[int, list[Event]]]:
    """Yield the events of each rank."""
    rng = np.random.default_rng(plan.seed)
    groups, ranks = groups_of(plan), np.arange(plan.world)
    pace = np.where((ranks == plan.slow_rank) | np.isin(ranks, plan.slow_ranks), 1.6, 1.0)
    pace[ranks // PER_HOST == plan.slow_host] = 1.5
    pace[[rank // PER_HOST in plan.slow_hosts for rank in ranks.tolist()]] = 1.4
    pace[ranks // (plan.world // plan.pipeline) == plan.slow_stage] = 1.5
    events: list[list[Event]] = [[] for _ in ranks]
    now = np.zeros(plan.world)

    def compute(step: int, name: str, us: float) -> None:
        late = pace * (1.0 + (ranks == (step * 7 + 3) % plan.world) * (0.6 if plan.wandering else 0.0))
        dur = us * late * rng.normal(1.0, 0.005, plan.world)
        for rank in ranks.tolist():
            events[rank].append(Event(step, name, now[rank], dur[rank]))
        now[:] = now + dur

    def meet(step: int, what: str, name: str, elements: int, us: float) -> None:
        for group in groups[what]:
            members = np.array(group.ranks)
            is_slow = what == "dp" and (
                group.ranks[0] == plan.slow_link
                or all(rank // PER_HOST in plan.slow_switch for rank in group.ranks)
            )
            end = now[members].max() + us * (5.0 if is_slow else 1.0)
            for rank in group.ranks:
                events[rank].append(Event(step, name, now[rank], end - now[rank], group, elements))
            now[members] = end

    for step in range(plan.steps):
        for name, us in (("gemm_forward", 300.0), ("gemm_backward", 600.0)):
            for _ in range(plan.layers):
                compute(step, name, us)
                meet(step, "tp", "allreduce", 1 << 19, 20.0)
            meet(step, "pp", "send", 1 << 19, 15.0)
        meet(step, "dp", "allreduce", 1 << 23, 100.0)
        compute(step, "adam", 50.0)
    for rank in ranks.tolist():
        yield rank, events[rank]


Pieces = Mapping[str, Sequence[tuple[str, str, float]]]  # operation, kernel and share of a block's time


def in_pieces(events: list[Event], pieces: Pieces) -> Iterator[tuple[str | None, Event]]:
    """Yield the events with the operation that each is of, blocks of work as the kernels that they consist of."""
    for event in events:
        start = event.start
        for operation, kernel, share in pieces.get(event.name, ()):
            yield operation, event._replace(name=kernel, start=start, dur=event.dur * share)
            start += event.dur * share
        if event.name not in pieces:
            yield None, event


def kineto_of(
    rank: int, events: list[Event], plan: Planned, pieces: Pieces | None = None, ahead_ns: int = 0
) -> bytes:
    """Return the trace of one rank, whose clock may be ahead, as the PyTorch profiler writes it."""
    rows: list[dict[str, Any]] = []
    steps = sorted({event.step for event in events})
    starts = [min(event.start for event in events if event.step == step) for step in steps]
    end = max(event.start + event.dur for event in events)
    for step, start, until in zip(steps, starts, [*starts[1:], end], strict=True):
        rows.append(_row("user_annotation", f"ProfilerStep#{step}", start - 5, until - start - 1, (1, 1)))
    # Work of the next step ends the last one.
    last = Event(steps[-1] + 1, "gemm_forward", end + 1, 10.0)
    rows.append(_row("user_annotation", f"ProfilerStep#{last.step}", end - 5, 30.0, (1, 1)))
    for number, (operation, event) in enumerate(in_pieces([*events, last], pieces or {}), start=1):
        args: dict[str, Any] = {"correlation": number, "device": rank % PER_HOST, "stream": 7}
        name = event.name
        if event.group is not None:
            name = f"ncclDevKernel_{event.name}"
            args |= {
                "Collective name": event.name,
                "In msg nelems": event.elements,
                "Out msg nelems": event.elements,
                "Group size": len(event.group.ranks),
                "dtype": "BFloat16",
                "Process Group Name": event.group.name,
                "Process Group Description": event.group.what,
                "Process Group Ranks": event.group.listed,
            }
        launch = {"correlation": number, "External id": number}
        if operation:
            rows.append(_row("cpu_op", operation, event.start - 4, 4, (1, 1), {"External id": number}))
        rows.append(_row("cuda_runtime", "cudaLaunchKernel", event.start - 3, 2, (1, 1), launch))
        rows.append(_row("kernel", name, event.start, event.dur, (rank % PER_HOST, 7), args))
    document = {
        "schemaVersion": 1,
        "deviceProperties": [
            {"id": number, "name": "NVIDIA H100 80GB HBM3", "totalGlobalMem": 85028372480, "numSms": 132}
            for number in range(PER_HOST)
        ],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": plan.world},
        "baseTimeNanoseconds": BASE_NS + ahead_ns,
        "traceEvents": sorted(rows, key=lambda row: row["ts"]),
    }
    return json.dumps(document).encode()


def _row(
    category: str,
    name: str,
    start: float,
    dur: float,
    thread: tuple[int, int],
    args: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    where = {"pid": thread[0], "tid": thread[1], "ts": round(start + 100, 3), "dur": round(dur, 3)}
    return {"ph": "X", "cat": category, "name": name, "args": {**(args or {})}} | where


def write_ranks(
    folder: Path,
    plan: Planned = Planned(),  # noqa: B008  it does not change
    name: Callable[[int], str] = "rank{}.json".format,
) -> list[Path]:
    """Write the trace of every rank, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, events in simulate(plan):
        paths.append(folder / name(rank))
        paths[-1].write_bytes(kineto_of(rank, events, plan))
    return paths
