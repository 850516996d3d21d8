"""From the lines of a log to a profile: step times, throughput, costs, wall time, with their basis."""

from __future__ import annotations

from array import array
from math import isfinite, nan

import numpy as np
from msgspec import Struct, structs

from stepgrade.model import Note, Profile, Recorded, Source
from stepgrade.model.profile import LOG
from stepgrade.model.step_log import Reason, RunFacts, StepLog
from stepgrade.readers.logs.amounts import (
    device_of,
    peak_memory,
    printed_tokens,
    samples_per_step,
    tokens_per_step,
    world_by_rates,
    world_size,
)
from stepgrade.readers.logs.dialect import Dialect
from stepgrade.readers.logs.facts import LogHeader
from stepgrade.readers.logs.order import Floats, Table, coarser, in_order, table_of
from stepgrade.readers.logs.paces import (
    COARSE_S,
    Paces,
    is_coarse,
    middle_of,
    paces_of,
    steps_apart,
    with_times_classified,
)
from stepgrade.readers.logs.scan import Rows, ScannedLog
from stepgrade.readers.logs.values import clock_kind
from stepgrade.units import show_count, show_ms

# A first line this much slower than the others includes start-up.
_SLOW_START = 1.3
# An early line this much faster was printed before its step finished.
_DISPATCHED = 0.25
_FIRST_LINES = 5
# A line this much slower, after an evaluation or a checkpoint, includes that pause.
_PAUSED = 1.05
_MOST_SHARE = 1.5  # of the peak; larger values are percentages
# A run has diverged if this share of its last losses is not finite.
_TAIL = 0.1
_BESIDE = ("tokens", "memory_bytes", "tok_s_device", "tflops_device")
_TIME_COLUMNS = ("step_s", "interval_s", "line_s", "bare_s", "steps_s", "elapsed_s", "time")


def best_rows(scanned: ScannedLog) -> Rows | None:
    """Return the most informative step lines: those with times first, then the most precise."""

    def worth(rows: Rows) -> tuple[bool, bool, int, int]:
        columns = rows.columns
        timed = any(_is_known(columns, name) for name in _TIME_COLUMNS)
        rated = any(_is_known(columns, name) for name in ("tok_s", "tok_s_device", "samples_s"))
        return timed, timed or rated, -rows.dialect.rank, rows.count

    with_steps = [rows for rows in scanned.rows if "step" in rows.columns or rows.dialect.counts_lines]
    return max(with_steps, key=worth, default=None)


def add_from_other_dialects(table: Table, scanned: ScannedLog, rows: Rows) -> None:
    """Add columns of other dialects' lines without a step number to the last step before them.

    The Trainer's dicts come with a progress bar, Megatron-Bridge's utilisation with Megatron's line.
    """
    for other in scanned.rows:
        if other is rows or "step" in other.columns or not len(table["at"]):
            continue
        rows_before = np.searchsorted(table["at"], np.frombuffer(other.columns["at"]), side="right") - 1
        for name in _BESIDE:
            if name in table or name not in other.columns:
                continue
            column = np.full(len(table["step"]), nan)
            column[np.maximum(rows_before, 0)] = np.frombuffer(other.columns[name])
            table[name] = column


class LoggedSteps(Struct, frozen=True, kw_only=True):
    """The most informative step lines, ordered and timed."""

    dialect: Dialect
    table: Table
    attempts: list[int]
    paces: Paces
    world: int | None
    printed_tokens: float | None
    notes: tuple[Note, ...]


def logged_steps(scanned: ScannedLog) -> LoggedSteps | None:
    """Return the steps of the last run in a log; None without any step."""
    rows = best_rows(scanned)
    if rows is None:
        return None
    dialect, header = rows.dialect, scanned.header
    table, ranks = table_of(rows)
    table, is_of_interval, unclear = with_times_classified(table)
    if is_of_interval:
        dialect = structs.replace(dialect, mean="interval")
    total = header.whole("total_steps")
    is_of_all = total is not None and "total" in table and bool((table["total"] == total).any())
    table, attempts = in_order(table, counts_epochs=dialect.restarts_at_epochs and not is_of_all)
    if not len(table["step"]):
        return None
    table, attempts, runs = last_run(table, attempts, header)
    apart = steps_apart(table["step"])
    if is_coarse(table):
        table, attempts = coarser(table, attempts, COARSE_S)
    add_from_other_dialects(table, scanned, rows)
    world, printed = world_size(header, ranks) or world_by_rates(table), printed_tokens(table, header)
    paces = paces_of(table, dialect, world, printed, apart)
    world = world or world_by_rates(table, paces)
    variant = next((v for v in dialect.variants if v.has in table and v.lacks not in table), None)
    if variant is not None:
        dialect = structs.replace(dialect, framework=variant.framework, convention=variant.convention)
    notes = [
        Note("from_training_log", f"read from the step lines of a log of {dialect.framework}"),
        *unclear,
        *paces.notes,
    ]
    if runs > 1:
        notes.append(Note("last_of_several", f"the log holds {runs} runs; this is the last"))
    if ranks > 1:
        text = f"{ranks} ranks wrote to the log; the lines of one are read"
        notes.append(Note("ranks_in_log", text))
    if rows.stride > 1:
        text = f"of {show_count(rows.seen)} step lines, one in {rows.stride} was read in full"
        notes.append(Note("lines_sampled", text))
    return LoggedSteps(
        dialect=dialect,
        table=table,
        attempts=attempts,
        paces=paces,
        world=world,
        printed_tokens=printed,
        notes=tuple(notes),
    )


