"""Every rule fires on a run made for it, is silent on healthy runs, and promises at most what the ledger has."""

from __future__ import annotations

import ast
import re
from typing import Any, get_type_hints

import msgspec
import pytest

import stepgrade as sg
from stepgrade.config import Config, read_config
from stepgrade.config.limits import Limits
from stepgrade.diagnosis import rules
from stepgrade.diagnosis.rules import AREAS, RULE_NAMES, RULES, settings_from
from stepgrade.errors import BadInput
from stepgrade.hardware.setup import Setup
from stepgrade.model import (
    RECORDER,
    DeviceSeen,
    Ledger,
    Note,
    Operation,
    Profile,
    RankRow,
    ShapeRow,
    Source,
)
from stepgrade.model.activity import (
    Activity,
    CollectiveTally,
    CopyRow,
    GemmTally,
    HostGaps,
    HostLine,
    KernelTally,
    LoopTally,
    OptimizerTally,
    PartTime,
    Straggler,
    WaitTally,
)
from stepgrade.model.compilation import Compilation, CompiledFrame, GraphBreak
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.memory import Holder, Memory, MemoryGrowth, OutOfMemory
from stepgrade.model.ranks import (
    Communication,
    Difference,
    ExpertUse,
    Hang,
    ManyRanks,
    PipelineUse,
    RankCall,
    SlowPart,
    StageRow,
)
from stepgrade.model.step_log import PauseKind, Reason, StepLog
from tests.builders import make_layers, make_phases, make_profile
from tests.conftest import ROOT

TRACE = Source(format="kineto", files=("trace.json",), producer="torch.profiler")
H100 = DeviceSeen(name="NVIDIA H100 80GB HBM3", memory_bytes=80 * 2**30, sm_count=132)
STEPS, STEP_MS = 10, 100.0


def ledger(**shares: float) -> Ledger:
    """Return a ledger of ten steps of 100 ms; the rest is computing."""
    total = int(STEPS * STEP_MS * 1e6)
    rest = {name: round(shares.get(name, 0.0) * total) for name in ACCOUNTS if name != "compute"}
    return Ledger(compute=total - sum(rest.values()), **rest)


def op(name: str, kind: str, ms: float, **known: Any) -> Operation:
    """Return an operation by its time and calls in a step; FLOPs and bytes are of ten."""
    calls = known.pop("calls", 1.0) * STEPS
    return Operation(name=name, kind=kind, ms=ms * STEPS, calls=calls, **known).per_step(STEPS)


GEMMS = (op("aten::mm", "gemm", 90.0, calls=100.0),)


def trace(
    *, lost: dict[str, float] | None = None, ops: tuple[Operation, ...] = GEMMS, **known: Any
) -> Profile:
    """Return a profile as a trace gives it: ten steps of 100 ms on an H100."""
    activity = {name: known.pop(name) for name in Activity.__struct_fields__ if name in known}
    defaults: dict[str, Any] = {
        "source": TRACE,
        "steps": STEPS,
        "mean_step_ms": STEP_MS,
        "ledger": ledger(**(lost or {})),
        "operations": ops,
        "device": H100,
        "launches_per_step": 500.0,
        "activity": Activity(**({"driver": "device", "capability": "9.0"} | activity)),
    }
    return Profile(**(defaults | known))


def kernels(count: float = 500.0, ms: float = 90.0, **known: float) -> KernelTally:
    defaults = {"short_count": 0.0, "short_ms": 0.0, "graph_share": 0.0, "launch_call_us": 5.0}
    return KernelTally(count=count, ms=ms, **(defaults | known))


def gaps(**known: float) -> HostGaps:
    defaults = {"after_sync_ms": 0.0, "stall_ms": 0.0, "stalls": 0.0, "longest_ms": 0.5, "dispatch_ms": 0.0}
    return HostGaps(**(defaults | known))


def gemm(m: int, k: int, n: int, ms: float, calls: float = 10.0) -> tuple[GemmTally, ...]:
    flops, moved = 2.0 * m * k * n * calls, 2.0 * (m * k + k * n + m * n) * calls
    known: dict[str, Any] = {"batch": 1, "m": m, "k": k, "n": n, "dtype": "bf16", "calls": calls, "ms": ms}
    return (GemmTally(**known, flops=flops, bytes=moved),)


def wait(call: str, caller: str | None = None) -> tuple[WaitTally, ...]:
    return (WaitTally(call=call, caller=caller, count=20.0, ms=30.0),)


def copies(**known: Any) -> tuple[CopyRow, ...]:
    defaults = {
        "direction": "h2d",
        "memory": None,
        "during": "forward",
        "calls": 2.0,
        "ms": 20.0,
        "bytes": 1e8,
    }
    return (CopyRow(**(defaults | known)),)


def flaw(code: str) -> Profile:
    return trace(warnings=(Note(code=code, text=f"It is {code}."),))


def phases(**ms: float) -> Profile:
    return make_profile(phases=make_phases(**ms))


def optimizer(**known: Any) -> OptimizerTally:
    defaults: dict[str, Any] = {
        "kernels": 10.0,
        "ms": 3.0,
        "span_ms": 3.0,
        "multi_tensor_share": 1.0,
        "fused": True,
    }
    return OptimizerTally(**(defaults | known))


