"""Judge a comparison by the project's budgets and waivers: its checks, and the verdict."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from msgspec import structs

from stepgrade.compare.metrics import outcome_of
from stepgrade.config import Budget, Config, Sensitivity, Waiver
from stepgrade.errors import EXIT_GATE, EXIT_NOT_MEASURED, EXIT_OK, BadConfig, did_you_mean
from stepgrade.gating.fail_on import Condition, decide
from stepgrade.model.comparison import (
    METRICS,
    RATES,
    Check,
    Comparison,
    GateReport,
    MetricChange,
    Status,
    Verdict,
)
from stepgrade.model.notes import Note, has_code, texts_of
from stepgrade.model.scorecard import Scorecard
from stepgrade.units import show_figure, show_share

# Checked unless a budget for the same metric says otherwise.
DEFAULT_METRICS = ("step_time_ms", "processor_ms", *RATES, "peak_memory_bytes")
# If one of these differs, a step does a different amount of work and only the rate is comparable.
_WORK = ("tokens_per_step", "samples_per_step", "batch", "seq", "world_size")
_PARTS = {"op": "operation", "layer": "layer"}
# The verdict and the status of a check by exit code.
_WORDS: dict[int, tuple[Verdict, Status]] = {
    EXIT_OK: ("pass", "pass"),
    EXIT_GATE: ("regressed", "regressed"),
    EXIT_NOT_MEASURED: ("could not be measured", "cannot tell"),
}


def judge(
    card: Scorecard,
    comparison: Comparison,
    config: Config,
    conditions: Sequence[Condition],
    today: dt.date,
) -> GateReport:
    """Return the gate's report; a failed check outweighs undecided ones."""
    device = card.device.key or "" if card.device else ""
    checks = [*_budget_checks(card, comparison, config, device)]
    for condition in conditions:
        decision = decide(card.grade, (), [condition], comparable=True)
        text = "; ".join(decision.reasons) or f"grade {card.grade}"
        checks.append(Check(metric="grade", status=_WORDS[decision.exit_code][1], text=text))
    checks = [_waive(check, config.waivers, device, today) for check in checks]
    failed, probable, undecided = (
        tuple(check.note for check in checks if check.status == status)
        for status in ("regressed", "probably slower", "cannot tell")
    )
    if config.gate.probably_slower == "fail":
        failed += probable
    code, reasons = EXIT_NOT_MEASURED, comparison.reasons
    if failed:
        code, reasons = EXIT_GATE, failed
    elif not comparison.is_comparable:
        text = f"not comparable: {'; '.join(texts_of(comparison.differences))}"
        reasons = (Note("not_comparable", text), *comparison.reasons)
    elif undecided and config.gate.cannot_tell == "fail" and not comparison.reasons:
        reasons = undecided
    elif not comparison.reasons:
        code = EXIT_OK
    expired = [
        f"the waiver for {waiver.metric} expired on {waiver.until} ({waiver.reason}): renew it or remove it"
        for waiver in config.waivers
        if waiver.until < today
    ]
    expired_notes = (Note("waiver_expired", text) for text in expired)
    judged = structs.replace(comparison, reasons=reasons, notes=(*comparison.notes, *expired_notes))
    return GateReport(
        **structs.asdict(judged),
        verdict="probably slower" if probable and code == EXIT_OK else _WORDS[code][0],
        exit_code=code,
        source=", ".join(card.source.files),
        grade=card.grade,
        grade_at_most=card.grade_at_most,
        efficiency=card.efficiency,
        checks=tuple(checks),
    )


