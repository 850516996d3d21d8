"""Rules about matrix products and attention: their precision, shapes and kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stepgrade.diagnosis.advice import larger_batch
from stepgrade.diagnosis.context import RuleContext, Runtime
from stepgrade.diagnosis.rule import Evidence, Found, Rule, Worth, on_amd
from stepgrade.model.activity import GemmTally
from stepgrade.model.operations import Operation
from stepgrade.model.scorecard import Severity
from stepgrade.units import show_count, show_share

_USUAL_SPEEDUP = 2.0  # from one precision to the next, if the device's figures are unknown
_FUSED_KERNEL = "Use a fused attention kernel. FlashAttention is an example."
_FUSED_GAIN = "fused kernels measured 2 to 4 times faster, because the scores never go through memory"
_LEAST_SOFTMAX = 0.05  # of the time of the products around it
_NARROW = frozenset({"bf16", "fp16", "fp8"})
precision_rule = partial(Rule, area="precision")
attention_rule = partial(Rule, area="attention", levels="attention")
gemm_rule = partial(Rule, area="gemm", levels="gemm")


def _mixed(context: RuleContext, dtype: str) -> str | None:
    """Return how to run products in this precision with PyTorch on the platform."""
    if context.runtime is not Runtime.PYTORCH:
        return None
    device = {"rocm": "cuda", None: "cuda"}.get(context.platform, context.platform)
    kind, scaled = ("bfloat16", "") if dtype == "bf16" else ("float16", "; train with a GradScaler")
    return (
        f"Run the forward pass under torch.autocast('{device}', dtype=torch.{kind})"
        f"{'' if context.work == 'inference' else scaled}. At least set "
        "torch.set_float32_matmul_precision('high'), which enables tf32."
    )


def _saved_part(context: RuleContext, now: str, then: str) -> float:
    """Return the share of the time saved by another precision, going by the device's peaks."""
    figures = context.target.figures
    before, after = figures.compute(now), figures.compute(then)
    faster = _USUAL_SPEEDUP
    if before and after and figures.peak_tflops is None and before[0].per_s and after[0].per_s:
        faster = max(1.0, after[0].per_s / before[0].per_s)
    return 1.0 - 1.0 / faster


@precision_rule(
    sees="Matrix products run in 32 bits, without tensor cores.",
    evidence="time and share in 32-bit products, the device's peaks",
    fix="Run matrix products in 16 bits (mixed precision).",
    fix_pytorch="Run the forward pass under torch.autocast('cuda', dtype=torch.bfloat16); float16 with a "
    "GradScaler without bf16; at least torch.set_float32_matmul_precision('high') if the device has tf32.",
    fix_jax="Cast to bfloat16, or set jax.default_matmul_precision('tensorfloat32').",
    wrong_when="the model needs 32 bits, or there are no tensor cores",
    check="Kernel names say 16 bits, and the products take less than half the time.",
    worth=Worth(
        "compute",
        0.6,
        "Hugging Face measured up to 3x from tf32; memory-bound products gain only their bytes",
        "gemm+convolution",
    ),
    explains=("tf32-matmuls", "slow-gemm", "slow-attention"),
    sources="PM, TBP, DL, XP, NAI, AL",
)
def fp32_matmuls(context: RuleContext) -> Found | None:
    by_dtype, limits = context.activity.matmul_dtype_ms, context.limits
    fp32_ms = by_dtype.get("fp32", 0.0)
    share = context.busy_share(fp32_ms)
    then = next((dtype for dtype in ("bf16", "fp16") if context.can_compute_in(dtype) is not False), None)
    if not context.on_device or then is None or share < limits.precision_info_share:
        return None
    gain = share * _saved_part(context, "fp32", then)
    part = fp32_ms / sum(by_dtype.values())
    convolves = context.class_share("convolution") > context.class_share("gemm", "attention")
    what = "convolutions" if convolves else "matrix products"
    return Found(
        f"{show_share(part, 0)} of the time in {what} is fp32, {show_share(share)} of the step.",
        {"fp32_ms": fp32_ms, "fp32_share": share, "of_matmuls": part},
        gain,
        severity="warning" if gain >= limits.precision_warning_share / 2 else "info",
        remedy=_mixed(context, then),
    )