def host(**known: Any) -> Profile:
    return trace(driver="host", device=None, launches_per_step=None, **known)


def steps(*samples_ms: float) -> Profile:
    return trace(samples_ms=samples_ms)


def logged(walls: dict[int, float] | None = None, *kinds: PauseKind, **known: Any) -> Profile:
    """Return a run of 1,600 s in 160 rows of ten steps, some of which took longer by so many seconds."""
    late = walls or {}
    wall_s = [10.0 + late.get(row, 0.0) for row in range(160)]
    reasons = tuple(Reason(row, kind) for row in late for kind in kinds)
    defaults: dict[str, Any] = {
        "framework": "torchtitan",
        "step": [10.0 * (row + 1) for row in range(160)],
        "count": [10.0] * 160,
        "wall_s": wall_s,
        "step_s": [wall / 10.0 for wall in wall_s],
        "reasons": reasons,
        "has_clock": True,
        "is_mean": True,
    }
    return make_profile(log=StepLog(**(defaults | known)))


def compilation(recompiles: int, ms: float) -> Compilation:
    """Return what was compiled in ten steps of 100 ms, with two breaks in each step."""
    return Compilation(
        ms_per_step=0.0,
        total_ms=ms,
        recorded_ms=STEPS * STEP_MS,
        steps_left_out=recompiles,
        compiles=recompiles + 1,
        recompiles=recompiles,
        graph_breaks=2.0,
        guard_ms=0.1,
        cudagraph_records=0,
        frames=(
            CompiledFrame(frame="0", compiles=recompiles + 1, recompiles=recompiles, ms=ms, where="a.py:3"),
        ),
        breaks=(GraphBreak(where="a.py:8", function="f", per_step=2.0),),
    )


def stage(rank: int, busy_ms: float) -> StageRow:
    """Return what one stage does in a step of 100 ms."""
    rest = STEP_MS - busy_ms
    return StageRow(
        rank=rank,
        busy_ms=busy_ms,
        bubble_ms=rest,
        transfer_ms=0.0,
        wait_ms=rest,
        bubble_share=rest / STEP_MS,
    )


def talk(count: float, each_bytes: float, ms: float = 30.0) -> tuple[CollectiveTally, ...]:
    return (CollectiveTally(name="allreduce", group_size=8, count=count, ms=ms, bytes=count * each_bytes),)


