"""Every field of a profile says how it merges: of ranks, of recorded ranks, of recordings of one process."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from stepgrade.model.activity import (
    Activity,
    CollectiveTally,
    CopyRow,
    GemmTally,
    HostGaps,
    HostLine,
    KernelTally,
    KernelUse,
    LoopTally,
    OptimizerTally,
    PartTime,
    StallRow,
    Straggler,
    WaitTally,
)
from stepgrade.model.compilation import Compilation
from stepgrade.model.ledger import Ledger
from stepgrade.model.memory import Memory
from stepgrade.model.merge import ACTIVITY, PROFILE, SITUATIONS, ProfileMerge
from stepgrade.model.notes import Note
from stepgrade.model.operations import LayerStep, Operation, ShapeRow
from stepgrade.model.profile import DeviceSeen, PhaseShare, Profile, Recorded, Source
from stepgrade.model.ranks import Communication

LINE = HostLine(where="a.py:1", function="f", ms=1.0)
ACTIVITY_OF_RANK = Activity(
    driver="device",
    kernels=KernelTally(
        count=4.0, ms=2.0, short_count=1.0, short_ms=0.5, graph_share=0.0, launch_call_us=3.0
    ),
    gaps=HostGaps(after_sync_ms=1.0, stall_ms=2.0, stalls=1.0, longest_ms=1.0, dispatch_ms=0.5),
    copies=(CopyRow(direction="h2d", calls=1.0, ms=2.0),),
    waits=(WaitTally(call="sync", caller=None, count=1.0, ms=1.0),),
    collectives=(CollectiveTally(name="allreduce", group_size=2, count=1.0, ms=3.0),),
    communication_ms=3.0,
    stalls=(StallRow(cause="python", inside="f", ended_by="gemm", count=1.0, ms=2.0),),
    optimizer=OptimizerTally(kernels=1.0, ms=1.0, span_ms=2.0, multi_tensor_share=0.5, fused=True),
    gemms=(GemmTally(batch=1, m=2, k=3, n=4, dtype="bf16", calls=1.0, ms=5.0, flops=48.0),),
    parts=(PartTime(work_class="gemm", role=None, direction=None, ms=5.0, calls=1.0, kernels=1.0),),
    matmul_dtype_ms={"bf16": 5.0},
    marks={"item": 2.0},
    parallelism_ms={"data": 3.0},
    kernel_group_ms={"flash": 1.0},
    class_kernels={"gemm": 1.0},
    input_ms=(1.0, 2.0),
    loader="DataLoader",
    scalar_read_ms=0.5,
    dropout_ms=0.25,
    loop=LoopTally(turns=1.0, ms=1.0, backward_ms=1.0, operations=("add",)),
    backward_passes=1.0,
    skipped_steps=1,
    skipped_part="optimizer",
    recompute_ms=0.5,
    platform="cuda",
    startup_ms=0.5,
    lines={"input": (LINE,)},
    skew_ms=1.0,
    straggler=Straggler(rank=1, caused_ms=1.0),
    capability="9.0",
    sequence=128,
)
RANK = Profile(
    source=Source(format="kineto", files=("a",)),
    work="training",
    steps=2,
    recorded_steps=3,
    mean_step_ms=10.0,
    samples_ms=(9.0, 11.0),
    wall_coverage=0.9,
    phases=(PhaseShare(name="forward", ms=4.0, samples_ms=(3.0, 5.0)),),
    runtime="pytorch",
    throughput_tok_s=100.0,
    tokens_per_step=1000.0,
    samples_per_step=8.0,
    launches_per_step=40.0,
    claimed_bottleneck="launch",
    ledger=Ledger(compute=10.0, unattributed=0.0),
    world_size=2,
    device=DeviceSeen(name="gb10"),
    matmul_flops=1e9,
    matmul_known_share=0.5,
    matmul_dtype="bf16",
    activity=ACTIVITY_OF_RANK,
    links=Communication(node_devices=8),
    compilation=Compilation(total_ms=1.0, compiles=1, recompiles=0, cudagraph_records=0),
    kernel_use=KernelUse(occupancy=0.5),
    peak_memory_bytes=100.0,
    memory=Memory(peak_bytes=100.0),
    recorded=Recorded(model="gpt"),
    contents={"trace": "1 MB"},
    notes=(Note("noted", "a note"),),
    warnings=(Note("warned", "a warning"),),
)
# What two equal profiles do not have in common with one of them.
CHANGED = {
    "ranks": {"contents", "notes", "warnings", "activity"},
    "recorded ranks": {"tokens_per_step", "samples_per_step", "ledger", "notes", "warnings", "activity"},
    "recordings": {"steps", "recorded_steps", "samples_ms", "ledger", "notes", "warnings", "activity"},
}


def merged(situation: Any, *profiles: Profile) -> Profile:
    merge = ProfileMerge(situation)
    for rank, profile in enumerate(profiles):
        merge.add(profile, rank)
    column = SITUATIONS.index(situation)
    return merge.result(
        **{name: getattr(profiles[0], name) for name, row in PROFILE.items() if row[column] is None}
    )


def test_every_field_has_a_policy() -> None:
    assert [*PROFILE] == sorted(Profile.__struct_fields__, key=[*PROFILE].index)
    assert set(PROFILE) == set(Profile.__struct_fields__)
    assert set(ACTIVITY) == set(Activity.__struct_fields__)


def test_every_field_of_what_is_inside_merges_in_a_known_way() -> None:
    """Operations are added up in columns, phases and layers by name; the rest is that of the first."""
    scored = {"share", "roof", "roof_share", "mean_ms", "flops_per_s", "bytes_per_s"}  # after merging
    added = {"ms", "calls", "flops", "bytes", "known_share", "samples_ms", "longest", "shapes"}
    of_first = {"name", "kind", "dtype", "where", "module", "kernels"}
    assert set(Operation.__struct_fields__) == added | of_first | scored
    bounds = {"flops_least", "flops_most"}
    rows = {"shape", "ms", "calls", "flops", "bytes", "at_most", *bounds, "roof", "roof_share"}
    assert set(ShapeRow.__struct_fields__) == rows
    # The others are what a producer wrote, which only single profiles have.
    assert set(PhaseShare.__struct_fields__) == {"name", "ms", "samples_ms", "share", "average_ms"}
    layers = {"fwd_ms", "bwd_ms", "recompute_ms", "ops", "layer", "name", "fwd_samples_ms", "bwd_samples_ms"}
    assert set(LayerStep.__struct_fields__) == layers | {"ratio", "top_op", "top_op_share", "slow"}


def test_the_activity_above_has_every_field() -> None:
    """Else the tests below would not see what happens to a field."""
    default = Activity(driver="")
    assert [
        name
        for name in Activity.__struct_fields__
        if getattr(ACTIVITY_OF_RANK, name) == getattr(default, name)
    ] == []


@pytest.mark.parametrize("situation", SITUATIONS)
def test_equal_profiles_merge_to_the_same(situation: str) -> None:
    both = merged(situation, RANK, RANK)
    for name in Profile.__struct_fields__:
        if name not in CHANGED[situation]:
            assert getattr(both, name) == getattr(RANK, name), name
    alone = structs.replace(ACTIVITY_OF_RANK, skew_ms=None, straggler=None)  # of ranks together
    assert both.activity == alone
    assert [note.more_ranks for note in (*both.notes, *both.warnings)] == [1, 1]


def test_ranks_are_averaged_and_the_fullest_decides() -> None:
    other = structs.replace(
        RANK,
        work="inference",
        launches_per_step=20.0,
        matmul_known_share=0.25,
        device=None,
        phases=(PhaseShare(name="backward", ms=2.0, samples_ms=(1.0, 3.0)),),
        memory=Memory(peak_bytes=300.0),
        contents={"trace": "2 MB"},
        activity=structs.replace(ACTIVITY_OF_RANK, marks={"item": 4.0}, copies=(), skipped_steps=3),
    )
    run = merged("ranks", structs.replace(other, rank=1), RANK)
    assert (run.work, run.launches_per_step, run.matmul_known_share) == ("training", 30.0, 0.25)
    assert (run.device, run.memory) == (RANK.device, other.memory)
    assert [(p.name, p.ms, p.samples_ms) for p in run.phases] == [
        ("backward", 1.0, (0.5, 1.5)),
        ("forward", 2.0, (1.5, 2.5)),
    ]
    assert run.contents == {"trace": "2 MB (and others)", "ranks": "0, 1"}
    assert run.activity is not None
    assert (run.activity.marks, run.activity.skipped_steps) == ({"item": 3.0}, 3)
    assert [row.ms for row in run.activity.copies] == [1.0]
    unknown = structs.replace(RANK, matmul_flops=None, steps=3)
    run = merged("ranks", RANK, unknown)
    assert run.matmul_flops is None
    assert run.phases[0].samples_ms == ()


def test_recorded_ranks_add_up_and_the_slowest_tells_the_rest() -> None:
    slow = structs.replace(RANK, mean_step_ms=20.0, device=None, wall_coverage=None, tokens_per_step=500.0)
    run = merged("recorded ranks", RANK, slow, RANK)
    assert (run.mean_step_ms, run.device, run.tokens_per_step) == (20.0, None, 2500.0)
    assert run.wall_coverage == 0.9
    assert merged("recorded ranks", RANK, structs.replace(slow, tokens_per_step=None)).tokens_per_step is None
    one_rank = structs.replace(RANK, notes=(Note("one_rank", ""), *RANK.notes))
    assert [note.code for note in merged("recorded ranks", one_rank, one_rank).notes] == ["noted"]


def test_recordings_follow_each_other_and_weigh_as_many_steps_as_they_have() -> None:
    longer = structs.replace(RANK, steps=6, mean_step_ms=30.0, launches_per_step=80.0, samples_ms=(30.0,) * 6)
    run = merged("recordings", RANK, longer)
    assert (run.steps, run.recorded_steps, run.samples_ms) == (8, 6, (9.0, 11.0, *(30.0,) * 6))
    assert (run.mean_step_ms, run.launches_per_step) == (25.0, 70.0)
    assert run.ledger is not None
    assert run.ledger.compute == 20.0
    assert merged("recordings", structs.replace(RANK, steps=None)).mean_step_ms is None


def test_what_the_caller_works_out_has_to_be_given() -> None:
    merge = ProfileMerge("recordings")
    merge.add(RANK)
    with pytest.raises(TypeError, match="contents, layers, operations, phases, source, typical_step"):
        merge.result()
    given = {name: getattr(RANK, name) for name, row in PROFILE.items() if row[2] is None}
    with pytest.raises(TypeError, match="steps"):
        merge.result(**given, steps=3)


def test_notes_name_the_ranks_that_have_them() -> None:
    other = structs.replace(RANK, notes=())
    (note,) = merged("ranks", RANK, other, RANK).notes
    assert (note.more_ranks, note.ranks) == (1, (0, 2))
    assert merged("ranks", RANK, RANK).notes[0].ranks == ()
