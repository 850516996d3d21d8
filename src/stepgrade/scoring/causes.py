"""What a step's time goes to, and the bottleneck: by the device's ledger, else by the phases."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from msgspec import Struct

from stepgrade.config.limits import Limits
from stepgrade.contract import Bottleneck as BottleneckV1
from stepgrade.model import Ledger, Profile
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.operations import Operation
from stepgrade.model.scorecard import UNKNOWN, Cause
from stepgrade.naming.work_class import RANDOM
from stepgrade.replay.promises import Promises
from stepgrade.scoring.efficiency import Efficiency
from stepgrade.scoring.phases import PhaseKind, PhasesOfStep
from stepgrade.scoring.step_times import RunTimes
from stepgrade.units import show_count, show_share


class Bottleneck(StrEnum):
    """Contract v1's four classes and those it does not know."""

    TRANSFER = "transfer"
    LAUNCH = "launch"
    COMPUTE = "compute"
    MEMORY_BW = "memory_bw"
    INPUT = "input"
    COMMUNICATION = "communication"
    STRAGGLER = "straggler"
    HOST = "host"
    UNKNOWN = UNKNOWN


class Verdict(Struct, frozen=True, kw_only=True):
    """A bottleneck and the evidence for it."""

    bottleneck: Bottleneck
    evidence: tuple[str, ...]

    @property
    def is_wait(self) -> bool:
        """Return whether the device waits, and is not limited by its own work."""
        return self.bottleneck not in _WORK

    def evidence_with_line(self, profile: Profile, causes: tuple[Cause, ...]) -> tuple[str, ...]:
        """Return the evidence, and the line of the user's code that holds much of the wait where one does."""
        waits = {Bottleneck.INPUT: "input", Bottleneck.HOST: "stall", Bottleneck.UNKNOWN: "unseen"}
        wait = waits.get(self.bottleneck)
        lines = profile.activity.lines.get(wait, ()) if profile.activity and wait else ()
        share = next((cause.share for cause in causes if cause.bottleneck == self.bottleneck), 0.0)
        wait_ms = share * (profile.mean_step_ms or 0.0)
        if not lines or lines[0].ms < LEAST_LINE_SHARE * wait_ms:
            return self.evidence
        much = "mostly" if lines[0].ms >= 0.5 * wait_ms else f"{show_share(lines[0].ms / wait_ms, 0)} of that"
        return (*self.evidence, f"{much} in {lines[0].shown}")


