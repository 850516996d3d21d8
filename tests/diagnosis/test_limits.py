"""Both sides of every limit: the fact that a rule looks at is scaled until the rule falls silent."""

from __future__ import annotations

from math import sqrt
from typing import Any

import msgspec
import pytest

import stepgrade as sg
from stepgrade.config import Config
from stepgrade.config.limits import Limits
from stepgrade.diagnosis.rules import RULE_NAMES
from stepgrade.model import Profile
from tests.diagnosis.test_rules import FIRES, setup_of

LESS, MORE = 1e-6, 1e6
# Each rule with the facts of its run in FIRES that decide, whether less or more of them silences it, and the
# limit at which it does. Facts are scaled together; time taken from an account of the ledger is computing.
LIMITS: list[tuple[str, str, float, str]] = [
    ("input-wait", "ledger.idle_input", LESS, "input_info_share"),
    ("loader-on-main-thread", "ledger.idle_input", LESS, "input_info_share"),
    ("starved-loader", "ledger.idle_input", LESS, "input_info_share"),
    ("starved-loader", "activity.input_ms", LESS, "starved_ms"),
    ("heavy-transfer", "ledger.exposed_copy", LESS, "copy_info_share"),
    ("pageable-copies", "ledger.exposed_copy", LESS, "copy_info_share"),
    ("many-small-copies", "ledger.exposed_copy", LESS, "copy_info_share"),
    ("many-small-copies", "activity.copies.0.calls", LESS, "copies_per_step"),
    ("many-small-copies", "activity.copies.0.bytes", MORE, "small_copy_bytes"),
    ("offload-traffic", "ledger.exposed_copy", LESS, "copy_info_share"),
    ("scalar-read-sync", "ledger.idle_sync", LESS, "sync_info_share"),
    ("data-dependent-sync", "ledger.idle_sync", LESS, "sync_info_share"),
    ("allocator-sync", "ledger.idle_sync", LESS, "sync_info_share"),
    ("device-synchronize", "ledger.idle_sync", LESS, "sync_info_share"),
    ("blocking-copy-sync", "ledger.idle_sync", LESS, "sync_info_share"),
    ("sync-wait", "ledger.idle_sync", LESS, "sync_info_share"),
    ("scalar-read-loop", "activity.scalar_read_ms", LESS, "sync_info_share"),
    ("scalar-read-loop", "activity.marks.item", LESS, "reads_per_step"),
    ("short-kernels", "ledger.idle_host", LESS, "launch_info_share"),
    ("short-kernels", "activity.kernels.ms", MORE, "short_kernel_us"),
    ("short-kernels", "activity.kernels.count activity.kernels.ms", LESS, "short_kernel_launches"),
    ("launch-gaps", "ledger.idle_host", LESS, "launch_info_share"),
    ("host-stall", "activity.gaps.stall_ms", LESS, "stall_info_share"),
    ("slow-launches", "ledger.idle_host", LESS, "launch_info_share"),
    ("slow-launches", "activity.kernels.launch_call_us", LESS, "slow_launch_us"),
    ("dispatch-latency", "activity.gaps.dispatch_ms", LESS, "dispatch_info_share"),
    ("many-compiled-regions", "ledger.idle_host", LESS, "launch_info_share"),
    ("many-compiled-regions", "activity.marks.compiled_region", LESS, "compiled_regions"),
    ("uncovered-time", "phases.0 phases.1", MORE, "launch_advice_share"),
    ("host-phases", "phases.2", LESS, "stall_info_share"),
    ("python-overhead", "ledger.idle_host", LESS, "python_info_share"),
    ("python-loop", "activity.loop.ms activity.loop.backward_ms", LESS, "stall_info_share"),
    ("frequent-printing", "activity.lines.stall.0.ms", LESS, "stall_info_share"),
    ("random-numbers", "operations.0.ms", LESS, "random_info_share"),
    ("start-up", "activity.startup_ms", LESS, "startup_share"),
    ("graph-capture", "ledger.idle_host", LESS, "explained_share"),
    ("fp32-matmuls", "activity.matmul_dtype_ms.fp32", LESS, "precision_info_share"),
    ("fp64-matmuls", "activity.matmul_dtype_ms.fp64", LESS, "precision_info_share"),
    ("small-micro-batches", "activity.backward_passes", LESS, "micro_batches"),
    ("small-micro-batches", "operations.0.flops", MORE, "few_rows_intensity"),
    ("tf32-matmuls", "activity.matmul_dtype_ms.tf32", LESS, "precision_warning_share"),
    ("math-attention", "operations.0.ms operations.1.ms", LESS, "attention_info_share"),
    ("unfused-attention", "operations.0.ms operations.1.ms", LESS, "attention_info_share"),
    ("slow-attention", "operations.0.flops", MORE, "attention_long_peak"),
    ("odd-vocabulary", "activity.gemms.0.ms", LESS, "gemm_info_share"),
    ("misaligned-gemm", "activity.gemms.0.ms", LESS, "gemm_info_share"),
    ("tiny-gemms", "activity.gemms.0.ms", LESS, "gemm_info_share"),
    ("tiny-gemms", "activity.gemms.0.calls activity.gemms.0.flops", LESS, "tiny_gemms"),
    ("tiny-gemms", "activity.gemms.0.flops", MORE, "tiny_gemm_flops"),
    ("slow-gemm", "activity.gemms.0.flops", MORE, "slow_gemm_share"),
    ("memory-bound-gemm", "activity.gemms.0.ms", LESS, "gemm_warning_share"),
    ("single-tensor-optimizer", "activity.optimizer.span_ms", LESS, "optimizer_info_share"),
    (
        "single-tensor-optimizer",
        "activity.optimizer.kernels activity.optimizer.ms",
        LESS,
        "optimizer_kernels",
    ),
    ("single-tensor-optimizer", "activity.optimizer.ms", MORE, "optimizer_kernel_us"),
    ("heavy-optimizer", "activity.optimizer.ms", LESS, "optimizer_warning_share"),
    ("zero-grad-fills", "activity.marks.zero_fill", LESS, "copies_per_step"),
    ("zero-grad-fills", "activity.kernel_group_ms.fill", LESS, "fill_info_share"),
    ("elementwise-chains", "operations.0.ms", LESS, "elementwise_info_share"),
    ("fragmented-elementwise", "operations.0.ms", LESS, "fill_info_share"),
    ("fragmented-elementwise", "activity.class_kernels.elementwise", LESS, "elementwise_launches"),
    ("slow-elementwise", "operations.0.bytes", MORE, "streaming_share"),
    ("hand-written-norm", "operations.0.ms", LESS, "norm_share"),
    ("unfused-loss", "operations.0.ms", LESS, "loss_info_share"),
    ("dense-embedding-gradients", "operations.1.ms operations.2.shapes.0.ms", LESS, "optimizer_info_share"),
    ("heavy-embedding", "operations.0.ms", LESS, "shuffle_info_share"),
    ("data-shuffling", "operations.0.ms", LESS, "shuffle_info_share"),
    ("one-hot-operation", "operations.0.ms", LESS, "hotspot_share"),
    ("layout-conversions", "activity.kernel_group_ms.layout", LESS, "layout_info_share"),
    ("device-copies", "activity.parts.0.ms", LESS, "layout_info_share"),
    ("exposed-communication", "ledger.exposed_communication", LESS, "communication_info_share"),
    ("weak-overlap", "ledger.exposed_communication", LESS, "communication_info_share"),
    ("weak-overlap", "activity.communication_ms", MORE, "good_overlap"),
    (
        "sync-every-micro-batch",
        "activity.communication_ms ledger.exposed_communication",
        LESS,
        "communication_info_share",
    ),
    ("small-messages", "ledger.exposed_communication", LESS, "communication_info_share"),
    ("small-messages", "activity.collectives.0.count activity.collectives.0.bytes", LESS, "copies_per_step"),
    ("small-messages", "activity.collectives.0.bytes", MORE, "small_message_bytes"),
    ("slow-link", "ledger.exposed_communication", LESS, "communication_warning_share"),
    ("slow-link", "activity.collectives.0.bytes", MORE, "slow_link_share"),
    ("gloo-on-devices", "ledger.exposed_communication", LESS, "communication_warning_share"),
    ("straggler-rank", "ledger.wait_ranks", LESS, "straggler_info_share"),
    ("straggler-rank", "activity.straggler.caused_ms", LESS, "straggler_info_share"),
    ("uneven-ranks", "activity.skew_ms", LESS, "straggler_info_share"),
    ("compiles-again", "compilation.total_ms", LESS, "compile_info_share"),
    ("graph-breaks", "compilation.graph_breaks", LESS, "graph_breaks"),
    ("graphs-recorded-again", "compilation.cudagraph_rerecords", LESS, "cudagraph_rerecords"),
    ("slow-stage", "links.pipeline.stages.2.busy_ms", LESS, "slow_stage_ratio"),
    ("uneven-experts", "links.experts.0.max_over_mean", LESS, "uneven_experts_ratio"),
    ("uneven-experts", "links.experts.0.wait_ms", LESS, "straggler_info_share"),
    ("slow-layer", "layers.5.fwd_ms", LESS, "outlier_ratio"),
    ("unused-gradients", "activity.marks.unused_gradients", LESS, "unused_info_share"),
    ("recomputed-forward", "activity.recompute_ms", LESS, "recompute_info_share"),
    ("slow-backward", "phases.1", LESS, "slow_backward_ratio"),
    ("slow-checkpoints", "log.wall_s.80", LESS, "pause_info_share"),
    ("long-evaluations", "log.wall_s.80", LESS, "pause_info_share"),
    ("recurring-slow-steps", "log.wall_s.80", LESS, "pause_info_share"),
    ("slower-run", " ".join(f"log.wall_s.{row}" for row in range(80, 160)), LESS, "run_drift"),
    ("slow-start", "log.before_s", LESS, "pause_info_share"),
    ("longest-rl-part", "phases.0", LESS, "rl_part_share"),
    ("unsteady-steps", "samples_ms.9", LESS, "spread_ratio"),
    ("drifting-steps", " ".join(f"samples_ms.{step}" for step in range(12, 24)), LESS, "drift_ratio"),
    ("memory-grows", "memory.growth.bytes_per_step", LESS, "growth_bytes"),
    ("memory-fragmented", "memory.fragmentation", LESS, "fragmentation_share"),
    ("loss-dominates-memory", "memory.holders.0.bytes", LESS, "loss_memory_share"),
    ("optimizer-unsharded", "memory.peak_bytes", MORE, "optimizer_memory_share"),
    ("activations-kept", "memory.categories.activations", LESS, "activation_memory_share"),
    ("activations-kept", "peak_memory_bytes", LESS, "memory_tight_share"),
    ("memory-nearly-full", "peak_memory_bytes", LESS, "memory_warning_share"),
    ("memory-idle", "peak_memory_bytes", MORE, "memory_idle_share"),
    ("hardly-any-work", "activity.kernels.count", MORE, "few_kernels"),
    ("hardly-any-work", "ledger.idle_host", LESS, "idle_device_share"),
    ("collective-is-all", "ledger.exposed_communication", LESS, "collective_compute_share"),
    ("above-roof", "operations.0.flops", LESS, "above_roof"),
]
# Rules that see something or not: there is no limit, or it is one of nature.
WITHOUT_LIMIT = {
    "compile-failed",
    "rank-never-arrived",
    "collectives-differ",
    "ranks-wait-for-each-other",
    "collective-unfinished",
    "out-of-memory",
    "allocator-retries",
    "fp16-beside-bf16",
    "data-parallel",
    "fast-backward",
    "run-restarts",
    "skipped-steps",
    "no-backward",
    "truncated-trace",
    "warm-up-only",
    "no-steps",
    "device-unseen",
    "profiler-overhead",
    "recording-slows-host",
    "clocks-apart",
    "unexplained-idle",
}
# Rules that never say more than a remark, whatever the share.
REMARKS = {
    "optimizer-unsharded",
    "activations-kept",
    "dispatch-latency",
    "zero-grad-fills",
    "fragmented-elementwise",
    "heavy-embedding",
    "weak-overlap",
    "recomputed-forward",
}


