"""What the fields of a metrics file mean, by the names that trackers and trainers give them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from stepgrade.patterns import regex
from stepgrade.readers.logs.dialect import LogContext, RunTotals
from stepgrade.readers.logs.values import GIB, MIB, PARTS, Column, clock_of, duration, figure_of, number

_PREFIX = regex(r"^(?:train|trainer|training|timing|perf|performance|throughput|system|metrics)[/._ ]+", re.I)
_PER_DEVICE = regex(r"device|gpu|per_rank|per_chip", re.I)
# Exact names, in lower case and without the prefixes above.
_NAMES: tuple[tuple[Column, str], ...] = (
    ("step", "step, global_step, _step, iteration, iter, current_steps, num_updates, steps, batch_idx"),
    ("total", "max_steps, total_steps"),
    (
        "elapsed_s",
        "_runtime, runtime, time, elapsed, elapsed_time, elapsed time, elapsed_s, time_total_s, wall",
    ),
    ("time", "timestamp, _timestamp, wall_time, datetime, unix_time"),
    (
        "step_s",
        (
            "step_time, step_time_s, step_time_sec, dt, iter_time, iteration_time, iteration-time, "
            "iteration_time_s, time_this_iter_s, step_timing, train_step_timing, train_step_timing in s, "
            "train_step_time, seconds_per_step, sec_per_step, time_per_step, step_duration, step_s"
        ),
    ),
    ("interval_s", "interval_s"),
    ("steps_s", "ups, batches_per_sec, steps_per_second, steps_per_sec, it_s"),
    (
        "tokens",
        (
            "num_input_tokens_seen, total_tokens, consumed_tokens, consumed tokens, tokens_seen, "
            "tokens_total, num_tokens, lengths"
        ),
    ),
    ("samples", "consumed_samples, samples, samples_seen, samples_count"),
    ("step_tokens", "tokens_per_step, num_tokens_per_step, batch_tokens, wpb"),
    ("step_samples", "global_batch_size, batch-size, batch_size, bsz"),
    ("loss", "loss, train_loss, lm loss, reduced_train_loss, crossentropyloss, train loss, loss/train"),
    ("tflops_device", "tflops, tflops_per_gpu, tflops_per_device"),
)
_EXACT = {name: column for column, names in _NAMES for name in names.split(", ")}
# Whole names, whose prefix matters.
_WHOLE: dict[str, Column] = {
    "perf/throughput": "tok_s_device",  # verl divides it by the number of devices
    "perf/total_num_tokens": "step_tokens",
    "perf/time_per_step": "step_s",
    "actor/pg_loss": "loss",
    "policy_loss": "loss",
    "train_runtime": "elapsed_s",
    "eval_runtime": "eval_s",
    "eval time": "eval_s",
    "train/train_runtime": "elapsed_s",
}
# The timers of RL post-training: what verl, NeMo-RL, OpenRLHF and TRL call the parts of a step.
_TIMER = regex(r"(?:timing(?:_s)?/(?:train/)?|profiling/time taken: \w{1,60}\.)([\w./]{1,60})")
_TIMERS = (
    ("step_s", "step, total_step_time, step_total"),
    ("rollout_s", "gen, generation, exposed_generation, generate, vllm.generate, transformers.generate"),
    ("reward_s", "reward, reward_calculation, _calculate_rewards"),
    (
        "reference_s",
        (
            "ref, old_log_prob, values, policy_and_reference_logprobs, get_logprobs, make_experience, "
            "_get_per_token_logps, _get_per_token_logps_and_entropies"
        ),
    ),
    ("advantage_s", "adv, advantage_calculation"),
    ("update_s", "update_actor, update_critic, policy_training, value_training, ppo_train, policy_train"),
    (
        "sync_s",
        (
            "update_weights, weight_sync, sync_rollout_weights, prepare_for_generation/total, broadcast, "
            "_move_model_to_vllm, sync_weights"
        ),
    ),
)
_TIMED = {name: column for column, names in _TIMERS for name in names.split(", ")}
_TOKENS = regex(r"(?:tok(?:en)?s?)[ _]?(?:/|per|_)[ _]?s|^tok_?s$|^tps(?:$|_per)|^wps$|^tgs$", re.I)
_SAMPLES = regex(r"(?:samples?|examples?|images?|seqs?|sequences?)[ _]?(?:/|per)[ _]?s", re.I)
_STEPS = regex(r"(?:steps?|iters?|batches|it)[ _]?(?:/|per)[ _]?s", re.I)
_MFU = regex(r"(?:^|[/_. ])mfu(?:$|[/_. %(])", re.I)
_RATES = ((_MFU, "mfu"), (_TOKENS, "tok_s"), (_SAMPLES, "samples_s"), (_STEPS, "steps_s"))
_MEMORY = regex(r"(?:max|peak).{0,40}mem|mem.{0,40}(?:max|peak)|^memory\(", re.I)
_MILLISECONDS = regex(r"[_ /]?\(?(?:_ms| ms|/ms|\(ms\))$", re.I)
_MEMORY_UNITS = (("gib", GIB), ("gb", GIB), ("mib", MIB), ("mb", MIB), ("byte", 1.0))
# Means over the run so far, not of a single step.
_RUNNING = frozenset(
    {
        "throughput",
        "train_tokens_per_second",
        "train_samples_per_second",
        "train_steps_per_second",
        "train_speed(iter/s)",
    }
)
_NOT_TRAINING = regex(r"^(?:eval|valid|val|test)[/_. ]", re.I)
_TOTALS = ("train_runtime", "train_samples_per_second", "train_steps_per_second")
_OF_TOTAL = "global_step/max_steps"
_EPOCH_MS = 1e11


@lru_cache(maxsize=8192)
def meaning(name: str) -> tuple[Column, float] | None:
    """Return what the field of that name holds and its unit in ours; None if the name is unknown."""
    lowered = name.strip().lower()
    if lowered in _WHOLE:
        return _WHOLE[lowered], 1.0
    if lowered in _RUNNING or _NOT_TRAINING.match(lowered):
        return None
    if (timer := _TIMER.fullmatch(lowered)) is not None:
        column = _TIMED.get(timer[1])
        return None if column is None else (column, 1.0)
    bare = _PREFIX.sub("", _PREFIX.sub("", lowered))
    stem = _MILLISECONDS.sub("", bare)
    known = _EXACT.get(stem)
    if known is not None:
        return known, 1.0 if stem == bare else 1e-3
    if _MEMORY.search(lowered):
        return next((("memory_bytes", unit) for word, unit in _MEMORY_UNITS if word in lowered), None)
    on_device = "_device" if _PER_DEVICE.search(lowered) else ""
    found = next((column for pattern, column in _RATES if pattern.search(bare)), None)
    if found in ("tok_s", "samples_s"):
        found += on_device
    return (found, 1.0) if found else None


def row_of(fields: Iterable[tuple[str, object]]) -> dict[Column, float]:
    """Return the known fields of one record by column, in our units."""
    row: dict[Column, float] = {}
    fields = tuple(fields)
    # OpenMMLab writes the step time and the part of it spent on data.
    is_of_step = any(name == "data_time" for name, _ in fields)
    for name, value in fields:
        if name == _OF_TOTAL and isinstance(value, str):
            step, _, total = value.partition("/")
            row["step"], row["total"] = number(step.encode()), number(total.encode())
            continue
        known = meaning(name)
        if known is None or (known[0] in row and known[0] not in PARTS):
            continue
        column, scale = known
        if name == "time" and is_of_step:
            column = "step_s"
        if isinstance(value, bool) or value is None:
            continue
        if isinstance(value, int | float):
            known_figure = figure_of(value)
            is_nan = isinstance(value, float) and math.isnan(value)
            figure = known_figure if known_figure is not None else math.nan if is_nan else math.inf
        elif isinstance(value, str):
            text = value.encode("utf-8", "replace")
            if column == "time" and ":" in value:  # 2026-04-01T16:15:16.374Z
                figure = clock_of(text)
            else:
                is_long = column == "elapsed_s" and set(value) & set(":hmsd")
                figure = duration(text) if is_long else number(text)
        else:
            continue
        if column == "time":
            figure = seconds_of(figure)
        # Several timers may belong to one part of a step.
        row[column] = figure * scale + row.get(column, 0.0)
    return row


_STRING_OR_NAN = regex(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|-?\b(?:NaN|Infinity)\b', re.DOTALL)


def with_nan_quoted(text: bytes) -> bytes:
    """Return Python's JSON with NaN and Infinity quoted, so that it is valid JSON."""
    return _STRING_OR_NAN.sub(
        lambda found: found[0] if found[0].startswith(b'"') else b'"' + found[0] + b'"', text
    )


def seconds_of(stamp: float) -> float:
    """Return a time stamp in seconds: the unit (ms, us or ns) is inferred from its size, else NaN."""
    for _ in range(4):
        if stamp <= _EPOCH_MS:
            return stamp
        stamp /= 1e3
    return math.nan


def keep_totals(fields: Mapping[str, object], context: LogContext) -> bool:
    """Keep the whole run's time and rates, which the Trainer prints at the end; False for other fields."""
    runtime, samples_s, steps_s = (
        figure if figure and figure > 0.0 else None
        for value in map(fields.get, _TOTALS)
        for figure in [figure_of(number(value.encode()) if isinstance(value, str) else value)]
    )
    if runtime is None or (samples_s is None and steps_s is None) or "loss" in fields:
        return False
    context.totals = RunTotals(runtime, samples_s, steps_s)
    return True