_WORDS = {
    Bottleneck.TRANSFER: "copying between host and device with nothing else to do",
    Bottleneck.COMMUNICATION: "in communication that no computation hides",
    Bottleneck.STRAGGLER: "waiting for other ranks",
    Bottleneck.INPUT: "idle, waiting for input",
    Bottleneck.LAUNCH: "idle, waiting for the host to launch work",
    Bottleneck.HOST: "idle while the host does other work or waits in a synchronisation",
    Bottleneck.UNKNOWN: "idle for a reason that was not recorded",
    Bottleneck.COMPUTE: "in work that is mostly arithmetic",
    Bottleneck.MEMORY_BW: "in work that is mostly moving memory",
}
_WORK_OR_IDLE = "in work whose limit only shapes would show, or idle for a reason that was not recorded"
_PHASE_WORDS = {
    Bottleneck.TRANSFER: "host-device transfers",
    Bottleneck.COMMUNICATION: "communication",
    Bottleneck.INPUT: "waiting for input",
    Bottleneck.LAUNCH: "no phase: launches and host work between them",
    Bottleneck.HOST: "host work",
    Bottleneck.UNKNOWN: "forward, backward and optimizer; what limits them needs operations with shapes",
}
_UNSEEN_WORDS = (
    "forward, backward and optimizer, or is in no phase; what limits it needs operations with shapes"
)
# On a run without an accelerator the processor is the device, and nothing is launched.
_PROCESSOR_HOST = "in Python or in work outside of the framework"
# Of a step that nothing would be left of without its cause there is nothing to say.
_ALL_OF_IT = 0.995
_SHORT_CALLS = "in calls of operations of microseconds, which count as computing"
# Two sides of one wait: launching late and doing something else; the data's way, and the ranks that are late.
_SIDES = {
    Bottleneck.HOST: Bottleneck.LAUNCH,
    Bottleneck.STRAGGLER: Bottleneck.COMMUNICATION,
}
# The parts of a replay that the fix of a wait changes, beyond those of its accounts.
_FIXES = {Bottleneck.HOST: "stalls+sync"}
_SAME_WAIT = 0.5  # of the largest wait, that the others' waiting for a late rank has at least
_WORK = frozenset({Bottleneck.COMPUTE, Bottleneck.MEMORY_BW, Bottleneck.UNKNOWN})
# Arithmetic dominates these; the others move more bytes than they compute.
_ARITHMETIC = ("gemm", "convolution", "attention")
_RANDOM = "random"  # numbers that a processor draws one by one: work of its own, though of no class
_CLASS_WORDS = {
    "gemm": "matrix products",
    "convolution": "convolutions",
    "elementwise": "element-wise operations",
    "norm": "norms",
    "optimizer": "optimizer updates",
    "embedding": "embedding lookups",
    "indexing": "index operations",
    "copy": "copies or fills",
    "reduction": "reductions",
    _RANDOM: "random numbers",
}
_LEAST_CLASS_SHARE = 0.05  # of the time of the classes that are named together
LEAST_SHARE = 0.0005
LEAST_LINE_SHARE = 0.2  # of a wait, that a line of code holds at least where it is named
_KNOWN_SHARE = 0.5


class Work(Struct, frozen=True, kw_only=True):
    """What the device's time in operations is made of."""

    arithmetic_share: float | None  # of the work with a known limit, limited by arithmetic; None if unknown
    has_roofs: bool  # for most of their time it is known which roof is lower
    is_certain: bool  # products are certainly limited by arithmetic
    products: str  # the classes of arithmetic that take most of the time, in words
    products_share: float  # of the operations' time, in these classes
    moving: str  # the same of what mostly moves memory
    moving_share: float
    calls_share: float = 0.0  # of the operations' time on a processor, in calls too short to do anything


def work_of(profile: Profile, operations: tuple[Operation, ...], limits: Limits) -> Work:
    """Return how much of the operations' time arithmetic limits, by their roofs or else by their class.

    Where sizes are not known, products count as limited by arithmetic only in training: its products have
    thousands of rows; those of inference may have one, and read weights, unless they do much arithmetic for
    each byte, or take so long that no matrix of weights explains it. On a processor random numbers are
    arithmetic as well, and calls of microseconds are Python's. How fast an operation ran does not count: on a
    busy machine all are slow.
    """
    timed = [op for op in operations if op.ms and op.kind != "communication"]
    on_processor = not _has_launches(profile)
    counted = timed
    if on_processor:
        counted = [
            op for op in timed if (op.mean_ms or limits.short_call_us) * 1000.0 >= limits.short_call_us
        ]
    timed_ms, counted_ms = _total_ms(timed), _total_ms(counted)
    arithmetic = [op for op in counted if _is_arithmetic(op) or (on_processor and _is_random(op))]
    certain = [op for op in arithmetic if on_processor or has_many_rows(op, limits)]
    # What has no class may be anything: it is left out, unless it is most of the time.
    known_ms = counted_ms - _total_ms([op for op in counted if op.kind == "other" and not _is_random(op)])
    is_known = known_ms > _KNOWN_SHARE * counted_ms
    has_roofs = _total_ms([op for op in operations if op.roof is not None]) > 0.5 * _total_ms(operations)
    in_products: dict[str, float] = {}
    in_moving: dict[str, float] = {}
    for op in timed:
        kind = _RANDOM if _is_random(op) else op.kind or "other"
        if kind in _ARITHMETIC or (on_processor and kind == _RANDOM):
            in_products[kind] = in_products.get(kind, 0.0) + (op.ms or 0.0) / timed_ms
        if kind != "other" and not _is_arithmetic(op) and not (on_processor and kind == _RANDOM):
            in_moving[kind] = in_moving.get(kind, 0.0) + (op.ms or 0.0) / timed_ms
    products, products_share = _longest_classes(in_products)
    moving, moving_share = _longest_classes(in_moving) if on_processor else ("", sum(in_moving.values()))
    return Work(
        arithmetic_share=min(1.0, _total_ms(arithmetic) / known_ms) if is_known else None,
        has_roofs=has_roofs,
        is_certain=has_roofs
        or any(phase.name == "backward" for phase in profile.phases)
        or _total_ms(certain) > _KNOWN_SHARE * _total_ms(arithmetic),
        products=products or "arithmetic",
        products_share=products_share,
        moving=f"{moving}, which mostly move memory" if moving else "those that mostly move memory",
        moving_share=moving_share,
        calls_share=1.0 - counted_ms / timed_ms if len(counted) < len(timed) else 0.0,
    )