SYNC = "cudaStreamSynchronize"
LATE = Straggler(rank=3, caused_ms=20.0, last_share=0.9, trouble="idle_host", trouble_excess=0.2, ranks=4)
SOFTMAX = (
    op("aten::bmm", "gemm", 20.0, calls=48.0),
    op("aten::_softmax", "softmax", 20.0, calls=24.0),
    op("aten::mm", "gemm", 50.0),
)
MANY_TENSORS = optimizer(kernels=900.0, ms=5.0, span_ms=20.0, multi_tensor_share=0.0, fused=False)
LOOP = LoopTally(
    turns=600.0,
    ms=20.0,
    backward_ms=10.0,
    operations=("aten::select", "aten::mul"),
    line=HostLine(where="train.py:12", function="scale"),
)
PRINTS = HostLine(where="train.py:17", function="train", calls="torch.Tensor.__format__", ms=30.0)
# Products of four rows with 1024 x 1024 weights of 32 bits.
FEW_ROWS = (op("aten::mm", "gemm", 70.0, calls=96.0, flops=96 * 8.0 * 2**20, bytes=96 * 4.0 * 2**20),)
DENSE = (
    op(
        "aten::embedding",
        "embedding",
        1.0,
        shapes=(ShapeRow(shape="400000x64 fp32, 256x20 int64", ms=1.0 * STEPS, calls=1.0 * STEPS),),
    ),
    op("aten::embedding_dense_backward", "embedding", 5.0),
    op(
        "aten::fill_",
        "copy",
        35.0,
        shapes=(ShapeRow(shape="400000x64 fp32", ms=30.0 * STEPS, calls=1.0 * STEPS),),
    ),
)
FIRES: dict[str, Profile] = {
    "input-wait": trace(lost={"idle_input": 0.3}),
    "loader-on-main-thread": trace(lost={"idle_input": 0.3}, loader="_SingleProcessDataLoaderIter"),
    "starved-loader": trace(lost={"idle_input": 0.15}, input_ms=(0.0,) * 7 + (50.0,) * 3),
    "heavy-transfer": trace(lost={"exposed_copy": 0.2}),
    "pageable-copies": trace(lost={"exposed_copy": 0.2}, copies=copies(memory="pageable")),
    "many-small-copies": trace(lost={"exposed_copy": 0.2}, copies=copies(calls=50.0, bytes=5000.0)),
    "offload-traffic": trace(lost={"exposed_copy": 0.2}, copies=copies(during="optimizer")),
    "scalar-read-sync": trace(lost={"idle_sync": 0.2}, waits=wait(SYNC, "aten::_local_scalar_dense")),
    "data-dependent-sync": trace(lost={"idle_sync": 0.2}, waits=wait(SYNC, "aten::nonzero")),
    "allocator-sync": trace(lost={"idle_sync": 0.2}, waits=wait("cudaFree", "aten::empty")),
    "device-synchronize": trace(lost={"idle_sync": 0.2}, waits=wait("cudaDeviceSynchronize")),
    "blocking-copy-sync": trace(lost={"idle_sync": 0.2}, waits=wait("cudaMemcpyAsync", "aten::copy_")),
    "sync-wait": trace(lost={"idle_sync": 0.2}),
    "scalar-read-loop": host(lost={"idle_host": 0.4}, marks={"item": 200.0}, scalar_read_ms=35.0),
    "short-kernels": trace(lost={"idle_host": 0.4}, kernels=kernels(2000.0, 10.0), gaps=gaps()),
    "launch-gaps": trace(lost={"idle_host": 0.3}, kernels=kernels(), gaps=gaps()),
    "host-stall": trace(lost={"idle_host": 0.3}, gaps=gaps(stall_ms=28.0, stalls=3.0, longest_ms=20.0)),
    "slow-launches": trace(lost={"idle_host": 0.06}, kernels=kernels(launch_call_us=80.0), gaps=gaps()),
    "dispatch-latency": trace(lost={"idle_host": 0.06}, gaps=gaps(dispatch_ms=6.0)),
    "many-compiled-regions": trace(lost={"idle_host": 0.06}, marks={"compiled_region": 30.0}, gaps=gaps()),
    "uncovered-time": phases(forward=30.0, backward=30.0),
    "host-phases": phases(forward=30.0, backward=50.0, encode=18.0),
    "python-overhead": host(lost={"idle_host": 0.5}),
    "python-loop": host(lost={"idle_host": 0.2}, loop=LOOP),
    "frequent-printing": host(lost={"idle_host": 0.4}, lines={"stall": (PRINTS,)}),
    "random-numbers": host(ops=(op("aten::normal_", "other", 60.0), *GEMMS)),
    "fp32-matmuls": trace(matmul_dtype_ms={"fp32": 60.0}),
    "tf32-matmuls": trace(matmul_dtype_ms={"tf32": 60.0}),
    "fp64-matmuls": host(matmul_dtype_ms={"fp64": 60.0, "fp32": 40.0}),
    "small-micro-batches": host(
        lost={"idle_host": 0.2}, ops=FEW_ROWS, backward_passes=32.0, samples_per_step=128.0
    ),
    "fp16-beside-bf16": trace(matmul_dtype_ms={"fp16": 60.0}, marks={"loss_scale": 1.0}),
    "math-attention": trace(ops=SOFTMAX, marks={"sdpa_math": 24.0}),
    "unfused-attention": trace(ops=SOFTMAX),
    "slow-attention": trace(
        ops=(op("aten::_flash_attention_forward", "attention", 50.0, flops=2e14, bytes=1e9), *GEMMS),
        sequence=4096,
        matmul_dtype="bf16",
    ),
    "odd-vocabulary": trace(gemms=gemm(8192, 1024, 50257, 30.0)),
    "misaligned-gemm": trace(gemms=gemm(8192, 1023, 4096, 30.0)),
    "tiny-gemms": trace(gemms=gemm(64, 64, 64, 20.0, calls=5000.0)),
    "slow-gemm": trace(gemms=gemm(8192, 8192, 8192, 50.0, calls=2.0), matmul_dtype="bf16"),
    "memory-bound-gemm": trace(gemms=gemm(16, 8192, 8192, 50.0, calls=500.0), matmul_dtype="bf16"),
    "single-tensor-optimizer": trace(optimizer=MANY_TENSORS),
    "heavy-optimizer": trace(optimizer=optimizer(ms=40.0, span_ms=40.0, fused=False)),
    "zero-grad-fills": trace(marks={"zero_fill": 300.0}, kernel_group_ms={"fill": 3.0}),
    "elementwise-chains": trace(ops=(op("aten::mul", "elementwise", 45.0), op("aten::mm", "gemm", 45.0))),
    "fragmented-elementwise": trace(
        ops=(op("aten::mul", "elementwise", 5.0), *GEMMS), class_kernels={"elementwise": 3000.0}
    ),
    "slow-elementwise": trace(ops=(op("aten::mul", "elementwise", 15.0, bytes=1e8), *GEMMS)),
    "hand-written-norm": trace(
        ops=(op("aten::mul", "elementwise", 15.0), *GEMMS), marks={"rsqrt": 64.0, "mean": 64.0}
    ),
    "unfused-loss": trace(ops=(op("aten::_log_softmax", "softmax", 15.0), *GEMMS)),
    "dense-embedding-gradients": host(ops=(*DENSE, *GEMMS)),
    "heavy-embedding": trace(ops=(op("aten::embedding_dense_backward", "embedding", 20.0), *GEMMS)),
    "data-shuffling": trace(ops=(op("aten::index_put_", "indexing", 40.0), *GEMMS)),
    "one-hot-operation": trace(
        ops=(op("my::kernel", "other", 80.0), *(op(f"aten::mm_{place}", "gemm", 2.0) for place in range(5)))
    ),
    "layout-conversions": trace(kernel_group_ms={"layout": 20.0}),
    "device-copies": trace(
        parts=(PartTime(work_class="copy", role=None, direction=None, ms=20.0, calls=9.0, kernels=9.0),)
    ),
    "exposed-communication": trace(lost={"exposed_communication": 0.3}, communication_ms=90.0),
    "weak-overlap": trace(lost={"exposed_communication": 0.03}, communication_ms=4.0),
    "small-messages": trace(lost={"exposed_communication": 0.3}, collectives=talk(40.0, 1e5)),
    "sync-every-micro-batch": trace(
        lost={"exposed_communication": 0.3}, communication_ms=40.0, marks={"synced_passes": 8.0}
    ),
    "slow-link": trace(lost={"exposed_communication": 0.3}, collectives=talk(40.0, 2e6), skew_ms=0.0),
    "gloo-on-devices": trace(lost={"exposed_communication": 0.3}, marks={"gloo": 4.0}),
    "data-parallel": trace(lost={"idle_host": 0.3}, marks={"data_parallel": 1.0}),
    "straggler-rank": trace(lost={"wait_ranks": 0.2}, straggler=LATE, skew_ms=15.0),
    "uneven-ranks": trace(lost={"wait_ranks": 0.2}, skew_ms=15.0),
    "compiles-again": trace(lost={"idle_host": 0.4}, compilation=compilation(recompiles=3, ms=500.0)),
    "compile-failed": trace(
        compilation=msgspec.structs.replace(
            compilation(recompiles=0, ms=0.0),
            graph_breaks=0.0,
            frames=(
                CompiledFrame(
                    frame="1",
                    compiles=1,
                    recompiles=0,
                    ms=4.0,
                    where="a.py:8",
                    function="f",
                    failure="backend='bad' raised: RuntimeError: no such kernel",
                ),
            ),
            breaks=(),
        )
    ),
    "graph-breaks": trace(lost={"idle_host": 0.1}, compilation=compilation(recompiles=0, ms=0.0)),
    "graphs-recorded-again": trace(
        lost={"idle_host": 0.1},
        compilation=msgspec.structs.replace(
            compilation(recompiles=0, ms=0.0),
            cudagraph_records=1200,
            cudagraph_rerecords=1100,
            graph_breaks=0.0,
        ),
    ),
    "slow-stage": trace(
        lost={"exposed_communication": 0.4},
        links=Communication(
            pipeline=PipelineUse.of([stage(*of) for of in ((0, 40), (1, 40), (2, 60), (3, 40))], 4.0)
        ),
    ),
    "uneven-experts": trace(
        lost={"exposed_communication": 0.4},
        links=Communication(
            experts=(
                ExpertUse(
                    group="ep",
                    calls=4.0,
                    ranks=(*range(8),),
                    received_bytes=(*[1e8] * 7, 2e8),
                    max_over_mean=16 / 9,
                    busiest_rank=7,
                    wait_ms=20.0,
                ),
            )
        ),
    ),
    "slow-layer": trace(layers=make_layers(*[(50.0, 100.0)] * 5, (150.0, 100.0))),
    "unused-gradients": host(
        source=Source(format="step_profiler_v2", files=("run.json",), producer=RECORDER),
        phases=make_phases(forward=20.0, backward=60.0),
        marks={"unused_gradients": 0.5},
    ),
    "recomputed-forward": trace(recompute_ms=20.0),
    "fast-backward": trace(layers=make_layers((10.0, 5.0))),
    "slow-backward": trace(phases=make_phases(forward=10.0, backward=60.0)),
    "skipped-steps": trace(skipped_steps=2, skipped_part="backward pass"),
    "no-backward": trace(phases=make_phases(forward=50.0), marks={"optimizer_step": 1.0}),
    "slow-checkpoints": logged({80: 200.0}, "checkpoint"),
    "long-evaluations": logged({80: 200.0}, "evaluation"),
    "recurring-slow-steps": logged({80: 200.0}),
    "run-restarts": logged({80: 200.0}, attempts=(0, 80)),
    "slower-run": logged(dict.fromkeys(range(80, 160), 2.0)),
    "slow-start": logged(before_s=200.0),
    "longest-rl-part": msgspec.structs.replace(
        logged(), phases=make_phases(rollout=60.0, update=30.0, idle=10.0), mean_step_ms=100.0
    ),
    "unsteady-steps": steps(*[90.0] * 9, 400.0),
    "drifting-steps": steps(*[80.0] * 12, *[100.0] * 12),
    "rank-never-arrived": trace(
        hang=Hang(kind="missing_rank", group="default_pg", sequence=3, waiting=(0, 1), missing=(2,))
    ),
    "collectives-differ": trace(
        hang=Hang(
            kind="mismatch",
            group="default_pg",
            sequence=3,
            differ_in="kind",
            differences=(Difference(ranks=(1,), value="broadcast"), Difference(ranks=(0,), value="barrier")),
        )
    ),
    "ranks-wait-for-each-other": trace(
        hang=Hang(
            kind="deadlock",
            circle=(
                RankCall(ranks=(0,), name="all_reduce", sequence=7, group="data"),
                RankCall(ranks=(1, 2), name="all_gather", sequence=4, group="tensor"),
            ),
        )
    ),
    "collective-unfinished": trace(hang=Hang(kind="unfinished", group="a", sequence=3, waiting=(0, 1))),
    "out-of-memory": trace(
        memory=Memory(peak_bytes=7e10, out_of_memory=OutOfMemory(asked_bytes=2e9, free_bytes=1e8))
    ),
    "memory-grows": trace(
        memory=Memory(
            peak_bytes=4e10,
            growth=MemoryGrowth(
                bytes_per_step=3e7, steps=8, holders=(Holder(bytes=1e8, where="train.py:7"),)
            ),
        )
    ),
    "allocator-retries": trace(memory=Memory(peak_bytes=4e10, retries=3)),
    "memory-fragmented": trace(memory=Memory(peak_bytes=5e10, reserved_bytes=7e10, fragmentation=0.28)),
    "loss-dominates-memory": trace(
        memory=Memory(peak_bytes=4e10, holders=(Holder(bytes=2e10, op="aten::_log_softmax"),))
    ),
    "optimizer-unsharded": trace(
        world_size=8, memory=Memory(peak_bytes=4e10, categories={"weights": 8e9, "optimizer": 1.6e10})
    ),
    "activations-kept": trace(
        peak_memory_bytes=7.2e10, memory=Memory(peak_bytes=7.2e10, categories={"activations": 5e10})
    ),
    "memory-nearly-full": trace(peak_memory_bytes=78.0 * 2**30),
    "memory-idle": trace(lost={"idle_host": 0.4}, gaps=gaps(), peak_memory_bytes=10.0 * 2**30),
    "truncated-trace": flaw("truncated"),
    "warm-up-only": flaw("warm_up"),
    "no-steps": flaw("no_steps"),
    "device-unseen": flaw("device_unseen"),
    "profiler-overhead": flaw("profiler_overhead"),
    "recording-slows-host": flaw("host_slowed"),
    "clocks-apart": flaw("clocks"),
    "unexplained-idle": flaw("unattributed"),
    "hardly-any-work": trace(lost={"idle_host": 0.97}, kernels=kernels(3.0, 2.0), gaps=gaps(stall_ms=90.0)),
    "start-up": trace(lost={"idle_host": 0.9}, gaps=gaps(stall_ms=80.0), startup_ms=75.0, steps=1),
    "graph-capture": trace(lost={"idle_host": 0.9}, gaps=gaps(stall_ms=80.0), marks={"graph_capture": 4.0}),
    "collective-is-all": trace(lost={"exposed_communication": 0.95}, steps=1),
    "above-roof": trace(
        ops=(op("aten::mm", "gemm", 90.0, flops=5e15, bytes=1e9),),
        matmul_dtype="bf16",
        source=Source(format="kineto", files=("peaks given",), producer="torch.profiler"),
    ),
}
DEVICE = Setup(device="h100-sxm5-80gb")


