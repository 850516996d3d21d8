"""From the lines of a log to a profile: step times, throughput, costs, wall time, with their basis."""

from __future__ import annotations

from array import array
from math import isfinite, nan

import numpy as np
from msgspec import Struct, structs

from stepgrade.model import DeviceSeen, Note, Profile, Recorded, Source
from stepgrade.model.columns import median
from stepgrade.model.profile import LOG, WORK_UNKNOWN, PhaseShare, WorkKind
from stepgrade.model.step_log import PauseKind, Printed, Reason, RunFacts, StepLog
from stepgrade.readers.logs.amounts import (
    peak_memory,
    printed_tokens,
    samples_per_step,
    tokens_per_step,
    world_by_rates,
    world_size,
)
from stepgrade.readers.logs.bars import EVIDENCE, BarRun, runs_of
from stepgrade.readers.logs.dialect import Dialect
from stepgrade.readers.logs.facts import LogHeader
from stepgrade.readers.logs.lines import progress_bar
from stepgrade.readers.logs.runs import Floats, Table, last_run
from stepgrade.readers.logs.scan import Rows, ScannedLog
from stepgrade.readers.logs.steps import (
    Paces,
    middle_of,
    paces_of,
    steps_apart,
    table_of,
    total_rate,
    with_times_classified,
    without_close_lines,
)
from stepgrade.readers.logs.values import PARTS, clock_kind
from stepgrade.units import show_count, show_ms

# A first line this much slower than the others includes start-up.
_SLOW_START = 1.3
# An early line this much faster was printed before its step finished.
_DISPATCHED = 0.25
_FIRST_LINES = 5
# No training step takes less: loops that do load or convert something.
_LEAST_STEP_S = 0.0002
# A line this much slower, after an evaluation or a checkpoint, includes that pause.
_PAUSED = 1.05
_FAR_LONGER = 3.0
_MOST_SHARE = 1.5  # of the peak; larger values are percentages
# A run has diverged if this share of its last losses is not finite.
_TAIL = 0.1
_BESIDE = ("tokens", "memory_bytes", "tok_s", "tok_s_device", "samples_s", "tflops_device", "mfu", "loss")
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
    slowest: dict[int, float] = {}
    for bar, step, seconds in states[[1, 2, 4]].T.tolist():
        slowest[int(bar)] = max(slowest.get(int(bar), 0.0), seconds / max(step, 1.0))
    work, counted = scanned.bars.counted(
        (bar for bar, step_s in slowest.items() if not 0.0 < step_s < _LEAST_STEP_S), trains=trains
    )
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
    """Add what lines of other dialects say of the same step, or without a number of the last step before.

    The Trainer's dicts come with a progress bar, Megatron-Bridge's utilisation with Megatron's line, and
    DeepSpeed's rates with the lines of whoever uses it.
    """
    for other in scanned.rows:
        if other is rows or not len(table["at"]):
            continue
        columns = {name: np.frombuffer(column) for name, column in other.columns.items()}
        nearest = np.searchsorted(table["at"], columns["at"], side="right") - 1
        if "step" in columns:  # it may come before the line of the same step, or after it
            following = np.minimum(nearest + 1, len(table["at"]) - 1)
            nearest = np.where(table["step"][following] == columns["step"], following, nearest)
            is_same = table["step"][np.maximum(nearest, 0)] == columns["step"]
            nearest = nearest[is_same]
            columns = {name: column[is_same] for name, column in columns.items()}
        for name in (*_BESIDE, *PARTS):
            if name in table or name not in columns or not len(nearest):
                continue
            column = np.full(len(table["step"]), nan)
            column[np.maximum(nearest, 0)] = columns[name]
            table[name] = column


