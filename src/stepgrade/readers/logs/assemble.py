"""From the lines of a log to a profile: step times, throughput, costs, wall time, and what they rest on."""

from __future__ import annotations

from array import array
from math import isfinite, nan

import numpy as np
from msgspec import Struct

from stepgrade.compare.change_points import change_points
from stepgrade.errors import BadInput, UnknownDevice
from stepgrade.hardware.identify import identify
from stepgrade.model import DeviceSeen, Note, Profile, Recorded, Source
from stepgrade.model.profile import LOG
from stepgrade.model.step_log import PauseKind, Reason, StepLog
from stepgrade.readers.logs.costs import TokenCost, precision_of, token_cost, whole
from stepgrade.readers.logs.dialect import Dialect, clock_kind
from stepgrade.readers.logs.facts import Header
from stepgrade.readers.logs.order import Floats, Table, coarser, in_order, later_by, table_of
from stepgrade.readers.logs.scan import Rows, ScannedLog
from stepgrade.scoring.goodput import WallLedger, wall_ledger
from stepgrade.units import show_count, show_ms, show_share

# A first line this much slower than the others holds the start of the run.
_SLOW_START = 1.3
# A line this much faster among the first was written before its step was done.
_DISPATCHED = 0.25
_FIRST_LINES = 5
# From this share of the last losses on, a run has diverged.
_TAIL = 0.1
_HOUR_S = 3600.0
# A clock of whole seconds times a stretch as long as this to 5 %.
_COARSE_S = 20.0
_TIME_COLUMNS = ("step_s", "interval_s", "steps_s", "elapsed_s", "time")
_MOST_LEVELS = 512
_LEAST_LEVEL_CHANGE = 0.03


class Paces(Struct, frozen=True, kw_only=True):
    """How long the steps of every row took, by what the log says of it."""

    step_s: Floats
    count: Floats
    wall_s: Floats
    has_clock: bool
    is_mean: bool
    clock_s: float
    notes: tuple[Note, ...]


def best_rows(scanned: ScannedLog) -> Rows | None:
    """Return the step lines that tell most: with times before those without, then the most precise."""

    def worth(rows: Rows) -> tuple[bool, bool, int, int]:
        columns = rows.columns
        timed = any(_is_known(columns, name) for name in _TIME_COLUMNS)
        rated = any(_is_known(columns, name) for name in ("tok_s", "tok_s_device", "samples_s"))
        return timed, timed or rated, -rows.dialect.rank, rows.count

    with_steps = [rows for rows in scanned.rows if "step" in rows.columns or rows.dialect.counts_lines]
    return max(with_steps, key=worth, default=None)