def profile_of_log(scanned: ScannedLog, name: str, producer: str | None = None) -> Profile | None:
    """Return the run in a log; None if it has no step."""
    logged = logged_steps(scanned)
    if logged is None or not np.isfinite(logged.paces.step_s).any():
        found = _from_totals(scanned, name) or rates_alone(scanned, name)
        return found or (without_times(scanned, name, logged) if logged is not None else None)
    header, table, paces = scanned.header, logged.table, logged.paces
    log = step_log_of(scanned, logged)
    samples, counts, left_out = samples_of(log)
    tokens = tokens_per_step(table, header, paces, logged.world, logged.printed_tokens)
    return Profile(
        source=Source(format=LOG, files=(name,), producer=producer or f"log of {logged.dialect.framework}"),
        work="training",
        steps=round(float(counts.sum())),
        recorded_steps=round(float(np.sum(paces.count))),
        mean_step_ms=float(np.average(samples, weights=counts)) * 1e3,
        samples_ms=tuple((samples * 1e3).tolist()),
        tokens_per_step=tokens,
        samples_per_step=samples_per_step(table, header, paces),
        counted_ranks=logged.world or 1,
        world_size=logged.world,
        device=device_of(header),
        matmul_dtype=header.precision,
        peak_memory_bytes=peak_memory(table, header),
        facts=facts_of(header, logged, tokens),
        recorded=_recorded(header),
        log=log,
        contents={"step lines": f"{len(table['step']):,} of {logged.dialect.framework}"},
        notes=(*logged.notes, *left_out),
        warnings=_losses(scanned, logged),
    )


def _recorded(header: LogHeader) -> Recorded:
    layers, hidden = header.arguments.get("num_layers"), header.arguments.get("hidden_size")
    shape = f"{layers} layers of {hidden}" if layers and hidden else None
    return Recorded(
        model=header.texts.get("model", shape),
        batch=header.whole("micro_batch_size", "train_micro_batch_size_per_gpu"),
        seq=header.whole("seq_length"),
        precision=header.precision,
        versions={"torch": header.texts["torch"]} if "torch" in header.texts else {},
    )


def facts_of(header: LogHeader, logged: LoggedSteps, tokens: float | None) -> RunFacts:
    """Return what the log says about the model and its own efficiency."""
    dialect, table, numbers = logged.dialect, logged.table, header.numbers
    recomputes = header.arguments.get(dialect.recompute_argument or "") == "True"
    counts_recompute = dialect.printed_is == "hfu" or recomputes
    arguments = dict(header.arguments)
    if padded := header.whole("padded_vocab_size"):
        arguments["padded_vocab_size"] = str(padded)
    flops, mfu = numbers.get("flops_per_token"), _late_median(table, "mfu")
    if mfu is not None and mfu > _MOST_SHARE:
        mfu /= 100.0  # metric files have fractions and percentages under the same name
    device_flops = numbers.get("device_step_flops")
    if flops is None and device_flops and tokens:
        flops = device_flops * (logged.world or 1) / tokens
    if flops is None and not counts_recompute and {"tflops_device", "tok_s_device"} <= table.keys():
        flops = middle_of(table["tflops_device"] * 1e12 / table["tok_s_device"])
    return RunFacts(
        framework=logged.dialect.framework,
        config=header.config.decode("utf-8", "replace") if header.config else None,
        arguments=arguments,
        name=header.texts.get("model"),
        seq=header.whole("seq_length"),
        parameters=header.parameters,
        flops_per_token=flops,
        convention=dialect.convention,
        counts_recompute=counts_recompute,
        mixes_fp8=dialect.mixes_fp8 and header.precision == "fp8",
        mfu=mfu if mfu and mfu > 0.0 else None,  # nanoGPT and llm.c print -100 % for what they do not know
        tflops=_late_median(table, "tflops_device"),
        peak_flops=numbers.get("peak_flops") or (dialect.peak_tflops * 1e12 if dialect.peak_tflops else None),
    )