def scaled(profile: Profile, facts: str, factor: float) -> Profile:
    """Return the profile with some of its figures multiplied, found by their paths."""
    document = msgspec.json.decode(msgspec.json.encode(profile))
    for fact in facts.split():
        *path, last = fact.split(".")
        place = document
        for name in path:
            place = place[int(name)] if isinstance(place, list) else place[name]
        key: Any = int(last) if isinstance(place, list) else last
        old = place[key]
        place[key] = multiplied(old, factor)
        if path == ["ledger"]:
            place["compute"] += old - place[key]
    return msgspec.convert(document, Profile)


def multiplied(figure: Any, factor: float) -> Any:
    """Return a number, or every time in a row, multiplied; whole numbers stay whole."""
    if isinstance(figure, dict):
        return figure | {"ms": figure["ms"] * factor}
    if isinstance(figure, list):
        return [multiplied(each, factor) for each in figure]
    return round(figure * factor) if isinstance(figure, int) else figure * factor


def severity(profile: Profile, rule: str, **limits: float) -> str | None:
    """Return how severe this rule alone finds the run with these limits; None where it is silent."""
    alone = Config(limits=limits, rules={"ignore": [name for name in RULE_NAMES if name != rule]})
    found = sg.score(profile, setup=setup_of(profile), config=alone).findings
    return found[0].severity if found else None