def profile_of_log(scanned: ScannedLog, name: str, producer: str | None = None) -> Profile | None:
    """Return the run that a log tells of; None where it holds no step."""
    rows = best_rows(scanned)
    if rows is None:
        return _from_totals(scanned, name)
    dialect, header = rows.dialect, scanned.header
    table, ranks = table_of(rows)
    table, attempts = in_order(table, counts_epochs=_counts_epochs(scanned, dialect, table))
    if not len(table["step"]):
        return _from_totals(scanned, name)
    table, attempts, runs = _last_run(table, attempts, header)
    world = world_size(header, ranks)
    step_tokens = _step_tokens(table, header)
    if _is_coarse(table):
        table, attempts = coarser(table, attempts, _COARSE_S)
    paces = _paces(table, dialect, world, step_tokens)
    framework = _framework(dialect, rows)
    notes = [Note("from_training_log", f"read from the step lines of a log of {framework}"), *paces.notes]
    if runs > 1:
        notes.append(Note("last_of_several", f"the log holds {runs} runs: this is the last one"))
    if ranks > 1:
        notes.append(
            Note("ranks_in_log", f"{ranks} ranks wrote to the log: the lines of one of them are read")
        )
    if rows.stride > 1:
        text = f"of {show_count(rows.seen)} step lines one of {rows.stride} was read in full"
        notes.append(Note("lines_sampled", text))
    if not np.isfinite(paces.step_s).any():
        return _without_times(scanned, name, framework, table, notes)
    log = _step_log(scanned, table, attempts, paces, framework)
    ledger = wall_ledger(log)
    samples, counts, left_out = _samples(log, ledger)
    notes += left_out
    mean_s = float(np.average(samples, weights=counts)) if len(samples) else float(np.nanmedian(paces.step_s))
    tokens = _tokens_per_step(table, header, paces, world, step_tokens)
    seq = whole(header, "seq_length")
    devices = world or 1
    printed = _printed_flops(table)
    cost = token_cost(header, dialect, seq, printed)
    if cost is None and (of_step := header.numbers.get("device_step_flops")) and tokens:
        per_token = of_step * devices / tokens
        words = f"as {framework} counts"
        cost = TokenCost(
            model=per_token, hardware=per_token, convention=words, theirs=per_token, theirs_named=words
        )
    elif cost is not None and (of_step := header.numbers.get("device_step_flops")) and tokens:
        per_token, words = of_step * devices / tokens, f"as {framework} counts"
        if cost.convention == "6n":
            cost = TokenCost(
                model=per_token, hardware=per_token, convention=words, theirs=per_token, theirs_named=words
            )
    device, precision = device_of(header), precision_of(header)
    notes += _printed_notes(table, dialect, header, cost, device, tokens, devices, samples)
    micro = whole(header, "micro_batch_size", "train_micro_batch_size_per_gpu")
    return Profile(
        source=Source(format=LOG, files=(name,), producer=producer or f"log of {framework}"),
        work="training",
        steps=round(float(counts.sum())) if len(counts) else len(table["step"]),
        recorded_steps=round(float(np.sum(paces.count))),
        mean_step_ms=mean_s * 1e3,
        samples_ms=tuple((samples * 1e3).tolist()),
        tokens_per_step=tokens,
        samples_per_step=_samples_per_step(table, header, paces),
        counted_ranks=devices,
        world_size=world,
        device=device,
        matmul_dtype=precision,
        peak_memory_bytes=_peak_memory(table, header),
        flops_per_token=cost.model if cost else None,
        hardware_flops_per_token=cost.hardware if cost else None,
        flops_convention=cost.convention if cost else None,
        recorded=Recorded(
            model=cost.words if cost and cost.words else header.texts.get("model"),
            batch=micro,
            seq=seq,
            precision=precision,
            versions={"torch": header.texts["torch"]} if "torch" in header.texts else {},
        ),
        log=log,
        contents={"step lines": f"{len(table['step']):,} of {framework}"},
        notes=tuple(notes),
        warnings=_losses(scanned, rows, table),
    )


def _counts_epochs(scanned: ScannedLog, dialect: Dialect, table: Table) -> bool:
    """Tell whether the step counter begins again with each epoch; a bar of the Trainer's is of all of them."""
    total = whole(scanned.header, "total_steps")
    return dialect.restarts_at_epochs and not (total and "total" in table and (table["total"] == total).any())


def _is_coarse(table: Table) -> bool:
    """Tell whether steps are timed by a clock of whole seconds alone."""
    if any(name in table for name in ("step_s", "interval_s", "steps_s")) or len(table["step"]) < 3:
        return False
    times = table.get("elapsed_s", table.get("time"))
    if times is None or not np.isfinite(times).all() or not bool(np.all(times % 1.0 == 0.0)):
        return False
    return float(times[-1] - times[0]) > 2.0 * _COARSE_S and float(np.median(np.diff(times))) < _COARSE_S


def world_size(header: Header, ranks: int = 1) -> int | None:
    """Return how many devices trained, by what the log says first; None where nothing does."""
    said = whole(header, "global_num_gpus", "world_size", "world")
    micro, rank = header.numbers.get("micro_tokens"), header.numbers.get("rank_tokens")
    if micro and rank:
        said = max(said or 1, round(micro / rank))
    if said is None and (local := whole(header, "local_world")):
        said = local * (whole(header, "nodes") or 1)
    if said is None:
        batch, each = whole(header, "global_batch_size"), whole(header, "micro_batch_size")
        steps = whole(header, "accumulation") or 1
        if batch and each and batch % (each * steps) == 0:
            said = batch // (each * steps)
    return said if said is not None else ranks if ranks > 1 else None


def device_of(header: Header) -> DeviceSeen | None:
    """Return the device as the log names it; the full name where the catalogue has only one that it can be."""
    name, size = header.texts.get("device"), header.numbers.get("device_bytes")
    return DeviceSeen(name=name, memory_bytes=round(size) if size else None) if name else None


def _is_known(columns: dict[str, array[float]], name: str) -> bool:
    return name in columns and any(isfinite(value) for value in columns[name])