def _total_ms(operations: Iterable[Operation]) -> float:
    return sum(op.ms or 0.0 for op in operations)


def _longest_classes(shares: dict[str, float]) -> tuple[str, float]:
    """Return the classes that take most of the time, in words, and their share of the operations' time."""
    longest = sorted(shares, key=lambda kind: -shares[kind])
    named = [kind for kind in longest if shares[kind] > _LEAST_CLASS_SHARE * sum(shares.values())]
    words = [_CLASS_WORDS.get(kind, kind) for kind in named]
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:]))), sum(
        shares[kind] for kind in named
    )


def _is_arithmetic(op: Operation) -> bool:
    """Return whether arithmetic is the lower roof; the class decides unless FLOPs and bytes are known."""
    if op.roof is not None and op.flops and op.bytes:
        return op.roof == "compute"
    return op.kind in _ARITHMETIC


def has_many_rows(op: Operation, limits: Limits) -> bool:
    """Return whether a product is one of many rows, on any device: by its sizes, or by how long it takes."""
    if op.kind == "convolution":
        return True
    if op.flops and op.bytes:
        return op.flops / op.bytes >= limits.arithmetic_intensity
    return "ompiled" not in op.name and (op.mean_ms or 0.0) >= limits.long_product_ms  # a region is many


def _is_random(op: Operation) -> bool:
    return RANDOM.match(op.name) is not None


def rank_causes(
    profile: Profile, times: RunTimes, ledger: Ledger | None, work: Work, promises: Promises
) -> tuple[Cause, ...]:
    """Return what a step's time goes to, the largest share first; the shares add up to 1.

    `ledger` is that of the device's timeline if the profile has one, else that of the phases. `promises` tell
    the step without each wait, as they do for findings.
    """
    if ledger is None:
        return ()
    if profile.ledger is not None:
        shares = _shares_of_device(profile, ledger, work)
        words = dict(_WORDS)
        if shares[Bottleneck.UNKNOWN] > (ledger.unattributed or 0.0) + LEAST_SHARE:
            words[Bottleneck.UNKNOWN] = _WORK_OR_IDLE
        if not _has_launches(profile):
            words[Bottleneck.HOST] = _PROCESSOR_HOST
            calls = (ledger.compute or 0.0) * work.calls_share
            between = shares[Bottleneck.HOST] - calls
            if calls > LEAST_SHARE:
                words[Bottleneck.HOST] = (
                    f"on calls rather than on work: {show_share(between)} {_PROCESSOR_HOST}, "
                    f"{show_share(calls)} {_SHORT_CALLS}"
                )
        start = f"the {_computing_part(profile)} spends {{share}} of the step"
    else:
        # Phases of the host are named; what no phase covers is taken for launches.
        shares = _shares_by_cause(ledger) | {
            Bottleneck.HOST: ledger.idle_host or 0.0,
            Bottleneck.LAUNCH: ledger.unattributed or 0.0,
            Bottleneck.UNKNOWN: ledger.compute or 0.0,
        }
        words, start = _PHASE_WORDS, "{share} of the step goes to"
        if _is_on_processor(profile):  # which nothing is launched on: what no phase covers is unseen
            shares[Bottleneck.UNKNOWN] += shares.pop(Bottleneck.LAUNCH)
            words = _PHASE_WORDS | {Bottleneck.UNKNOWN: _UNSEEN_WORDS}
    causes = []
    for name, share in shares.items():
        if share <= LEAST_SHARE:
            continue
        accounts = [account for account, row in ACCOUNTS.items() if row.cause == name.value]
        is_wait = name not in _WORK and accounts
        gain = promises.promise(accounts, share, change=_FIXES.get(name, "")) if is_wait else None
        is_all = share >= _ALL_OF_IT or times.typical_ms is None
        causes.append(
            Cause(
                bottleneck=name.value,
                share=share,
                remaining_ms=None
                if is_all or times.typical_ms is None
                else times.typical_ms * (1.0 - (gain.high if gain else share)),
                evidence=f"{start.format(share=show_share(share))} {words[name]}",
                gain_by=None if is_all else gain.by if gain else "ledger",
            )
        )
    return tuple(sorted(causes, key=lambda cause: -cause.share))