def _late_median(table: Table, name: str) -> float | None:
    """Return the median after warm-up."""
    if name not in table:
        return None
    rows = len(table["step"])
    late = table[name][max(1, rows // 10) if rows > 1 else 0 :]
    late = late[np.isfinite(late)]
    return float(np.median(late)) if len(late) else None


def _is_known(columns: dict[str, array[float]], name: str) -> bool:
    return name in columns and any(isfinite(value) for value in columns[name])


def last_run(table: Table, attempts: list[int], header: LogHeader) -> tuple[Table, list[int], int]:
    """Return the last of several runs in one log: one that starts over after the previous one finished."""
    steps, totals = table["step"], table.get("total")
    total = header.whole("total_steps")
    first, runs = 0, 1
    for start in attempts[1:]:
        end = steps[start - 1]
        aim = float(totals[start - 1]) if totals is not None else float(total or nan)
        begins_anew = steps[start] <= max(2.0 * steps[first], 1.0)
        is_timed = "time" in table and np.isfinite(table["time"][start - 1 : start + 1]).all()
        if begins_anew and (end >= 0.98 * aim or not is_timed):
            first, runs = start, runs + 1
    if first:
        table = {name: column[first:] for name, column in table.items()}
    return table, [start - first for start in attempts if start >= first], runs


def step_log_of(scanned: ScannedLog, logged: LoggedSteps) -> StepLog:
    """Return the wall time row by row, with what the log says between rows."""
    table, paces, attempts = logged.table, logged.paces, logged.attempts
    reasons: list[Reason] = []
    rows = len(table["step"])
    rows_before = np.searchsorted(table["at"], [event.at for event in scanned.events]).tolist()
    for event, row in zip(scanned.events, rows_before, strict=True):
        if row < rows:
            reasons.append(Reason(row, event.kind, event.seconds))
    usual = float(np.nanmedian(paces.step_s))
    begun = set(attempts)
    for reason in reasons:
        # A run that resumes with the next step shows only as a pause and in the text.
        row = reason.row
        is_late = paces.wall_s[row] > 3.0 * usual * paces.count[row]
        if row and reason.kind == "restart" and is_late:
            begun.add(row)
    before = after = 0.0
    if paces.has_clock:
        times = table["time"]
        first, last = scanned.times.get(clock_kind(float(times[0])), (nan, nan))
        if logged.dialect.has_own_events:  # other lines may be in another time zone
            first, last = scanned.header.event_times or (nan, nan)
        first_s = float(paces.step_s[0] * paces.count[0]) if isfinite(paces.step_s[0]) else 0.0
        before = max(0.0, float(times[0]) - first - first_s) if isfinite(first) else 0.0
        after = max(0.0, last - float(times[-1])) if isfinite(last) else 0.0
    wall = np.nan_to_num(paces.wall_s, nan=0.0)
    step_s = np.where(np.isfinite(paces.step_s), paces.step_s, wall / paces.count)
    for reason in reasons if paces.is_mean else ():
        # A pause whose printed length is included in the printed step time of its line.
        row, paused = reason.row, reason.seconds or 0.0
        inside = float(step_s[row] * paces.count[row]) - (float(wall[row]) - paused)
        if paused and inside > paused / 2.0 and paused < float(step_s[row] * paces.count[row]):
            step_s[row] -= paused / paces.count[row]
    totals = table.get("total")
    return StepLog(
        framework=logged.dialect.framework,
        step=table["step"].tolist(),
        count=paces.count.tolist(),
        wall_s=wall.tolist(),
        step_s=step_s.tolist(),
        reasons=tuple(reasons),
        attempts=tuple(sorted(begun)),
        before_s=before,
        after_s=after,
        has_clock=paces.has_clock,
        is_mean=paces.is_mean,
        clock_s=paces.clock_s,
        total_steps=float(totals[-1])
        if totals is not None and bool(totals[-1] >= table["step"][-1])
        else None,
    )


def samples_of(log: StepLog) -> tuple[Floats, Floats, list[Note]]:
    """Return the step time of every row without a pause, and the rows' step counts."""
    samples, counts = np.array(log.step_s), np.array(log.count)
    notes: list[Note] = []
    usable = samples > 0.0
    middle = float(np.median(samples[1:][usable[1:]])) if usable[1:].any() else 0.0
    starts = [row for row in log.attempts if middle and samples[row] > _SLOW_START * middle]
    usable[starts] = False
    if log.is_mean:  # an explained pause is included in the time of its steps
        paused = [reason.row for reason in log.reasons if samples[reason.row] > _PAUSED * middle]
        usable[paused] = False
    if starts and starts[0] == 0:
        text = f"the first line ({show_ms(samples[0] * 1e3)} per step) includes start-up and is left out"
        notes.append(Note("start_left_out", text))
    dispatched = [
        row for row in range(min(_FIRST_LINES, len(samples))) if 0.0 < samples[row] < _DISPATCHED * middle
    ]
    if dispatched:
        usable[dispatched] = False
        text = f"{len(dispatched)} of the first lines were printed before their step finished; left out"
        notes.append(Note("dispatched", text))
    if not usable.any():
        return samples, counts, []
    return samples[usable], counts[usable], notes


def _losses(scanned: ScannedLog, logged: LoggedSteps) -> tuple[Note, ...]:
    """Return warnings about losses that are not finite: a diverged run is not a fast run."""
    losses, steps = logged.table.get("loss"), logged.table["step"]
    if losses is None:
        with_loss = [rows.columns["loss"] for rows in scanned.rows if "loss" in rows.columns]
        if not with_loss:
            return ()
        losses, steps = np.frombuffer(with_loss[0]), np.zeros(0)
    steps = steps[~np.isnan(losses)] if len(steps) else steps
    bad = np.isinf(losses[~np.isnan(losses)])
    if not bad.any():
        return ()
    first = int(np.argmax(bad))
    tail = max(1, int(_TAIL * len(bad)))
    where = f" from step {steps[first]:,.0f}" if len(steps) else ""
    if bad[-tail:].all():
        text = f"the loss is not finite{where} on: the run has diverged, so its speed means nothing"
        return (Note("diverged", text, fatal=True),)
    return (
        Note("loss_nan", f"the loss is not finite in {int(bad.sum())} of {len(bad)} lines, first{where}"),
    )


def rates_alone(scanned: ScannedLog, name: str) -> Profile | None:
    """Return a run whose log prints only tokens per second, or tokens and elapsed time."""
    world = world_size(scanned.header)
    for rows in scanned.rows:
        table, _ = table_of(rows)
        rate = table.get("tok_s")
        if rate is None and "tok_s_device" in table:
            rate = table["tok_s_device"] * (world or 1)
        if rate is None and {"tokens", "elapsed_s"} <= table.keys():
            rate = np.diff(table["tokens"]) / np.maximum(np.diff(table["elapsed_s"]), 1e-9)
        tok_s = middle_of(rate) if rate is not None else None
        if tok_s is not None:
            text = f"the log of {rows.dialect.framework} prints a rate but no step times"
            return Profile(
                source=Source(format=LOG, files=(name,), producer=f"log of {rows.dialect.framework}"),
                work="training",
                throughput_tok_s=tok_s,
                counted_ranks=world or 1,
                world_size=world,
                device=device_of(scanned.header),
                matmul_dtype=scanned.header.precision,
                peak_memory_bytes=peak_memory(table, scanned.header),
                recorded=_recorded(scanned.header),
                notes=(Note("rate_only", text),),
            )
    return None


def without_times(scanned: ScannedLog, name: str, logged: LoggedSteps) -> Profile:
    """Return a profile of a log with steps but no times, with the reason why it has no grade."""
    lines = f"{show_count(len(logged.table['step']))} step lines of {logged.dialect.framework}"
    text = f"{lines} without times: print the step time, or log with timestamps"
    text = next((note.text for note in logged.notes if note.code == "time_unclear"), text)
    text = logged.dialect.untimed or text
    warning = Note("no_step_times", text, fatal=True)
    return Profile(
        source=Source(format=LOG, files=(name,), producer=f"log of {logged.dialect.framework}"),
        work="training",
        recorded_steps=len(logged.table["step"]),
        tokens_per_step=logged.printed_tokens,
        device=device_of(scanned.header),
        notes=tuple(note for note in logged.notes if note.text != text),
        warnings=(warning, *_losses(scanned, logged)),
    )


def _from_totals(scanned: ScannedLog, name: str) -> Profile | None:
    """Return the run from the totals that a trainer prints at the end."""
    header = scanned.header
    steps, seconds, samples_s = header.whole("total_steps"), header.numbers.get("train_seconds"), None
    if (totals := scanned.totals) is not None:
        seconds, samples_s = totals.runtime_s, totals.samples_s
        if steps is None and totals.steps_s:
            steps = round(seconds * totals.steps_s) or None
    if not steps or not seconds:
        return None
    world = world_size(header)
    batch = header.whole("global_batch_size")
    samples = float(batch) if batch else samples_s * seconds / steps if samples_s else None
    seq = header.whole("seq_length")
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
        matmul_dtype=header.precision,
        recorded=_recorded(header),
        notes=(
            Note(
                "from_totals", "the log has only the totals of the run: start-up and pauses are in the mean"
            ),
        ),
    )