@precision_rule(
    sees="Matrix products run in tf32; 16 bits are twice as fast and move half the bytes.",
    evidence="share in tf32 products",
    fix="Use mixed precision with bfloat16.",
    fix_pytorch="Run the forward pass under torch.autocast('cuda', dtype=torch.bfloat16).",
    wrong_when="the model does not converge in 16 bits",
    check="Kernel names say bf16.",
    worth=Worth("compute", 0.5, "the peak doubles; small products do not reach it", "gemm+convolution"),
    sources="XP, HF",
)
def tf32_matmuls(context: RuleContext) -> Found | None:
    share = context.busy_share(context.activity.matmul_dtype_ms.get("tf32", 0.0))
    if share < context.limits.precision_warning_share or context.can_compute_in("bf16") is False:
        return None
    claim = f"Matrix products in tf32 take {show_share(share)} of the step; bf16 has twice the peak."
    remedy = _mixed(context, "bf16")
    return Found(
        claim,
        {"tf32_share": share},
        share * _saved_part(context, "tf32", "bf16"),
        "info",
        remedy=remedy and remedy.split(". ")[0] + ".",
    )


@precision_rule(
    sees="Matrix products run in 64 bits, as NumPy's arrays do unless told otherwise.",
    evidence="time and share in 64-bit products",
    fix="Convert inputs and weights to 32 bits before the model.",
    fix_pytorch="Make tensors float32 where they are created (array.astype(np.float32), tensor.float()), and "
    "leave out model.double() and torch.set_default_dtype(torch.float64).",
    wrong_when="the model needs 64 bits, as some simulations do",
    check="No product has fp64 inputs, and the step takes about half the time.",
    worth=Worth("compute", 0.8, "32 bits move half the bytes and do twice the arithmetic, or much more"),
    explains=(
        *("slow-gemm", "slow-elementwise", "elementwise-chains", "heavy-optimizer", "device-copies"),
        *("one-hot-operation", "memory-bound-gemm"),
    ),
    sources="PM, XP",
)
def fp64_matmuls(context: RuleContext) -> Found | None:
    by_dtype = context.activity.matmul_dtype_ms
    part = by_dtype.get("fp64", 0.0) / (sum(by_dtype.values()) or 1.0)
    # What is computed between products of 64 bits has as many.
    share = part * context.account("compute")
    gain = share * _saved_part(context, "fp64", "fp32")
    claim = (
        f"{show_share(part, 0)} of the time in matrix products is fp64; such computing takes "
        f"{show_share(share)} of the step."
    )
    severity: Severity = "warning" if gain >= context.limits.precision_warning_share / 2 else "info"
    evidence: Evidence = {"fp64_share": share, "of_matmuls": part}
    return Found(claim, evidence, gain, severity) if gain >= context.limits.precision_info_share / 2 else None


fp16_beside_bf16 = precision_rule(
    sees="Products use fp16 with loss scaling where bf16 is as fast.",
    evidence="precision, loss scaler calls per step",
    fix="Use bfloat16: the same speed, no loss scaling, no skipped steps.",
    fix_pytorch="Use torch.autocast('cuda', dtype=torch.bfloat16) and no GradScaler.",
    wrong_when="the weights need fp16, or its extra digits",
    check="No loss scaler in the trace.",
    sources="AL",
    claim="Products run in fp16 with loss scaling on a device whose bf16 is as fast.",
    figures={"scaler_calls": "fp16_scalings"},
    severity="info",
)


def _attention_parts(context: RuleContext) -> tuple[list[Operation], list[Operation], float]:
    """Return the softmaxes over scores, the batched products around them, and their share of the step."""
    ops = [op for op in context.operations if op.ms]
    softmax = [
        op for op in ops if op.kind == "softmax" and "softmax" in op.name and "log_softmax" not in op.name
    ]
    products = [op for op in ops if op.name in {"aten::bmm", "aten::baddbmm"}]
    return softmax, products, context.operations_share((*softmax, *products))