def _shares_of_device(profile: Profile, ledger: Ledger, work: Work) -> dict[Bottleneck, float]:
    """Return the waits, short gaps being the price of launches and long ones the host's, and the work."""
    idle, compute, unattributed = ledger.idle_host or 0.0, ledger.compute or 0.0, ledger.unattributed or 0.0
    gaps, stalled = profile.activity.gaps if profile.activity else None, 0.0
    if not _has_launches(profile):
        stalled = idle
    elif gaps and profile.mean_step_ms:
        stalled = min(idle, (gaps.stall_ms + gaps.after_sync_ms) / profile.mean_step_ms)
    shares = _shares_by_cause(ledger)
    shares[Bottleneck.LAUNCH] -= stalled
    shares[Bottleneck.HOST] = stalled + shares[Bottleneck.HOST] + compute * work.calls_share
    compute *= 1.0 - work.calls_share
    arithmetic = work.arithmetic_share
    if arithmetic is None:
        return shares | {Bottleneck.UNKNOWN: unattributed + compute}
    memory = {Bottleneck.MEMORY_BW: compute * (1.0 - arithmetic)}
    if not work.is_certain:
        return shares | {Bottleneck.UNKNOWN: unattributed + compute * arithmetic} | memory
    return shares | {Bottleneck.COMPUTE: compute * arithmetic} | memory


def _shares_by_cause(ledger: Ledger) -> dict[Bottleneck, float]:
    """Return the accounts by the bottleneck that their time counts as."""
    shares: dict[Bottleneck, float] = {}
    for name, account in ACCOUNTS.items():
        if account.cause is not None:
            cause = Bottleneck(account.cause)
            shares[cause] = shares.get(cause, 0.0) + (getattr(ledger, name) or 0.0)
    return shares


def _is_on_processor(profile: Profile) -> bool:
    return profile.recorded is not None and profile.recorded.processor is not None


def _has_launches(profile: Profile) -> bool:
    return profile.activity is None or profile.activity.driver != "host"


def _computing_part(profile: Profile) -> str:
    return "device" if _has_launches(profile) else "processor"


