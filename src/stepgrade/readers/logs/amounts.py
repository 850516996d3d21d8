"""Quantities of a logged run: devices, tokens and samples per step, memory."""

from __future__ import annotations

import numpy as np

from stepgrade.model import DeviceSeen
from stepgrade.readers.logs.facts import LogHeader
from stepgrade.readers.logs.order import Table
from stepgrade.readers.logs.paces import Paces, middle_of

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
    with np.errstate(all="ignore"):  # what is not finite is left out of the middle
        if together is None and paces is not None and "tokens" in table:
            gained = np.diff(table["tokens"], prepend=np.nan)
            together = gained / paces.count / paces.step_s
        if each is None or together is None:
            return None
        ratio = middle_of(together / each)
    if ratio is None or ratio < 1.0 - _SAME_TOKENS or abs(ratio / round(ratio) - 1.0) > _SAME_TOKENS:
        return None
    return round(ratio)


def device_of(header: LogHeader) -> DeviceSeen | None:
    """Return the device as the log names it."""
    name, size = header.texts.get("device"), header.numbers.get("device_bytes")
    return DeviceSeen(name=name, memory_bytes=round(size) if size else None) if name else None


def printed_tokens(table: Table, header: LogHeader) -> float | None:
    """Return the tokens per step over all devices, if the log prints them."""
    if "step_tokens" in table and (middle := middle_of(table["step_tokens"])) is not None:
        return middle
    if printed := header.numbers.get("step_tokens"):
        return printed
    seq = header.whole("seq_length")
    batch = header.whole("global_batch_size", "train_batch_size")
    samples = float(batch) if batch else middle_of(table["step_samples"]) if "step_samples" in table else None
    return seq * samples if seq and samples else None


def tokens_per_step(
    table: Table, header: LogHeader, paces: Paces, world: int | None, printed: float | None
) -> float | None:
    """Return the tokens per step over all devices: as counted, else by rate and time, else as printed."""
    counted = _gained(table, "tokens", paces)
    if counted is not None:
        return counted
    rate = table.get("tok_s")
    if rate is None and "tok_s_device" in table:
        rate = table["tok_s_device"] * (world or 1)
    measured = middle_of(rate * paces.step_s) if rate is not None else None
    if measured is not None and not (printed and abs(measured / printed - 1.0) < _SAME_TOKENS):
        return measured
    samples, seq = _gained(table, "samples", paces), header.whole("seq_length")
    return printed or (samples * seq if samples and seq else None)


def samples_per_step(table: Table, header: LogHeader, paces: Paces) -> float | None:
    """Return the samples per step over all devices."""
    if "step_samples" in table and (middle := middle_of(table["step_samples"])) is not None:
        return middle
    if printed := header.whole("global_batch_size", "train_batch_size"):
        return float(printed)
    counted = _gained(table, "samples", paces)
    return counted or (middle_of(table["samples_s"] * paces.step_s) if "samples_s" in table else None)


def _gained(table: Table, name: str, paces: Paces) -> float | None:
    """Return the increase per step of a cumulative count."""
    if name not in table:
        return None
    known = np.isfinite(table[name])  # only some lines may have it
    return middle_of(np.diff(table[name][known]) / np.maximum(np.diff(np.cumsum(paces.count)[known]), 1.0))


def peak_memory(table: Table, header: LogHeader) -> float | None:
    """Return the highest device memory in the log."""
    known = table["memory_bytes"] if "memory_bytes" in table else np.zeros(0)
    known = known[np.isfinite(known) & (known > 0.0)]
    return float(known.max()) if len(known) else header.numbers.get("peak_bytes")
