"""The gate over a comparison: budgets say what may change, waivers what is let through for now."""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Literal

from msgspec import structs

from stepgrade.compare.effect import Interval
from stepgrade.compare.verdict import BY_NAME, Sensitivity, outcome_of
from stepgrade.config import Budget, Config, Waiver
from stepgrade.errors import EXIT_GATE, EXIT_NOT_MEASURED, EXIT_OK, BadConfig
from stepgrade.gating.fail_on import Condition, decide
from stepgrade.model.comparison import Check, Comparison, GateReport, MetricChange, Status
from stepgrade.model.notes import Note, has_code, texts_of
from stepgrade.model.scorecard import Scorecard
from stepgrade.units import show_figure, show_share

# Judged unless a budget for the same metric says otherwise.
DEFAULT_METRICS = ("step_time_ms", "throughput_tok_s", "peak_memory_bytes")
_FIGURES = (*BY_NAME, "efficiency", "mfu", "hfu")
# With these a step is another amount of work, and only the rate can be compared.
_WORK = ("tokens_per_step", "batch", "seq", "world_size")
_PARTS = {"op": "operation", "layer": "layer"}


def judge(
    card: Scorecard, found: Comparison, config: Config, conditions: Sequence[Condition], today: dt.date
) -> GateReport:
    """Return the gate's answer; a sure no outweighs what cannot be told."""
    device = card.device.key or "" if card.device else ""
    checks = [*_budgeted(card, found, config, device), *_graded(card, conditions)]
    waived = [_waived(check, config.waivers, device, today) for check in checks]
    code, reasons = _decided(waived, found, config)
    return GateReport(
        verdict=_VERDICTS[code],
        exit_code=code,
        source=", ".join(card.source.files),
        baseline=found.baseline,
        grade=card.grade,
        efficiency=card.efficiency,
        checks=tuple(waived),
        changes=found.changes,
        parts=found.parts,
        shifts=found.shifts,
        differences=found.differences,
        is_comparable=found.is_comparable,
        step_change=found.step_change,
        reasons=tuple(reasons),
        notes=(*found.notes, *_expired(config.waivers, today)),
    )


_VERDICTS: dict[int, Literal["pass", "regressed", "could not be measured"]] = {
    EXIT_OK: "pass",
    EXIT_GATE: "regressed",
    EXIT_NOT_MEASURED: "could not be measured",
}


def _decided(checks: Iterable[Check], found: Comparison, config: Config) -> tuple[int, list[Note]]:
    failing = [Note("failed_check", check.text) for check in checks if check.status == "regressed"]
    if failing:
        return EXIT_GATE, failing
    if not found.is_comparable:
        text = f"not comparable: {'; '.join(texts_of(found.differences))}"
        return EXIT_NOT_MEASURED, [Note("not_comparable", text), *found.unmeasured]
    if found.unmeasured:
        return EXIT_NOT_MEASURED, list(found.unmeasured)
    unsure = [Note("failed_check", check.text) for check in checks if check.status == "cannot tell"]
    if unsure and config.gate.cannot_tell == "fail":
        return EXIT_NOT_MEASURED, unsure
    return EXIT_OK, []


def _budgeted(card: Scorecard, found: Comparison, config: Config, device: str) -> Iterator[Check]:
    mine = [budget for budget in config.budgets if fnmatchcase(device, budget.device)]
    for budget in mine:
        yield from _check(budget, card, found, config)
    named = {budget.metric for budget in mine}
    changes = {change.metric for change in found.changes}
    skipped = _says_the_same(found, changes)
    for name in DEFAULT_METRICS:
        if name not in named and name in changes and name != skipped:
            yield from _check(Budget(metric=name), card, found, config)


def _says_the_same(found: Comparison, changes: Collection[str]) -> str | None:
    """Return which of step time and throughput is left out: of the same work both say the same thing."""
    if not {"step_time_ms", "throughput_tok_s"} <= set(changes):
        return None
    same_work = not has_code(found.differences, *_WORK)
    return "throughput_tok_s" if same_work else "step_time_ms"


def _check(budget: Budget, card: Scorecard, found: Comparison, config: Config) -> Iterator[Check]:
    kind, _, pattern = budget.metric.partition(":")
    if kind in _PARTS and pattern:
        yield from _check_parts(budget, _PARTS[kind], pattern, found)
        return
    if budget.metric not in _FIGURES:
        known = ", ".join((*_FIGURES, "op:NAME", "layer:NAME"))
        raise BadConfig(f"there is no metric called {budget.metric!r}", where="budget", hint=known)
    yield from _check_bounds(budget, getattr(card, budget.metric))
    change = next((one for one in found.changes if one.metric == budget.metric), None)
    if change is not None:
        yield _check_change(budget, change, config)