@pytest.mark.parametrize(("rule", "facts", "silent_at", "limit"), LIMITS)
def test_a_run_just_beyond_the_limit_is_found_and_one_just_within_is_not(
    rule: str, facts: str, silent_at: float, limit: str
) -> None:
    found, silent = 1.0, silent_at
    assert severity(scaled(FIRES[rule], facts, found), rule)
    assert not severity(scaled(FIRES[rule], facts, silent), rule)
    while abs(found / silent - 1.0) > 1e-3:
        middle = sqrt(found * silent)
        if severity(scaled(FIRES[rule], facts, middle), rule):
            found = middle
        else:
            silent = middle
    beyond, within = (scaled(FIRES[rule], facts, factor) for factor in (found, silent))
    default = getattr(Limits(), limit)
    moved = {step: default * (1.0 + step) for step in (0.02, -0.02)}
    stricter = [step for step in moved if severity(within, rule, **{limit: moved[step]})]
    looser = [step for step in moved if not severity(beyond, rule, **{limit: moved[step]})]
    assert len(stricter) == len(looser) == 1
    assert stricter != looser
    if limit.endswith("_info_share") and rule not in REMARKS:
        family = limit.removesuffix("_info_share")
        assert severity(beyond, rule) == "info"
        for level in ("warning", "critical"):
            name = f"{family}_{level}_share"
            assert name not in Limits.__struct_fields__ or severity(beyond, rule, **{name: 0.0}) == level


def test_every_rule_with_a_limit_is_in_the_table() -> None:
    assert {rule for rule, *_ in LIMITS} == set(RULE_NAMES) - WITHOUT_LIMIT
