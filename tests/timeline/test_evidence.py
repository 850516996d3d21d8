"""What a file leaves out makes a verdict less certain, and never another one.

Ranges, marks and Python frames only help to find the steps. Without them the bottleneck and the grade stay,
or become unknown and ungraded. Ranges that are evidence themselves stay: the loader's, and those of collectives.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.model.events import HostRanges, RangeKind, Trace
from stepgrade.naming.torch_names import COMMUNICATION_RANGE, INPUT, STEP, Mask, named
from stepgrade.scoring.causes import Bottleneck
from stepgrade.trace.profile import profile_of_traces
from tests.kineto_traces import read_trace
from tests.samples import shared
from tests.trace_builder import TraceBuilder
from tests.wild_runs import trace_of
from tests.wild_table import RUNS, with_fault

FAULTS = (None, "loader", "item", "tiny", "stall", "chains", "reduce_all")
# One of them alone says that there was something before the first operation.
ONLY_EVIDENCE = {"tl_h100_timesformer": {"marks", "everything"}}
# A launch that comes late and a host that does something else are one wait of the device.
SAME = {Bottleneck.HOST.value: Bottleneck.LAUNCH.value}


def keep_ranges(trace: Trace, kept: Mask) -> Trace:
    columns = structs.asdict(trace.ranges).items()
    ranges = HostRanges(**{name: None if each is None else each[kept] for name, each in columns})
    return structs.replace(trace, ranges=ranges)


def are_marks(trace: Trace) -> Mask:
    return named(trace.strings, trace.ranges.name, STEP)


def are_annotations(trace: Trace) -> Mask:
    names = trace.ranges.name
    evidence = named(trace.strings, names, INPUT) | named(trace.strings, names, COMMUNICATION_RANGE)
    compiled = named(trace.strings, names, re.compile(r"^## |^Torch-Compiled Region"))
    is_annotation: Mask = trace.ranges.kind == RangeKind.ANNOTATION
    return is_annotation & ~evidence & ~compiled & ~are_marks(trace)


def without_frames(trace: Trace) -> Trace:
    kept = keep_ranges(trace, trace.ranges.kind != RangeKind.MODULE)
    return structs.replace(kept, frames=None, recorded=kept.recorded - {"stacks", "modules"})


WITHOUT: dict[str, Callable[[Trace], Trace]] = {
    "stacks": without_frames,
    "annotations": lambda trace: keep_ranges(trace, ~are_annotations(trace)),
    "marks": lambda trace: keep_ranges(trace, ~are_marks(trace)),
    "everything": lambda trace: keep_ranges(
        bare := without_frames(trace), ~(are_annotations(bare) | are_marks(bare))
    ),
}


def verdict(trace: Trace) -> tuple[str, str]:
    card = sg.score(profile_of_traces([trace]))
    return SAME.get(card.bottleneck, card.bottleneck), card.grade


def agree(full: tuple[str, str], less: tuple[str, str]) -> bool:
    return all(
        after in (before, doubt) or before == doubt
        for before, after, doubt in zip(full, less, ("unknown", "ungraded"), strict=True)
    )


def check(trace: Trace, exceptions: set[str]) -> None:
    full = verdict(trace)
    for name, remove in WITHOUT.items():
        less = remove(trace)
        if len(less.ranges.name) == len(trace.ranges.name) and name != "stacks":
            continue
        found = verdict(less)
        assert agree(full, found) or name in exceptions, f"without {name}: {full} becomes {found}"


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("run", ["plain", "small"])
def test_a_generated_trace_keeps_its_verdict_without_its_ranges(run: str, fault: str | None) -> None:
    wild = RUNS[run]
    if fault is not None:
        wild = with_fault(wild, fault, 1.0, 20.0)
    check(trace_of(wild), set())


@pytest.mark.samples
@pytest.mark.parametrize("folder", ["samples/kineto", "samples/kineto_more"])
def test_a_real_trace_keeps_its_verdict_without_its_ranges(folder: str) -> None:
    wrong = []
    for path in sorted(shared(folder).glob("*json*")):
        if re.search(r"8xH100_rank[2-7]|aiu_|merged", path.name):
            continue
        name = next((known for known in ONLY_EVIDENCE if path.name.startswith(known)), "")
        try:
            check(read_trace(path), ONLY_EVIDENCE.get(name, set()))
        except AssertionError as error:
            wrong.append(f"{path.name}: {error}")
    assert not wrong


def test_unlike_stretches_are_no_steps() -> None:
    """A long and a short run of one range are the whole of a trace, not a warm-up and a step."""
    trace = two_stretches(alike=False)
    card = sg.score(profile_of_traces([trace]))
    assert card.steps is not None
    assert (card.steps.count, card.step_time_ms) == (1, pytest.approx(471.0, rel=0.02))
    assert card.bottleneck != "host"
    assert card.grade == "ungraded"


def test_stretches_that_are_alike_are_steps() -> None:
    card = sg.score(profile_of_traces([two_stretches(alike=True)]))
    assert card.steps is not None
    assert card.steps.count == 2


def two_stretches(*, alike: bool) -> Trace:
    """Return a trace of 410 ms of busy work in one range and 61 ms, half of them idle, in another."""
    out, now = TraceBuilder(), 0
    for busy, pause in ((100, 0), (100, 0)) if alike else ((410, 0), (30, 1)):
        start = now
        for place in range(busy):
            out.op(f"made::product_{start}_{place}", now, 20_000)  # no operation repeats
            launch = out.call("cudaLaunchKernel", now + 5_000, 4_000)
            out.kernel(f"gemm_{start}_{place}", now + 10_000, 990_000, correlation=launch)
            now += 1_000_000 * (1 + pause)
        out.range("infer", start, now - start)
    return out.trace()
