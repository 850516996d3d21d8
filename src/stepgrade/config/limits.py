"""Every threshold that a judgement rests on, with its source, in one place; all can be set in stepgrade.toml.

Sources are rules of other tools by the initials that docs/rules.md spells out, or "ours" with the reason.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


def share(source: str) -> Meta:
    """Return the mark of a limit that is a share (0 to 1)."""
    return Meta(ge=0.0, le=1.0, description=source)


def amount(source: str) -> Meta:
    """Return the mark of a limit that is any amount of 0 or more."""
    return Meta(ge=0.0, description=source)


def whole(source: str) -> Meta:
    """Return the mark of a limit that is a count."""
    return Meta(ge=0, description=source)


class Limits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Thresholds; shares are 0 to 1."""

    # What names a bottleneck.
    transfer_share: Annotated[float, share("the reference, Bottleneck::classify")] = 0.30
    launch_share: Annotated[float, share("the reference, Bottleneck::classify")] = 0.40
    launch_advice_share: Annotated[float, share("the reference, its recommendations")] = 0.30
    near_ceiling: Annotated[float, share("the reference, Bottleneck::classify")] = 0.50
    waiting_share: Annotated[float, share("ours: waits that phases show count as transfers do")] = 0.30
    device_wait_share: Annotated[float, share("TraceLens, nsys-ai: idle above 15 % is high")] = 0.15
    wait_over_work: Annotated[float, share("ours: what a run usually gains of its work itself")] = 0.25
    busy_share: Annotated[float, share("the reference: half, before work itself is the limit")] = 0.50

    # Fitness of step profiles.
    overlap_tolerance: Annotated[float, share("ours: emitters round phases to 0.01 ms")] = 0.005
    average_tolerance: Annotated[float, share("ours: totals and averages are of the same steps")] = 0.05

    few_kernels: Annotated[float, amount("ours: the smallest model's step has more")] = 5.0
    few_operations: Annotated[float, amount("ours: the smallest model's step has more")] = 20.0
    shortest_step_ms: Annotated[float, amount("ours: shorter is one call of a few operations")] = 1.0
    startup_share: Annotated[float, share("ours: a fifth of the step in calls that come once")] = 0.20
    unexplained_share: Annotated[float, share("ours: a fifth of the step without a reason")] = 0.20

    # Layers.
    outlier_score: Annotated[float, amount("Iglewicz and Hoaglin: modified z-score")] = 3.5
    outlier_ratio: Annotated[float, amount("ours: a quarter more than the median layer")] = 1.25
    outlier_least_layers: Annotated[int, whole("ours: fewer have no median to stand out from")] = 4
    outlier_least_steps: Annotated[int, whole("ours: on a processor fewer are noise")] = 3
    outlier_same_operations: Annotated[float, share("ours: of their names, for layers to be alike")] = 0.50
    outlier_steps_share: Annotated[float, share("ours: of the steps, in which it stands out")] = 0.80
    layer_info_share: Annotated[float, share("ours: nothing below is worth a look")] = 0.005
    layer_warning_share: Annotated[float, share("ours: one layer's excess, of the whole step")] = 0.01
    layer_critical_share: Annotated[float, share("as input: 20 %")] = 0.20
    recompute_info_share: Annotated[float, share("Hugging Face: checkpointing costs about 20 %")] = 0.05
    idle_device_share: Annotated[float, share("DLProf: kernels in below a tenth of the time")] = 0.10
    backward_products: Annotated[float, amount("ours: 2 for each forward product, 1 if frozen")] = 1.2
    slow_backward_ratio: Annotated[float, amount("ours: 2 is usual, 3 with everything recomputed")] = 3.5

    # Input.
    input_info_share: Annotated[float, share("torch-tb-profiler, XProf (moderate): 5 %")] = 0.05
    input_warning_share: Annotated[float, share("TraceML, XProf (smart rule): 10 %")] = 0.10
    input_critical_share: Annotated[float, share("XProf (high), TraceML: 20 %")] = 0.20
    starved_ms: Annotated[float, amount("gpuprof: waits of more than 30 ms")] = 30.0
    starved_steps_share: Annotated[float, share("gpuprof: on 20 % of the steps")] = 0.20

    # Copies and synchronisation.
    copy_info_share: Annotated[float, share("TraceLens, nsys-ai: 5 %")] = 0.05
    copy_warning_share: Annotated[float, share("TraceML: 10 %")] = 0.10
    copy_critical_share: Annotated[float, share("TraceML: 20 %")] = 0.20
    copies_per_step: Annotated[float, amount("TraceLens: more than 10 transfers")] = 10.0
    small_copy_bytes: Annotated[float, amount("ours: below, latency is most of a PCIe copy")] = 65536.0
    sync_info_share: Annotated[float, share("as idle by XProf: 3 % to 5 %")] = 0.03
    sync_warning_share: Annotated[float, share("XProf (smart rule): 10 % waiting for the host")] = 0.10
    sync_critical_share: Annotated[float, share("nsys-ai: 20 % in synchronisation")] = 0.20
    reads_per_step: Annotated[float, amount("PyTorch pattern matcher: 10 repeats of one index")] = 10.0
    many_reads_per_step: Annotated[float, amount("ours: a loop over the values of a tensor")] = 300.0

    # Launches and host work.
    launch_info_share: Annotated[float, share("XProf: 3 % to 5 %")] = 0.05
    launch_warning_share: Annotated[float, share("gpuprof: 10 %")] = 0.10
    launch_critical_share: Annotated[float, share("XProf: 15 %")] = 0.15
    short_kernel_us: Annotated[float, amount("TraceLens, nsys-ai: 10 µs on average")] = 10.0
    short_kernel_launches: Annotated[float, amount("nsys-ai: at least 100 launches")] = 100.0
    slow_launch_us: Annotated[float, amount("HTA: a launch takes 5 to 20 µs")] = 20.0
    stall_info_share: Annotated[float, share("XProf: 3 % idle for the host")] = 0.05
    stall_warning_share: Annotated[float, share("XProf (smart rule): 10 %")] = 0.10
    stall_critical_share: Annotated[float, share("TraceLens: 15 % idle")] = 0.15
    dispatch_info_share: Annotated[float, share("ours: launch to start, of the step")] = 0.05
    compiled_share: Annotated[float, share("ours: one compiled helper does not make a compiled step")] = 0.05
    compiled_regions: Annotated[float, amount("PyTorch: recompile limit of 8")] = 8.0

    # Arithmetic.
    precision_info_share: Annotated[float, share("XProf: a tenth of the time in 32 bits")] = 0.10
    precision_warning_share: Annotated[float, share("ours: half of what it loses is 10 % of the step")] = 0.20
    attention_info_share: Annotated[float, share("ours: 5 % of the step")] = 0.05
    attention_warning_share: Annotated[float, share("ours: 10 % of the step")] = 0.10
    attention_critical_share: Annotated[float, share("ours: a third of the step")] = 0.33
    fused_attention_share: Annotated[float, share("ours: less is not taken as fused attention")] = 0.01
    attention_512_peak: Annotated[float, share("TraceLens: up to 512 tokens 5 to 15 % of the peak")] = 0.05
    attention_1024_peak: Annotated[float, share("TraceLens: at 1024 tokens 20 to 40 %")] = 0.20
    attention_2048_peak: Annotated[float, share("TraceLens: at 2048 tokens 40 to 60 %")] = 0.40
    attention_long_peak: Annotated[float, share("TraceLens: above 4096 tokens 50 to 70 %")] = 0.50
    gemm_info_share: Annotated[float, share("ours: 5 % of the step")] = 0.05
    gemm_warning_share: Annotated[float, share("ours: 10 % of the step")] = 0.10
    gemm_critical_share: Annotated[float, share("ours: half of the step")] = 0.50
    gemm_multiple: Annotated[int, whole("PyTorch tuning guide: multiples of 8 for 16 bits")] = 8
    vocabulary_multiple: Annotated[int, whole("Hugging Face: 64 for large matrices on A100")] = 64
    vocabulary_least: Annotated[int, whole("ours: a side above is a vocabulary")] = 20000
    vocabulary_classes: Annotated[int, whole("ours: fewer classes are no vocabulary")] = 1000
    arithmetic_intensity: Annotated[float, amount("ours: FLOPs per byte above most ridge points")] = 200.0
    long_product_ms: Annotated[float, amount("ours: in which a device reads gigabytes")] = 1.0
    slow_gemm_share: Annotated[float, share("published achievable rates are 50 to 87 % of the peak")] = 0.40
    tiny_gemm_flops: Annotated[float, amount("ours: 0.1 GFLOP is a microsecond on 100 TFLOP/s")] = 1e8
    tiny_gemms: Annotated[float, amount("TraceLens: 1000 tiny products; ours: 100 a step")] = 100.0
    above_roof: Annotated[float, amount("TraceLens: above 110 % the figure is wrong")] = 1.10

    # Memory-bound work.
    large_tensor_bytes: Annotated[float, amount("ours: on a processor less stays in its cache")] = 4e6
    large_operation_ms: Annotated[float, amount("ours: the same where sizes are not known")] = 0.3
    random_info_share: Annotated[float, share("ours: a tenth of the step")] = 0.10
    random_warning_share: Annotated[float, share("ours: a quarter of the step")] = 0.25
    random_critical_share: Annotated[float, share("ours: half of the step")] = 0.50
    slow_memory_bytes_s: Annotated[float, amount("ours: any processor's memory is faster")] = 3e9
    short_call_us: Annotated[float, amount("ours: what calling an operation takes while recorded")] = 10.0
    optimizer_info_share: Annotated[float, share("ours: 5 % of the step")] = 0.05
    optimizer_warning_share: Annotated[float, share("ours: 10 % of the step")] = 0.10
    optimizer_critical_share: Annotated[float, share("ours: a quarter of the step")] = 0.25
    optimizer_kernel_us: Annotated[float, amount("ours: longer kernels hold many tensors")] = 50.0
    optimizer_kernels: Annotated[float, amount("ours: many-tensor kernels need a few dozen")] = 100.0
    optimizer_calls: Annotated[float, amount("ours: on a processor, fewer are a small model's")] = 1000.0
    many_tensor_share: Annotated[float, share("ours: half of the optimizer's time")] = 0.50
    elementwise_info_share: Annotated[float, share("ours: a tenth of the step")] = 0.10
    elementwise_warning_share: Annotated[float, share("ours: fusing two thirds saves a tenth")] = 0.15
    elementwise_critical_share: Annotated[float, share("ours: half of the step")] = 0.50
    python_info_share: Annotated[float, share("XProf: 15 % outside of operations")] = 0.15
    elementwise_launches: Annotated[float, amount("TraceLens: more than 1000 alike")] = 1000.0
    streaming_share: Annotated[float, share("TraceLens: below 50 % of the bandwidth")] = 0.50
    norm_share: Annotated[float, share("TraceLens: 10 % of the compute in norms")] = 0.10
    loss_info_share: Annotated[float, share("ours: 5 % of the step")] = 0.05
    loss_warning_share: Annotated[float, share("ours: 10 % of the step")] = 0.10
    loss_critical_share: Annotated[float, share("ours: a third of the step")] = 0.33
    shuffle_info_share: Annotated[float, share("ours: a tenth of the step")] = 0.10
    shuffle_warning_share: Annotated[float, share("XProf: 30 % in gather, scatter, sort")] = 0.30
    shuffle_critical_share: Annotated[float, share("ours: most of the step")] = 0.60
    layout_info_share: Annotated[float, share("ours: 5 % of the step")] = 0.05
    layout_warning_share: Annotated[float, share("TraceLens: 10 %, consider")] = 0.10
    layout_critical_share: Annotated[float, share("TraceLens: 20 %, strong")] = 0.20
    fill_info_share: Annotated[float, share("ours: 1 % of the step")] = 0.01
    hotspot_share: Annotated[float, share("nsys-ai: one kernel above 50 %")] = 0.50

    # Communication and ranks.
    communication_info_share: Annotated[float, share("XProf: 3 % in collectives")] = 0.03
    communication_warning_share: Annotated[float, share("TraceLens: 5 % exposed")] = 0.05
    communication_critical_share: Annotated[float, share("XProf: 15 %")] = 0.15
    collective_share: Annotated[float, share("Hyperloom: 96 % in one collective; ours: 85 %")] = 0.85
    collective_compute_share: Annotated[float, share("Hyperloom: 4 % compute; ours: a tenth")] = 0.10
    good_overlap: Annotated[float, share("TraceLens: 70 % hidden")] = 0.70
    small_message_bytes: Annotated[float, amount("torchscope: 1 MB on average")] = 1e6
    slow_link_share: Annotated[float, share("ours: half of the link's rate")] = 0.50
    straggler_info_share: Annotated[float, share("ours: 3 % of the step")] = 0.03
    straggler_warning_share: Annotated[float, share("as exposed communication; TraceML has 10 %")] = 0.05
    straggler_critical_share: Annotated[float, share("TraceML: 20 % of the step")] = 0.20
    compile_info_share: Annotated[float, share("ours: 2 % of what was recorded")] = 0.02
    compile_warning_share: Annotated[float, share("ours: 10 % of what was recorded")] = 0.10
    compile_critical_share: Annotated[float, share("ours: a third of what was recorded")] = 0.33
    graph_breaks: Annotated[float, amount("ours: one in each step")] = 1.0
    cudagraph_rerecords: Annotated[float, amount("of a graph; torch warns from 8 sizes on")] = 8.0
    slow_stage_ratio: Annotated[float, amount("ours: a quarter more than the median of the others")] = 1.25
    uneven_experts_ratio: Annotated[float, amount("ours: a fifth more tokens than the mean rank")] = 1.2

    # Spread of steps.
    spread_ratio: Annotated[float, amount("nsys-ai: 1.5 times the median")] = 1.5
    spread_info_share: Annotated[float, share("ours: what the mean loses to the median")] = 0.02
    spread_warning_share: Annotated[float, share("ours: 5 % lost to outliers")] = 0.05
    spread_critical_share: Annotated[float, share("ours: 20 % lost to outliers")] = 0.20
    spread_same_cause: Annotated[float, share("ours: of a long step's excess, and of the long steps")] = 0.50
    spread_least_steps: Annotated[int, whole("ours: fewer steps show no spread")] = 5
    drift_ratio: Annotated[float, amount("ours: the later half is 5 % slower")] = 1.05
    drift_steps_share: Annotated[float, share("ours: of the later half, above the earlier's median")] = 0.80
    drift_least_steps: Annotated[int, whole("TraceML: 20 steps before it is called a trend")] = 20

    # The whole run, as its log tells it.
    pause_info_share: Annotated[float, share("ours: 2 % of the wall time")] = 0.02
    pause_warning_share: Annotated[float, share("ours: 5 % of the wall time")] = 0.05
    pause_critical_share: Annotated[float, share("ours: 20 % of the wall time")] = 0.20
    run_drift: Annotated[float, amount("ours: the end is 3 % slower than the beginning")] = 1.03
    run_drift_share: Annotated[float, share("ours: 1 % of the wall time")] = 0.01
    run_drift_warning: Annotated[float, amount("ours: 5 % slower")] = 1.05
    run_drift_most: Annotated[float, amount("ours: beyond half again it is another batch or sequence")] = 1.5
    long_run_s: Annotated[float, amount("ours: ten minutes; a shorter run is a trial")] = 600.0

    # Memory.
    memory_warning_share: Annotated[float, share("TraceML: step peak at 92 %")] = 0.92
    memory_critical_share: Annotated[float, share("TraceML: step peak at 97 %")] = 0.97
    memory_idle_share: Annotated[float, share("alloc: below 50 % the batch can grow")] = 0.50
    memory_tight_share: Annotated[float, share("ours: from 75 % on, saved memory is needed")] = 0.75
    fragmentation_share: Annotated[float, share("published runs: 3 to 6 % with constant shapes")] = 0.15
    fragmentation_bytes: Annotated[float, amount("ours: a gibibyte; less is rounding")] = 2.0**30
    loss_memory_share: Annotated[float, share("ours: a quarter of the peak")] = 0.25
    optimizer_memory_share: Annotated[float, share("ours: a quarter of the peak")] = 0.25
    activation_memory_share: Annotated[float, share("ours: half of the peak")] = 0.50
    growth_bytes: Annotated[float, amount("ours: a mebibyte with every step")] = 2.0**20


DEFAULT_LIMITS = Limits()