def _framework(dialect: Dialect, rows: Rows) -> str:
    if dialect.name == "megatron":
        if "samples_s" in rows.columns and "samples" not in rows.columns:
            return "GPT-NeoX"
        return "Megatron-DeepSpeed" if "tokens" in rows.columns else dialect.framework
    return dialect.framework


def _last_run(table: Table, attempts: list[int], header: Header) -> tuple[Table, list[int], int]:
    """Return the last of several runs in one log: one that begins anew after the one before was done."""
    steps, totals = table["step"], table.get("total")
    total = whole(header, "total_steps")
    first, runs = 0, 1
    for start in attempts[1:]:
        end = steps[start - 1]
        aim = float(totals[start - 1]) if totals is not None else float(total or nan)
        begins_anew = steps[start] <= max(steps[first], 1.0)
        is_timed = "time" in table and np.isfinite(table["time"][start - 1 : start + 1]).all()
        if begins_anew and (end >= 0.98 * aim or not is_timed):
            first, runs = start, runs + 1
    if first:
        table = {name: column[first:] for name, column in table.items()}
    return table, [start - first for start in attempts if start >= first], runs


def _step_tokens(table: Table, header: Header) -> float | None:
    """Return the tokens of one step of all devices, as the log says them outright."""
    if "step_tokens" in table and np.isfinite(table["step_tokens"]).any():
        return float(np.nanmedian(table["step_tokens"]))
    if said := header.numbers.get("step_tokens"):
        return said
    seq = whole(header, "seq_length")
    batch = whole(header, "global_batch_size", "train_batch_size")
    if batch is None and "step_samples" in table and np.isfinite(table["step_samples"]).any():
        batch = round(float(np.nanmedian(table["step_samples"])))
    return float(seq * batch) if seq and batch else None


def _paces(table: Table, dialect: Dialect, world: int | None, step_tokens: float | None) -> Paces:
    """Return how long steps took: as printed, else from rates, else by what the clock says."""
    rows = len(table["step"])
    unknown = np.full(rows, nan)
    counts = np.diff(table["step"], prepend=table["step"][0])
    usual = float(np.median(counts[1:][counts[1:] > 0.0])) if (counts[1:] > 0.0).any() else 1.0
    is_mean = dialect.mean == "interval"
    # What the first line covers is not said; no more than steps there were.
    first = min(usual, table["step"][0]) if is_mean and table["step"][0] > 0.0 else 1.0
    counts[0] = max(first, 1.0)
    counts = np.where(counts <= 0.0, max(first, 1.0) if is_mean else 1.0, counts)
    times = table.get("time", unknown)
    has_clock = (
        bool(np.isfinite(times).mean() > 0.8)
        and rows > 1
        and float(np.nanmax(times)) > float(np.nanmin(times))
    )
    notes: list[Note] = []
    step_s = table.get("step_s", unknown)
    if not np.isfinite(step_s).any() and "interval_s" in table:
        step_s = table["interval_s"] / counts
    if not np.isfinite(step_s).any() and "steps_s" in table and dialect.mean != "running":
        step_s = 1.0 / table["steps_s"]
    rate = table.get("tok_s", table.get("tok_s_device", unknown) * (world or 1))
    if not np.isfinite(step_s).any() and step_tokens and dialect.mean != "running":
        step_s = step_tokens / rate
    elapsed = table.get("elapsed_s", unknown)
    by_elapsed = np.diff(elapsed, prepend=nan) / counts
    clock_s = 0.0
    wall = unknown
    if has_clock:
        wall = np.append(nan, later_by(times))
        clock_s = 1.0 if bool(np.all(times[np.isfinite(times)] % 1.0 == 0.0)) else 0.001
    elif np.isfinite(by_elapsed).any():
        wall = by_elapsed * counts
        clock_s = 1.0 if bool(np.all(elapsed[np.isfinite(elapsed)] % 1.0 == 0.0)) else 0.001
    if not np.isfinite(step_s).any() and np.isfinite(wall).any():
        step_s, is_mean = wall / counts, True
        if not isfinite(step_s[0]) and "elapsed_s" in table and not has_clock and table["step"][0] > 0.0:
            counts[0] = table["step"][0]
            step_s[0] = elapsed[0] / counts[0]
    elif np.isfinite(step_s).any() and np.isfinite(by_elapsed).any() and "step_s" in table:
        # A field that is called dt may be in milliseconds.
        ratio = (
            float(np.nanmedian(step_s) / np.nanmedian(by_elapsed[by_elapsed > 0.0]))
            if (by_elapsed > 0).any()
            else 1.0
        )
        if 500.0 < ratio < 2000.0:
            step_s = step_s / 1e3
    step_s = np.where(np.isfinite(step_s) & (step_s >= 0.0), step_s, nan)
    own = step_s * counts
    jumps = has_clock & (
        (wall < 0.0) | (np.isfinite(own) & (np.abs(wall - own - _HOUR_S) < 5.0) & (own < _HOUR_S / 4))
    )
    if bool(np.any(jumps)):
        wall = np.where(jumps, own, wall)
        notes.append(
            Note(
                "clock_jumped", f"the clock of the log jumps {int(np.sum(jumps))} times: steps count instead"
            )
        )
    return Paces(
        step_s=step_s,
        count=counts,
        wall_s=np.where(np.isfinite(wall), wall, own),
        has_clock=has_clock,
        is_mean=is_mean,
        clock_s=clock_s,
        notes=tuple(notes),
    )


