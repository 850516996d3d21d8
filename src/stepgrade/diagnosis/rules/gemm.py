"""Rules about the shapes of matrix products."""

from __future__ import annotations

from collections.abc import Callable

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.advice import larger_batch
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Remedy, Rule, Worth
from stepgrade.model.activity import GemmTally
from stepgrade.units import show_count, show_share

_NARROW = frozenset({"bf16", "fp16", "fp8"})


def _levels(limits: Limits) -> Levels:
    return Levels(limits.gemm_info_share, limits.gemm_warning_share, limits.gemm_critical_share)


def _chosen(context: RuleContext, is_wanted: Callable[[GemmTally], bool]) -> tuple[list[GemmTally], float]:
    """Return the products that are wanted and the share of the step they take."""
    chosen = [gemm for gemm in context.activity.gemms if is_wanted(gemm)] if context.on_device else []
    return chosen, context.busy_share(sum(gemm.ms for gemm in chosen))


def _shape(gemm: GemmTally) -> str:
    batch = f"{gemm.batch} x " if gemm.batch > 1 else ""
    return f"{batch}({gemm.m}, {gemm.k}) @ ({gemm.k}, {gemm.n})"


def _evidence(chosen: list[GemmTally], share: float) -> Evidence:
    return {"shape": _shape(chosen[0]), "share": share, "calls": sum(gemm.calls for gemm in chosen)}


def _peak_flops(context: RuleContext, gemm: GemmTally) -> float | None:
    rates = context.target.figures.compute(gemm.dtype or context.target.dtype)
    return rates[0].per_s if rates else None


def _is_memory_bound(context: RuleContext, gemm: GemmTally) -> bool | None:
    """Return whether reading takes longer than the arithmetic; None where bytes or device are not known."""
    peak, bandwidth = _peak_flops(context, gemm), context.target.figures.bandwidth()
    if peak is None or not bandwidth or not gemm.bytes:
        return None
    return gemm.flops / gemm.bytes < peak / bandwidth[0].per_s


def misaligned_gemm(context: RuleContext) -> Found | None:
    multiple = max(1, context.limits.gemm_multiple)
    # Rows lie one after the other in memory, however many there are; a weight's gradient adds up over them.
    rows = {gemm.m for gemm in context.activity.gemms if gemm.batch == 1}

    def is_misaligned(gemm: GemmTally) -> bool:
        is_over_rows = gemm.batch == 1 and gemm.k in rows
        sides = (gemm.n,) if is_over_rows else (gemm.n, gemm.k)
        return gemm.dtype in _NARROW and any(side % multiple for side in sides)

    chosen, share = _chosen(context, is_misaligned)
    if not chosen:
        return None
    claim = (
        f"Products with a side that is not a multiple of {multiple} take {show_share(share)} of the step: "
        f"{_shape(chosen[0])}."
    )
    return _levels(context.limits).found(share, claim, _evidence(chosen, share), gain=share * 0.5)


def odd_vocabulary(context: RuleContext) -> Found | None:
    limits = context.limits
    multiple = max(1, limits.vocabulary_multiple)

    def is_odd(gemm: GemmTally) -> bool:
        sides = (gemm.k, gemm.n, gemm.m)
        return max(sides) % 8 != 0 and any(
            side >= limits.vocabulary_least and side % multiple for side in sides
        )

    chosen, share = _chosen(context, is_odd)
    if not chosen:
        return None
    size = max(chosen[0].n, chosen[0].k, chosen[0].m)
    claim = (
        f"A side of {size} is not a multiple of {multiple}; its products take {show_share(share)} of the "
        "step."
    )
    return _levels(limits).found(share, claim, _evidence(chosen, share), gain=share * 0.5)


def tiny_gemms(context: RuleContext) -> Found | None:
    limits = context.limits
    chosen, share = _chosen(context, lambda gemm: gemm.flops / max(gemm.calls, 1e-9) < limits.tiny_gemm_flops)
    calls = sum(gemm.calls for gemm in chosen)
    if not chosen or calls < limits.tiny_gemms:
        return None
    claim = f"{show_count(round(calls))} products a step are tiny; they take {show_share(share)} of the step."
    return _levels(limits).found(share, claim, _evidence(chosen, share))


