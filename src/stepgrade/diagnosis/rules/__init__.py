"""Rules: one question each, asked of the context, answered with a finding or with nothing."""

from __future__ import annotations

import msgspec

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules import (
    attention,
    communication,
    elementwise,
    fitness,
    gemm,
    input,  # noqa: A004  the area is called so
    launch,
    layers,
    layout,
    memory,
    optimizer,
    precision,
    stragglers,
    sync,
    transfer,
    variance,
)
from stepgrade.diagnosis.rules.base import Rule
from stepgrade.model.finding import Finding

RULES: tuple[Rule, ...] = (
    *input.RULES,
    *transfer.RULES,
    *sync.RULES,
    *launch.RULES,
    *precision.RULES,
    *attention.RULES,
    *gemm.RULES,
    *optimizer.RULES,
    *elementwise.RULES,
    *layout.RULES,
    *communication.RULES,
    *stragglers.RULES,
    *layers.RULES,
    *variance.RULES,
    *memory.RULES,
    *fitness.RULES,
)
RULE_NAMES = tuple(rule.name for rule in RULES)
# A cause takes in what another rule sees only if it accounts for at least half of it.
EXPLAINS_SHARE = 0.5
SAME_SHARE = 0.1
_DOUBTS = fitness.truncated_trace.area
_RANKS = {"critical": 0, "warning": 1, "info": 2}


def findings(
    context: RuleContext, limits: Limits, ignored: frozenset[str] = frozenset()
) -> tuple[Finding, ...]:
    """Return what the rules find: doubts about the profile, causes by realistic gain, remarks."""
    found = {
        rule.name: one
        for rule in RULES
        if rule.name not in ignored and (one := rule.finding(context, limits)) is not None
    }
    return tuple(sorted(_grouped(found), key=_order))


def _order(finding: Finding) -> tuple[bool, bool, float, int]:
    """Return the place: a warning about the profile itself comes before any advice."""
    doubtful = finding.area == _DOUBTS and finding.severity != "info"
    return not doubtful, finding.severity == "info", -finding.gain_low, _RANKS[finding.severity]


def _grouped(found: dict[str, Finding]) -> list[Finding]:
    """Return one finding for each cause, with what other rules saw of it as consequences."""
    causes: dict[str, str] = {}
    for rule in RULES:
        cause = found.get(rule.name)
        if cause is None:
            continue
        for name in rule.explains:
            is_free = name in found and name not in causes and name != _root(rule.name, causes)
            if is_free and _covers(cause, found[name]):
                causes[name] = rule.name
    kept = {name: one for name, one in found.items() if name not in causes}
    for name, cause_name in causes.items():
        holder = _root(cause_name, causes)
        if holder in kept:
            kept[holder] = _with(kept[holder], found[name])
    return list(kept.values())


def _with(cause: Finding, seen: Finding) -> Finding:
    """Return the cause with a consequence; it is as severe as what it brings about."""
    severity = min(cause.severity, seen.severity, key=lambda one: _RANKS[one])
    news = () if _says_the_same(cause, seen) else (seen.claim,)
    return msgspec.structs.replace(cause, severity=severity, consequences=(*cause.consequences, *news))


def _says_the_same(cause: Finding, seen: Finding) -> bool:
    """Tell whether a more general rule saw the same time: the claim would only be made twice."""
    alike = abs(cause.gain_high - seen.gain_high) <= SAME_SHARE * cause.gain_high
    return cause.account == seen.account and alike


def _covers(cause: Finding, seen: Finding) -> bool:
    """Tell whether the cause accounts for enough of it; of a wait for the host only its idle part does."""
    if cause.area == _DOUBTS and cause.severity != "info":
        return True
    idle = cause.evidence.get("idle_share")
    is_idle = seen.account == "idle_host" and cause.account != "idle_host"
    part = idle if is_idle and isinstance(idle, float) else cause.gain_high
    return part >= EXPLAINS_SHARE * seen.gain_high


def _root(name: str, causes: dict[str, str]) -> str:
    while name in causes:
        name = causes[name]
    return name
