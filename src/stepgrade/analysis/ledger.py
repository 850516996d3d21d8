"""The ledger of a step as shares, the causes that it ranks, and the bottleneck that it names."""

from __future__ import annotations

from stepgrade.analysis.bottleneck import Bottleneck, Verdict
from stepgrade.analysis.limits import Limits
from stepgrade.analysis.samples import step_ms_of
from stepgrade.analysis.scorecard import Cause, Ledger, Operation
from stepgrade.model import LedgerTime, Profile
from stepgrade.units import show_count, show_share

_WORDS = {
    Bottleneck.TRANSFER: "copying between host and device with nothing else to do",
    Bottleneck.COMMUNICATION: "in communication that no computation hides",
    Bottleneck.INPUT: "idle, waiting for input",
    Bottleneck.LAUNCH: "idle, waiting for the host to launch work",
    Bottleneck.HOST: "idle while the host does other work or waits in a synchronisation",
    Bottleneck.UNKNOWN: "idle for a reason that was not recorded",
}
_PHASE_WORDS = {
    Bottleneck.TRANSFER: "host-device transfers",
    Bottleneck.COMMUNICATION: "communication",
    Bottleneck.INPUT: "waiting for input",
    Bottleneck.LAUNCH: "no phase: launches and host work between them",
    Bottleneck.HOST: "host work",
    Bottleneck.UNKNOWN: "forward, backward and optimizer; what limits them needs operations with shapes",
}
# Arithmetic dominates these; the others move more bytes than they compute.
_ARITHMETIC = frozenset({"attention", "convolution", "gemm"})
LEAST_SHARE = 0.0005


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


def rank_causes(
    profile: Profile, ledger: Ledger | None, operations: tuple[Operation, ...]
) -> tuple[Cause, ...]:
    """Return what a step's time goes to, the largest share first; the shares add up to 1."""
    if ledger is None:
        return ()
    on_device = profile.ledger is not None
    shares = _waits(profile, ledger) if on_device else _phase_waits(ledger)
    if on_device:
        shares |= _work(ledger, operations)
    words = _WORDS if on_device else _PHASE_WORDS
    causes = [_cause(profile, name, share, words) for name, share in shares.items() if share > LEAST_SHARE]
    return tuple(sorted(causes, key=lambda cause: -cause.share))


def _cause(profile: Profile, name: Bottleneck, share: float, words: dict[Bottleneck, str]) -> Cause:
    told = words.get(name)
    if told is None:
        limit = "arithmetic" if name is Bottleneck.COMPUTE else "moving memory"
        told = f"in work that is mostly {limit}"
    on_device = profile.ledger is not None
    start = (
        f"the device is {show_share(share)} of the step"
        if on_device
        else f"{show_share(share)} of the step goes to"
    )
    step_ms = step_ms_of(profile)
    return Cause(
        bottleneck=name.value,
        share=share,
        remaining_ms=None if step_ms is None else step_ms * (1.0 - share),
        evidence=f"{start} {told}",
    )


def _waits(profile: Profile, ledger: Ledger) -> dict[Bottleneck, float]:
    """Return the waits: short gaps are the price of launches, long ones are the host's."""
    idle = ledger.idle_host or 0.0
    stalled = idle if not _has_launches(profile) else min(idle, _stall_share(profile))
    return {
        Bottleneck.INPUT: ledger.idle_input or 0.0,
        Bottleneck.COMMUNICATION: ledger.exposed_communication or 0.0,
        Bottleneck.TRANSFER: ledger.exposed_copy or 0.0,
        Bottleneck.LAUNCH: idle - stalled,
        Bottleneck.HOST: stalled + (ledger.idle_sync or 0.0),
        Bottleneck.UNKNOWN: ledger.unattributed or 0.0,
    }


def _has_launches(profile: Profile) -> bool:
    return profile.activity is None or profile.activity.driver != "host"


def _stall_share(profile: Profile) -> float:
    gaps = profile.activity.gaps if profile.activity else None
    return (gaps.stall_ms + gaps.after_sync_ms) / profile.step_ms if gaps and profile.step_ms else 0.0


def _phase_waits(ledger: Ledger) -> dict[Bottleneck, float]:
    return {
        Bottleneck.INPUT: ledger.idle_input or 0.0,
        Bottleneck.COMMUNICATION: ledger.exposed_communication or 0.0,
        Bottleneck.TRANSFER: ledger.exposed_copy or 0.0,
        Bottleneck.HOST: ledger.idle_host or 0.0,
        Bottleneck.LAUNCH: ledger.unattributed or 0.0,
        Bottleneck.UNKNOWN: ledger.compute or 0.0,
    }