def _budget_checks(card: Scorecard, comparison: Comparison, config: Config, device: str) -> Iterator[Check]:
    """Yield the checks of the budgets for this device, and of the metrics that are always checked."""
    budgets = [budget for budget in config.budgets if fnmatchcase(device, budget.device)]
    changes = {change.metric: change for change in comparison.changes}
    left_out = {budget.metric for budget in budgets}
    rate = next((name for name in RATES if name in changes), None)
    if "step_time_ms" in changes and rate is not None:
        # For the same work both measure the same.
        is_same_work = not has_code(comparison.differences, *_WORK)
        left_out.add(rate if is_same_work else "step_time_ms")
    processor = changes.get("processor_ms")
    if processor is not None and processor.outcome != "cannot tell":
        # On a busy machine the wall time may be open, and the processor time is not.
        wall = ("step_time_ms", *RATES)
        left_out |= {name for name in wall if name in changes and changes[name].outcome == "cannot tell"}
    budgets += [Budget(metric=name) for name in DEFAULT_METRICS if name in changes and name not in left_out]
    for budget in budgets:
        kind, _, pattern = budget.metric.partition(":")
        if kind in _PARTS and pattern:
            for part in comparison.parts:
                is_meant = part.kind == _PARTS[kind] and fnmatchcase(part.name, pattern)
                is_worse = part.change.outcome == "regressed" and part.change.change > (budget.allow or 0.0)
                if is_meant and is_worse:
                    text = _words(f"{part.kind} {part.name}", part.change, budget)
                    yield Check(metric=budget.metric, status="regressed", text=text, change=part.change)
            continue
        if budget.metric not in METRICS:
            hint = did_you_mean(budget.metric, (*METRICS, "op:NAME", "layer:NAME"))
            raise BadConfig(f"unknown metric {budget.metric!r}", where="budget", hint=hint)
        yield from _check_bounds(budget, card.metrics.get(budget.metric))
        change = changes.get(budget.metric)
        if change is None:
            continue
        sensitivity = Sensitivity(
            allow=config.gate.allow if budget.allow is None else budget.allow,
            detect=config.gate.detect if budget.detect is None else budget.detect,
        )
        worse = budget.direction if budget.direction in ("up", "down") else None
        outcome = outcome_of(change, METRICS[budget.metric], sensitivity, change.apart, worse=worse)
        if budget.direction == "both" and outcome == "improved":
            outcome = "regressed"
        status: Status = "pass" if outcome == "no change" else outcome
        text = _words(budget.metric, change, budget)
        yield Check(metric=budget.metric, status=status, text=text, change=change)


def _check_bounds(budget: Budget, figure: float | None) -> Iterator[Check]:
    for name, bound in (("at most", budget.at_most), ("at least", budget.at_least)):
        if bound is None:
            continue
        words = f"the budget of {name} {show_figure(bound)}"
        if figure is None:
            text = f"{budget.metric} was not measured, so {words} cannot be checked"
            yield Check(metric=budget.metric, status="cannot tell", text=text)
        else:
            fits = figure <= bound if name == "at most" else figure >= bound
            text = f"{budget.metric} is {show_figure(figure)}, {'within' if fits else 'outside'} {words}"
            yield Check(metric=budget.metric, status="pass" if fits else "regressed", text=text)


def _words(name: str, change: MetricChange, budget: Budget) -> str:
    more = f"; {change.more}" if change.more else ""
    allowed = f" (the budget allows {show_share(budget.allow, 0)})" if budget.allow is not None else ""
    return f"{name} {change.change * 100:+.1f} %, {change.why}{more}{allowed}"


def _waive(check: Check, waivers: Sequence[Waiver], device: str, today: dt.date) -> Check:
    """Return the check, waived if a waiver covers it; an expired waiver is mentioned."""
    if check.status not in ("regressed", "probably slower", "cannot tell"):
        return check
    for waiver in waivers:
        if not (fnmatchcase(check.metric, waiver.metric) and fnmatchcase(device, waiver.device)):
            continue
        if waiver.until >= today:
            return structs.replace(check, status="waived", waiver=f"until {waiver.until}: {waiver.reason}")
        check = structs.replace(check, text=f"{check.text}; its waiver expired on {waiver.until}")
    return check
