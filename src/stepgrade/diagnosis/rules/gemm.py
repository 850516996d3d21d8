"""Rules about the shapes of matrix products."""

from __future__ import annotations

from collections.abc import Callable

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.advice import larger_batch
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.model.activity import GemmTally
from stepgrade.units import show_count, show_share

_AREA = "gemm"
_NARROW = frozenset({"bf16", "fp16", "fp8"})


def _those(context: RuleContext, wanted: Callable[[GemmTally], bool]) -> tuple[list[GemmTally], float]:
    """Return the products that are wanted and the share of the step they take."""
    chosen = [one for one in context.activity.gemms if wanted(one)] if context.on_device else []
    return chosen, context.busy_share(sum(one.ms for one in chosen))


def shown(one: GemmTally) -> str:
    """Return the sizes of a product as people write them."""
    batch = f"{one.batch} x " if one.batch > 1 else ""
    return f"{batch}({one.m}, {one.k}) @ ({one.k}, {one.n})"


def _evidence(chosen: list[GemmTally], share: float) -> dict[str, float | str]:
    return {"shape": shown(chosen[0]), "share": share, "calls": sum(one.calls for one in chosen)}


def _rates(context: RuleContext, one: GemmTally) -> tuple[float, float] | None:
    """Return the device's FLOP/s and bytes/s for a product; None where they are not known."""
    figures = context.target.figures
    compute, memory = figures.compute(one.dtype or context.target.dtype), figures.bandwidth()
    return (compute[0].per_s, memory[0].per_s) if compute and memory else None


def _intensity(one: GemmTally) -> float | None:
    return one.flops / one.bytes if one.bytes else None


@rule(
    name="misaligned-gemm",
    area=_AREA,
    account="compute",
    sees="A 16-bit product has a side that is no multiple of 8, so slower kernels run.",
    evidence="sizes of the longest such product, calls per step, share of the step",
    fix={
        "general": "Pad the side to a multiple of 8, better 64: hidden sizes, vocabulary, batch "
        "times sequence."
    },
    wrong_when="the kernel pads by itself; its name then says align8 all the same",
    check="All sides are multiples of 8 and the product takes less time.",
    realistic=0.4,
    because="an aligned product measured up to twice as fast, most of them less",
    sources="PM-05, TG, HF",
)
def misaligned_gemm(context: RuleContext, limits: Limits) -> Found | None:
    """Report sides that do not fit the tensor cores."""
    step = max(1, limits.gemm_multiple)
    chosen, share = _those(
        context, lambda one: one.dtype in _NARROW and any(side % step for side in (one.m, one.n, one.k))
    )
    severity = severity_of(share, limits, "gemm")
    if severity is None or not chosen:
        return None
    claim = (
        f"Products with a side that is no multiple of {step} take {show_share(share)} of the "
        f"step: {shown(chosen[0])}."
    )
    return Found(severity=severity, claim=claim, evidence=_evidence(chosen, share), share=share * 0.5)


@rule(
    name="odd-vocabulary",
    area=_AREA,
    account="compute",
    sees="The vocabulary's side of the output product is no multiple of 64.",
    evidence="the size, share of the step in such products",
    fix={
        "general": "Pad the vocabulary to a multiple of 64 (50257 becomes 50304); the padding is "
        "never predicted."
    },
    wrong_when="the checkpoint's vocabulary must stay as it is",
    check="The side is a multiple of 64 and the output layer takes less time.",
    realistic=0.4,
    because="nanoGPT measured about 25 % on its output layer",
    explains=("misaligned-gemm",),
    sources="HF, PM-05",
)
def odd_vocabulary(context: RuleContext, limits: Limits) -> Found | None:
    """Report a vocabulary that does not fit the tensor cores."""
    step = max(1, limits.vocabulary_multiple)

    def odd(one: GemmTally) -> bool:
        return any(side >= limits.vocabulary_least and side % step for side in (one.k, one.n, one.m))

    chosen, share = _those(context, odd)
    chosen = [one for one in chosen if max(one.n, one.k, one.m) % 8]
    share = context.busy_share(sum(one.ms for one in chosen))
    severity = severity_of(share, limits, "gemm")
    if severity is None:
        return None
    size = max(chosen[0].n, chosen[0].k, chosen[0].m)
    claim = f"A side of {size} is no multiple of {step}; its products take {show_share(share)} of the step."
    return Found(severity=severity, claim=claim, evidence=_evidence(chosen, share), share=share * 0.5)