def _step_log(
    scanned: ScannedLog, table: Table, attempts: list[int], paces: Paces, framework: str
) -> StepLog:
    """Return the wall time row by row, with what the log says between rows."""
    reasons: dict[int, list[Reason]] = {}
    rows = len(table["step"])
    places = np.searchsorted(table["at"], [event.at for event in scanned.events]) if "at" in table else []
    for event, row in zip(scanned.events, places, strict=False):
        if row < rows:
            kind: PauseKind = event.kind  # type: ignore[assignment]  the scanner's kinds are these
            reasons.setdefault(int(row), []).append(Reason(kind, event.seconds))
    usual = float(np.nanmedian(paces.step_s))
    begun = list(attempts)
    for row, why in reasons.items():
        # A run that goes on with the next step shows only in its pause and in what is printed.
        is_late = paces.wall_s[row] > 3.0 * usual * paces.count[row]
        if row and any(reason.kind == "restart" for reason in why) and is_late and row not in begun:
            begun.append(row)
    before = after = 0.0
    if paces.has_clock:
        times = table["time"]
        first, last = scanned.times.get(clock_kind(float(times[0])), (nan, nan))
        of_first = float(paces.step_s[0] * paces.count[0]) if isfinite(paces.step_s[0]) else 0.0
        before = max(0.0, float(times[0]) - first - of_first) if isfinite(first) else 0.0
        after = max(0.0, last - float(times[-1])) if isfinite(last) else 0.0
    wall = np.nan_to_num(paces.wall_s, nan=0.0)
    step_s = np.where(np.isfinite(paces.step_s), paces.step_s, wall / paces.count)
    size = max(8, -(-rows // _MOST_LEVELS))
    levels = [float(np.median(step_s[start : start + size])) for start in range(0, rows - size // 2, size)]
    found = change_points(levels, least_change=_LEAST_LEVEL_CHANGE) if len(levels) >= 8 else ()
    totals = table.get("total")
    return StepLog(
        framework=framework,
        step=table["step"].tolist(),
        count=paces.count.tolist(),
        wall_s=wall.tolist(),
        step_s=step_s.tolist(),
        reasons={row: tuple(why) for row, why in reasons.items()},
        attempts=tuple(sorted(begun)),
        before_s=before,
        after_s=after,
        has_clock=paces.has_clock,
        is_mean=paces.is_mean,
        clock_s=paces.clock_s,
        total_steps=float(totals[-1])
        if totals is not None and bool(totals[-1] >= table["step"][-1])
        else None,
        changes=found,
    )


def _samples(log: StepLog, ledger: WallLedger | None) -> tuple[Floats, Floats, list[Note]]:
    """Return the seconds of one step of every row without pauses, and the rows' numbers of steps."""
    samples, counts = np.array(log.step_s), np.array(log.count)
    notes: list[Note] = []
    if ledger is not None and log.is_mean:
        for pause in ledger.pauses:
            if pause.kind in ("checkpoint", "evaluation"):
                samples[pause.row] -= pause.seconds / counts[pause.row]
    usable = samples > 0.0
    middle = float(np.median(samples[1:][usable[1:]])) if usable[1:].any() else 0.0
    starts = [row for row in log.attempts if middle and samples[row] > _SLOW_START * middle]
    usable[starts] = False
    if starts and starts[0] == 0:
        text = (
            f"the first line, {show_ms(samples[0] * 1e3)} a step, holds the start of the run and is left out"
        )
        notes.append(Note("start_left_out", text))
    dispatched = [
        row for row in range(min(_FIRST_LINES, len(samples))) if 0.0 < samples[row] < _DISPATCHED * middle
    ]
    if dispatched:
        usable[dispatched] = False
        text = (
            f"{len(dispatched)} of the first lines were written before their step was done, and are left out"
        )
        notes.append(Note("dispatched", text))
    return samples[usable], counts[usable], notes


def _tokens_per_step(
    table: Table, header: Header, paces: Paces, world: int | None, said: float | None
) -> float | None:
    """Return the tokens of a step of all devices."""
    if "tokens" in table and len(table["tokens"]) > 1:
        gained = np.diff(table["tokens"]) / paces.count[1:]
        gained = gained[np.isfinite(gained) & (gained > 0.0)]
        if len(gained):
            return float(np.median(gained))
    if said is not None:
        return said
    if (seq := whole(header, "seq_length")) and "samples" in table and len(table["samples"]) > 1:
        gained = np.diff(table["samples"]) / paces.count[1:]
        gained = gained[np.isfinite(gained) & (gained > 0.0)]
        if len(gained):
            return float(np.median(gained)) * seq
    rate = table.get("tok_s")
    if rate is None and "tok_s_device" in table:
        rate = table["tok_s_device"] * (world or 1)
    if rate is None:
        return None
    tokens = rate * paces.step_s
    tokens = tokens[np.isfinite(tokens) & (tokens > 0.0)]
    return float(np.median(tokens)) if len(tokens) else None


def _samples_per_step(table: Table, header: Header, paces: Paces) -> float | None:
    for name in ("step_samples",):
        if name in table and np.isfinite(table[name]).any():
            return float(np.nanmedian(table[name]))
    if said := whole(header, "global_batch_size", "train_batch_size"):
        return float(said)
    if "samples" in table and len(table["samples"]) > 1:
        gained = np.diff(table["samples"]) / paces.count[1:]
        if (gained > 0.0).any():
            return float(np.median(gained[gained > 0.0]))
    if "samples_s" in table:
        each = table["samples_s"] * paces.step_s
        each = each[np.isfinite(each)]
        return float(np.median(each)) if len(each) else None
    return None


def _peak_memory(table: Table, header: Header) -> float | None:
    if "memory_bytes" in table and np.isfinite(table["memory_bytes"]).any():
        return float(np.nanmax(table["memory_bytes"]))
    return header.numbers.get("peak_bytes")


def _printed_flops(table: Table) -> float | None:
    """Return the FLOPs of a token that a log's TFLOP/s and tokens per second of one device make."""
    if "tflops_device" not in table or "tok_s_device" not in table:
        return None
    each = table["tflops_device"] * 1e12 / table["tok_s_device"]
    each = each[np.isfinite(each) & (each > 0.0)]
    return float(np.median(each)) if len(each) else None


def _printed_notes(
    table: Table,
    dialect: Dialect,
    header: Header,
    cost: TokenCost | None,
    device: DeviceSeen | None,
    tokens: float | None,
    devices: int,
    samples: Floats,
) -> list[Note]:
    """Say what utilisation the log prints, what it comes to by our reckoning, and why the two differ."""
    middle = max(1, len(table["step"]) // 10) if len(table["step"]) > 1 else 0
    peak = header.numbers.get("peak_flops") or (dialect.peak_tflops * 1e12 if dialect.peak_tflops else None)
    if peak is None and device is not None:
        try:
            peak = identify(device).peak_tflops.get("bf16", nan) * 1e12
        except (UnknownDevice, BadInput):
            peak = None
    printed = _late_median(table, "mfu", middle)
    rate = _late_median(table, "tflops_device", middle)
    kind = "HFU" if dialect.printed_is == "hfu" or _recomputes(header, dialect) else "MFU"
    if printed is None or printed <= 0.0:
        if rate is None:
            return []
        share = (
            f", {show_share(rate * 1e12 / peak)} of {peak / 1e12:,.0f} TFLOP/s"
            if peak and isfinite(peak)
            else ""
        )
        said = f"the log prints {rate:,.1f} TFLOP/s for each device{share} ({kind} by its own count)"
    else:
        said = f"the log prints an MFU of {show_share(printed)}"
    if (
        cost is None
        or cost.theirs is None
        or not tokens
        or not len(samples)
        or not peak
        or not isfinite(peak)
    ):
        return [Note("printed_mfu", said)]
    ours = tokens / devices / float(np.median(samples)) * cost.theirs / peak
    how = (
        f"counted its way ({cost.theirs_named}, {peak / 1e12:,.0f} TFLOP/s) the steps make {show_share(ours)}"
    )
    return [Note("printed_mfu", f"{said}; {how}")]


def _recomputes(header: Header, dialect: Dialect) -> bool:
    return dialect.name == "megatron" and header.arguments.get("checkpoint_activations") == "True"


def _late_median(table: Table, name: str, start: int) -> float | None:
    """Return the median of what is printed once the run is warm."""
    if name not in table:
        return None
    late = table[name][start:]
    late = late[np.isfinite(late)]
    return float(np.median(late)) if len(late) else None


def _losses(scanned: ScannedLog, rows: Rows | None, table: Table) -> tuple[Note, ...]:
    """Say where the loss is no number: a run that diverged is not a fast run."""
    losses = table.get("loss")
    steps = table["step"]
    if losses is None:
        other = next((found for found in scanned.rows if found is not rows and "loss" in found.columns), None)
        if other is None:
            return ()
        losses, steps = np.frombuffer(other.columns["loss"]), None
    steps = steps[~np.isnan(losses)] if steps is not None else None
    bad = np.isinf(losses[~np.isnan(losses)])
    if not bad.any():
        return ()
    first = int(np.argmax(bad))
    tail = max(1, int(_TAIL * len(bad)))
    where = f" from step {steps[first]:,.0f}" if steps is not None else ""
    if bad[-tail:].all():
        text = f"the loss is no number{where} on: the run has diverged, and how fast it was says nothing"
        return (Note("diverged", text, fatal=True),)
    return (Note("loss_nan", f"the loss is no number in {int(bad.sum())} of {len(bad)} lines, first{where}"),)


def _without_times(
    scanned: ScannedLog, name: str, framework: str, table: Table, notes: list[Note]
) -> Profile:
    """Return a profile of a log that has steps and no time: shown with the reason why it has no grade."""
    found = _from_totals(scanned, name)
    if found is not None:
        return found
    text = f"{show_count(len(table['step']))} step lines of {framework}, and no time in any of them"
    warning = Note(
        "no_step_times", f"{text}: print how long a step takes, or log with timestamps", fatal=True
    )
    return Profile(
        source=Source(format=LOG, files=(name,), producer=f"log of {framework}"),
        work="training",
        recorded_steps=len(table["step"]),
        tokens_per_step=_step_tokens(table, scanned.header),
        device=device_of(scanned.header),
        notes=tuple(notes),
        warnings=(warning, *_losses(scanned, best_rows(scanned), table)),
    )


def _from_totals(scanned: ScannedLog, name: str) -> Profile | None:
    """Return the run by the totals that a trainer prints at its end."""
    header = scanned.header
    steps, seconds, samples_s = whole(header, "total_steps"), header.numbers.get("train_seconds"), None
    if scanned.totals:
        totals = scanned.totals[-1]
        seconds, samples_s = totals.runtime_s, totals.samples_s
        if steps is None and totals.steps_s:
            steps = round(seconds * totals.steps_s) or None
    if not steps or not seconds:
        return None
    world = world_size(header)
    batch = whole(header, "global_batch_size")
    samples = float(batch) if batch else samples_s * seconds / steps if samples_s else None
    seq, precision = whole(header, "seq_length"), precision_of(header)
    return Profile(
        source=Source(format=LOG, files=(name,), producer="log of a trainer"),
        work="training",
        steps=steps,
        mean_step_ms=seconds / steps * 1e3,
        samples_per_step=samples,
        tokens_per_step=samples * seq if samples and seq else None,
        counted_ranks=world or 1,
        world_size=world,
        device=device_of(header),
        matmul_dtype=precision,
        recorded=Recorded(model=header.texts.get("model"), seq=seq, precision=precision),
        notes=(
            Note(
                "from_totals", "the log has only the totals of the run: start-up and pauses are in the mean"
            ),
        ),
    )
