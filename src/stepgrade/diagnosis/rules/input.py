"""Rules about input: the device waits for the next batch."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Rule, Worth
from stepgrade.model.activity import HostLine
from stepgrade.scoring.phases import PhaseKind
from stepgrade.statistics import median
from stepgrade.units import show_count, show_ms, show_share

_ACCOUNT = "idle_input"
_BECAUSE = "prefetching hides all of it but what the first batch of an epoch takes"
_WORKERS = "_MultiProcessingDataLoaderIter"
_ON_MAIN_THREAD = "_SingleProcessDataLoaderIter"


def _levels(limits: Limits) -> Levels:
    return Levels(limits.input_info_share, limits.input_warning_share, limits.input_critical_share)


def _input_share(context: RuleContext) -> float:
    return context.account(_ACCOUNT) or context.phase_share(PhaseKind.INPUT)


def _line(context: RuleContext) -> HostLine | None:
    """Return the line of the user's code that makes batches, where stacks were recorded."""
    return next(iter(context.activity.lines.get("input", ())), None)


def input_wait(context: RuleContext) -> Found | None:
    share = _input_share(context)
    claim = f"{show_share(share)} of the step is spent waiting for input."
    if (context.profile.steps or 2) == 1 and context.activity.loader == _WORKERS:
        claim += " It is one batch: of the first the wait holds the start of the loader's workers."
    return _levels(context.limits).found(share, claim, {"input_share": share}, line=_line(context))


def loader_on_main_thread(context: RuleContext) -> Found | None:
    if context.activity.loader != _ON_MAIN_THREAD:
        return None
    share = _input_share(context)
    claim = (
        f"Batches are made on the loop's own thread: {show_share(share)} of the step is spent "
        "waiting for them."
    )
    evidence: Evidence = {"input_share": share, "loader": _ON_MAIN_THREAD}
    return _levels(context.limits).found(share, claim, evidence, line=_line(context))


def starved_loader(context: RuleContext) -> Found | None:
    waits, limits = sorted(context.activity.input_ms), context.limits
    slow = [ms for ms in waits if ms > limits.starved_ms]
    if not waits or len(slow) < limits.starved_steps_share * len(waits):
        return None
    median_ms = median(waits)
    if median_ms > limits.starved_ms / 2:
        return None
    share = _input_share(context)
    claim = (
        f"{show_count(len(slow))} of {len(waits)} steps wait up to {show_ms(waits[-1])} for a batch, "
        f"the median step {show_ms(median_ms)}."
    )
    steps = {"steps": float(len(slow)), "longest_ms": waits[-1], "median_ms": median_ms}
    return _levels(limits).found(share, claim, {**steps, "input_share": share})


RULES = (
    Rule(
        name="loader-on-main-thread",
        find=loader_on_main_thread,
        sees="Batches are prepared on the training thread while the device waits.",
        evidence="iterator class, share of the step waiting for input",
        fix="Make batches in other processes, ahead of the step.",
        fix_pytorch="Give the DataLoader num_workers of 4 or more (it has 0) with persistent_workers=True: "
        "batches are then made ahead of the step. pin_memory=True makes their copies to the device faster.",
        wrong_when="batches are in memory and indexing them is free",
        check="The iterator is _MultiProcessingDataLoaderIter and the wait for input is gone.",
        worth=Worth(_ACCOUNT, 0.9, _BECAUSE),
        explains=("input-wait", "starved-loader", "unsteady-steps"),
        sources="PM, AL, TBP",
    ),
    Rule(
        name="starved-loader",
        find=starved_loader,
        sees="Some steps wait long for a batch, others not at all: the prefetch queue runs empty.",
        evidence="steps that wait beyond a limit, longest and median wait",
        fix="Deepen the prefetch queue and even out batches: more workers, larger prefetch.",
        fix_pytorch="Raise prefetch_factor and num_workers; sort or shard samples so that no batch is far "
        "slower.",
        wrong_when="the slow steps are epoch ends",
        check="No step waits longer than the others.",
        worth=Worth(
            _ACCOUNT,
            0.8,
            "a deeper queue evens out slow batches only if workers are faster than the step on average",
        ),
        explains=("input-wait", "unsteady-steps"),
        sources="GPF",
    ),
    Rule(
        name="input-wait",
        find=input_wait,
        sees="The device is idle while the host waits for the next batch.",
        evidence="share of the step waiting for input",
        fix="Load batches ahead of the step: more loader workers, prefetching, cheaper decoding.",
        fix_pytorch="Raise DataLoader's num_workers and prefetch_factor, keep persistent_workers=True, and "
        "move decoding or augmentation out of the loop.",
        fix_jax="Prefetch to the device (for example with flax's prefetch_to_device or grain's worker "
        "processes).",
        wrong_when="the loader is slow only at the start of an epoch, and that was recorded",
        check="The wait for input leaves the ledger and the step gets shorter by as much.",
        worth=Worth(_ACCOUNT, 0.9, _BECAUSE),
        explains=("unsteady-steps",),
        sources="XP, TBP, TML, GPF, NAI",
    ),
)
