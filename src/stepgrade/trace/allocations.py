"""Replay allocations: who held what at each moment, and as which part of training.

What a block is follows from when it lives. Made and freed within one pass it is temporary; what the forward
pass makes and the backward pass still sees is an activation; what outlives the backward pass that made it is
a gradient; what outlives the optimizer that made it is its state.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np

from stepgrade.model.allocations import (
    IN_BACKWARD,
    IN_FORWARD,
    IN_OPTIMIZER,
    IN_SETUP,
    IN_ZERO_GRAD,
    Allocations,
)
from stepgrade.model.events import NONE, Floats, Ids, Kinds, Longs
from stepgrade.model.memory import (
    ACTIVATIONS,
    CATEGORIES,
    GRADIENTS,
    OPTIMIZER,
    OTHER,
    TEMPORARY,
    WEIGHTS,
    Holder,
    MemoryCurve,
    MemoryGrowth,
)
from stepgrade.naming.torch_names import Mask

_MOST_POINTS = 160
_MOST_HOLDERS = 12
# A level that rises with every step, by more than rounding.
_LEAST_STEPS = 4
_LEAST_GROWTH_BYTES = 1 << 16


class HeldBlocks(NamedTuple):
    """One row for each block of memory; `died` is the number of events for one that is never freed."""

    size: Longs
    born: Longs  # the event that allocated it; NONE for one from before the first event
    died: Longs
    category: Kinds
    tag: Ids


class Replay(NamedTuple):
    """What was allocated after each event."""

    events: Allocations
    blocks: HeldBlocks
    total: Longs
    peak: int  # the event after which most was allocated


def replay(events: Allocations) -> Replay:
    """Return who held what after each event."""
    blocks, total = _pair(events), np.cumsum(events.delta)
    # A processor's allocator counts from when recording began, but frees what was there before as well.
    before = int(blocks.size[blocks.born < 0].sum()) if has_addresses(events) else -int(total.min(initial=0))
    base = max(events.base_bytes, before)
    total += base
    peak = int(total.argmax()) if len(total) else 0
    return Replay(events._replace(base_bytes=base), blocks, total, peak)


def has_addresses(events: Allocations) -> bool:
    """Tell whether it is known which allocation a free belongs to."""
    return not ((events.address == NONE) | (events.address == 0)).any()


def _levels(found: Replay, chosen: Mask) -> Longs:
    """Return the bytes of the chosen blocks that are held after each event."""
    blocks, count = found.blocks, len(found.events.delta) + 1
    size = blocks.size[chosen]
    made = np.bincount(np.maximum(blocks.born[chosen], 0), weights=size, minlength=count)
    freed = np.bincount(blocks.died[chosen], weights=size, minlength=count)
    levels: Longs = np.cumsum(made - freed).astype(np.int64)[:-1]
    return levels


def _pair(events: Allocations) -> HeldBlocks:
    """Return the blocks: each allocation with the next free at its address."""
    count = len(events.delta)
    order = np.argsort(events.address, kind="stable")
    address, made = events.address[order], events.delta[order] > 0
    follows = np.zeros(count, np.bool_)  # the row before is at the same address
    follows[1:] = address[1:] == address[:-1]
    died = np.full(count, count, np.int64)
    died[:-1][follows[1:]] = order[1:][follows[1:]]
    unseen = ~made
    unseen[1:] &= ~(follows[1:] & made[:-1])
    rows, before = order[made], order[unseen]
    size = np.concatenate((events.delta[rows], -events.delta[before]))
    born = np.concatenate((rows, np.full(len(before), NONE, np.int64)))
    ends = np.concatenate((died[made], before))
    tag = np.concatenate((events.tag[rows], np.full(len(before), NONE, np.int32)))
    return HeldBlocks(size, born, ends, _categorise(events, born, ends), tag.astype(np.int32))


def _categorise(events: Allocations, born: Longs, died: Longs) -> Kinds:
    """Return the category of each block by the passes in which it was made and freed."""
    count = len(events.phase)
    category = np.full(len(born), OTHER, np.int8)
    if not count:
        return category
    part = np.zeros(count + 1, np.int64)  # which pass an event is in, counted from 0
    part[1:count] = np.cumsum(events.phase[1:] != events.phase[:-1])
    part[count] = part[count - 1] + 1  # what is never freed outlives the last one
    # How many backward passes have begun before each event, and up to it.
    is_backward = events.phase == IN_BACKWARD
    begins = is_backward.copy()
    begins[1:] &= ~is_backward[:-1]
    passes = np.zeros(count + 1, np.int64)
    passes[1:] = np.cumsum(begins)
    seen = born >= 0
    made = np.where(seen, born, 0)
    phase, outlives = events.phase[made], part[made] != part[died]
    seen_passes = passes[np.minimum(died + 1, count)] - passes[made]
    of_forward = seen & outlives & (phase == IN_FORWARD)
    category[seen] = TEMPORARY
    category[of_forward & ((seen_passes == 1) | (died == count))] = ACTIVATIONS
    # What several backward passes see was made to stay.
    category[of_forward & (seen_passes > 1)] = OTHER
    category[seen & (phase == IN_SETUP) & (died == count)] = WEIGHTS
    category[seen & outlives & (phase == IN_BACKWARD)] = GRADIENTS
    category[seen & outlives & (phase == IN_OPTIMIZER)] = OPTIMIZER
    # Of the blocks from before, an optimizer frees states that it replaces, and `zero_grad` gradients.
    ends_in = events.phase[np.minimum(died, count - 1)]
    category[~seen & (ends_in == IN_OPTIMIZER)] = OPTIMIZER
    category[~seen & (ends_in == IN_ZERO_GRAD)] = GRADIENTS
    return category


def live_at(found: Replay, event: int) -> Mask:
    """Tell which blocks are held after the event."""
    return (found.blocks.born <= event) & (found.blocks.died > event)


def categories_at(found: Replay, event: int) -> dict[str, float]:
    """Return the bytes of each category after the event; they add up to what is allocated then."""
    blocks, live = found.blocks, live_at(found, event)
    held = np.bincount(blocks.category[live], weights=blocks.size[live], minlength=len(CATEGORIES))
    for category, amount in zip((WEIGHTS, OPTIMIZER, OTHER), split_base(found), strict=True):
        held[category] += amount
    return {name: float(amount) for name, amount in zip(CATEGORIES, held, strict=True) if amount > 0}


def split_base(found: Replay) -> tuple[float, float, float]:
    """Return what was there before and stays: weights, optimizer states, and what cannot be told.

    Each weight that is trained has a gradient of its size, and the optimizer as many states as its kind has.
    """
    events, blocks = found.events, found.blocks
    known = int(blocks.size[blocks.born < 0].sum())
    base = float(events.base_bytes - known)
    if base <= 0:
        return 0.0, 0.0, max(base, 0.0)
    gradients = float(_levels(found, blocks.category == GRADIENTS).max(initial=0))
    own_states = float(blocks.size[blocks.category == OPTIMIZER].sum())
    states = max(0.0, gradients * events.states_per_weight - own_states)
    if not gradients:
        return 0.0, 0.0, base
    return (base - states, states, 0.0) if base > states else (base, 0.0, 0.0)


def curve_between(found: Replay, low: int, high: int, start_ns: int) -> MemoryCurve | None:
    """Return the memory of the events from `low` to before `high`: of each stretch the moment with most."""
    picks = low + moments_of(found.total[low:high])
    base = dict(zip((WEIGHTS, OPTIMIZER, OTHER), split_base(found), strict=True))
    held: dict[str, tuple[float, ...]] = {}
    for number, name in enumerate(CATEGORIES):
        level = _levels(found, found.blocks.category == number)[picks] + base.get(number, 0.0)
        if level.any():
            held[name] = tuple(np.maximum(level, 0.0).tolist())
    return _curve(found, picks, start_ns, held)


def total_curve(found: Replay, low: int, high: int, start_ns: int) -> MemoryCurve | None:
    """Return the same where the parts cannot be told apart."""
    picks = low + moments_of(found.total[low:high])
    return _curve(
        found, picks, start_ns, {CATEGORIES[OTHER]: tuple(found.total[picks].astype(float).tolist())}
    )


def moments_of(total: Longs | Floats) -> Longs:
    """Return the numbers of a few moments, enough for a curve: of each stretch the one with most."""
    edges = np.linspace(0, len(total), min(_MOST_POINTS, len(total)) + 1).astype(np.int64)
    return np.array([a + int(total[a:b].argmax()) for a, b in pairwise(edges.tolist())], np.int64)


def _curve(
    found: Replay, picks: Longs, start_ns: int, held: dict[str, tuple[float, ...]]
) -> MemoryCurve | None:
    if len(picks) < 2:
        return None
    has_times = bool((found.events.time_ns >= 0).all())
    at = (found.events.time_ns[picks] - start_ns) / 1e6 if has_times else picks.astype(float)
    return MemoryCurve(
        at_ms=tuple(np.maximum(at, 0.0).tolist()),
        has_times=has_times,
        categories=held,
        peak_index=int(found.total[picks].argmax()),
    )


def holders_of(found: Replay, chosen: Mask) -> tuple[Holder, ...]:
    """Return who allocated the chosen blocks, most bytes first."""
    blocks = found.blocks
    rows = np.flatnonzero(chosen & (blocks.tag >= 0))
    key = blocks.tag[rows].astype(np.int64) * len(CATEGORIES) + blocks.category[rows]
    sums: dict[tuple[str | None, str | None, str], float] = {}
    if not len(rows):
        return ()
    amount = np.bincount(key, weights=blocks.size[rows])
    for value in np.flatnonzero(amount).tolist():
        maker, name = found.events.makers[value // len(CATEGORIES)], CATEGORIES[value % len(CATEGORIES)]
        who = (maker.op, maker.where, name)
        sums[who] = sums.get(who, 0.0) + float(amount[value])
    most = sorted(sums.items(), key=lambda item: -item[1])[:_MOST_HOLDERS]
    return tuple(Holder(bytes=size, op=op, where=where, category=name) for (op, where, name), size in most)


def growth_of(found: Replay, ends: Longs) -> MemoryGrowth | None:
    """Return how the memory grows from step to step; `ends` are the numbers of events before each step's end.

    The first step allocates what stays, gradients and states: it does not count.
    """
    edges = ends[1:]
    if len(edges) < _LEAST_STEPS + 1 or not len(found.total):
        return None
    least = np.minimum.reduceat(found.total, np.minimum(edges[:-1], len(found.total) - 1))
    rises = np.diff(least)
    if (rises <= 0).any() or np.median(rises) < _LEAST_GROWTH_BYTES:
        return None
    blocks, count = found.blocks, len(found.total)
    kept = (blocks.born >= edges[0]) & (blocks.born < edges[-2]) & (blocks.died >= count)
    return MemoryGrowth(
        bytes_per_step=float(np.median(rises)), steps=len(rises) + 1, holders=holders_of(found, kept)
    )
