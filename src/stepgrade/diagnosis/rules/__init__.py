"""The rules by area, and the findings they give: one for each cause, the most worth doing first."""

from __future__ import annotations

import msgspec

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules import (
    attention,
    communication,
    compilation,
    elementwise,
    fitness,
    gemm,
    goodput,
    hang,
    input,  # noqa: A004  the area is called so
    launch,
    layers,
    layout,
    memory,
    optimizer,
    precision,
    ranks,
    spread,
    synchronisation,
    transfer,
)
from stepgrade.diagnosis.rules.base import Rule
from stepgrade.model.finding import Finding

# Each area is a module here and a page under docs/rules/.
AREAS: dict[str, tuple[Rule, ...]] = {
    "hang": hang.RULES,
    "input": input.RULES,
    "transfer": transfer.RULES,
    "synchronisation": synchronisation.RULES,
    "launch": launch.RULES,
    "compilation": compilation.RULES,
    "precision": precision.RULES,
    "attention": attention.RULES,
    "gemm": gemm.RULES,
    "optimizer": optimizer.RULES,
    "elementwise": elementwise.RULES,
    "layout": layout.RULES,
    "communication": communication.RULES,
    "ranks": ranks.RULES,
    "layers": layers.RULES,
    "goodput": goodput.RULES,
    "spread": spread.RULES,
    "memory": memory.RULES,
    "fitness": fitness.RULES,
}
RULES = tuple(rule for rules in AREAS.values() for rule in rules)
RULE_NAMES = tuple(rule.name for rule in RULES)
# A cause takes in what another rule sees only if it accounts for at least half of it.
EXPLAINS_SHARE = 0.5
SAME_SHARE = 0.1
_ORDER = {"critical": 0, "warning": 1, "info": 2}


def findings(context: RuleContext, ignored: frozenset[str] = frozenset()) -> tuple[Finding, ...]:
    """Return what the rules find: doubts about the profile, causes by realistic gain, remarks.

    There is one finding for each cause, with what other rules saw of it as consequences.
    """
    found = {
        rule.name: finding
        for area, rules in AREAS.items()
        for rule in rules
        if rule.name not in ignored and (finding := rule.finding(context, area)) is not None
    }
    causes: dict[str, str] = {}
    for rule in RULES:
        cause = found.get(rule.name)
        if cause is None:
            continue
        for name in rule.explains:
            is_free = name in found and name not in causes and name != _root(rule.name, causes)
            if is_free and _covers(cause, found[name]):
                causes[name] = rule.name
    kept = {name: finding for name, finding in found.items() if name not in causes}
    for name, cause_name in causes.items():
        root = _root(cause_name, causes)
        if root in kept:
            kept[root] = _with_consequence(kept[root], found[name])

    def order(finding: Finding) -> tuple[bool, bool, float, int]:
        is_remark = finding.severity == "info"
        return not _is_doubt(finding), is_remark, -finding.gain_low, _ORDER[finding.severity]

    return tuple(sorted(kept.values(), key=order))


def work_gains_more(found: tuple[Finding, ...]) -> bool:
    """Return whether findings on the device's work gain more than those on its waits."""
    gains = [
        (finding.account == "compute", finding.gain_low) for finding in found if finding.severity != "info"
    ]
    waits = [gain for is_work, gain in gains if not is_work]
    return max((gain for is_work, gain in gains if is_work), default=0.0) > max(waits, default=0.0)


def _is_doubt(finding: Finding) -> bool:
    """Return whether it warns of the profile itself, which comes before any advice."""
    return finding.area == "fitness" and finding.severity != "info"


def _with_consequence(cause: Finding, seen: Finding) -> Finding:
    """Return the cause with a consequence; it is as severe as what it brings about."""
    severity = min(cause.severity, seen.severity, key=_ORDER.__getitem__)
    # Where a more general rule saw the same time, its claim would only say so a second time.
    same_gain = abs(cause.gain_high - seen.gain_high) <= SAME_SHARE * cause.gain_high
    claims = () if cause.account == seen.account and same_gain else (seen.claim,)
    return msgspec.structs.replace(cause, severity=severity, consequences=(*cause.consequences, *claims))


def _covers(cause: Finding, seen: Finding) -> bool:
    """Return whether the cause accounts for enough of it; of a wait for the host only its idle part does."""
    if _is_doubt(cause):
        return True
    idle = cause.evidence.get("idle_share")
    is_idle = seen.account == "idle_host" and cause.account != "idle_host"
    part = idle if is_idle and isinstance(idle, float) else cause.gain_high
    return part >= EXPLAINS_SHARE * seen.gain_high


def _root(name: str, causes: dict[str, str]) -> str:
    while name in causes:
        name = causes[name]
    return name
