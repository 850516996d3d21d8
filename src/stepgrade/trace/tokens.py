"""Tokens per step, from the sizes of the embedding lookup's input."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from stepgrade.model.columns import among
from stepgrade.model.events import Ids, Trace
from stepgrade.naming.torch_names import BACKWARD, matching
from stepgrade.trace.shapes import decode_shapes, elements
from stepgrade.trace.steps import steps_of
from stepgrade.trace.timeline import IN_BACKWARD, Timeline

LOOKUP = "aten::embedding"


class TokenFacts(Struct, frozen=True, kw_only=True):
    """How many tokens a step takes in on this rank."""

    per_step: int
    batch: int | None  # sequences in a lookup, where its input has two sizes
    sequence: int | None
    lookups_per_step: int
    basis: str


def count_tokens(line: Timeline) -> TokenFacts | None:
    """Return the tokens of a steady step; None without recorded shapes or without an embedding.

    The table with the most rows is the vocabulary. It is looked up once for each forward pass: with several
    tables of its size the passes of a step are counted by its backward passes.
    """
    trace = line.trace
    steady = np.flatnonzero(line.windows.steady)
    step = steps_of(trace.ops.start_ns, line.steps)
    rows = _lookups(line)
    rows = rows[among(step[rows], steady)]
    sizes = _vocabulary_lookups(trace, rows)
    if not sizes:
        return None
    first = int(steady[0])
    found = {row: size for row, size in sizes.items() if step[row] == first} or sizes
    counts = list(found.values())
    passes = min(_backward_passes(line, first), len(counts))
    per_pass = len(counts) // passes
    tokens = sum(elements(one) for one in counts) // per_pass if len(counts) % passes == 0 else None
    if tokens is None:
        tokens = sum(elements(one) for one in counts)
    shape = counts[0]
    return TokenFacts(
        per_step=tokens,
        batch=shape[0] if len(shape) == 2 else None,
        sequence=shape[1] if len(shape) == 2 else None,
        lookups_per_step=len(counts),
        basis="the input of the largest embedding lookup",
    )


def _lookups(line: Timeline) -> Ids:
    """Return the embedding lookups of the forward pass that recorded their inputs."""
    trace = line.trace
    names = {index for index, text in enumerate(trace.strings) if text == LOOKUP}
    chosen = among(trace.ops.name, names) & (trace.ops.inputs >= 0)
    context = line.context[line.tree.of_op]
    return np.flatnonzero(chosen & ((context & IN_BACKWARD) == 0)).astype(np.int32)


def _vocabulary_lookups(trace: Trace, rows: Ids) -> dict[int, tuple[int, ...]]:
    """Return the size of the input of each lookup in the table with the most rows."""
    found: dict[int, tuple[int, tuple[int, ...]]] = {}
    for row in rows.tolist():
        shapes = decode_shapes(trace.inputs[int(trace.ops.inputs[row])])
        table, places = (shapes.tensor(0), shapes.tensor(1)) if shapes else (None, None)
        if table and places and len(table) == 2:
            found[row] = (table[0], places)
    most = max((rows_of for rows_of, _ in found.values()), default=0)
    return {row: places for row, (rows_of, places) in found.items() if rows_of == most}


def count_backward_passes(line: Timeline) -> float | None:
    """Return how many backward passes the first steady step has; None without a steady step."""
    steady = np.flatnonzero(line.windows.steady)
    return float(_backward_passes(line, int(steady[0]))) if len(steady) else None


def _backward_passes(line: Timeline, step: int) -> int:
    """Return how many backward passes the step has: stretches of backward between forward operations."""
    ops = line.trace.ops
    mine = (steps_of(ops.start_ns, line.steps) == step) & (line.tree.parent[line.tree.of_op] < 0)
    backward = matching(line.trace.strings, BACKWARD)[ops.name] & mine
    forward = mine & ~backward & (ops.sequence >= 0)
    rows = np.flatnonzero(backward | forward)
    order = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    flags = backward[order]
    return max(1, int((flags & ~np.append(False, flags[:-1])).sum()))