def _work(ledger: Ledger, operations: tuple[Operation, ...]) -> dict[Bottleneck, float]:
    """Return the device's work split into what arithmetic and what memory limits."""
    compute = ledger.compute or 0.0
    arithmetic = arithmetic_share(operations)
    if arithmetic is None:
        return {Bottleneck.UNKNOWN: (ledger.unattributed or 0.0) + compute}
    return {
        Bottleneck.COMPUTE: compute * arithmetic,
        Bottleneck.MEMORY_BW: compute * (1.0 - arithmetic),
    }


def arithmetic_share(operations: tuple[Operation, ...]) -> float | None:
    """Return the share of the operations' time that arithmetic limits, by their roofs or else class."""
    work = [op for op in operations if op.ms and op.kind != "communication"]
    whole = sum(op.ms or 0.0 for op in work)
    if not whole or not any(op.kind != "other" for op in work):
        return None
    bound = sum(op.ms or 0.0 for op in work if _is_arithmetic(op))
    return bound / whole


def _has_roofs(operations: tuple[Operation, ...]) -> bool:
    whole = sum(op.ms or 0.0 for op in operations)
    return sum(op.ms or 0.0 for op in operations if op.roof is not None) > 0.5 * whole


def _is_arithmetic(op: Operation) -> bool:
    """Tell which roof is lower; a class alone decides where not both FLOPs and bytes are known."""
    if op.roof is not None and op.flops and op.bytes:
        return op.roof == "compute"
    return op.kind in _ARITHMETIC


def bottleneck_of_ledger(
    profile: Profile, causes: tuple[Cause, ...], operations: tuple[Operation, ...], limits: Limits
) -> Verdict | None:
    """Name the largest wait above the limit, else the work that fills the device; None without a ledger."""
    ledger = shares_of(profile.ledger)
    if ledger is None:
        return None
    waits = [cause for cause in causes if cause.bottleneck not in ("compute", "memory_bw")]
    if waits and waits[0].share >= limits.device_wait_share and _is_wait(waits[0], ledger):
        return _wait_verdict(profile, waits[0])
    if ledger.compute is not None and ledger.compute > limits.busy_share:
        return _busy(ledger.compute, operations)
    evidence = f"no single wait is {show_share(limits.device_wait_share, 0)} of the step or more"
    return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))


def _is_wait(cause: Cause, ledger: Ledger) -> bool:
    """Tell waits from work whose operations are not known, which is `unknown` as well."""
    return cause.bottleneck != "unknown" or cause.share <= (ledger.unattributed or 0.0) + LEAST_SHARE


def _wait_verdict(profile: Profile, cause: Cause) -> Verdict:
    name = Bottleneck(cause.bottleneck)
    if name is Bottleneck.UNKNOWN:
        evidence = f"{cause.evidence}; record all activities of host and device to know"
        return Verdict(bottleneck=name, evidence=(evidence,))
    return Verdict(bottleneck=name, evidence=(f"{cause.evidence}{_launches(profile, name)}",))


def _launches(profile: Profile, bottleneck: Bottleneck) -> str:
    if bottleneck is not Bottleneck.LAUNCH or profile.launches_per_step is None:
        return ""
    return f" ({show_count(round(profile.launches_per_step))} launches per step)"


def _busy(compute: float, operations: tuple[Operation, ...]) -> Verdict:
    """Tell arithmetic from memory traffic by the roofs or classes of what the device's time is in."""
    busy = f"the device computes {show_share(compute)} of the step"
    share = arithmetic_share(operations)
    if share is None:
        evidence = f"{busy}; its operations are not known: record host operations with shapes"
        return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))
    told = "" if _has_roofs(operations) else " (by their class: not all have shapes and a known device)"
    if share > 0.5:
        evidence = (
            f"{busy}, and {show_share(share)} of the operations' time is in matrix products and attention"
            f"{told}"
        )
        return Verdict(bottleneck=Bottleneck.COMPUTE, evidence=(evidence,))
    evidence = (
        f"{busy}, and {show_share(1 - share)} of the operations' time is in those that "
        f"mostly move memory{told}"
    )
    return Verdict(bottleneck=Bottleneck.MEMORY_BW, evidence=(evidence,))
