"""From the lines of a log to a profile: step times, throughput, costs, wall time, with their basis."""

from __future__ import annotations

from array import array
from math import isfinite, nan

import numpy as np
from msgspec import Struct, structs

from stepgrade.model import DeviceSeen, Note, Profile, Recorded, Source
from stepgrade.model.profile import LOG, WORK_UNKNOWN, WorkKind
from stepgrade.model.step_log import PauseKind, Reason, RunFacts, StepLog
from stepgrade.readers.logs.bars import EVIDENCE, BarRun, runs_of
from stepgrade.readers.logs.dialect import Dialect
from stepgrade.readers.logs.facts import LogHeader
from stepgrade.readers.logs.lines import progress_bar
from stepgrade.readers.logs.scan import Rows, ScannedLog
from stepgrade.readers.logs.steps import (
    Floats,
    Paces,
    Table,
    in_order,
    middle_of,
    paces_of,
    steps_apart,
    table_of,
    total_rate,
    with_times_classified,
    without_close_lines,
)
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
# Figures printed with few digits agree with batch x sequence to this.
_SAME_TOKENS = 0.02
_BESIDE = ("tokens", "memory_bytes", "tok_s_device", "tflops_device")
# Numbers that only a training has.
_OF_TRAINING = frozenset({"loss", "tokens", "step_tokens", "mfu", "tflops_device"})
_OF_STEPS = frozenset({"training", "epochs", "steps", "unnamed"})
_PAUSES: tuple[PauseKind, ...] = ("evaluation", "checkpoint", "compile")
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


def with_bars_of_steps(scanned: ScannedLog) -> tuple[ScannedLog, WorkKind, list[BarRun]]:
    """Return the log without the progress bars that count something else, its work by them, and all bars."""
    drawn = [rows for rows in scanned.rows if "bar" in rows.columns]
    if not drawn:
        return scanned, "unknown", []
    names = ("at", "bar", "step", "total", "elapsed_s")
    states = np.concatenate([np.array([rows.columns[name] for name in names]) for rows in drawn], axis=1)
    runs = runs_of(states.T[np.argsort(states[0])].tolist(), scanned.bars)
    others = [rows for rows in scanned.rows if "bar" not in rows.columns]
    trains = scanned.bars.trains or any("loss" in rows.columns for rows in others)
    work, counted = scanned.bars.counted(map(int, np.unique(states[1])), trains=trains)
    for rows in drawn:
        is_counted = np.isin(rows.columns["bar"], list(counted))
        if is_counted.any():
            kept = Rows(rows.dialect)
            kept.columns = {
                name: array("d", np.frombuffer(column)[is_counted].tobytes())
                for name, column in rows.columns.items()
            }
            kept.count, kept.seen, kept.stride = int(is_counted.sum()), rows.seen, rows.stride
            others.append(kept)
    return structs.replace(scanned, rows=others), work, runs


def work_of(rows: Rows, scanned: ScannedLog, work_of_bars: WorkKind) -> WorkKind:
    """Return what the steps of these lines are: training only where something shows it."""
    if not rows.dialect.needs_evidence:
        return "training"
    if rows.dialect.reader is progress_bar:
        return work_of_bars
    if scanned.bars.trains or (rows.dialect.is_generic and not _OF_TRAINING.isdisjoint(rows.columns)):
        return "training"
    return "unknown" if rows.dialect.is_generic else "inference"  # Keras evaluates or predicts


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
    work: WorkKind
    bars: list[BarRun]
    table: Table
    attempts: list[int]
    paces: Paces
    world: int | None
    printed_tokens: float | None
    notes: tuple[Note, ...]