class LoggedSteps(Struct, frozen=True, kw_only=True):
    """The most informative step lines, ordered and timed."""

    dialect: Dialect
    work: WorkKind
    bars: list[BarRun]
    table: Table
    attempts: list[int]
    begun_s: float  # when the run began, by the log's clock; nan for the first of a log
    is_last: bool
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
    counts_epochs = dialect.restarts_at_epochs and not is_of_all
    run = last_run(table, scanned.events, counts_epochs=counts_epochs, total=total)
    if not len(run.table["step"]):
        return None
    apart = steps_apart(run.table["step"])
    table, attempts = without_close_lines(run.table, run.attempts)
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
    if run.count > 1:
        which = "the last" if run.is_last else "the last with more than two lines"
        notes.append(Note("last_of_several", f"the log contains {run.count} runs; this is {which}"))
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
        begun_s=run.begun_s,
        is_last=run.is_last,
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
    mean_ms = float(np.average(samples, weights=counts)) * 1e3
    tokens = tokens_per_step(table, header, paces, logged.world, logged.printed_tokens)
    producer = producer or f"log of {logged.dialect.framework}"
    return structs.replace(
        _described(header, name, producer, logged.world, logged.work),
        steps=round(float(counts.sum())),
        recorded_steps=round(float(np.sum(paces.count))),
        mean_step_ms=mean_ms,
        samples_ms=tuple((samples * 1e3).tolist()),
        tokens_per_step=tokens,
        samples_per_step=samples_per_step(table, header, paces),
        peak_memory_bytes=peak_memory(table, header),
        phases=parts_of_step(table, paces, mean_ms),
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
    rate = table.get("tok_s", table.get("tok_s_device") if logged.world else None)
    devices = 1 if "tok_s" in table else logged.world or 1
    memory = table.get("memory_bytes", np.zeros(0))
    printed = Printed(
        source=dialect.framework,
        mfu=mfu if mfu and mfu > 0.0 else None,  # nanoGPT and llm.c print -100 % for what they do not know
        tok_s=(middle_of(rate) or 0.0) * devices or None,
        memory_bytes=float(np.nanmax(memory)) if np.nanmax(memory, initial=0.0) > 0.0 else None,
    )
    return RunFacts(
        framework=dialect.framework,
        config=header.config.decode("utf-8", "replace") if header.config else None,
        arguments=arguments,
        name=header.texts.get("model"),
        seq=header.whole("seq_length"),
        parameters=header.parameters,
        flops_per_token=flops,
        convention=dialect.convention,
        counts_recompute=counts_recompute,
        mixes_fp8=dialect.mixes_fp8 and header.precision == "fp8",
        printed=printed if printed.mfu or printed.tok_s or printed.memory_bytes else None,
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
    return median(late) if len(late) else None


def _is_known(columns: dict[str, array[float]], name: str) -> bool:
    return name in columns and any(isfinite(value) for value in columns[name])


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
    is_late = paces.wall_s > _FAR_LONGER * median(paces.step_s[~np.isnan(paces.step_s)]) * paces.count
    resumed = {each.row for each in reasons if each.row and each.kind == "restart" and is_late[each.row]}
    before = after = 0.0
    if paces.has_clock:
        times = table["time"]
        first, last = scanned.times.get(clock_kind(float(times[0])), (nan, nan))
        if logged.dialect.has_own_events:  # other lines may be in another time zone
            first, last = scanned.header.event_times or (nan, nan)
        if isfinite(logged.begun_s):
            first = logged.begun_s
        if not logged.is_last:
            last = float(times[-1])
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


def parts_of_step(table: Table, paces: Paces, mean_ms: float) -> tuple[PhaseShare, ...]:
    """Return the parts of a step of RL post-training, with the time between them; none without a rollout.

    Parts of different engines that overlap in time are scaled to the step.
    """
    parts = {words: table[name] for name, words in PARTS.items() if name in table}
    usual_s = middle_of(paces.step_s)
    if "rollout" not in parts or usual_s is None:
        return ()
    # A step that includes start-up or a pause says little about the parts.
    is_usual = np.isfinite(parts["rollout"]) & (paces.step_s < _FAR_LONGER * usual_s)
    step_s = float(np.sum(paces.step_s[is_usual]))
    shares = {
        words: float(np.sum(np.nan_to_num(column[is_usual]))) / step_s if step_s else 0.0
        for words, column in parts.items()
    }
    shares["idle"] = max(0.0, 1.0 - sum(shares.values()))
    known = max(1.0, sum(shares.values()))
    return tuple(
        PhaseShare(name=words, ms=mean_ms * share / known, share=share / known)
        for words, share in shares.items()
        if 0.0 < share < np.inf
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
    middle = median(samples[1:][usable[1:]]) if usable[1:].any() else 0.0
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


def device_of(header: LogHeader) -> DeviceSeen | None:
    """Return the device as the log names it."""
    name, size = header.texts.get("device"), header.numbers.get("device_bytes")
    return DeviceSeen(name=name, memory_bytes=round(size) if size else None) if name else None
