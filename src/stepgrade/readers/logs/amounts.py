"""How much a step processes: devices, tokens, samples and memory, as a log counts or prints them."""

from __future__ import annotations

import numpy as np

from stepgrade.readers.logs.facts import LogHeader
from stepgrade.readers.logs.runs import Table
from stepgrade.readers.logs.steps import Paces, middle_of, total_rate

# Figures printed with few digits agree with batch x sequence to this.
_SAME_TOKENS = 0.02


def world_size(header: LogHeader, ranks: int = 1) -> int | None:
    """Return how many devices trained; None if the log does not say."""
    printed = header.whole("global_num_gpus", "world_size", "world")
    micro, rank = header.numbers.get("micro_tokens"), header.numbers.get("rank_tokens")
    if micro and rank:
        printed = max(printed or 1, round(micro / rank))
    if printed is None and (local := header.whole("local_world")):
        printed = local * (header.whole("nodes") or 1)
    if printed is None:
        batch, each = header.whole("global_batch_size"), header.whole("micro_batch_size")
        steps = header.whole("accumulation") or 1
        if batch and each and batch % (each * steps) == 0:
            printed = batch // (each * steps)
    return printed if printed is not None else ranks if ranks > 1 else None


def world_by_rates(table: Table, paces: Paces | None = None) -> int | None:
    """Return how many devices there are by the ratio of total and per-device rates; None without one."""
    each, together = table.get("tok_s_device"), table.get("tok_s")
    with np.errstate(all="ignore"):  # values that are not finite are ignored
        if together is None and paces is not None and "tokens" in table:
            gained = np.diff(table["tokens"], prepend=np.nan)
            together = gained / paces.count / paces.step_s
        if together is None and paces is not None and "step_tokens" in table:
            together = table["step_tokens"] / paces.step_s
        if each is None or together is None:
            return None
        ratio = middle_of(together / each)
    if ratio is None or ratio < 1.0 - _SAME_TOKENS or abs(ratio / round(ratio) - 1.0) > _SAME_TOKENS:
        return None
    return round(ratio)


def printed_tokens(table: Table, header: LogHeader) -> float | None:
    """Return the tokens per step over all devices, if the log prints them."""
    printed = middle_of(table.get("step_tokens")) or header.numbers.get("step_tokens")
    seq, batch = header.whole("seq_length"), header.whole("global_batch_size", "train_batch_size")
    samples = float(batch) if batch else middle_of(table.get("step_samples"))
    return printed or (seq * samples if seq and samples else None)


def tokens_per_step(
    table: Table, header: LogHeader, paces: Paces, world: int | None, printed: float | None
) -> float | None:
    """Return the tokens per step over all devices: as counted, else by rate and time, else as printed."""
    counted = _gained(table, "tokens", paces)
    if counted is not None:
        return counted
    rate = total_rate(table, world)
    measured = middle_of(rate * paces.step_s if rate is not None else None)
    if measured is not None and not (printed and abs(measured / printed - 1.0) < _SAME_TOKENS):
        return measured
    samples, seq = _gained(table, "samples", paces), header.whole("seq_length")
    return printed or (samples * seq if samples and seq else None)


def samples_per_step(table: Table, header: LogHeader, paces: Paces) -> float | None:
    """Return the samples per step over all devices."""
    printed = header.whole("global_batch_size", "train_batch_size")
    found = middle_of(table.get("step_samples")) or (float(printed) if printed else None)
    by_rate = table["samples_s"] * paces.step_s if "samples_s" in table else None
    return found or _gained(table, "samples", paces) or middle_of(by_rate)


def _gained(table: Table, name: str, paces: Paces) -> float | None:
    """Return the increase per step of a cumulative count."""
    if name not in table:
        return None
    known = np.isfinite(table[name])  # only some lines may have it
    return middle_of(np.diff(table[name][known]) / np.maximum(np.diff(np.cumsum(paces.count)[known]), 1.0))


def peak_memory(table: Table, header: LogHeader) -> float | None:
    """Return the highest device memory in the log."""
    known = table.get("memory_bytes", np.zeros(0))
    known = known[np.isfinite(known) & (known > 0.0)]
    return float(known.max()) if len(known) else header.numbers.get("peak_bytes")
