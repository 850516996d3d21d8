"""Every threshold that a judgement rests on, with its source, in one place; all can be set in stepgrade.toml.

Sources are other tools, or "ours" with the reason if it needs one.
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
    transfer_share: Annotated[float, share("the reference")] = 0.30
    launch_share: Annotated[float, share("the reference")] = 0.40
    launch_advice_share: Annotated[float, share("the reference")] = 0.30
    near_ceiling: Annotated[float, share("the reference")] = 0.50
    waiting_share: Annotated[float, share("ours: as transfers")] = 0.30
    device_wait_share: Annotated[float, share("TraceLens, nsys-ai")] = 0.15
    wait_over_work: Annotated[float, share("ours: what optimizing the work itself usually gains")] = 0.25
    busy_share: Annotated[float, share("the reference: above half, work is the limit")] = 0.50

    # How far other programs may disturb a recording.
    core_wait_note_share: Annotated[float, share("ours: within the usual noise between runs")] = 0.05
    core_wait_share: Annotated[float, share("ours: a step takes a tenth longer than it would")] = 0.10
    busy_cores_share: Annotated[float, share("ours: fewer programs hold up nobody for long")] = 0.10

    # Fitness of step profiles.
    overlap_tolerance: Annotated[float, share("ours: emitters round phases to 0.01 ms")] = 0.005
    average_tolerance: Annotated[float, share("ours: totals and averages cover the same steps")] = 0.05

    few_kernels: Annotated[float, amount("ours: the smallest model's step has more")] = 5.0
    few_operations: Annotated[float, amount("ours: as few_kernels")] = 20.0
    shortest_step_ms: Annotated[float, amount("ours: shorter is a call of a few operations")] = 1.0
    startup_share: Annotated[float, share("ours")] = 0.20
    unexplained_share: Annotated[float, share("ours")] = 0.20
    explained_share: Annotated[float, share("ours: in work or a known wait")] = 0.20

    # Layers.
    outlier_score: Annotated[float, amount("Iglewicz and Hoaglin: modified z-score")] = 3.5
    outlier_ratio: Annotated[float, amount("ours: of the median layer")] = 1.25
    outlier_least_layers: Annotated[int, whole("ours: fewer have no meaningful median")] = 4
    outlier_least_steps: Annotated[int, whole("ours: on a CPU fewer are noise")] = 3
    outlier_same_operations: Annotated[float, share("ours: shared operation names of similar layers")] = 0.50
    outlier_steps_share: Annotated[float, share("ours: share of the steps in which it stands out")] = 0.80
    layer_info_share: Annotated[float, share("ours: less is not worth a look")] = 0.005
    layer_warning_share: Annotated[float, share("ours: one layer's excess over the whole step")] = 0.01
    layer_critical_share: Annotated[float, share("as input")] = 0.20
    unused_info_share: Annotated[float, share("ours")] = 0.10
    unused_warning_share: Annotated[float, share("ours: more than a GAN's judge on the way")] = 0.25
    unused_critical_share: Annotated[float, share("ours")] = 0.50
    recompute_info_share: Annotated[float, share("Hugging Face: checkpointing costs about 20 %")] = 0.05
    idle_device_share: Annotated[float, share("DLProf")] = 0.10
    backward_products: Annotated[float, amount("ours: 2 per forward product, 1 if frozen")] = 1.2
    slow_backward_ratio: Annotated[float, amount("ours: 2 is usual, 3 with everything recomputed")] = 3.5

    # Input.
    input_info_share: Annotated[float, share("torch-tb-profiler, XProf (moderate)")] = 0.05
    input_warning_share: Annotated[float, share("TraceML, XProf (smart rule)")] = 0.10
    input_critical_share: Annotated[float, share("XProf (high), TraceML")] = 0.20
    starved_ms: Annotated[float, amount("gpuprof")] = 30.0
    starved_steps_share: Annotated[float, share("gpuprof")] = 0.20

    # Copies and synchronisation.
    copy_info_share: Annotated[float, share("TraceLens, nsys-ai")] = 0.05
    copy_warning_share: Annotated[float, share("TraceML")] = 0.10
    copy_critical_share: Annotated[float, share("TraceML")] = 0.20
    copies_per_step: Annotated[float, amount("TraceLens")] = 10.0
    small_copy_bytes: Annotated[float, amount("ours: below, latency dominates a PCIe copy")] = 65536.0
    sync_info_share: Annotated[float, share("XProf: 3 % to 5 % idle")] = 0.03
    sync_warning_share: Annotated[float, share("XProf (smart rule)")] = 0.10
    sync_critical_share: Annotated[float, share("nsys-ai")] = 0.20
    reads_per_step: Annotated[float, amount("PyTorch pattern matcher")] = 10.0
    many_reads_per_step: Annotated[float, amount("ours: a loop over the values of a tensor")] = 300.0

    # Launches and host work.
    launch_info_share: Annotated[float, share("XProf: 3 % to 5 %")] = 0.05
    launch_warning_share: Annotated[float, share("gpuprof")] = 0.10
    launch_critical_share: Annotated[float, share("XProf")] = 0.15
    short_kernel_us: Annotated[float, amount("TraceLens, nsys-ai: on average")] = 10.0
    short_kernel_launches: Annotated[float, amount("nsys-ai")] = 100.0
    slow_launch_us: Annotated[float, amount("HTA: a launch takes 5 to 20 µs")] = 20.0
    stall_info_share: Annotated[float, share("XProf: 3 % idle")] = 0.05
    stall_warning_share: Annotated[float, share("XProf (smart rule)")] = 0.10
    stall_critical_share: Annotated[float, share("TraceLens")] = 0.15
    dispatch_info_share: Annotated[float, share("ours: from launch to start")] = 0.05
    compiled_share: Annotated[float, share("ours: one compiled helper is not a compiled step")] = 0.05
    compiled_regions: Annotated[float, amount("PyTorch: recompile limit")] = 8.0

    # Arithmetic.
    precision_info_share: Annotated[float, share("XProf")] = 0.10
    precision_warning_share: Annotated[float, share("ours: twice what 16 bits would save")] = 0.20
    attention_info_share: Annotated[float, share("ours")] = 0.05
    attention_warning_share: Annotated[float, share("ours")] = 0.10
    attention_critical_share: Annotated[float, share("ours")] = 0.33
    fused_attention_share: Annotated[float, share("ours: below, attention does not count as fused")] = 0.01
    attention_512_peak: Annotated[float, share("TraceLens: 5 to 15 % up to 512 tokens")] = 0.05
    attention_1024_peak: Annotated[float, share("TraceLens: 20 to 40 %")] = 0.20
    attention_2048_peak: Annotated[float, share("TraceLens: 40 to 60 %")] = 0.40
    attention_long_peak: Annotated[float, share("TraceLens: 50 to 70 % above 4096 tokens")] = 0.50
    gemm_info_share: Annotated[float, share("ours")] = 0.05
    gemm_warning_share: Annotated[float, share("ours")] = 0.10
    gemm_critical_share: Annotated[float, share("ours")] = 0.50
    gemm_multiple: Annotated[int, whole("PyTorch tuning guide, for 16 bits")] = 8
    vocabulary_multiple: Annotated[int, whole("Hugging Face, for large matrices on A100")] = 64
    vocabulary_least: Annotated[int, whole("ours: larger dimensions are vocabularies")] = 20000
    vocabulary_classes: Annotated[int, whole("ours: fewer classes are not a vocabulary")] = 1000
    arithmetic_intensity: Annotated[float, amount("ours: FLOPs per byte, above most ridge points")] = 200.0
    long_product_ms: Annotated[float, amount("ours: enough to read gigabytes")] = 1.0
    slow_gemm_share: Annotated[float, share("published achievable rates are 50 to 87 % of the peak")] = 0.40
    tiny_gemm_flops: Annotated[float, amount("ours: a microsecond at 100 TFLOP/s")] = 1e8
    few_rows_intensity: Annotated[float, amount("ours: FLOPs per byte of a 32-bit product of 16 rows")] = 8.0
    micro_batches: Annotated[float, amount("ours: fewer repeat little")] = 4.0
    tiny_gemms: Annotated[float, amount("ours, per step; TraceLens: 1000")] = 100.0
    above_roof: Annotated[float, amount("TraceLens: above, the figure is wrong")] = 1.10

    # Memory-bound work.
    large_tensor_bytes: Annotated[float, amount("ours: on a CPU, less stays in cache")] = 4e6
    large_operation_ms: Annotated[float, amount("ours: the same without known sizes")] = 0.3
    random_info_share: Annotated[float, share("ours")] = 0.10
    random_warning_share: Annotated[float, share("ours")] = 0.25
    random_critical_share: Annotated[float, share("ours")] = 0.50
    short_call_us: Annotated[float, amount("ours: overhead of a recorded call")] = 10.0
    optimizer_info_share: Annotated[float, share("ours")] = 0.05
    optimizer_warning_share: Annotated[float, share("ours")] = 0.10
    optimizer_critical_share: Annotated[float, share("ours")] = 0.25
    optimizer_kernel_us: Annotated[float, amount("ours: longer kernels update many tensors")] = 50.0
    optimizer_kernels: Annotated[float, amount("ours: multi-tensor kernels need a few dozen")] = 100.0
    optimizer_calls: Annotated[float, amount("ours: on a CPU, small models need fewer")] = 1000.0
    many_tensor_share: Annotated[float, share("ours")] = 0.50
    elementwise_info_share: Annotated[float, share("ours")] = 0.10
    elementwise_warning_share: Annotated[float, share("ours: fusing two thirds saves a tenth")] = 0.15
    elementwise_critical_share: Annotated[float, share("ours")] = 0.50
    python_info_share: Annotated[float, share("XProf: outside operations")] = 0.15
    elementwise_launches: Annotated[float, amount("TraceLens")] = 1000.0
    streaming_share: Annotated[float, share("TraceLens")] = 0.50
    norm_share: Annotated[float, share("TraceLens")] = 0.10
    dense_rows_share: Annotated[float, share("ours: of a table's rows; a sparse update costs as much")] = 0.20
    loss_info_share: Annotated[float, share("ours")] = 0.05
    loss_warning_share: Annotated[float, share("ours")] = 0.10
    loss_critical_share: Annotated[float, share("ours")] = 0.33
    shuffle_info_share: Annotated[float, share("ours")] = 0.10
    shuffle_warning_share: Annotated[float, share("XProf: gather, scatter, sort")] = 0.30
    shuffle_critical_share: Annotated[float, share("ours")] = 0.60
    layout_info_share: Annotated[float, share("ours")] = 0.05
    layout_warning_share: Annotated[float, share("TraceLens (consider)")] = 0.10
    layout_critical_share: Annotated[float, share("TraceLens (strong)")] = 0.20
    fill_info_share: Annotated[float, share("ours")] = 0.01
    hotspot_share: Annotated[float, share("nsys-ai")] = 0.50

    # Communication and ranks.
    communication_info_share: Annotated[float, share("XProf")] = 0.03
    communication_warning_share: Annotated[float, share("TraceLens")] = 0.05
    communication_critical_share: Annotated[float, share("XProf")] = 0.15
    collective_share: Annotated[float, share("ours; Hyperloom: 96 %")] = 0.85
    collective_compute_share: Annotated[float, share("ours; Hyperloom: 4 %")] = 0.10
    good_overlap: Annotated[float, share("TraceLens")] = 0.70
    small_message_bytes: Annotated[float, amount("torchscope: on average")] = 1e6
    slow_link_share: Annotated[float, share("ours")] = 0.50
    straggler_info_share: Annotated[float, share("ours")] = 0.03
    straggler_warning_share: Annotated[float, share("as exposed communication; TraceML: 10 %")] = 0.05
    straggler_critical_share: Annotated[float, share("TraceML")] = 0.20
    compile_info_share: Annotated[float, share("ours")] = 0.02
    compile_warning_share: Annotated[float, share("ours")] = 0.10
    compile_critical_share: Annotated[float, share("ours")] = 0.33
    graph_breaks: Annotated[float, amount("ours: per step")] = 1.0
    cudagraph_rerecords: Annotated[float, amount("of one graph; torch warns from 8 sizes on")] = 8.0
    slow_stage_ratio: Annotated[float, amount("ours: of the other stages' median")] = 1.25
    uneven_experts_ratio: Annotated[float, amount("ours: of the mean rank's tokens")] = 1.2

    # Spread of steps.
    spread_ratio: Annotated[float, amount("nsys-ai: of the median")] = 1.5
    spread_info_share: Annotated[float, share("ours: mean over median")] = 0.02
    spread_warning_share: Annotated[float, share("ours")] = 0.05
    spread_critical_share: Annotated[float, share("ours")] = 0.20
    spread_same_cause: Annotated[float, share("ours: of a long step's excess, and of the long steps")] = 0.50
    spread_least_steps: Annotated[int, whole("ours: fewer steps show no spread")] = 5
    drift_ratio: Annotated[float, amount("ours: later half over earlier half")] = 1.05
    drift_steps_share: Annotated[float, share("ours: of the later half, above the earlier median")] = 0.80
    drift_least_steps: Annotated[int, whole("TraceML")] = 20

    # The whole run, as its log tells it.
    rl_part_share: Annotated[float, share("ours")] = 0.40
    pause_info_share: Annotated[float, share("ours")] = 0.02
    pause_warning_share: Annotated[float, share("ours")] = 0.05
    pause_critical_share: Annotated[float, share("ours")] = 0.20
    run_drift: Annotated[float, amount("ours: end over beginning")] = 1.03
    run_drift_share: Annotated[float, share("ours: of the wall time")] = 0.01
    run_drift_warning: Annotated[float, amount("ours")] = 1.05
    run_drift_most: Annotated[float, amount("ours: beyond it the batch or sequence changed")] = 1.5
    long_run_s: Annotated[float, amount("ours: a shorter run is a trial")] = 600.0

    # Memory.
    memory_warning_share: Annotated[float, share("TraceML")] = 0.92
    memory_critical_share: Annotated[float, share("TraceML")] = 0.97
    memory_idle_share: Annotated[float, share("alloc: below, the batch can grow")] = 0.50
    memory_tight_share: Annotated[float, share("ours: above, saving memory matters")] = 0.75
    fragmentation_share: Annotated[float, share("published runs: 3 to 6 % with constant shapes")] = 0.15
    fragmentation_bytes: Annotated[float, amount("ours: less is rounding")] = 2.0**30
    loss_memory_share: Annotated[float, share("ours")] = 0.25
    optimizer_memory_share: Annotated[float, share("ours")] = 0.25
    activation_memory_share: Annotated[float, share("ours")] = 0.50
    growth_bytes: Annotated[float, amount("ours: per step")] = 2.0**20


DEFAULT_LIMITS = Limits()