def setup_of(profile: Profile) -> Setup:
    """Return the device; counts above the catalogue's peaks are left out, above given ones they are found."""
    return Setup(peak_tflops=989.0, peak_bw_gb_s=3350.0) if "peaks given" in profile.source.files else DEVICE


def card_of(profile: Profile, **known: Any) -> sg.Scorecard:
    return sg.score(profile, setup=setup_of(profile), **known)


def ignoring(*rules: str) -> Config:
    return Config(rules={"ignore": [*rules]})


def test_every_rule_has_a_run_that_makes_it_fire() -> None:
    assert set(FIRES) == set(RULE_NAMES)
    assert len(RULES) >= 40


# Rules that another one takes in on the run made for them: the time is a consequence of what it found.
EXPLAINED_BY = {
    "dispatch-latency": "launch-gaps",
    "slow-elementwise": "elementwise-chains",
    "hand-written-norm": "elementwise-chains",
    "weak-overlap": "exposed-communication",
}


@pytest.mark.parametrize("name", FIRES)
def test_a_rule_fires_on_the_run_made_for_it(name: str) -> None:
    cause = EXPLAINED_BY.get(name)
    found = {finding.rule for finding in card_of(FIRES[name]).findings}
    assert (cause or name) in found
    if cause is not None:
        assert name not in found
        without = card_of(FIRES[name], config=ignoring(cause))
        assert name in {finding.rule for finding in without.findings}


