"""The ledger of a step as shares, and the bottleneck that it names."""

from __future__ import annotations

from stepgrade.analysis.bottleneck import Bottleneck, Verdict
from stepgrade.analysis.limits import Limits
from stepgrade.analysis.operations import total_by_operation
from stepgrade.analysis.scorecard import Ledger
from stepgrade.model import LedgerTime, Profile
from stepgrade.units import show_count, show_share

_WAITS = {
    "exposed_copy": (Bottleneck.TRANSFER, "copying between host and device with nothing else to do"),
    "exposed_communication": (Bottleneck.COMMUNICATION, "in communication that no computation hides"),
    "idle_input": (Bottleneck.INPUT, "idle, waiting for input"),
    "idle_host": (Bottleneck.LAUNCH, "idle, waiting for the host to launch work"),
    "idle_sync": (Bottleneck.HOST, "idle while the host waits in a synchronisation"),
}
# Arithmetic dominates these; the others move more bytes than they compute.
_ARITHMETIC = frozenset({"attention", "convolution", "gemm"})


def shares_of(ledger: LedgerTime | None) -> Ledger | None:
    """Return the seven accounts as shares of the time they add up to."""
    if ledger is None or not ledger.total_ns:
        return None
    return Ledger(
        **{
            account: getattr(ledger, f"{account}_ns") / ledger.total_ns
            for account in Ledger.__struct_fields__
        }
    )


def bottleneck_of_ledger(profile: Profile, limits: Limits) -> Verdict | None:
    """Name the largest wait above the limit, else the work that fills the device; None without a ledger."""
    ledger = shares_of(profile.ledger)
    if ledger is None:
        return None
    account = max(_WAITS, key=lambda name: getattr(ledger, name))
    share = getattr(ledger, account)
    if share > limits.waiting_share:
        bottleneck, words = _WAITS[account]
        evidence = f"the device is {show_share(share)} of the step {words}{_launches(profile, bottleneck)}"
        return Verdict(bottleneck=bottleneck, evidence=(evidence,))
    if ledger.compute is not None and ledger.compute > limits.near_ceiling:
        return _busy(profile, ledger.compute)
    evidence = f"no single wait is above {show_share(limits.waiting_share, 0)} of the step"
    return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))


def _launches(profile: Profile, bottleneck: Bottleneck) -> str:
    if bottleneck is not Bottleneck.LAUNCH or profile.launches_per_step is None:
        return ""
    return f" ({show_count(round(profile.launches_per_step))} launches per step)"


def _busy(profile: Profile, compute: float) -> Verdict:
    """Tell arithmetic from memory traffic by which operations the device's time is in."""
    kinds = {op.name: op.kind for op in profile.operations}
    totals = total_by_operation(profile)
    whole = sum(totals.values())
    busy = f"the device computes {show_share(compute)} of the step"
    if not whole or not any(kinds.values()):
        return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(f"{busy}; its operations are not known",))
    share = sum(ms for name, ms in totals.items() if kinds.get(name) in _ARITHMETIC) / whole
    if share > 0.5:
        evidence = (
            f"{busy}, and {show_share(share)} of the operations' time is in matrix products and attention"
        )
        return Verdict(bottleneck=Bottleneck.COMPUTE, evidence=(evidence,))
    evidence = (
        f"{busy}, and {show_share(1 - share)} of the operations' time is in those that mostly move memory"
    )
    return Verdict(bottleneck=Bottleneck.MEMORY_BW, evidence=(evidence,))
