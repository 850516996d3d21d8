"""The ledger of a step: one table of accounts, which everything that sums, names or draws them reads."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, get_type_hints

from msgspec import Struct, structs


class Account(Struct, frozen=True, kw_only=True):
    """One account of the ledger: what it is called, how it is drawn, and what it means for a run."""

    words: str  # what the device does in this time
    charged: str  # which time belongs to it
    colour: str  # as a variable of report.css
    label_colour: str = "on-mark"  # of text on it
    cause: str | None = None  # the bottleneck that its time counts as; None where scoring splits it
    gap: str | None = None  # its part of the gap between two runs; None where parity splits it
    late: str | None = None  # why a rank is late that has more of it than the others
    part: str | None = None  # of a replayed step, that its fixes change
    takes_all_ranks: bool = False  # one rank alone does not show it: its time is in the account before


class Ledger(Struct, frozen=True, kw_only=True):
    """A step's time by account, as time or as shares of the step; None is what the source cannot tell.

    The accounts are disjoint and add up to the step. Their order is the order in which they are shown.
    """

    compute: Annotated[
        float | None,
        Account(
            words="computes",
            charged="compute runs, alone or with other work",
            colour="c-compute",
            late="it computes longer",
            part="compute",
        ),
    ] = None
    exposed_communication: Annotated[
        float | None,
        Account(
            words="communicates",
            charged="it communicates and computes nothing",
            colour="c-comm",
            cause="communication",
            part="communication",
        ),
    ] = None
    wait_ranks: Annotated[
        float | None,
        Account(
            words="waits for other ranks",
            charged="it is in a collective that the last rank has not reached yet, and computes nothing",
            colour="c-ranks",
            cause="straggler",
            gap="waiting for other ranks",
            takes_all_ranks=True,
            part="stragglers",
        ),
    ] = None
    exposed_copy: Annotated[
        float | None,
        Account(
            words="copies",
            charged="it copies between host and device and does nothing else",
            colour="c-copy",
            cause="transfer",
            gap="copies between host and device",
            late="it copies more",
            part="copies",
        ),
    ] = None
    idle_input: Annotated[
        float | None,
        Account(
            words="waits for input",
            charged="it is idle while its host fetches input",
            colour="c-input",
            label_colour="on-light",
            cause="input",
            gap="waiting for input",
            late="it waits for input",
            part="input",
        ),
    ] = None
    idle_host: Annotated[
        float | None,
        Account(
            words="waits for the host",
            charged="it is idle until its host launches the next work",
            colour="c-host",
            label_colour="on-light",
            cause="launch",
            late="its host launches late",
            part="host",
        ),
    ] = None
    idle_sync: Annotated[
        float | None,
        Account(
            words="waits in a sync",
            charged="it is idle because its host had waited for it and could not run ahead",
            colour="c-sync",
            cause="host",
            gap="waiting in synchronisation",
            late="its host waits for the device more often",
            part="sync",
        ),
    ] = None
    unattributed: Annotated[
        float | None,
        Account(
            words="not known",
            charged="it is idle, and the source does not show why",
            colour="c-other",
            label_colour="on-light",
            cause="unknown",
            gap="idle for unknown reasons",
            late="it is idle for a reason that was not recorded",
        ),
    ] = None

    def known(self) -> dict[str, float]:
        """Return the accounts that the source tells apart, by name."""
        return {name: value for name in ACCOUNTS if (value := getattr(self, name)) is not None}

    @property
    def total(self) -> float:
        """Return what the accounts add up to."""
        return sum(self.known().values())

    def shares(self) -> dict[str, float]:
        """Return each known account as a share of the total; all zero for an empty ledger."""
        total = self.total or 1
        return {name: value / total for name, value in self.known().items()}

    @classmethod
    def of(cls, times: Ledger | None) -> Ledger | None:
        """Return times as shares of what they add up to; None without any."""
        return cls(**times.shares()) if times is not None and times.total else None

    @classmethod
    def sum(cls, ledgers: Iterable[Ledger]) -> Ledger:
        """Return the sum of ledgers in one unit, account by account; None where none has it."""
        known = [ledger.known() for ledger in ledgers]
        return cls(
            **{
                name: sum(each.get(name, 0) for each in known)
                for name in ACCOUNTS
                if any(name in each for each in known)
            }
        )

    @property
    def in_collectives(self) -> float:
        """Return the time in communication with nothing else to do, whatever the rank waited for there."""
        return (self.exposed_communication or 0) + (self.wait_ranks or 0)

    def without_waiting(self) -> Ledger:
        """Return the ledger with waiting for other ranks charged to communication, as one rank shows it."""
        if self.wait_ranks is None:
            return self
        return structs.replace(self, exposed_communication=self.in_collectives, wait_ranks=None)

    def with_waiting(self, waited: float) -> Ledger:
        """Return the ledger with so much of its exposed communication charged to waiting for other ranks."""
        exposed = self.exposed_communication or 0
        waited = min(waited, exposed)
        return structs.replace(self, exposed_communication=exposed - waited, wait_ranks=waited)


ACCOUNTS: dict[str, Account] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(Ledger, include_extras=True).items()
}
ALL_ACCOUNTS = "+".join(ACCOUNTS)


def account_words(name: str) -> str:
    """Return what an account is called; a stored card may name one that this version does not have."""
    return ACCOUNTS[name].words if name in ACCOUNTS else name