@pytest.mark.parametrize("name", FIRES)
def test_a_rule_alone_gives_a_complete_finding(name: str) -> None:
    others = frozenset(RULE_NAMES) - {name}
    (finding,) = card_of(FIRES[name], config=ignoring(*others)).findings
    assert finding.rule == name
    assert finding.claim.endswith((".", "?"))
    assert finding.remedy
    assert finding.check.endswith(".")
    assert finding.evidence
    assert 0.0 <= finding.gain_low <= finding.gain_high <= 1.0
    assert finding.gain_high == 0.0 or finding.gain_basis


def test_any_number_of_rows_is_well_aligned() -> None:
    products = (
        *gemm(788, 768, 3072, 30.0),
        *gemm(768, 788, 3072, 30.0),
    )  # a layer, and its weight's gradient
    assert "misaligned-gemm" not in {found.rule for found in sg.score(trace(gemms=products)).findings}
    narrow = (*products, *gemm(788, 3072, 769, 30.0))
    assert "misaligned-gemm" in {found.rule for found in sg.score(trace(gemms=narrow)).findings}


@pytest.mark.parametrize("name", ["unsteady-steps", "drifting-steps"])
def test_what_other_programs_may_have_cost_is_no_fault_of_the_loop(name: str) -> None:
    busy = msgspec.structs.replace(FIRES[name], notes=(Note("busy_machine", "others took the cores"),))
    (found,) = [found for found in card_of(busy).findings if found.rule == name]
    assert (found.severity, found.gain_high) == ("info", 0.0)
    assert "quiet machine" in found.remedy


