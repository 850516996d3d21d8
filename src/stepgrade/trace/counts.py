"""Counts of a steady step: notable operations, passes, tokens, images; and whether it is training."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stepgrade.costs.recorded_inputs import decode_shapes
from stepgrade.model.columns import among, distinct, groups
from stepgrade.model.events import Ids, Longs
from stepgrade.model.profile import WorkKind
from stepgrade.naming.torch_names import (
    BACKWARD,
    BACKWARD_RANGE,
    COMPILED,
    LONGEST_NAME,
    OPTIMIZER_STEP,
    matching,
    named,
)
from stepgrade.patterns import regex
from stepgrade.timeline import intervals as iv
from stepgrade.timeline.links import in_direction
from stepgrade.timeline.steps import steps_of
from stepgrade.timeline.timeline import IN_BACKWARD, IN_OPTIMIZER, Driver, Pieces, Timeline
from stepgrade.units import NS_PER_MS

_OPS = {
    "item": regex(r"^aten::item$"),
    "data_dependent": regex(r"^aten::(nonzero|masked_select|unique\w*|_unique2)$"),
    "sdpa_math": regex(r"^aten::_scaled_dot_product_attention_math$"),
    "rsqrt": regex(r"^aten::rsqrt_?$"),
    "mean": regex(r"^aten::mean$"),
    "conv": regex(r"^aten::convolution$"),
    "softmax": regex(r"^aten::_softmax$"),
    "bmm": regex(r"^aten::(bmm|baddbmm)$"),
    "fbgemm": regex(r"^fbgemm::|SplitLookupFunction|^split_embedding"),
    "loss_scale": regex(r"^aten::_amp_foreach_non_finite_check_and_unscale_$"),
}
_CONVOLUTION = regex(r"^aten::(conv[23]d|convolution)$")
_IMAGE_SIZES = 4  # batch, channels, height and width; a video's frames are a fifth
_CHANNELS = (1, 3)
_OPS_IN_CONTEXT = {
    "zero_fill": (regex(r"^aten::(zero_|_foreach_zero_|fill_)$"), IN_OPTIMIZER),
    "isnan_in_backward": (regex(r"^aten::isnan$"), IN_BACKWARD),
}
_RANGES = {
    "compiled_region": COMPILED,
    "data_parallel": regex(r"^DataParallel\.forward"),
    "gloo": regex(r"^gloo:"),
    "optimizer_step": regex(r"^Optimizer\.step#"),
}
_KERNELS = {
    "layout": regex(r"nchwtonhwc|nhwctonchw|batched_transpose|transpose_readwrite", re.IGNORECASE),
    "triton": regex(r"^triton_"),
    "dropout": regex(r"dropout", re.IGNORECASE),
    "fill": regex(r"FillFunctor|^Memset", re.IGNORECASE),
}
_CALLS = {"graph_capture": regex(r"^(cuda|hip)(StreamBeginCapture|GraphInstantiate)|^cuGraphInstantiate")}
# Python takes a few microseconds between two reads of a loop; a longer pause is other work.
_READ_PAUSE_NS = 50_000
# Some models index a table of weights instead.
_LOOKUPS = ("aten::embedding", "aten::index")
_SMALLEST_VOCABULARY = 256
_FEW_SHARE = 0.1
_PRODUCT = regex(r"^aten::(mm|addmm|linear|matmul|_scaled_mm|_grouped_mm)$")
_SIZES_TRIED = 16
_COPIES = 16  # of a token, for the experts that it goes to
_FED_SHARE = 0.5
# Optimizers and the gradients' own operations, where no range or autograd node names them.
_TRAINING_OP = regex(
    r"^aten::(_fused_(adam|adamw|sgd|adagrad)_?|_foreach_(lerp|addcdiv|addcmul|norm)_?|\w+_backward(_\w+)?)$"
    r"|_backward\d*$|Optimizer"
)
_TRAINING_RANGE = regex(r"\boptimi[sz]er|optim_step|\btrain(ing)?_step|zero_grad", re.IGNORECASE)
# Kernels of a backward pass or of an optimizer. A convolution's dgrad alone is a transposed convolution too.
_TRAINING_KERNEL = regex(
    r"wgrad|backward|(flash|fmha|attn|attention|norm|softmax)\w*_bwd|_bwd_(kernel|dq|dk)|grad_(input|weight|bias)"
    r"|GammaBeta|bwd_?weight|FusedAdam|FusedOptimizer|AdamFunctor|[aA]dam[wW]?_|multi_tensor_\w*(adam|sgd|lamb)",
    re.IGNORECASE,
)
_INFERENCE_NAME = regex(
    r"paged_attention|reshape_and_cache|flash_fwd_splitkv|kv_?cache|decode_attention|\b(prefill|decode|generate)\b"
    r"|execute_(model|context)|inference",
    re.IGNORECASE,
)
LONGEST_KERNEL_NAME = 2000


def count_marks(timeline: Timeline, steps: int) -> dict[str, float]:
    """Return how often each of the known operations and ranges was called in a steady step."""
    ops, ranges, strings = timeline.trace.ops, timeline.trace.ranges, timeline.trace.strings
    calls = timeline.trace.calls
    counts = _count(timeline, ops.name, ops.start_ns, _OPS)
    counts |= _count(timeline, ranges.name, ranges.start_ns, _RANGES)
    counts |= _count(timeline, calls.name, calls.start_ns, _CALLS)
    if len(ops.name):
        steady, context = timeline.in_steady_step(ops.start_ns), timeline.context[timeline.tree.of_op]
        for mark, (pattern, bit) in _OPS_IN_CONTEXT.items():
            counts[mark] = int((named(strings, ops.name, pattern) & steady & ((context & bit) > 0)).sum())
    return {mark: count / steps for mark, count in counts.items() if count}


def _count(
    timeline: Timeline, names: Ids, starts: Longs, patterns: dict[str, re.Pattern[str]]
) -> dict[str, int]:
    """Return how many of the events in steady steps match each pattern."""
    if not len(names):
        return {}
    strings = timeline.trace.strings
    counts = np.bincount(names[timeline.in_steady_step(starts)], minlength=len(strings))
    used = np.flatnonzero(counts).tolist()
    return {
        mark: sum(int(counts[index]) for index in used if pattern.search(strings[index], 0, LONGEST_NAME))
        for mark, pattern in patterns.items()
    }


def group_kernels(timeline: Timeline, pieces: Pieces, steps: int) -> dict[str, float]:
    """Return the milliseconds of a steady step in kernels of each of the known groups."""
    chosen = pieces.steady & (pieces.kernel >= 0)
    total = np.bincount(pieces.kernel[chosen], weights=pieces.dur_ns[chosen], minlength=1)
    used = np.flatnonzero(total).tolist()
    strings = timeline.trace.strings
    found = {
        group: sum(float(total[index]) for index in used if pattern.search(strings[index], 0, 250))
        for group, pattern in _KERNELS.items()
    }
    return {group: ns / steps / NS_PER_MS for group, ns in found.items() if ns}


def class_in_range(timeline: Timeline, pattern: re.Pattern[str]) -> str | None:
    """Return the class that a range like `enumerate(DataLoader)#Class.method` names, the first by name."""
    strings, ranges = timeline.trace.strings, timeline.trace.ranges
    chosen = distinct(ranges.name[named(strings, ranges.name, pattern)])
    names = sorted(strings[index] for index in chosen.tolist() if "#" in strings[index])
    return names[0].split("#", 1)[1].split(".", 1)[0] if names else None


def scalar_reads(timeline: Timeline) -> iv.Spans:
    """Return the time that the loop spends reading single values, with the pauses between two reads."""
    ops = timeline.trace.ops
    if not len(ops.name):
        return iv.NOTHING
    outside = (timeline.context[timeline.tree.of_op] & IN_OPTIMIZER) == 0
    rows = np.flatnonzero(named(timeline.trace.strings, ops.name, _OPS["item"]) & outside)
    start = ops.start_ns[rows]
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + ops.dur_ns[rows])[order]
    following = np.append(start[1:], end[-1:])
    pause = np.where(following - end <= _READ_PAUSE_NS, following, end)
    return iv.union(start, np.maximum(pause, end))


class Tokens(NamedTuple):
    """How many tokens one step reads on this rank."""

    per_step: int
    sequence: int | None  # length of a sequence, where the lookup's input has two sizes


def count_tokens(timeline: Timeline) -> Tokens | None:
    """Return the tokens of a steady step; None without recorded shapes or without an embedding.

    The table with the most rows is the vocabulary, looked up once in each forward pass: with several tables
    of its size the passes of a step are counted by its backward passes. Tokens count only where they feed the
    model: most products have a row for each of them, unlike those beside a text encoder's.
    """
    trace, tree = timeline.trace, timeline.tree
    if trace.tokens:
        return Tokens(math.prod(trace.tokens), trace.tokens[-1])
    steady = np.flatnonzero(timeline.windows.steady)
    step = steps_of(trace.ops.start_ns, timeline.steps)
    usable = (trace.ops.inputs >= 0) & among(step, steady)
    usable &= (timeline.context[tree.of_op] & IN_BACKWARD) == 0
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for name in _LOOKUPS:
        lookups = named(trace.strings, trace.ops.name, re.compile(f"^{name}$"))
        for row in np.flatnonzero(lookups & usable).tolist() if not found else ():
            shapes = decode_shapes(trace.inputs[int(trace.ops.inputs[row])])
            table, indices = (shapes.tensor(0), shapes.tensor(1)) if shapes else (None, None)
            if not table or not indices or len(table) != 2:
                continue
            if name == _LOOKUPS[0] or (table[0] >= _SMALLEST_VOCABULARY and len(indices) == 2):
                found[row] = (table[0], indices)
    if not found:
        return None
    vocabulary = max(rows for rows, _ in found.values())
    sizes = {row: indices for row, (rows, indices) in found.items() if rows == vocabulary}
    first = int(steady[0])
    inputs = [indices for row, indices in sizes.items() if step[row] == first] or [*sizes.values()]
    if not _feed_the_model(timeline, sorted({math.prod(indices) for indices in inputs})[-_SIZES_TRIED:]):
        return None
    tokens = sum(map(math.prod, inputs))
    passes = min(int(count_backward_passes(timeline) or 1.0), len(inputs))
    if len(inputs) % passes == 0:
        tokens //= len(inputs) // passes
    return Tokens(tokens, inputs[0][1] if len(inputs[0]) == 2 else None)


def count_images(timeline: Timeline) -> int | None:
    """Return the images, or videos, of a steady step; None without recorded shapes or without any.

    They are what the first convolution takes in, where it has an image's one or three channels; a step of
    several batches calls it once for each.
    """
    trace = timeline.trace
    steady = np.flatnonzero(timeline.windows.steady)
    if not len(steady):
        return None
    in_step = (steps_of(trace.ops.start_ns, timeline.steps) == steady[0]) & (trace.ops.inputs >= 0)
    in_forward = (timeline.context[timeline.tree.of_op] & IN_BACKWARD) == 0
    rows = np.flatnonzero(in_step & in_forward & named(trace.strings, trace.ops.name, _CONVOLUTION))
    rows = rows[np.argsort(trace.ops.start_ns[rows], kind="stable")]
    first: tuple[int, tuple[int, ...]] | None = None
    images = 0
    for row in rows.tolist():
        shapes = decode_shapes(trace.inputs[int(trace.ops.inputs[row])])
        image, weight = (shapes.tensor(0), shapes.tensor(1)) if shapes else (None, None)
        if not image or not weight:
            continue
        if first is None:
            if len(image) < _IMAGE_SIZES or image[1] not in _CHANNELS:
                return None
            first = (int(trace.ops.name[row]), weight)
        if first == (int(trace.ops.name[row]), weight):
            images += image[0]
    return images or None


def _feed_the_model(timeline: Timeline, tokens: Sequence[int]) -> bool:
    """Return whether products with a row for each token, or for copies of it, take most of the time.

    True where no product has recorded sizes.
    """
    trace, links = timeline.trace, timeline.links
    rows = np.flatnonzero(timeline.chosen & (links.op >= 0))
    ops, busy_ns = links.op[rows], trace.work.dur_ns[rows]
    if not len(rows):
        ops, busy_ns = np.arange(len(trace.ops.name), dtype=np.int32), trace.ops.dur_ns
    products = named(trace.strings, trace.ops.name[ops], _PRODUCT) & (trace.ops.inputs[ops] >= 0)
    shapes, which, _ = groups(trace.ops.inputs[ops[products]])
    sums = np.bincount(which, weights=busy_ns[products], minlength=len(shapes)).tolist()
    of_tokens = 0.0
    for index, ns in zip(shapes.tolist(), sums, strict=True):
        sizes = decode_shapes(trace.inputs[index])
        tensors = [tensor for argument in range(3) if sizes and (tensor := sizes.tensor(argument))]
        heights = {math.prod(tensor[:-1]) for tensor in tensors if len(tensor) > 1}
        multiples = (h % count == 0 and h <= _COPIES * count for h in heights for count in tokens if count)
        of_tokens += ns if any(multiples) else 0.0
    return bool(of_tokens >= _FED_SHARE * sum(sums))


def count_backward_passes(timeline: Timeline) -> float | None:
    """Return how many backward passes the first steady step has; None without a steady step.

    They are the stretches of backward between forward operations.
    """
    ops, tree, steady = timeline.trace.ops, timeline.tree, np.flatnonzero(timeline.windows.steady)
    if not len(steady):
        return None
    in_step = (steps_of(ops.start_ns, timeline.steps) == steady[0]) & (tree.parent[tree.of_op] < 0)
    backward = matching(timeline.trace.strings, BACKWARD)[ops.name] & in_step
    forward = in_step & ~backward & (ops.sequence >= 0)
    rows = np.flatnonzero(backward | forward)
    order = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    flags = backward[order]
    return max(1.0, float((flags & ~np.append(False, flags[:-1])).sum()))


def count_skipped_steps(timeline: Timeline, pieces: Pieces) -> tuple[int, str | None]:
    """Return how many steady steps lack a part that most of them have: the backward pass or the optimizer."""
    steady = timeline.windows.steady
    for bit, name in ((IN_BACKWARD, "backward pass"), (IN_OPTIMIZER, "optimizer")):
        in_part = pieces.steady & ((pieces.context & bit) > 0)
        counts = np.bincount(pieces.step[in_part], minlength=len(steady))[np.flatnonzero(steady)]
        usual = float(counts.max(initial=0))
        without = int((counts < _FEW_SHARE * usual).sum())
        if usual and without:
            return without, name
    return 0, None


def count_launches(timeline: Timeline, pieces: Pieces) -> int:
    """Return how many calls launched the work of the steady steps; a graph launch is one."""
    if timeline.driver is not Driver.DEVICE:
        return 0
    calls = distinct(timeline.links.call[pieces.work[pieces.steady]])
    return int((calls >= 0).sum())


def find_work(timeline: Timeline) -> WorkKind:
    """Return training if a backward pass or an optimizer was seen, inference if only forward passes were.

    Autograd nodes, the number of a forward thread, ranges and kernels show a backward pass; replayed graphs
    show it by their kernels. Without operations, names must say that it is inference. Work before the first
    step and after the last, such as a warm-up, does not count.
    """
    trace, steps = timeline.trace, timeline.steps
    first, last = int(steps.start_ns.min()), int(steps.end_ns.max())
    strings, ops, ranges = trace.strings, trace.ops, trace.ranges
    seen_ops = (ops.start_ns < last) & (ops.end_ns > first)
    seen_ranges = ranges.name[(ranges.start_ns < last) & (ranges.end_ns > first)]
    launched = timeline.attribution.launch_ns
    in_steps = (launched < 0) | ((launched >= first) & (launched < last))
    kernels = [strings[name] for name in distinct(trace.work.name[in_steps]).tolist()]
    if (
        (in_direction(trace, "backward", "optimizer") & seen_ops).any()
        or _any_named(strings, ops.name[seen_ops], BACKWARD, _TRAINING_OP)
        or (ops.forward_thread[seen_ops] > 0).any()
        or _any_named(strings, seen_ranges, OPTIMIZER_STEP, BACKWARD_RANGE, _TRAINING_RANGE)
        or any(_TRAINING_KERNEL.search(name, 0, LONGEST_KERNEL_NAME) for name in kernels)
    ):
        return "training"
    is_inference = (
        seen_ops.any()
        or any(_INFERENCE_NAME.search(name, 0, LONGEST_KERNEL_NAME) for name in kernels)
        or _any_named(strings, seen_ranges, _INFERENCE_NAME)
    )
    return "inference" if is_inference else "unknown"


def _any_named(strings: tuple[str, ...], names: Ids, *patterns: re.Pattern[str]) -> bool:
    return any(bool(named(strings, names, pattern).any()) for pattern in patterns)
