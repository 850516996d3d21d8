"""Operations, ranges and kernels whose mere presence tells something, counted in the steady steps."""

from __future__ import annotations

import re

import numpy as np

from stepgrade.model.columns import distinct
from stepgrade.model.events import Ids, Longs
from stepgrade.naming.torch_names import COMPILED, LOADER, OPTIMIZER_STEP, Mask, matching, named
from stepgrade.trace import intervals as iv
from stepgrade.trace.intervals import Spans
from stepgrade.trace.pieces import Pieces
from stepgrade.trace.steps import steps_of
from stepgrade.trace.timeline import IN_BACKWARD, IN_OPTIMIZER, Timeline
from stepgrade.units import NS_PER_MS

_OPS = {
    "item": re.compile(r"^aten::item$"),
    "data_dependent": re.compile(r"^aten::(nonzero|masked_select|unique\w*|_unique2)$"),
    "sdpa_math": re.compile(r"^aten::_scaled_dot_product_attention_math$"),
    "rsqrt": re.compile(r"^aten::rsqrt_?$"),
    "mean": re.compile(r"^aten::mean$"),
    "conv": re.compile(r"^aten::convolution$"),
    "softmax": re.compile(r"^aten::_softmax$"),
    "bmm": re.compile(r"^aten::(bmm|baddbmm)$"),
    "loss_scale": re.compile(r"^aten::_amp_foreach_non_finite_check_and_unscale_$"),
}
_RANGES = {
    "compiled_region": COMPILED,
    "data_parallel": re.compile(r"^DataParallel\.forward"),
    "gloo": re.compile(r"^gloo:"),
    "optimizer_step": re.compile(r"^Optimizer\.step#"),
}
_KERNELS = {
    "layout": re.compile(r"nchwtonhwc|nhwctonchw|batched_transpose|transpose_readwrite", re.IGNORECASE),
    "triton": re.compile(r"^triton_"),
    "dropout": re.compile(r"dropout", re.IGNORECASE),
    "fill": re.compile(r"FillFunctor|^Memset", re.IGNORECASE),
}
# Python takes a few microseconds between two reads of a loop; a longer pause is other work.
_READ_PAUSE_NS = 50_000


def count_marks(line: Timeline, steps: int) -> dict[str, float]:
    """Return how often each telling operation or range was called in a steady step."""
    ops, ranges = line.trace.ops, line.trace.ranges
    found = _counted(line, ops.name, ops.start_ns, _OPS) | _counted(
        line, ranges.name, ranges.start_ns, _RANGES
    )
    found["zero_fill"] = _zero_fills(line)
    found["isnan_in_backward"] = _isnans(line)
    return {name: count / steps for name, count in found.items() if count}


def _counted(
    line: Timeline, names: Ids, starts: Longs, patterns: dict[str, re.Pattern[str]]
) -> dict[str, int]:
    if not len(names):
        return {}
    inside = _in_steady(line, starts)
    counts = np.bincount(names[inside], minlength=len(line.trace.strings))
    used = np.flatnonzero(counts).tolist()
    strings = line.trace.strings
    return {
        mark: sum(int(counts[index]) for index in used if pattern.search(strings[index], 0, 120))
        for mark, pattern in patterns.items()
    }


def _in_steady(line: Timeline, times: Longs) -> Mask:
    steady = np.append(line.windows.steady, [False, False])
    step = steps_of(times, line.steps)
    return steady[np.where(step >= 0, step, len(steady) - 1)]


def _zero_fills(line: Timeline) -> int:
    return _in_context(line, re.compile(r"^aten::(zero_|_foreach_zero_|fill_)$"), IN_OPTIMIZER)


def _isnans(line: Timeline) -> int:
    return _in_context(line, re.compile(r"^aten::isnan$"), IN_BACKWARD)


def _in_context(line: Timeline, pattern: re.Pattern[str], bit: int) -> int:
    ops = line.trace.ops
    if not len(ops.name):
        return 0
    chosen = named(line.trace.strings, ops.name, pattern) & _in_steady(line, ops.start_ns)
    return int((chosen & ((line.context[line.tree.of_op] & bit) > 0)).sum())


def group_kernels(line: Timeline, pieces: Pieces, steps: int) -> dict[str, float]:
    """Return the milliseconds of a steady step in kernels of each telling group."""
    chosen = pieces.steady & (pieces.kernel >= 0)
    total = np.bincount(pieces.kernel[chosen], weights=pieces.dur_ns[chosen], minlength=1)
    used = np.flatnonzero(total).tolist()
    strings = line.trace.strings
    found = {
        group: sum(float(total[index]) for index in used if pattern.search(strings[index], 0, 250))
        for group, pattern in _KERNELS.items()
    }
    return {group: ns / steps / NS_PER_MS for group, ns in found.items() if ns}


def loader_of(line: Timeline) -> str | None:
    """Return the class of the iterator that the loop takes its batches from."""
    return _class_in(line, LOADER)


def optimizer_of(line: Timeline) -> str | None:
    """Return the class of the optimizer; the first by name if there are several."""
    return _class_in(line, OPTIMIZER_STEP)


def _class_in(line: Timeline, pattern: re.Pattern[str]) -> str | None:
    """Return the class that a range like `enumerate(DataLoader)#Class.method` names."""
    ranges = line.trace.ranges
    if not len(ranges.name):
        return None
    chosen = matching(line.trace.strings, pattern)[ranges.name]
    names = sorted(line.trace.strings[index] for index in distinct(ranges.name[chosen]).tolist())
    return names[0].split("#", 1)[1].split(".", 1)[0] if names else None


def reading_scalars(line: Timeline) -> Spans:
    """Return the time that the loop spends reading single values, with the pauses between two reads."""
    ops = line.trace.ops
    if not len(ops.name):
        return iv.NOTHING
    rows = np.flatnonzero(
        named(line.trace.strings, ops.name, _OPS["item"])
        & ((line.context[line.tree.of_op] & IN_OPTIMIZER) == 0)
    )
    start = ops.start_ns[rows]
    order = np.argsort(start, kind="stable")
    start, end = start[order], (start + ops.dur_ns[rows])[order]
    following = np.append(start[1:], start[-1:] + _READ_PAUSE_NS) if len(start) else start
    pause = np.where(following - end <= _READ_PAUSE_NS, following, end)
    return iv.union(start, np.maximum(pause, end))