@attention_rule(
    sees="PyTorch fell back to unfused attention: fused kernels do not accept these inputs.",
    evidence="_scaled_dot_product_attention_math calls, time of softmax and batched products",
    fix=_FUSED_KERNEL,
    fix_pytorch="Wrap the call in sdpa_kernel(SDPBackend.FLASH_ATTENTION): the error says why it "
    "does not apply (32-bit inputs, an explicit mask, the head size, dropout).",
    wrong_when="short sequences, where the fallback is as fast",
    check="_scaled_dot_product_flash_attention is in the trace.",
    worth=Worth("compute", 0.6, _FUSED_GAIN),
    explains=("unfused-attention", "one-hot-operation"),
    sources="GPF",
)
def math_attention(context: RuleContext) -> Found | None:
    calls = context.activity.marks.get("sdpa_math", 0.0)
    if not calls:
        return None
    _, _, share = _attention_parts(context)
    claim = (
        f"{show_count(round(calls))} attention calls a step fall back to the unfused implementation, "
        f"{show_share(share)} of the step."
    )
    return Found(claim, {"calls": calls, "share": share}, share)


@attention_rule(
    sees="Attention runs as separate operations (product, softmax, product) through memory.",
    evidence="softmax and batched products, their time, no fused kernel",
    fix=_FUSED_KERNEL,
    fix_pytorch="Call torch.nn.functional.scaled_dot_product_attention, or load the model with "
    'attn_implementation="sdpa".',
    fix_jax="Use jax.nn.dot_product_attention with implementation='cudnn'.",
    wrong_when="the scores are needed, as for attention maps",
    check="A flash or fmha kernel replaces the softmax.",
    worth=Worth("compute", 0.6, _FUSED_GAIN),
    explains=("memory-bound-gemm", "one-hot-operation"),
    sources="GPF, TL",
)
def unfused_attention(context: RuleContext) -> Found | None:
    softmax, products, share = _attention_parts(context)
    if not softmax or not products or not context.profile.activity:
        return None
    if context.class_share("attention") > context.limits.fused_attention_share:
        return None
    softmax_calls, product_calls = (sum(op.calls or 0.0 for op in ops) for ops in (softmax, products))
    if product_calls < 2 * min(op.calls or 1.0 for op in softmax):
        return None
    # The softmax of attention passes over scores that the products write and read; a router's is short.
    softmax_ms, products_ms = (sum(op.ms or 0.0 for op in ops) for ops in (softmax, products))
    if softmax_ms < _LEAST_SOFTMAX * products_ms:
        return None
    claim = (
        f"Attention is not fused: {show_count(round(softmax_calls))} softmax calls and "
        f"{show_count(round(product_calls))} batched products take {show_share(share)} of the step."
    )
    return Found(
        claim, {"softmax_calls": softmax_calls, "product_calls": product_calls, "share": share}, share
    )


@attention_rule(
    sees="Fused attention reaches less of the peak than usual at its sequence length.",
    evidence="share of the peak, sequence length, share",
    fix="Check head size, mask and precision: multiples of 64 in 16 bits are fastest.",
    wrong_when="sequences are mostly padding, whose FLOPs are not done",
    check="Attention reaches the usual share of the peak.",
    worth=Worth(
        "compute", 0.5, "the usual shares are what other runs reach, not what this shape can", "attention"
    ),
    sources="TL",
)
def slow_attention(context: RuleContext) -> Found | None:
    length, limits = context.activity.sequence, context.limits
    known = [
        op for op in context.operations if op.kind == "attention" and op.roof_share is not None and op.ms
    ]
    total_ms = sum(op.ms or 0.0 for op in known)
    share = context.busy_share(total_ms)
    if share < limits.attention_warning_share:
        return None
    reached = sum((op.roof_share or 0.0) * (op.ms or 0.0) for op in known) / total_ms
    bands = (
        (512, limits.attention_512_peak),
        (1024, limits.attention_1024_peak),
        (2048, limits.attention_2048_peak),
    )
    usual, where = limits.attention_2048_peak, ""
    if length is not None:
        usual = next((low for most, low in bands if length <= most), limits.attention_long_peak)
        where = f" at {length} tokens"
    if reached >= usual:
        return None
    claim = f"Attention reaches {show_share(reached, 0)} of the peak; {show_share(usual, 0)} is usual{where}."
    return Found(
        claim,
        {
            "reached": reached,
            "usual": usual,
            "share": share,
            "tokens": None if length is None else float(length),
        },
        share * (1.0 - reached / usual),
        severity="info",
    )