def bottleneck_of_ledger(
    profile: Profile, ledger: Ledger, causes: tuple[Cause, ...], work: Work, limits: Limits
) -> Verdict:
    """Name what would gain the most: the largest wait, unless it is small beside the work of the device.

    Launching late and doing something else are both the host's: together they are one wait, and so are
    moving data and waiting for ranks to do so. A wait can be gained as a whole; of the work itself a quarter
    is a usual gain (precision, fusing, better kernels).
    """
    waits = [cause for cause in causes if cause.bottleneck not in _WORK]
    shares: dict[Bottleneck, float] = {}
    for cause in waits:
        name = _side_of(cause)
        shares[name] = shares.get(name, 0.0) + cause.share
    first = max(shares, key=lambda name: shares[name], default=Bottleneck.UNKNOWN)
    longest, unexplained = shares.get(first, 0.0), ledger.unattributed or 0.0
    compute = (ledger.compute or 0.0) * (1.0 - work.calls_share)
    # On a processor what the profiler itself takes lies between the operations as well.
    over_work = limits.wait_over_work * (1.0 if _has_launches(profile) else 2.0)
    least = max(limits.device_wait_share, over_work * compute)
    if max(longest, unexplained) < least:
        if compute > limits.busy_share:
            return busy_verdict(profile, ledger.compute or 0.0, work)
        evidence = f"no single wait is {show_share(least, 0)} of the step or more"
        return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))
    if longest < unexplained:
        evidence = (
            f"the device spends {show_share(unexplained)} of the step {_WORDS[Bottleneck.UNKNOWN]}; "
            "record all activities of host and device to know"
        )
        return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))
    largest = next(cause for cause in waits if _side_of(cause) is first)
    waiting = next((cause for cause in waits if cause.bottleneck == Bottleneck.STRAGGLER), largest)
    # What the late rank waits for itself, and how long the others wait for it, are one wait.
    late_rank = profile.activity.straggler if profile.activity else None
    trouble = ACCOUNTS.get(late_rank.trouble or "") if late_rank else None
    if trouble is not None and trouble.cause is not None and waiting.share >= _SAME_WAIT * longest:
        own = Bottleneck(trouble.cause)
        largest = waiting if _SIDES.get(own, own) is first else largest
    name, evidence = Bottleneck(largest.bottleneck), largest.evidence
    if name is Bottleneck.LAUNCH and profile.launches_per_step is not None:
        evidence += f" ({show_count(round(profile.launches_per_step))} launches per step)"
    late = (_who_is_late(profile, limits),) if name is Bottleneck.STRAGGLER else ()
    return Verdict(bottleneck=name, evidence=(*late, evidence))


def _side_of(cause: Cause) -> Bottleneck:
    name = Bottleneck(cause.bottleneck)
    return _SIDES.get(name, name)


def _who_is_late(profile: Profile, limits: Limits) -> str:
    """Return which rank the others wait for, and why."""
    links, late = profile.links, profile.activity.straggler if profile.activity else None
    stage = links.pipeline.slow_stage(limits.slow_stage_ratio) if links and links.pipeline else None
    if stage is not None:
        return f"rank {stage.rank} is late: its pipeline stage computes longer"
    if late is not None:
        reason = late.reason(on_processor=not _has_launches(profile))
        return f"rank {late.rank} is late: {reason or 'its ledger does not show why'}"
    slow = next(iter(profile.many_ranks.slow), None) if profile.many_ranks else None
    if slow is not None and slow.kind in ("link", "switch"):
        return f"{slow.name} is slow"
    return f"{slow.name} is late: at work for longer" if slow else "no rank is late in most collectives"


def prefer_work(verdict: Verdict, profile: Profile, ledger: Ledger, work: Work, limits: Limits) -> Verdict:
    """Return the work that fills the device instead of a wait, where it fills it and its limit is known."""
    compute = ledger.compute or 0.0
    if not verdict.is_wait or compute <= limits.busy_share:
        return verdict
    busy = busy_verdict(profile, compute, work)
    return verdict if busy.bottleneck is Bottleneck.UNKNOWN else busy


