"""What a run communicates for, from what its collectives do and where in the step they stand."""

from __future__ import annotations

import pytest

from stepgrade.model.events import Collective
from tests.trace_builder import AUTOGRAD, COMMUNICATION_STREAM, MAIN, TraceBuilder, analyse_trace

# Each collective: its name, its phase, its group.
Play = list[tuple[str, str, str]]
LAYERS = 4
STEP_NS = 10_000_000


def played(
    each: Play,
    *,
    trains: bool = True,
    elements: int = 1_000_000,
    extra: str | None = None,
    steps: int = 3,
    layers: int = LAYERS,
) -> str:
    """Return the kind that most of the communication is for."""
    out = TraceBuilder(rank=0, world_size=8)
    for step in range(steps):
        begin = step * STEP_NS
        out.range(f"ProfilerStep#{step}", begin, STEP_NS)
        now = begin + 1_000
        for layer in range(layers):
            for phase in ("forward", "backward") if trains else ("forward",):
                thread = AUTOGRAD if phase == "backward" else MAIN
                start, name = now, "aten::mm"
                now += 1_000
                for collective, where, group in each:
                    if where != phase:
                        continue
                    said = Collective(
                        name=collective,
                        group=group,
                        group_size=8,
                        in_elements=elements,
                        out_elements=elements,
                        dtype="Float",
                    )
                    call = out.call("cudaLaunchKernel", now, 500, thread=thread)
                    out.kernel(
                        "ncclDevKernel_Generic",
                        now + 5_000,
                        100_000,
                        correlation=call,
                        stream=COMMUNICATION_STREAM,
                        collective=said,
                    )
                    now += 120_000
                call = out.call("cudaLaunchKernel", now, 500, thread=thread)
                out.kernel("sgemm", now + 5_000, 50_000, correlation=call)
                now += 60_000
                if phase == "backward":
                    name = "autograd::engine::evaluate_function: MmBackward0"
                out.op(name, start, now - start, thread=thread)
                now += 1_000 + layer
        if extra:
            out.op(extra, now, 1_000)
    profile = analyse_trace(out.trace())
    assert profile.activity is not None
    return next(iter(profile.activity.parallelism_ms), "none")


@pytest.mark.parametrize(
    ("each", "kind"),
    [
        ([("allreduce", "backward", "0")], "data"),
        ([("_allgather_base", "forward", "0"), ("_reduce_scatter_base", "backward", "0")], "fsdp"),
        ([("_allgather_base", "forward", "0"), ("_allgather_base", "backward", "0")], "fsdp"),
        ([("allreduce", "forward", "1"), ("allreduce", "backward", "1")], "tensor"),
        (
            [
                ("_allgather_base", "forward", "1"),
                ("_reduce_scatter_base", "forward", "1"),
                ("_allgather_base", "backward", "1"),
                ("_reduce_scatter_base", "backward", "1"),
            ],
            "tensor",
        ),
        ([("_reduce_scatter_base", "backward", "0")], "data"),
        ([("all_to_allv", "forward", "2"), ("all_to_allv", "backward", "2")], "expert"),
        ([("send", "forward", "3"), ("recv", "backward", "3")], "pipeline"),
        ([("broadcast", "forward", "0")], "unknown"),
        ([], "none"),
    ],
)
def test_kinds(each: Play, kind: str) -> None:
    assert played(each) == kind


def test_reductions_of_an_inference_are_of_divided_layers() -> None:
    assert played([("allreduce", "forward", "0")], trains=False) == "tensor"


def test_small_messages_are_no_parallelism() -> None:
    """Statistics of a synchronised norm are reduced in forward too, and the gradients are still data's."""
    small = [("allreduce", "forward", "0"), ("allreduce", "backward", "0")]
    assert played(small, elements=64) == "unknown"


def test_exchanges_of_embedding_tables_are_not_of_experts() -> None:
    each: Play = [("all_to_allv", "forward", "0")]
    assert played(each, extra="fbgemm::split_embedding_codegen_lookup_function") == "unknown"


@pytest.mark.parametrize("steps", range(2, 14))
def test_weights_gathered_once_a_step_are_gathered_in_each_however_many_there_are(steps: int) -> None:
    each: Play = [("_allgather_base", "forward", "0"), ("_reduce_scatter_base", "backward", "0")]
    assert played(each, steps=steps, layers=1) == "fsdp"