def logged_steps(scanned: ScannedLog) -> LoggedSteps | None:
    """Return the steps of the last run in a log; None without any step."""
    scanned, work_of_bars, bars = with_bars_of_steps(scanned)
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
    table, attempts = without_close_lines(table, attempts)
    add_from_other_dialects(table, scanned, rows)
    world, printed = world_size(header, ranks) or world_by_rates(table), printed_tokens(table, header)
    paces = paces_of(table, dialect, world, printed, apart)
    world = world or world_by_rates(table, paces)
    variant = next((v for v in dialect.variants if v.has in table and v.lacks not in table), None)
    if variant is not None:
        dialect = structs.replace(dialect, framework=variant.framework, convention=variant.convention)
    work = work_of(rows, scanned, work_of_bars)
    is_bar = rows.dialect.reader is progress_bar
    kind = "training log" if work == "training" else "log"
    shown = "a progress bar" if is_bar else f"a {kind} ({dialect.framework})"
    notes = [
        Note("from_training_log", f"read from {shown}"),
        *unclear,
        *paces.notes,
    ]
    if work == "unknown":
        text = f"nothing shows that the steps are of a training: print {EVIDENCE}"
        notes.append(Note(WORK_UNKNOWN, text, supply="{work}"))
    if runs > 1:
        notes.append(Note("last_of_several", f"the log contains {runs} runs; this is the last"))
    if ranks > 1:
        text = f"{ranks} ranks wrote to the log; the lines of one are read"
        notes.append(Note("ranks_in_log", text))
    if rows.stride > 1:
        text = f"of {show_count(rows.seen)} step lines, one in {rows.stride} was read in full"
        notes.append(Note("lines_sampled", text))
    return LoggedSteps(
        dialect=dialect,
        work=work,
        bars=bars,
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
        return _without_step_times(scanned, name, logged)
    header, table, paces = scanned.header, logged.table, logged.paces
    log = step_log_of(scanned, logged)
    samples, counts, left_out = samples_of(log)
    tokens = tokens_per_step(table, header, paces, logged.world, logged.printed_tokens)
    producer = producer or f"log of {logged.dialect.framework}"
    return structs.replace(
        _described(header, name, producer, logged.world, logged.work),
        steps=round(float(counts.sum())),
        recorded_steps=round(float(np.sum(paces.count))),
        mean_step_ms=float(np.average(samples, weights=counts)) * 1e3,
        samples_ms=tuple((samples * 1e3).tolist()),
        tokens_per_step=tokens,
        samples_per_step=samples_per_step(table, header, paces),
        peak_memory_bytes=peak_memory(table, header),
        facts=facts_of(header, logged, tokens),
        log=log,
        contents={"step lines": f"{len(table['step']):,} of {logged.dialect.framework}"},
        notes=(*logged.notes, *left_out),
        warnings=_losses(scanned, logged),
    )


def _described(
    header: LogHeader, name: str, producer: str, world: int | None, work: WorkKind = "training"
) -> Profile:
    """Return a profile with what the header of a log says."""
    layers, hidden = header.arguments.get("num_layers"), header.arguments.get("hidden_size")
    shape = f"{layers} layers of {hidden}" if layers and hidden else None
    return Profile(
        source=Source(format=LOG, files=(name,), producer=producer),
        work=work,
        counted_ranks=world or 1,
        world_size=world,
        device=device_of(header),
        matmul_dtype=header.precision,
        recorded=Recorded(
            model=header.texts.get("model", shape),
            batch=header.whole("micro_batch_size", "train_micro_batch_size_per_gpu"),
            seq=header.whole("seq_length"),
            precision=header.precision,
            versions={"torch": header.texts["torch"]} if "torch" in header.texts else {},
        ),
    )


def facts_of(header: LogHeader, logged: LoggedSteps, tokens: float | None) -> RunFacts:
    """Return what the log says about the model and its own efficiency."""
    dialect, table, numbers = logged.dialect, logged.table, header.numbers
    counts_recompute = header.arguments.get(dialect.recompute_argument or "") == "True"
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
    rows_before = np.searchsorted(table["at"], [event.at for event in scanned.events]).tolist()
    reasons = tuple(
        Reason(row, event.kind, event.seconds)
        for event, row in zip(scanned.events, rows_before, strict=True)
        if row < len(table["step"])
    )
    wall = np.nan_to_num(paces.wall_s, nan=0.0)
    of_bars, missing = pauses_of_bars(logged, reasons)
    reasons += of_bars
    # A run that resumes with the next step shows only as a pause and in the text.
    is_late = paces.wall_s > 3.0 * float(np.nanmedian(paces.step_s)) * paces.count
    resumed = {each.row for each in reasons if each.row and each.kind == "restart" and is_late[each.row]}
    before = after = 0.0
    if paces.has_clock:
        times = table["time"]
        first, last = scanned.times.get(clock_kind(float(times[0])), (nan, nan))
        if logged.dialect.has_own_events:  # other lines may be in another time zone
            first, last = scanned.header.event_times or (nan, nan)
        first_s = float(paces.step_s[0] * paces.count[0]) if isfinite(paces.step_s[0]) else 0.0
        before = max(0.0, float(times[0]) - first - first_s) if isfinite(first) else 0.0
        after = max(0.0, last - float(times[-1])) if isfinite(last) else 0.0
    else:  # every bar has a clock of its own
        wall = wall + np.append(0.0, missing[1:-1])
        before, after = float(missing[0]), float(missing[-1])
    step_s = np.where(np.isfinite(paces.step_s), paces.step_s, wall / paces.count)
    for reason in reasons if paces.is_mean else ():
        if reason.row == len(wall):
            continue
        # A pause whose printed length is included in the printed step time of its line.
        row, paused = reason.row, reason.seconds or 0.0
        inside = float(step_s[row] * paces.count[row]) - (float(wall[row]) - paused)
        if paused and inside > paused / 2.0 and paused < float(step_s[row] * paces.count[row]):
            step_s[row] -= paused / paces.count[row]
    total, last_step = table.get("total", table["step"])[-1], table["step"][-1]
    return StepLog(
        framework=logged.dialect.framework,
        step=table["step"].tolist(),
        count=paces.count.tolist(),
        wall_s=wall.tolist(),
        step_s=step_s.tolist(),
        reasons=reasons,
        attempts=tuple(sorted(resumed.union(attempts))),
        before_s=before,
        after_s=after,
        has_clock=paces.has_clock,
        is_mean=paces.is_mean,
        clock_s=paces.clock_s,
        total_steps=float(total) if "total" in table and total >= last_step else None,
    )


def pauses_of_bars(logged: LoggedSteps, known: tuple[Reason, ...]) -> tuple[tuple[Reason, ...], Floats]:
    """Return the pauses that other bars show, and the seconds that the bar of the steps does not include.

    Those are by row: before the first, before each later one, and after the last.
    """
    offsets = logged.table["at"]
    missing = np.zeros(len(offsets) + 1)
    timed = {(reason.row, reason.kind) for reason in known if reason.seconds}
    pauses: dict[tuple[int, PauseKind], float] = {}
    counted = [run for run in logged.bars if run.start <= offsets[-1] and run.kind in _OF_STEPS]
    ended = -1.0
    for run in sorted(logged.bars, key=lambda run: (run.start, -run.end)):
        row = int(np.searchsorted(offsets, run.end))
        is_inside = row < len(offsets) and any(
            each.start < run.start and offsets[row] <= each.end for each in counted
        )
        if run.kind in _OF_STEPS or run.end <= ended or (row and run.kind == "other"):
            continue
        ended = run.end
        if not is_inside:
            missing[row] += run.seconds
        if row and run.kind in _PAUSES and (row, run.kind) not in timed:
            pauses[row, run.kind] = pauses.get((row, run.kind), 0.0) + run.seconds
    return tuple(Reason(row, kind, seconds) for (row, kind), seconds in pauses.items()), missing


def samples_of(log: StepLog) -> tuple[Floats, Floats, list[Note]]:
    """Return the step time of every row without a pause, and the rows' step counts."""
    samples, counts = np.array(log.step_s), np.array(log.count)
    notes: list[Note] = []
    usable = samples > 0.0
    middle = float(np.median(samples[1:][usable[1:]])) if usable[1:].any() else 0.0
    starts = [row for row in log.attempts if middle and samples[row] > _SLOW_START * middle]
    usable[starts] = False
    if log.is_mean:  # an explained pause is included in the time of its steps
        rows = {reason.row for reason in log.reasons if reason.row < len(samples)}
        paused = [row for row in rows if samples[row] > _PAUSED * middle]
        usable[paused] = False
    if starts and starts[0] == 0:
        text = f"the first line ({show_ms(samples[0] * 1e3)} per step) includes start-up and is left out"
        notes.append(Note("start_left_out", text))
    early = samples[:_FIRST_LINES]
    dispatched = np.flatnonzero((early > 0.0) & (early < _DISPATCHED * middle))
    if len(dispatched):
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


def _without_step_times(scanned: ScannedLog, name: str, logged: LoggedSteps | None) -> Profile | None:
    """Return the run from the totals that a trainer prints at the end, or from a rate alone.

    Steps without either become a profile with the reason why it has no grade.
    """
    header = scanned.header
    world = world_size(header)
    steps, seconds, samples_s = header.whole("total_steps"), header.numbers.get("train_seconds"), None
    if (totals := scanned.totals) is not None:
        seconds, samples_s = totals.runtime_s, totals.samples_s
        if steps is None and totals.steps_s:
            steps = round(seconds * totals.steps_s) or None
    if steps and seconds:
        batch, seq = header.whole("global_batch_size"), header.whole("seq_length")
        samples = float(batch) if batch else samples_s * seconds / steps if samples_s else None
        text = "the log has only the totals of the run: start-up and pauses are in the mean"
        return structs.replace(
            _described(header, name, "log of a trainer", world),
            steps=steps,
            mean_step_ms=seconds / steps * 1e3,
            samples_per_step=samples,
            tokens_per_step=samples * seq if samples and seq else None,
            notes=(Note("from_totals", text),),
        )
    for rows in scanned.rows:
        table, _ = table_of(rows)
        rate = total_rate(table, world)
        if rate is None and {"tokens", "elapsed_s"} <= table.keys():
            rate = np.diff(table["tokens"]) / np.maximum(np.diff(table["elapsed_s"]), 1e-9)
        if (tok_s := middle_of(rate)) is not None:
            text = f"the log of {rows.dialect.framework} prints a rate but no step times"
            return structs.replace(
                _described(
                    header,
                    name,
                    f"log of {rows.dialect.framework}",
                    world,
                    work_of(rows, scanned, "unknown"),
                ),
                throughput_tok_s=tok_s,
                peak_memory_bytes=peak_memory(table, header),
                notes=(Note("rate_only", text),),
            )
    if logged is None:
        return None
    dialect, count = logged.dialect, len(logged.table["step"])
    lines = f"{show_count(count)} step lines of {dialect.framework}"
    text = f"{lines} without times: print the step time, or log with timestamps"
    unclear = next((note.text for note in logged.notes if note.code == "time_unclear"), None)
    text = dialect.untimed or unclear or text
    return Profile(
        source=Source(format=LOG, files=(name,), producer=f"log of {dialect.framework}"),
        work=logged.work,
        recorded_steps=count,
        tokens_per_step=logged.printed_tokens,
        device=device_of(header),
        notes=tuple(note for note in logged.notes if note.text != text),
        warnings=(Note("no_step_times", text, fatal=True), *_losses(scanned, logged)),
    )


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