def slow_gemm(context: RuleContext) -> Found | None:
    limits = context.limits

    def is_slow(gemm: GemmTally) -> bool:
        peak = _peak_flops(context, gemm)
        if peak is None or not gemm.ms or _is_memory_bound(context, gemm) is not False:
            return False
        return gemm.flops / (context.mean_ms(gemm.ms) / 1000.0) < limits.slow_gemm_share * peak

    chosen, share = _chosen(context, is_slow)
    if not chosen or share < limits.gemm_warning_share:
        return None
    rate = sum(gemm.flops for gemm in chosen) / (context.mean_ms(sum(gemm.ms for gemm in chosen)) / 1000.0)
    reached = rate / (_peak_flops(context, chosen[0]) or 1.0)
    claim = (
        f"Large products reach {show_share(reached, 0)} of the peak and take {show_share(share)} of the "
        f"step: {_shape(chosen[0])}."
    )
    evidence = _evidence(chosen, share) | {"reached": reached}
    gain = share * (1.0 - reached / max(limits.slow_gemm_share * 2.0, 0.01))
    return Found("info", claim, evidence, share=gain)


def memory_bound_gemm(context: RuleContext) -> Found | None:
    chosen, share = _chosen(context, lambda gemm: bool(_is_memory_bound(context, gemm)))
    if not chosen or share < context.limits.gemm_warning_share * 2:
        return None
    claim = (
        f"Products limited by memory, not arithmetic, take {show_share(share)} of the step: "
        f"{_shape(chosen[0])}."
    )
    remedy = f"More rows per product: packed sequences, merged projections. {larger_batch(context)}"
    evidence = _evidence(chosen, share)
    return Found("info", claim, evidence, share=share * 0.5, remedy=remedy)


RULES = (
    Rule(
        name="odd-vocabulary",
        find=odd_vocabulary,
        sees="The vocabulary dimension of the output product is not a multiple of 64.",
        evidence="the size, share of the step in such products",
        fix="Pad the vocabulary to a multiple of 64 (50257 becomes 50304); the padding is never predicted.",
        wrong_when="the checkpoint's vocabulary is fixed",
        check="The side is a multiple of 64 and the output layer takes less time.",
        worth=Worth("compute", 0.4, "nanoGPT measured about 25 % on its output layer"),
        explains=("misaligned-gemm",),
        sources="HF, PM",
    ),
    Rule(
        name="misaligned-gemm",
        find=misaligned_gemm,
        sees="A 16-bit product has a width that is not a multiple of 8, so slower kernels run.",
        evidence="sizes of the longest one, calls per step, share of the step",
        fix="Pad the side to a multiple of 8, better 64: hidden sizes, vocabulary, the length in attention.",
        wrong_when="the kernel pads by itself (its name still says align8)",
        check="All sides are multiples of 8 and the product takes less time.",
        worth=Worth("compute", 0.4, "an aligned product measured up to twice as fast, most of them less"),
        sources="PM, TG, HF",
    ),
    Rule(
        name="tiny-gemms",
        find=tiny_gemms,
        sees="Many products are too small to fill the device.",
        evidence="small products per step, share of the step",
        fix="Batch small products into one (batched or grouped products).",
        fix_pytorch="Stack the operands and use torch.bmm, torch.vmap or a grouped product.",
        wrong_when="they overlap larger work on other streams",
        check="Fewer, larger products.",
        worth=Worth(
            "compute+idle_host", 0.5, "one batched product fills the device where many small ones do not"
        ),
        explains=("short-kernels",),
        sources="TL, GPF",
    ),
    Rule(
        name="slow-gemm",
        find=slow_gemm,
        sees="Large compute-bound products reach little of the peak.",
        evidence="share of the data sheet's peak, sizes, share of the step",
        fix="Check clocks and power, then the kernel: another library or autotuning may choose a better one.",
        fix_pytorch="Check clocks and power; try torch.compile(mode='max-autotune') or TunableOp for this "
        "shape.",
        fix_where=(
            Remedy(
                "on AMD's devices",
                lambda context: context.platform == "rocm",
                "Let hipBLASLt multiply where it does not yet (TORCH_BLAS_PREFER_HIPBLASLT=1), then tune the "
                "shape (PYTORCH_TUNABLEOP_ENABLED=1); check clocks and power.",
            ),
        ),
        wrong_when="the device is wrong, or its peak is stated with sparsity",
        check="The product reaches the published achievable rate.",
        worth=Worth("compute", 0.4, "published achievable rates are 50 to 87 % of the peak"),
        sources="TL, GPF, ME",
    ),
    Rule(
        name="memory-bound-gemm",
        find=memory_bound_gemm,
        sees="Products have so few rows that reading the weights takes longer than using them.",
        evidence="FLOPs per byte, the device's ridge point, sizes, share of the step",
        fix="More rows per product: a larger batch, packed sequences, merged projections (one qkv product).",
        wrong_when="the weights stay in cache",
        check="The product's rows grow and its time does not.",
        worth=Worth("compute", 0.4, "reading the weights is shared by more rows; activations still grow"),
        sources="TL",
    ),
)