def _chosen(context: RuleContext, is_wanted: Callable[[GemmTally], bool]) -> tuple[list[GemmTally], float]:
    """Return the products that match and their share of the step."""
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
    """Return whether memory traffic takes longer than arithmetic; None if bytes or device are unknown."""
    peak, bandwidth = _peak_flops(context, gemm), context.target.figures.bandwidth()
    if peak is None or not bandwidth or not gemm.bytes:
        return None
    return gemm.flops / gemm.bytes < peak / bandwidth[0].per_s


@gemm_rule(
    sees="The vocabulary dimension of the output product is not a multiple of 64.",
    evidence="the size, share of such products",
    fix="Pad the vocabulary to a multiple of 64 (50257 to 50304); the padding is never predicted.",
    wrong_when="the checkpoint's vocabulary is fixed",
    check="The vocabulary is a multiple of 64 and the output layer takes less time.",
    worth=Worth("compute", 0.4, "nanoGPT measured about 25 % on its output layer", "gemm"),
    explains=("misaligned-gemm",),
    sources="HF, PM",
)
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
        f"{size} is not a multiple of {multiple}; products of that size take {show_share(share)} of the step."
    )
    return Found(claim, _evidence(chosen, share), share, gain=share * 0.5)


@gemm_rule(
    sees="A 16-bit product whose width is not a multiple of 8 runs slower kernels.",
    evidence="sizes of the longest, calls per step, share",
    fix="Pad to a multiple of 8, better 64: hidden sizes, vocabulary, sequence length in attention.",
    wrong_when="the kernel pads internally (its name still says align8)",
    check="All dimensions are multiples of 8 and the product takes less time.",
    worth=Worth("compute", 0.4, "aligned products measured up to twice as fast, most of them less", "gemm"),
    sources="PM, TG, HF",
)
def misaligned_gemm(context: RuleContext) -> Found | None:
    multiple = max(1, context.limits.gemm_multiple)
    # Any number of rows is aligned; the gradient of a weight sums over them.
    rows = {gemm.m for gemm in context.activity.gemms if gemm.batch == 1}

    def is_misaligned(gemm: GemmTally) -> bool:
        is_over_rows = gemm.batch == 1 and gemm.k in rows
        sides = (gemm.n,) if is_over_rows else (gemm.n, gemm.k)
        return gemm.dtype in _NARROW and any(side % multiple for side in sides)

    chosen, share = _chosen(context, is_misaligned)
    if not chosen:
        return None
    claim = (
        f"Products with a dimension that is not a multiple of {multiple} take {show_share(share)} of the "
        f"step, such as {_shape(chosen[0])}."
    )
    return Found(claim, _evidence(chosen, share), share, gain=share * 0.5)


@gemm_rule(
    sees="Many products are too small to fill the device.",
    evidence="number per step, share",
    fix="Combine small products into batched or grouped products.",
    fix_pytorch="Stack the operands and use torch.bmm, torch.vmap or a grouped product.",
    wrong_when="they overlap larger work",
    check="Fewer, larger products.",
    worth=Worth(
        "compute+idle_host", 0.5, "one batched product fills the device where many small ones do not"
    ),
    explains=("short-kernels",),
    sources="TL, GPF",
)
def tiny_gemms(context: RuleContext) -> Found | None:
    limits = context.limits
    chosen, share = _chosen(context, lambda gemm: gemm.flops / max(gemm.calls, 1e-9) < limits.tiny_gemm_flops)
    calls = sum(gemm.calls for gemm in chosen)
    if not chosen or calls < limits.tiny_gemms:
        return None
    claim = f"{show_count(round(calls))} products a step are tiny and take {show_share(share)} of the step."
    return Found(claim, _evidence(chosen, share), share)