@rule(
    name="tiny-gemms",
    area=_AREA,
    account="compute+idle_host",
    sees="Many products are so small that they cannot fill the device.",
    evidence="small products per step, share of the step",
    fix={
        "general": "Batch small products into one (batched or grouped products).",
        "pytorch": "Stack the operands and use torch.bmm, torch.vmap or a grouped product.",
    },
    wrong_when="they run beside larger work on other streams",
    check="Fewer, larger products.",
    realistic=0.5,
    because="one batched product fills the device where many small ones do not",
    explains=("short-kernels",),
    sources="TL-06, GPF-12",
)
def tiny_gemms(context: RuleContext, limits: Limits) -> Found | None:
    """Report small products that come in numbers."""
    chosen, share = _those(context, lambda one: one.flops / max(one.calls, 1e-9) < limits.tiny_gemm_flops)
    calls = sum(one.calls for one in chosen)
    severity = severity_of(share, limits, "gemm")
    if severity is None or calls < limits.tiny_gemms:
        return None
    claim = f"{show_count(round(calls))} products a step are tiny; they take {show_share(share)} of the step."
    return Found(severity=severity, claim=claim, evidence=_evidence(chosen, share), share=share)


@rule(
    name="slow-gemm",
    area=_AREA,
    account="compute",
    sees="Large products that should be limited by arithmetic reach little of the peak.",
    evidence="FLOP/s reached as a share of the data sheet's peak, sizes, share of the step",
    fix={
        "general": "Check clocks and power, then the kernel: another library or autotuning may "
        "choose a better one.",
        "pytorch": "Check clocks and power; try torch.compile(mode='max-autotune') or TunableOp for "
        "this shape.",
    },
    wrong_when="the device named is not the one it ran on, or its peak is stated with sparsity",
    check="The product reaches the published achievable rate.",
    realistic=0.4,
    because="published achievable rates are 50 to 87 % of the peak",
    sources="TL-05, GPF-11, ME-04",
)
def slow_gemm(context: RuleContext, limits: Limits) -> Found | None:
    """Report large products below what others reach."""

    def slow(one: GemmTally) -> bool:
        rates, dense = _rates(context, one), _intensity(one)
        if rates is None or dense is None or dense < rates[0] / rates[1]:
            return False
        return (
            one.flops / (context.mean_ms(one.ms) / 1000.0) < limits.slow_gemm_share * rates[0]
            if one.ms
            else False
        )

    chosen, share = _those(context, slow)
    if share < limits.gemm_warning_share:
        return None
    rates = _rates(context, chosen[0])
    reached = (
        sum(one.flops for one in chosen)
        / (context.mean_ms(sum(one.ms for one in chosen)) / 1000.0)
        / (rates[0] if rates else 1.0)
    )
    claim = (
        f"Large products reach {show_share(reached, 0)} of the peak and take "
        f"{show_share(share)} of the step: {shown(chosen[0])}."
    )
    evidence = _evidence(chosen, share) | {"reached": reached}
    gain = share * (1.0 - reached / max(limits.slow_gemm_share * 2.0, 0.01))
    return Found(severity="info", claim=claim, evidence=evidence, share=gain)


@rule(
    name="memory-bound-gemm",
    area=_AREA,
    account="compute",
    sees="Products are limited by memory: so few rows that the weights take longer to read than to use.",
    evidence="FLOPs per byte against the device's ridge, sizes, share of the step",
    fix={
        "general": "More rows per product: a larger batch, packed sequences, merged projections "
        "(one qkv product)."
    },
    wrong_when="the weights stay in cache",
    check="The product's rows grow and its time does not.",
    realistic=0.4,
    because="reading the weights is shared by more rows; activations still grow",
    sources="TL-14, TL-16",
)
def memory_bound_gemm(context: RuleContext, limits: Limits) -> Found | None:
    """Report products that are limited by memory."""

    def thin(one: GemmTally) -> bool:
        rates, dense = _rates(context, one), _intensity(one)
        return rates is not None and dense is not None and dense < rates[0] / rates[1]

    chosen, share = _those(context, thin)
    if share < limits.gemm_warning_share * 2:
        return None
    claim = (
        f"Products limited by memory, not arithmetic, take {show_share(share)} of the step: "
        f"{shown(chosen[0])}."
    )
    remedy = f"More rows per product: packed sequences, merged projections. {larger_batch(context)}"
    return Found(
        severity="info", claim=claim, evidence=_evidence(chosen, share), share=share * 0.5, remedy=remedy
    )


RULES = (odd_vocabulary, misaligned_gemm, tiny_gemms, slow_gemm, memory_bound_gemm)