@pytest.mark.parametrize("name", FIRES)
def test_an_ignored_rule_is_silent(name: str) -> None:
    card = card_of(FIRES[name], config=ignoring(name))
    assert name not in {finding.rule for finding in card.findings}


def test_a_healthy_run_makes_no_rule_fire() -> None:
    profile = trace(kernels=kernels(), gaps=gaps(), matmul_dtype_ms={"bf16": 90.0}, optimizer=optimizer())
    assert card_of(profile).findings == ()


def test_one_cause_is_one_finding_with_its_consequences() -> None:
    (finding,) = card_of(FIRES["short-kernels"]).findings
    assert finding.rule == "short-kernels"
    assert any("for launches" in claim for claim in finding.consequences)


@pytest.mark.parametrize(
    ("kind", "claim", "remedy"),
    [
        ("host", "Host 17 spends 50.0 % longer outside of communication", "Replace the named host or rank"),
        ("stage", "Host 17 spends 50.0 % longer", "Move layers from this stage"),
        (
            "link",
            "Host 17 takes 50.0 % longer than in the other groups",
            "Run nccl-tests over the named ranks",
        ),
        (None, "no rank is always last.", "Balance the work"),
    ],
)
def test_what_ranks_wait_for_is_named_with_what_to_do_about_it(
    kind: str | None, claim: str, remedy: str
) -> None:
    slow = [SlowPart(kind=kind, name="host 17", ranks="136 to 143", slower=0.5)] if kind else []
    many = ManyRanks(ranks=1000, hosts=125, per_host=8, slow=tuple(slow))
    card = card_of(msgspec.structs.replace(FIRES["uneven-ranks"], many_ranks=many))
    (finding,) = [one for one in card.findings if one.rule == "uneven-ranks"]
    assert claim in finding.claim
    assert finding.remedy.startswith(remedy)
    assert finding.evidence.get("slow") == ("host 17" if kind else None)


def test_the_claim_of_a_more_general_rule_on_the_same_time_is_not_repeated() -> None:
    (finding,) = card_of(FIRES["scalar-read-sync"]).findings
    assert finding.rule == "scalar-read-sync"
    assert finding.consequences == ()


def test_every_area_has_rules_and_a_page() -> None:
    assert all(AREAS.values())
    assert {rule.area for rule in rules._WRITTEN} == set(AREAS)
    assert set(AREAS) == {path.stem for path in (ROOT / "docs" / "rules").glob("*.md")}


def test_every_limit_is_named_in_the_code() -> None:
    """A limit that is only built from strings, or that nothing reads, cannot be checked: rules name theirs."""
    named = {
        node.attr
        for path in (ROOT / "src" / "stepgrade").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    by_rules = {limit for rule in RULES for limit in rule.least.values()}
    for levels in {rule.levels for rule in RULES} - {""}:
        grading = {f"{levels}_{severity}_share" for severity in ("info", "warning", "critical")}
        by_rules |= grading - {"memory_info_share"}  # memory that is nearly full is at least a warning
    assert by_rules <= set(Limits.__struct_fields__) <= named | by_rules


def test_a_rule_has_figures_or_a_function() -> None:
    for rule in RULES:
        assert (rule.find is None) == bool(rule.claim) == bool(rule.figures)
        assert rule.least.keys() <= rule.figures.keys()


def test_rules_explain_rules_that_exist_and_never_each_other() -> None:
    explains = {rule.name: rule.explains for rule in RULES}
    for name, seen in explains.items():
        assert set(seen) <= set(RULE_NAMES)
        assert name not in seen
        assert all(name not in explains[other] for other in seen)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_a_rule_has_every_text_that_its_page_needs(rule: Any) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rule.name)
    for text in (rule.sees, rule.evidence, rule.fix, rule.wrong_when, rule.check, rule.sources):
        assert text
    if rule.worth is not None:
        assert set(rule.worth.accounts.split("+")) <= set(ACCOUNTS)
        assert 0.0 < rule.worth.realistic <= 1.0
        assert rule.worth.because


# --- advice fits runtime and state


@pytest.mark.parametrize(
    ("producer", "word"), [("torch.profiler", "DataLoader"), ("xplane", "device"), ("nsys", "loader workers")]
)
def test_advice_is_in_the_words_of_the_runtime(producer: str, word: str) -> None:
    source = Source(format="any", files=("f",), producer=producer)
    profile = msgspec.structs.replace(FIRES["input-wait"], source=source)
    assert word in card_of(profile).findings[0].remedy


