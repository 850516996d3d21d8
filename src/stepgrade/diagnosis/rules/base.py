"""What a rule is: a function that looks for one problem, and what its finding means to the reader."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.needs import fitting
from stepgrade.model.activity import HostLine
from stepgrade.model.finding import Finding, Severity
from stepgrade.scoring.runtime import Runtime

Evidence = dict[str, float | str]


class Found(Struct, frozen=True):
    """What a rule found: the claim, the numbers behind it, and the share of the step that it costs."""

    severity: Severity
    claim: str
    evidence: Evidence
    share: float = 0.0
    remedy: str | None = None  # in place of the rule's own words
    check: str | None = None  # in place of the rule's own words
    warning: str | None = None  # the code of the source's warning that it repeats
    line: HostLine | None = None  # of the user's code, where the time goes


class Levels(NamedTuple):
    """The shares from which a problem is a remark, a warning and critical."""

    info: float
    warning: float
    critical: float | None = None

    def severity(self, share: float) -> Severity | None:
        """Return the highest level that the share reaches, None below all of them."""
        if self.critical is not None and share >= self.critical:
            return "critical"
        if share >= self.warning:
            return "warning"
        return "info" if share >= self.info else None

    def found(
        self,
        share: float,
        claim: str,
        evidence: Evidence,
        *,
        gain: float | None = None,
        remedy: str | None = None,
        line: HostLine | None = None,
    ) -> Found | None:
        """Return a finding as severe as the share; the gain is the whole share unless given."""
        severity = self.severity(share)
        if severity is None:
            return None
        return Found(severity, claim, evidence, share if gain is None else gain, remedy, line=line)


class Worth(NamedTuple):
    """What a finding may gain: at most what the ledger has in these accounts, realistically a part of it."""

    accounts: str  # several are joined by +
    realistic: float
    because: str


class Remedy(NamedTuple):
    """What to do in runs of one kind."""

    kind: str  # of run, in words
    when: Callable[[RuleContext], bool]
    text: str


class Rule(Struct, frozen=True, kw_only=True):
    """One rule: its name, how it finds a problem, what to do about it, and when it is wrong."""

    name: str
    find: Callable[[RuleContext], Found | None]
    sees: str
    evidence: str
    fix: str
    fix_pytorch: str | None = None  # in the words of a runtime, where they say more
    fix_jax: str | None = None
    fix_reference: str | None = None
    fix_where: tuple[Remedy, ...] = ()  # for runs of some kinds, the first that fits
    wrong_when: str
    check: str
    sources: str
    worth: Worth | None = None  # None for what costs no time by itself
    explains: tuple[str, ...] = ()  # rules that see the same cause from another side

    def finding(self, context: RuleContext, area: str) -> Finding | None:
        """Apply the rule, and limit the gain that it promises to what the ledger has."""
        found = self.find(context)
        remedy = self.remedy(context, found) if found is not None else ""
        if found is None or not remedy:  # what nothing can be done about in such a run is not worth saying
            return None
        high = part = 0.0
        if self.worth is not None:
            known = context.account(*self.worth.accounts.split("+")) if context.ledger else 1.0
            high, part = min(found.share, 1.0, known), self.worth.realistic
        evidence = found.evidence
        if found.line is not None:
            evidence = evidence | {"function": found.line.function}
        named = evidence.get("operation")
        place = next((op.where for op in context.operations if op.name == named), None)
        return Finding(
            rule=self.name,
            severity=found.severity,
            claim=found.claim
            if found.line is None
            else f"{found.claim.removesuffix('.')}: {found.line.shown}.",
            evidence=evidence,
            remedy=remedy,
            where=place if found.line is None else found.line.where,
            gain_low=max(0.0, high * part),
            gain_high=max(0.0, high),
            check=found.check or self.check,
            area=area,
            gain_basis=self.worth.because if self.worth else "",
            account=self.worth.accounts if self.worth else None,
            warning=found.warning,
        )

    def remedy(self, context: RuleContext, found: Found) -> str:
        """Return what to do: the first remedy that can be followed in this run; empty if none can."""
        if context.runtime is Runtime.REFERENCE:
            return found.remedy or self.fix_reference or self.fix
        of_runtime = {Runtime.PYTORCH: self.fix_pytorch, Runtime.JAX: self.fix_jax}.get(context.runtime)
        elsewhere = (remedy.text for remedy in self.fix_where if remedy.when(context))
        remedies = (found.remedy, *elsewhere, of_runtime, self.fix)
        return next((said for text in remedies if text and (said := fitting(text, context))), "")
