"""What a rule is: one question about the context, and what its answer means for whoever reads it."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.model.finding import Finding, Severity
from stepgrade.scoring.runtime import Runtime


class Found(Struct, frozen=True, kw_only=True):
    """What a rule saw: the claim, the numbers behind it, and the share of the step that it holds."""

    severity: Severity
    claim: str
    evidence: dict[str, float | str]
    share: float = 0.0
    realistic: float | None = None  # in place of the rule's own fraction
    remedy: str | None = None  # in place of the rule's own words
    check: str | None = None
    warning: str | None = None  # the code of the source's warning that it repeats


Check = Callable[[RuleContext, Limits], Found | None]


class Rule(Struct, frozen=True, kw_only=True):
    """One rule: how it is called, what it sees, what to do, and when it is wrong."""

    name: str
    area: str
    sees: str
    evidence: str
    fix: dict[str, str]  # by runtime; `general` is always there
    wrong_when: str
    check: str
    ask: Check
    account: str | None = None  # of the ledger; several are joined by +
    realistic: float = 0.0
    because: str = ""
    explains: tuple[str, ...] = ()  # rules that see the same cause from another side
    sources: str = ""

    def finding(self, context: RuleContext, limits: Limits) -> Finding | None:
        """Ask the rule, and bound what it promises by the ledger."""
        found = self.ask(context, limits)
        if found is None:
            return None
        high = min(found.share, bound_of(self.account, context)) if self.account else 0.0
        part = self.realistic if found.realistic is None else found.realistic
        return Finding(
            rule=self.name,
            severity=found.severity,
            claim=found.claim,
            evidence=found.evidence,
            remedy=found.remedy or self.remedy(context.runtime),
            gain_low=max(0.0, high * part),
            gain_high=max(0.0, high),
            check=found.check or self.check,
            area=self.area,
            gain_basis=self.because,
            account=self.account,
            warning=found.warning,
        )

    def remedy(self, runtime: Runtime) -> str:
        """Return what to do in the words of the runtime."""
        return self.fix.get(runtime.value) or self.fix["general"]


def bound_of(account: str, context: RuleContext) -> float:
    """Return the share of the step that the ledger holds in these accounts; 1 without a ledger."""
    if context.ledger is None:
        return 1.0
    return min(1.0, context.account(*account.split("+")))


def rule(**about: object) -> Callable[[Check], Rule]:
    """Make a rule of the function that asks the question; its docstring's place is taken by `sees`."""

    def made(ask: Check) -> Rule:
        return Rule(ask=ask, **about)  # type: ignore[arg-type]  # the fields are checked where rules are listed

    return made


def severity_of(share: float, limits: Limits, name: str) -> Severity | None:
    """Return how severe a share is by the three lines that the limits draw for `name`, None below them."""
    severities: tuple[Severity, ...] = ("critical", "warning", "info")
    for severity in severities:
        line = getattr(limits, f"{name}_{severity}_share", None)
        if line is not None and share >= line:
            return severity
    return None