@gemm_rule(
    sees="Gradients are accumulated over many micro-batches of few rows.",
    evidence="backward passes per step, FLOPs per byte of the products, share",
    fix="Use fewer, larger micro-batches: as large as memory allows.",
    fix_pytorch="Raise the micro-batch and accumulate over fewer of them: each pass reads all weights, adds "
    "to all gradients and goes through Python once, however few samples it has.",
    wrong_when="a larger micro-batch does not fit into memory",
    check="Fewer backward passes per step, and the step shrinks nearly as much.",
    worth=Worth("compute+idle_host", 0.6, "a pass over few rows costs nearly as much as one over many"),
    explains=(
        *("python-overhead", "python-loop", "host-stall", "tiny-gemms", "memory-bound-gemm", "launch-gaps"),
        *("slow-elementwise", "elementwise-chains", "device-copies", "short-kernels"),
    ),
    sources="ours: Hugging Face advises the largest batch that fits first",
)
def small_micro_batches(context: RuleContext) -> Found | None:
    passes, limits = context.activity.backward_passes or 1.0, context.limits
    products = [op for op in context.operations if op.kind == "gemm" and op.flops and op.bytes]
    flops, moved = (sum(getattr(op, name) for op in products) for name in ("flops", "bytes"))
    if passes < limits.micro_batches or not moved or context.is_full:
        return None
    intensity = flops / moved
    if intensity >= limits.few_rows_intensity:
        return None
    share = (1.0 - 1.0 / passes) * context.account("compute", "idle_host")
    rows = context.profile.samples_per_step
    each = f" of {show_count(round(rows / passes))} samples" if rows else ""
    claim = (
        f"Gradients are accumulated over {show_count(round(passes))} micro-batches{each} a step: their "
        f"products do {intensity:.1f} FLOPs for each byte, so each pass costs nearly as much as a large one, "
        f"{show_share(share)} of the step together."
    )
    evidence: Evidence = {"passes": passes, "flops_per_byte": intensity, "share": share}
    if rows:
        evidence["samples"] = rows / passes
    return Found(claim, evidence, share)


@gemm_rule(
    sees="Large compute-bound products reach little of the peak.",
    evidence="share of the data sheet's peak, sizes, share",
    fix="Check clocks and power, then the kernel: another library or autotuning may pick a better one.",
    fix_pytorch="Check clocks and power; try torch.compile(mode='max-autotune') or TunableOp for this shape.",
    fix_where=(
        on_amd(
            "Use hipBLASLt (TORCH_BLAS_PREFER_HIPBLASLT=1), then tune the shape "
            "(PYTORCH_TUNABLEOP_ENABLED=1); check clocks and power.",
        ),
    ),
    wrong_when="the device is wrong, or its stated peak assumes sparsity",
    check="The product reaches the published achievable rate.",
    worth=Worth("compute", 0.4, "published achievable rates are 50 to 87 % of the peak", "gemm"),
    sources="TL, GPF, ME",
)
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
        f"step, such as {_shape(chosen[0])}."
    )
    gain = share * (1.0 - reached / max(limits.slow_gemm_share * 2.0, 0.01))
    return Found(claim, _evidence(chosen, share) | {"reached": reached}, gain, "info")


@gemm_rule(
    sees="Products have so few rows that reading weights takes longer than using them.",
    evidence="FLOPs per byte, ridge point, sizes, share",
    fix="Use more rows per product: a larger batch, packed sequences, merged projections (one qkv product).",
    wrong_when="the weights stay in cache",
    check="The product has more rows and takes the same time.",
    worth=Worth("compute", 0.4, "more rows share each read of the weights; activations still grow", "gemm"),
    sources="TL",
)
def memory_bound_gemm(context: RuleContext) -> Found | None:
    chosen, share = _chosen(context, lambda gemm: bool(_is_memory_bound(context, gemm)))
    if not chosen or share < context.limits.gemm_warning_share * 2:
        return None
    claim = f"Memory-bound products take {show_share(share)} of the step, such as {_shape(chosen[0])}."
    remedy = f"Use more rows per product: packed sequences, merged projections. {larger_batch(context)}"
    return Found(claim, _evidence(chosen, share), share * 0.5, "info", remedy=remedy)
