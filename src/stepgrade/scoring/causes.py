"""The ledger of a step as shares, the causes that it ranks, and the bottleneck that it names."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.model import Ledger, LedgerTime, Profile
from stepgrade.model.scorecard import Cause, Operation
from stepgrade.scoring.bottleneck import Bottleneck, Verdict
from stepgrade.scoring.step_times import step_ms_of
from stepgrade.units import show_count, show_share

_WORDS = {
    Bottleneck.TRANSFER: "copying between host and device with nothing else to do",
    Bottleneck.COMMUNICATION: "in communication that no computation hides",
    Bottleneck.INPUT: "idle, waiting for input",
    Bottleneck.LAUNCH: "idle, waiting for the host to launch work",
    Bottleneck.HOST: "idle while the host does other work or waits in a synchronisation",
    Bottleneck.UNKNOWN: "idle for a reason that was not recorded",
}
_UNTOLD = "in work of which shapes would tell what limits it, or idle for a reason that was not recorded"
_PHASE_WORDS = {
    Bottleneck.TRANSFER: "host-device transfers",
    Bottleneck.COMMUNICATION: "communication",
    Bottleneck.INPUT: "waiting for input",
    Bottleneck.LAUNCH: "no phase: launches and host work between them",
    Bottleneck.HOST: "host work",
    Bottleneck.UNKNOWN: "forward, backward and optimizer; what limits them needs operations with shapes",
}
# On a run without an accelerator the processor is the device, and nothing is launched.
_PROCESSOR_WORDS = {
    Bottleneck.HOST: "in no operation: in Python, or in work outside of the framework",
}
# Arithmetic dominates these; the others move more bytes than they compute.
_ARITHMETIC = frozenset({"attention", "convolution", "gemm"})
_PRODUCTS = {"gemm": "matrix products", "convolution": "convolutions", "attention": "attention"}
LEAST_SHARE = 0.0005


def shares_of(ledger: LedgerTime | None) -> Ledger | None:
    """Return the seven accounts as shares of the time they add up to."""
    if ledger is None or not ledger.total_ns:
        return None
    return Ledger(**ledger.shares())


def rank_causes(
    profile: Profile, ledger: Ledger | None, operations: tuple[Operation, ...]
) -> tuple[Cause, ...]:
    """Return what a step's time goes to, the largest share first; the shares add up to 1."""
    if ledger is None:
        return ()
    on_device = profile.ledger is not None
    shares = _waits(profile, ledger) if on_device else _phase_waits(ledger)
    if on_device:
        shares |= _work(profile, ledger, operations)
    words = _WORDS if on_device else _PHASE_WORDS
    if on_device and not _has_launches(profile):
        words = _WORDS | _PROCESSOR_WORDS
    causes = [_cause(profile, name, share, words) for name, share in shares.items() if share > LEAST_SHARE]
    return tuple(sorted(causes, key=lambda cause: -cause.share))


def _cause(profile: Profile, name: Bottleneck, share: float, words: dict[Bottleneck, str]) -> Cause:
    told = words.get(name)
    if name is Bottleneck.UNKNOWN and share > (_unattributed(profile) or 0.0) + LEAST_SHARE:
        told = _UNTOLD
    if told is None:
        limit = "arithmetic" if name is Bottleneck.COMPUTE else "moving memory"
        told = f"in work that is mostly {limit}"
    start = f"{show_share(share)} of the step goes to"
    if profile.ledger is not None:
        start = f"the {_what_computes(profile)} is {show_share(share)} of the step"
    step_ms = step_ms_of(profile)
    return Cause(
        bottleneck=name.value,
        share=share,
        remaining_ms=None if step_ms is None else step_ms * (1.0 - share),
        evidence=f"{start} {told}",
    )


def _unattributed(profile: Profile) -> float | None:
    ledger = shares_of(profile.ledger)
    return ledger.unattributed if ledger else 1.0


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
    return (
        (gaps.stall_ms + gaps.after_sync_ms) / profile.mean_step_ms if gaps and profile.mean_step_ms else 0.0
    )


def _phase_waits(ledger: Ledger) -> dict[Bottleneck, float]:
    return {
        Bottleneck.INPUT: ledger.idle_input or 0.0,
        Bottleneck.COMMUNICATION: ledger.exposed_communication or 0.0,
        Bottleneck.TRANSFER: ledger.exposed_copy or 0.0,
        Bottleneck.HOST: ledger.idle_host or 0.0,
        Bottleneck.LAUNCH: ledger.unattributed or 0.0,
        Bottleneck.UNKNOWN: ledger.compute or 0.0,
    }


