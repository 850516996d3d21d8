"""Which rules may name which fault of `wild_runs`, on which runs, and at which strengths."""

from __future__ import annotations

from dataclasses import replace

from tests.wild_runs import Wild

NAMED: dict[str, set[str]] = {
    "loader": {"input-wait", "starved-loader"},
    "loader_main": {"loader-on-main-thread"},
    "loader_4th": {"starved-loader", "input-wait"},
    "pageable": {"pageable-copies"},
    "pageable_pieces": {"pageable-copies", "many-small-copies"},
    "item": {"scalar-read-sync"},
    "cpu": {"scalar-read-sync"},
    "nonzero": {"data-dependent-sync"},
    "stream_sync": {"device-synchronize"},
    "event_sync": {"device-synchronize"},
    "allocator": {"allocator-sync"},
    "tiny": {"short-kernels"},
    "fp32": {"fp32-matmuls"},
    "fp32_half": {"fp32-matmuls"},
    "attention": {"unfused-attention"},
    "single_tensor": {"single-tensor-optimizer"},
    "reduce_last": {"exposed-communication"},
    "reduce_all": {"exposed-communication"},
    "reduce_each_pass": {"exposed-communication"},
    "gathers": {"exposed-communication"},
    "slow_forward": {"slow-layer"},
    "slow_backward": {"slow-layer"},
    "chains": {"elementwise-chains"},
    "device_copies": {"device-copies"},
    "loss": {"unfused-loss"},
    "stall": {"host-stall"},
    "offload": {"offload-traffic"},
    "odd_sizes": {"misaligned-gemm"},
}
# ROCm's traces do not say whether memory is pinned; that the host stays with a copy is all there is to see.
NAMED_ON_ROCM = {
    "pageable": {"blocking-copy-sync", "heavy-transfer"},
    "pageable_pieces": {"many-small-copies", "blocking-copy-sync"},
}
FACTORS = {"fp32": (1.4, 2.5, 6.0), "fp32_half": (2.0, 5.0), "attention": (2.5, 5.0), "odd_sizes": (1.0,)}
SHARES = (0.2, 0.5, 1.0, 2.0)  # of the step without the fault, for all others

ON_A_PROCESSOR = {
    *("loader", "loader_main", "loader_4th", "slow_forward", "slow_backward"),
    *("attention", "chains", "device_copies", "loss"),
}
# A replayed graph names no operations and no modules, and its kernels wait for no launch.
NOT_IN_A_GRAPH = {"tiny", "attention", "slow_forward", "slow_backward", "loss", "stall", "odd_sizes"}
NOT_WITHOUT_SHAPES = {"odd_sizes"}
NOT_WITHOUT_MODULES = {"slow_forward", "slow_backward"}

RUNS = {
    "plain": Wild(),
    "rocm": Wild(rocm=True),
    "small": Wild(layers=4, layer_us=300),
    "deep": Wild(layers=24, layer_us=500, steps=5),
    "accumulating": Wild(micro=4, layer_us=400, steps=12),
    "graph": Wild(graph=True),
    "copies on a stream": Wild(copy_stream=True),
    "no shapes": Wild(shapes=False, modules=False),
    "jitter": Wild(jitter=0.25, seed=3),
    "rocm, no shapes": Wild(rocm=True, shapes=False),
    "processor": Wild(cpu=True, layer_us=2000),
    "big": Wild(layer_us=5000, layers=8, steps=5),
}


def rules_for(run: Wild, fault: str) -> set[str]:
    """Return the rules that name the fault on such a run."""
    return NAMED_ON_ROCM.get(fault, NAMED[fault]) if run.rocm else NAMED[fault]


def can_be_told(run: Wild, fault: str) -> bool:
    """Tell whether a trace of such a run holds what it takes to name the fault."""
    if run.cpu and fault not in ON_A_PROCESSOR:
        return False
    if run.graph and fault in NOT_IN_A_GRAPH:
        return False
    if not run.shapes and fault in NOT_WITHOUT_SHAPES:
        return False
    return run.modules or fault not in NOT_WITHOUT_MODULES


def with_fault(run: Wild, fault: str, strength: float, step_ms: float) -> Wild:
    """Return the run with the fault: a factor, or a share of the step that the run takes without it."""
    size = strength if fault in FACTORS else strength * step_ms
    return replace(run, faults={**run.faults, fault: size})