def test_the_references_own_sentences_for_its_own_runtime() -> None:
    card = sg.score(phases(forward=30.0, h2d=40.0, backward=25.0))
    assert "Reduce H2D" in card.findings[0].remedy or "transfer" in card.findings[0].remedy.lower()


def test_no_larger_batch_when_memory_is_full() -> None:
    lean, full = (
        trace(lost={"idle_host": 0.3}, gaps=gaps(), peak_memory_bytes=share * 80 * 2**30)
        for share in (0.3, 0.95)
    )
    assert "a larger batch gives" in card_of(lean).findings[0].remedy
    remedies = [finding.remedy for finding in card_of(full).findings]
    assert any("no room for a larger batch" in remedy for remedy in remedies)
    assert not any("a larger batch gives" in remedy for remedy in remedies)


def test_no_compiling_for_a_run_that_sits_in_large_products() -> None:
    card = card_of(trace(gemms=gemm(8192, 8192, 8192, 80.0, calls=60.0), matmul_dtype="bf16"))
    assert not any("torch.compile" in advice for advice in card.recommendations)


@pytest.mark.parametrize(
    ("flops", "words"),
    [
        (8e14, "arithmetic units are the limit"),
        (1e14, "better shapes or kernels first"),
        (None, "takes the time"),
    ],
)
def test_advice_on_arithmetic_fits_how_near_its_peak_it_is(flops: float | None, words: str) -> None:
    ops = (op("aten::mm", "gemm", 100.0, flops=flops and flops * STEPS / 10.0, bytes=1e9),)
    known: dict[str, Any] = {"matmul_dtype": "bf16", "phases": make_phases(forward=30.0, backward=60.0)}
    card = card_of(trace(ops=ops, **known))
    assert card.bottleneck == "compute"
    assert words in card.recommendations[0]


def test_compiling_is_not_advised_for_compiled_kernels() -> None:
    card = card_of(trace(lost={"idle_host": 0.3}, gaps=gaps(), kernel_group_ms={"triton": 5.0}))
    assert "already fused" in card.findings[0].remedy


# --- stepgrade.toml


def test_every_limit_can_be_set_and_has_a_source() -> None:
    for name in Limits.__struct_fields__:
        value = getattr(Limits(), name)
        text = f"[limits]\n{name} = {value if isinstance(value, int) else value / 2}\n"
        found = getattr(settings_from(read_config(text)).limits, name)
        assert found == (value if isinstance(value, int) else value / 2)
    hints = get_type_hints(Limits, include_extras=True)
    assert all(hint.__metadata__[0].description for hint in hints.values())


def test_a_limit_decides() -> None:
    profile = trace(lost={"idle_input": 0.07})
    assert [finding.severity for finding in card_of(profile).findings] == ["info"]
    for line, severity in (("0.5", []), ("0.01", ["info"])):
        config = read_config(f"[limits]\ninput_info_share = {line}\n")
        assert [finding.severity for finding in card_of(profile, config=config).findings] == severity


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[limits]\ninput_inf_share = 0.1", "input_info_share"),
        ("[limits]\ninput_info_share = 2", "<= 1.0"),
        ("[limits]\ninput_info_share = 'a'", "input_info_share"),
        ("[limit]", "limits"),
        ("limits = 3", "limits"),
        ("[rules]\nignore = ['slow-lair']", "slow-layer"),
        ("[rules]\nignore = 'slow-layer'", "list"),
        ("[rules]\nonly = []", "ignore"),
        ("a = ", "TOML"),
    ],
)
def test_what_a_file_misspells_is_refused_with_the_nearest_name(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=re.escape(words)):
        settings_from(read_config(text))


def test_ranks_are_needed_for_a_profile_of_ranks() -> None:
    ranks = tuple(RankRow(rank=rank, step_ms=STEP_MS) for rank in range(4))
    card = card_of(msgspec.structs.replace(FIRES["straggler-rank"], ranks=ranks))
    assert card.findings[0].evidence["rank"] == 3.0


def test_hundreds_of_values_read_are_a_warning_however_long_the_step() -> None:
    few, many = (
        host(lost={"idle_host": 0.4}, marks={"item": reads}, scalar_read_ms=4.0) for reads in (200.0, 900.0)
    )
    levels = [
        next(f.severity for f in sg.score(run).findings if f.rule == "scalar-read-loop")
        for run in (few, many)
    ]
    assert levels == ["info", "warning"]


def test_time_between_the_framework_s_own_calls_is_a_remark() -> None:
    long = gaps(stall_ms=28.0, stalls=3.0, longest_ms=20.0)
    levels = []
    for calls in ("torch.wrapper", "torch.save"):
        line = HostLine(where="train.py:3", function="step", calls=calls, ms=28.0)
        run = host(lost={"idle_host": 0.3}, gaps=long, lines={"stall": (line,)})
        levels.append(next(f.severity for f in sg.score(run).findings if f.rule == "host-stall"))
    assert levels[0] == "info"
    assert levels[1] != "info"


