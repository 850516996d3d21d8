"""What a rule reports: a claim, the numbers behind it, and what to do."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

Severity = Literal["info", "warning", "critical"]


class Finding(Struct, frozen=True, kw_only=True):
    """One thing worth knowing about a run; gains are shares of the step (0 to 1).

    `gain_high` is what the ledger holds of it, `gain_low` what is realistic and `gain_basis` says why.
    `consequences` are claims of rules that saw the same cause from another side. `where` is the line of the
    user's Python code ("file.py:12") that the time goes to, where the source recorded stacks.
    """

    rule: str
    severity: Severity
    claim: str
    evidence: dict[str, float | str]
    remedy: str
    gain_low: float
    gain_high: float
    check: str
    area: str = ""
    gain_basis: str = ""
    account: str | None = None  # the account of the ledger that the gain comes out of
    consequences: tuple[str, ...] = ()
    warning: str | None = None  # the code of the warning about the source that it repeats
    where: str | None = None