def _work(profile: Profile, ledger: Ledger, operations: tuple[Operation, ...]) -> dict[Bottleneck, float]:
    """Return the device's work split into what arithmetic and what memory limits."""
    compute, unattributed = ledger.compute or 0.0, ledger.unattributed or 0.0
    arithmetic = arithmetic_share(operations)
    if arithmetic is None:
        return {Bottleneck.UNKNOWN: unattributed + compute}
    if not _tells_arithmetic(profile, operations):
        return {
            Bottleneck.UNKNOWN: unattributed + compute * arithmetic,
            Bottleneck.MEMORY_BW: compute * (1.0 - arithmetic),
        }
    return {
        Bottleneck.COMPUTE: compute * arithmetic,
        Bottleneck.MEMORY_BW: compute * (1.0 - arithmetic),
    }


def _tells_arithmetic(profile: Profile, operations: tuple[Operation, ...]) -> bool:
    """Tell whether products can be said to be limited by arithmetic: by their sizes, or as training's are.

    A training step's products have thousands of rows; those of inference may have one, and read weights.
    """
    return _has_roofs(operations) or any(phase.name == "backward" for phase in profile.phases)


def _what_computes(profile: Profile) -> str:
    return "device" if _has_launches(profile) else "processor"


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


def _products(operations: tuple[Operation, ...]) -> str:
    """Return the classes of arithmetic that take most of the time, in words, the longest first."""
    times = {kind: sum(op.ms or 0.0 for op in operations if op.kind == kind) for kind in _PRODUCTS}
    whole = sum(times.values())
    named = [kind for kind in sorted(times, key=lambda one: -times[one]) if times[kind] > 0.05 * whole]
    return " and ".join(_PRODUCTS[kind] for kind in named)


def bottleneck_of_ledger(
    profile: Profile, causes: tuple[Cause, ...], operations: tuple[Operation, ...], limits: Limits
) -> Verdict | None:
    """Name the largest wait above the limit, else the work that fills the device; None without a ledger."""
    ledger = shares_of(profile.ledger)
    if ledger is None:
        return None
    waits = [cause for cause in causes if cause.bottleneck not in ("compute", "memory_bw", "unknown")]
    longest, unexplained = (waits[0].share if waits else 0.0), ledger.unattributed or 0.0
    if max(longest, unexplained) >= limits.device_wait_share:
        return _wait_verdict(profile, waits[0]) if longest >= unexplained else _unexplained(unexplained)
    if ledger.compute is not None and ledger.compute > limits.busy_share:
        return _busy(profile, ledger.compute, operations)
    evidence = f"no single wait is {show_share(limits.device_wait_share, 0)} of the step or more"
    return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))


def _unexplained(share: float) -> Verdict:
    told = f"the device is {show_share(share)} of the step {_WORDS[Bottleneck.UNKNOWN]}"
    evidence = f"{told}; record all activities of host and device to know"
    return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))


def _wait_verdict(profile: Profile, cause: Cause) -> Verdict:
    name = Bottleneck(cause.bottleneck)
    return Verdict(bottleneck=name, evidence=(f"{cause.evidence}{_launches(profile, name)}",))


def _launches(profile: Profile, bottleneck: Bottleneck) -> str:
    if bottleneck is not Bottleneck.LAUNCH or profile.launches_per_step is None:
        return ""
    return f" ({show_count(round(profile.launches_per_step))} launches per step)"


def _busy(profile: Profile, compute: float, operations: tuple[Operation, ...]) -> Verdict:
    """Tell arithmetic from memory traffic by the roofs or classes of what the device's time is in."""
    busy = f"the {_what_computes(profile)} computes {show_share(compute)} of the step"
    share = arithmetic_share(operations)
    if share is None:
        evidence = f"{busy}; its operations are not known: record host operations with shapes"
        return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))
    told = "" if _has_roofs(operations) else " (by their class: not all have shapes and a known device)"
    if share > 0.5:
        evidence = f"{busy}, and {show_share(share)} of the operations' time is in {_products(operations)}"
        if not _tells_arithmetic(profile, operations):
            why = "their sizes tell whether arithmetic or memory limits them: record shapes"
            return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(f"{evidence}; {why}",))
        return Verdict(bottleneck=Bottleneck.COMPUTE, evidence=(f"{evidence}{told}",))
    evidence = (
        f"{busy}, and {show_share(1 - share)} of the operations' time is in those that "
        f"mostly move memory{told}"
    )
    return Verdict(bottleneck=Bottleneck.MEMORY_BW, evidence=(evidence,))
