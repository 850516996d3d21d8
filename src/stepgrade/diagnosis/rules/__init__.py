"""The rules by area, their settings, and the findings they give: one for each cause."""

from __future__ import annotations

import msgspec
from msgspec import Struct, structs

from stepgrade.config import Config, check_names
from stepgrade.config.limits import Limits
from stepgrade.decoding import from_builtins
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rule import Rule
from stepgrade.diagnosis.rules import arithmetic, bandwidth, fitness, launch, memory, ranks, run, waits
from stepgrade.errors import BadConfig
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.scorecard import Finding, JointGain

_WRITTEN = [
    structs.replace(rule, name=name.replace("_", "-"))
    for module in (waits, launch, arithmetic, bandwidth, ranks, run, memory, fitness)
    for name, rule in vars(module).items()
    if isinstance(rule, Rule)
]
# Each area is a page under docs/rules/. Of two rules that explain a third, the earlier one does.
_AREAS = (
    "hang input transfer synchronisation launch compilation precision attention gemm optimizer elementwise "
    "layout communication ranks layers goodput spread memory fitness"
)
AREAS = {area: tuple(rule for rule in _WRITTEN if rule.area == area) for area in _AREAS.split()}
RULES = tuple(rule for rules in AREAS.values() for rule in rules)
RULE_NAMES = tuple(rule.name for rule in RULES)
EXPLAINS_SHARE = 0.5  # a cause explains another finding if it accounts for at least half of it
SAME_SHARE = 0.1
# Realistic gains closer than this are alike: of what replays gave, 73 to 94 % came (docs/accuracy.md).
_ALIKE = 0.7
_FIRST = 3  # fixes whose gain is also told together
_ORDER = {"critical": 0, "warning": 1, "info": 2}


class Settings(Struct, frozen=True, kw_only=True):
    """Limits, and the rules to skip."""

    limits: Limits = Limits()
    ignored_rules: frozenset[str] = frozenset()


DEFAULT_SETTINGS = Settings()


def settings_from(config: Config) -> Settings:
    """Return `[limits]` and `[rules] ignore = [...]`; raise BadConfig at the key that is wrong."""
    where = config.where
    check_names(config.limits, Limits.__struct_fields__, f"{where}: [limits]")
    check_names(config.rules, ("ignore",), f"{where}: [rules]")
    ignored = config.rules.get("ignore", [])
    if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
        raise BadConfig("must be a list of names", where=f"{where}: rules.ignore")
    check_names(ignored, RULE_NAMES, f"{where}: rules.ignore")
    try:
        limits = from_builtins(config.limits, Limits)
    except msgspec.ValidationError as error:
        raise BadConfig(str(error).replace("$.", "limits."), where=where) from error
    return Settings(limits=limits, ignored_rules=frozenset(ignored))


def findings(
    context: RuleContext, ignored: frozenset[str] = frozenset()
) -> tuple[tuple[Finding, ...], JointGain | None]:
    """Return one finding for each cause, and what the first fixes bring together.

    What other rules saw of a cause are its consequences.

    Doubts about the profile come first, then causes by realistic gain, then remarks. A fix of the bottleneck
    goes before those that gain no more than a replay may be off.
    """
    found = {
        rule.name: finding
        for rule in RULES
        if rule.name not in ignored and (finding := rule.finding(context)) is not None
    }
    kept = _one_for_each_cause(found)
    promises = {
        name: promise
        for rule in RULES
        if (name := rule.name) in kept and (promise := rule.promise(context, kept[name])) is not None
    }
    for name, promise in promises.items():
        kept[name] = structs.replace(
            kept[name],
            gain_low=promise.low,
            gain_high=promise.high,
            change=tuple(map(str, promise.changes)),
            gain_by=promise.by,
            next_limit=promise.next_limit,
        )

    def order(finding: Finding) -> tuple[bool, bool, float, int]:
        is_remark = finding.severity == "info"
        return not _is_doubt(finding), is_remark, -finding.gain_low, _ORDER[finding.severity]

    in_order = tuple(sorted(kept.values(), key=order))
    causes = [one for one in in_order if one.severity != "info" and not _is_doubt(one)]
    is_work = context.account("compute") > context.limits.busy_share and work_gains_more(in_order)
    own = "compute" if is_work else context.verdict.bottleneck.value
    for one in causes:
        account = ACCOUNTS.get(one.account or "")
        is_own = own in (one.account, account and account.cause)
        if is_own and one.gain_low > _ALIKE * causes[0].gain_low:
            rest = [other for other in in_order if other is not one]
            rest.insert(in_order.index(causes[0]), one)
            in_order = tuple(rest)
            break
    first = [one.rule for one in in_order if one.severity != "info" and one.gain_low > 0.0][:_FIRST]
    if len(first) < 2:
        return in_order, None
    joint, step_ms = context.promises.together([promises[name] for name in first]), context.times.typical_ms
    together = JointGain(
        rules=tuple(first),
        gain_low=joint.low,
        gain_high=joint.high,
        gain_by=joint.by,
        step_ms=None if step_ms is None else step_ms * (1.0 - joint.high),
        next_limit=joint.next_limit,
    )
    return in_order, together


def _one_for_each_cause(found: dict[str, Finding]) -> dict[str, Finding]:
    """Return the findings that no other explains, with what the explained ones saw."""
    causes: dict[str, str] = {}

    def root(name: str) -> str:
        while name in causes:
            name = causes[name]
        return name

    for rule in RULES:
        if rule.name not in found:
            continue
        for name in rule.explains:
            is_free = name in found and name not in causes and name != root(rule.name)
            if is_free and _covers(found[rule.name], found[name]):
                causes[name] = rule.name
    kept = {name: finding for name, finding in found.items() if name not in causes}
    for name, explaining in causes.items():
        seen, cause = found[name], kept[root(explaining)]
        # A more general rule that saw the same time has nothing to add.
        same_gain = abs(cause.gain_high - seen.gain_high) <= SAME_SHARE * cause.gain_high
        claims = () if cause.account == seen.account and same_gain else (seen.claim,)
        kept[root(explaining)] = structs.replace(
            cause,
            severity=min(cause.severity, seen.severity, key=_ORDER.__getitem__),
            consequences=(*cause.consequences, *claims),
        )

    return kept


def work_gains_more(found: tuple[Finding, ...]) -> bool:
    """Return whether fixes of the work gain more than those of waits; or as much, of mild waits."""
    work, waiting = (
        [
            (finding.gain_low, finding.severity)
            for finding in found
            if finding.severity != "info" and (finding.account == "compute") is is_work
        ]
        for is_work in (True, False)
    )
    (gain, _), (other, severity) = (max(some, default=(0.0, "")) for some in (work, waiting))
    return gain > (1.0 if severity == "critical" else _ALIKE) * other


def _is_doubt(finding: Finding) -> bool:
    """Return whether the finding doubts the profile itself, which comes before any advice."""
    return finding.area == "fitness" and finding.severity != "info"


def _covers(cause: Finding, seen: Finding) -> bool:
    """Return whether the cause accounts for enough of the finding; for a wait for the host, its idle part."""
    if _is_doubt(cause):
        return True
    idle = cause.evidence.get("idle_share")
    is_idle = seen.account == "idle_host" and cause.account != "idle_host"
    part = idle if is_idle and isinstance(idle, float) else cause.gain_high
    return part >= EXPLAINS_SHARE * seen.gain_high