def test_the_device_waits_for_no_longer_than_it_idles() -> None:
    """What a wait hides lies in gaps that may count as the host's own too."""
    waits = (WaitTally(call="cudaStreamSynchronize", caller=None, count=1.0, ms=20.0, idle_ms=85.0),)
    run = trace(
        lost={"idle_host": 0.85, "idle_sync": 0.05},
        gaps=gaps(stall_ms=85.0, stalls=1.0, longest_ms=85.0),
        waits=waits,
    )
    found = next(found for found in sg.score(run).findings if found.rule == "host-stall")
    assert found.evidence["stall_share"] == pytest.approx(0.9)


def test_values_that_are_read_and_tensors_that_are_filled_are_no_copies() -> None:
    read = Operation(name="aten::item", ms=20.0, calls=100.0, kind="copy")
    filled = Operation(name="aten::fill_", ms=20.0, calls=1.0, kind="copy")
    copied = Operation(name="aten::copy_", ms=20.0, calls=1.0, kind="copy")
    found = [
        any(f.rule == "device-copies" for f in sg.score(host(ops=(*GEMMS, op))).findings)
        for op in (read, filled, copied)
    ]
    assert found == [False, False, True]


@pytest.mark.parametrize(("classes", "is_found"), [(10, False), (32_000, True)])
def test_the_loss_of_a_few_classes_is_not_one_over_a_vocabulary(classes: int, is_found: bool) -> None:
    # The hidden layer is wider than a vocabulary need be: the loss itself says over what it goes.
    loss = op("aten::_log_softmax", "softmax", 15.0, bytes=2.0 * 4 * 128 * classes * STEPS)
    run = trace(ops=(loss, *GEMMS), gemms=gemm(128, 512, 2048, 30.0))
    assert any(found.rule == "unfused-loss" for found in sg.score(run).findings) == is_found


def test_a_few_operations_on_a_processor_are_no_run() -> None:
    op = Operation(name="aten::mm", ms=0.1, calls=2.0, kind="gemm")
    run = host(ops=(op,), mean_step_ms=0.1, samples_ms=(0.1,) * 10)
    assert any(f.rule == "hardly-any-work" for f in sg.score(run).findings)
    assert not any(f.rule == "hardly-any-work" for f in sg.score(host()).findings)


def test_what_xla_has_fused_is_no_chain_to_fuse() -> None:
    ops = (op("mul fusion", "elementwise", 45.0), op("dot_general", "gemm", 45.0))
    assert "elementwise-chains" not in {finding.rule for finding in sg.score(trace(ops=ops)).findings}


@pytest.mark.parametrize(
    ("account", "is_known"),
    [("exposed_copy", True), ("exposed_communication", True), ("idle_input", True), ("idle_host", False)],
)
@pytest.mark.parametrize("rule", ["hardly-any-work", "graph-capture"])
def test_a_file_with_a_large_known_cause_shows_something(rule: str, account: str, is_known: bool) -> None:
    seen = {"kernels": kernels(3.0, 2.0)} if rule == "hardly-any-work" else {"marks": {"graph_capture": 4.0}}
    for share, silent in ((0.21, is_known), (0.04, False)):
        lost = {"idle_host": 0.95 - share, account: share} if account != "idle_host" else {account: 0.95}
        found = sg.score(trace(lost=lost, gaps=gaps(stall_ms=70.0), **seen)).findings
        assert any(one.rule == rule for one in found) is not silent


def test_kernels_that_take_a_quarter_of_the_step_are_a_step() -> None:
    run = trace(lost={"idle_host": 0.75}, gaps=gaps(stall_ms=70.0), marks={"graph_capture": 4.0})
    found = [one.rule for one in sg.score(run).findings]
    assert "graph-capture" not in found
    assert "host-stall" in found


def test_few_kernels_beside_long_communication_are_a_run_in_the_file() -> None:
    few = kernels(count=3.0, ms=3.0)
    idle = trace(lost={"idle_host": 0.97}, kernels=few, ops=())
    talking = trace(lost={"idle_host": 0.57, "exposed_communication": 0.4}, kernels=few, ops=())
    found = [{one.rule for one in card_of(run, config=ignoring()).findings} for run in (idle, talking)]
    assert ["hardly-any-work" in rules for rules in found] == [True, False]


@pytest.mark.parametrize(("graph_share", "is_found"), [(0.4, True), (0.6, False), (1.0, False)])
def test_short_kernels_of_a_graph_cost_no_launches(graph_share: float, is_found: bool) -> None:
    of_graph = kernels(count=2000.0, ms=10.0, graph_share=graph_share)
    run = msgspec.structs.replace(FIRES["short-kernels"])
    activity = msgspec.structs.replace(run.activity, kernels=of_graph)
    card = card_of(msgspec.structs.replace(run, activity=activity))
    assert ("short-kernels" in {finding.rule for finding in card.findings}) is is_found


@pytest.mark.parametrize("producer", ["torch.profiler", "jax.profiler", "step_profiler_v2", "other"])
@pytest.mark.parametrize("name", FIRES)
def test_every_finding_says_what_to_do_whatever_made_the_file(name: str, producer: str) -> None:
    source = msgspec.structs.replace(FIRES[name].source, producer=producer)
    for finding in card_of(msgspec.structs.replace(FIRES[name], source=source)).findings:
        assert len(finding.remedy or "") > 10
        assert len(finding.check) > 10