def _check_bounds(budget: Budget, figure: float | None) -> Iterator[Check]:
    bounds = (("at_most", budget.at_most), ("at_least", budget.at_least))
    for name, bound in bounds:
        if bound is None:
            continue
        words = f"the budget of {name.replace('_', ' ')} {show_figure(bound)}"
        if figure is None:
            text = f"{budget.metric} was not measured, so {words} cannot be checked"
            yield Check(metric=budget.metric, status="cannot tell", text=text)
        else:
            fits = figure <= bound if name == "at_most" else figure >= bound
            text = f"{budget.metric} is {show_figure(figure)}, {'within' if fits else 'outside'} {words}"
            yield Check(metric=budget.metric, status="pass" if fits else "regressed", text=text)


def _check_change(budget: Budget, change: MetricChange, config: Config) -> Check:
    how = Sensitivity(
        allow=config.gate.allow if budget.allow is None else budget.allow,
        detect=config.gate.detect if budget.detect is None else budget.detect,
    )
    usual = BY_NAME[budget.metric].worse
    worse = usual if budget.direction in ("worse", "both") else budget.direction
    interval = Interval(
        change=change.change or 0.0,
        low=change.low or 0.0,
        high=change.high or 0.0,
        near_low=change.near_low or 0.0,
        near_high=change.near_high or 0.0,
    )
    outcome = outcome_of(interval, worse, how)
    if budget.direction == "both" and outcome == "improved":
        outcome = "regressed"
    return Check(
        metric=budget.metric,
        status="pass" if outcome == "no change" else outcome,
        text=f"{budget.metric} {_words(change)}{_allowed(budget, how)}",
        change=change,
    )


def _check_parts(budget: Budget, kind: str, pattern: str, found: Comparison) -> Iterator[Check]:
    allow = budget.allow or 0.0
    for part in found.parts:
        change = part.change
        if part.kind != kind or not fnmatchcase(part.name, pattern) or change.outcome != "regressed":
            continue
        if (change.change or 0.0) > allow:
            text = f"{kind} {part.name} {_words(change)}{_allowed(budget, Sensitivity(allow=allow))}"
            yield Check(metric=budget.metric, status="regressed", text=text, change=change)


def _words(change: MetricChange) -> str:
    moved = f"{(change.change or 0.0) * 100:+.1f} %"
    return f"{moved}, {change.why}" + (f"; {change.more}" if change.more else "")


def _allowed(budget: Budget, how: Sensitivity) -> str:
    return f" (the budget allows {show_share(how.allow, 0)})" if budget.allow is not None else ""


def _graded(card: Scorecard, conditions: Sequence[Condition]) -> Iterator[Check]:
    """Yield what `--fail-on` asks, by the rules that `score` has for it; regressions are tested above."""
    for condition in conditions:
        if condition.grade is None:
            continue
        decision = decide(card.grade, (), [condition], comparable=True)
        status: Status = {EXIT_OK: "pass", EXIT_GATE: "regressed"}.get(decision.exit_code, "cannot tell")  # type: ignore[assignment]  # its three words
        yield Check(metric="grade", status=status, text="; ".join(decision.reasons) or f"grade {card.grade}")


def _waived(check: Check, waivers: Sequence[Waiver], device: str, today: dt.date) -> Check:
    if check.status not in ("regressed", "cannot tell"):
        return check
    for waiver in waivers:
        if not (fnmatchcase(check.metric, waiver.metric) and fnmatchcase(device, waiver.device)):
            continue
        if waiver.until >= today:
            return structs.replace(check, status="waived", waiver=f"until {waiver.until}: {waiver.reason}")
        check = structs.replace(check, text=f"{check.text}; its waiver expired on {waiver.until}")
    return check


def _expired(waivers: Sequence[Waiver], today: dt.date) -> tuple[Note, ...]:
    return tuple(
        Note(
            "waiver_expired",
            f"the waiver for {waiver.metric} expired on {waiver.until} ({waiver.reason}): renew it or "
            "remove it",
        )
        for waiver in waivers
        if waiver.until < today
    )