def busy_verdict(profile: Profile, compute: float, work: Work) -> Verdict:
    """Return whether arithmetic or memory traffic limits the device, by what its time is in."""
    busy = f"the {_computing_part(profile)} computes {show_share(compute)} of the step"
    share = work.arithmetic_share
    shapes = profile.recorded is not None and "shapes" in profile.recorded.settings
    if share is None:
        record = "its kernels' names tell nothing" if shapes else "record host operations with shapes"
        evidence = f"{busy}; its operations are not known: {record}"
        return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(evidence,))
    basis = "" if work.has_roofs else " (by their class: not all have shapes and a known device)"
    if share > 0.5:
        evidence = (
            f"{busy}, and {show_share(work.products_share)} of the operations' time is in {work.products}"
        )
        if work.products_share <= 0.5:  # what has no class, and calls, are the rest
            evidence += f", {show_share(work.moving_share)} in work that mostly moves memory"
        if not work.is_certain:
            why = "their sizes tell whether arithmetic or memory limits them"
            why += ", and the trace has none for these" if shapes else ": record shapes"
            return Verdict(bottleneck=Bottleneck.UNKNOWN, evidence=(f"{evidence}; {why}",))
        return Verdict(bottleneck=Bottleneck.COMPUTE, evidence=(f"{evidence}{basis}",))
    evidence = (
        f"{busy}, and {show_share(work.moving_share)} of the operations' time is in {work.moving}{basis}"
    )
    return Verdict(bottleneck=Bottleneck.MEMORY_BW, evidence=(evidence,))


_WAITS = {
    PhaseKind.INPUT: (Bottleneck.INPUT, "waiting for input"),
    PhaseKind.COMMUNICATION: (Bottleneck.COMMUNICATION, "in communication"),
    PhaseKind.HOST: (Bottleneck.HOST, "in host work"),
}
_ROOFS = {"memory": Bottleneck.MEMORY_BW, "compute": Bottleneck.COMPUTE, "link": Bottleneck.COMMUNICATION}


def bottleneck_of_phases(
    profile: Profile, phases: PhasesOfStep, efficiency: Efficiency, limits: Limits
) -> Verdict:
    """Name what the device waits for by the phases, else the roof it is near, else the producer's word."""
    transfer, outside = phases.by_kind.get(PhaseKind.TRANSFER, 0.0), phases.uncovered_share
    waiting, kind = max((phases.by_kind.get(kind, 0.0), kind) for kind in _WAITS)
    roof, reached, claim = efficiency.roof, efficiency.share, profile.claimed_bottleneck
    if transfer > limits.transfer_share:
        bottleneck = Bottleneck.TRANSFER
        evidence = f"{show_share(transfer)} of the step goes to host-device transfers"
    elif outside is not None and outside > limits.launch_share and _is_on_processor(profile):
        bottleneck = Bottleneck.UNKNOWN
        evidence = f"{show_share(outside)} of the step is in no phase that the recorder sees"
    elif outside is not None and outside > limits.launch_share:
        bottleneck = Bottleneck.LAUNCH
        evidence = f"{show_share(outside)} of the step is in no phase: launches and host work between them"
    elif waiting > limits.waiting_share:
        bottleneck, words = _WAITS[kind]
        evidence = f"{show_share(waiting)} of the step is spent {words}"
    elif roof is not None and reached is not None and limits.near_ceiling < reached <= 1.0:
        bottleneck = _ROOFS[roof.kind]
        evidence = f"the run reaches {show_share(reached)} of its {roof.kind} ceiling, the lowest one known"
    elif claim in {known.value for known in BottleneckV1}:
        bottleneck = Bottleneck(claim)
        evidence = f"{profile.source.producer or 'the producer'} says so; the profile alone cannot confirm it"
    elif phases.covered_share is None:
        bottleneck, evidence = Bottleneck.UNKNOWN, "the profile does not show where a step's time goes"
    else:
        bottleneck = Bottleneck.UNKNOWN
        evidence = (
            f"{show_share(min(phases.covered_share, 1.0))} of the step is in phases, and no wait takes more "
            f"than {show_share(limits.waiting_share, 0)} of it; telling compute from memory limits needs "
            "operations with shapes"
        )
    return Verdict(bottleneck=bottleneck, evidence=(evidence,))
