"""Rules about communication: what the device waits for between ranks."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.model.activity import CollectiveTally
from stepgrade.scoring.phases import PhaseKind
from stepgrade.scoring.runtime import Runtime
from stepgrade.units import show_bytes, show_count, show_ms, show_share, show_si

_AREA = "communication"
_ACCOUNT = "exposed_communication"
# How many times the bytes of one rank's buffer cross its link, for a ring of n ranks, times n / (n - 1).
_TRIPS = {"allreduce": 2.0, "all_reduce": 2.0}


# Below this share of the link's rate a collective is not busy moving data.
_MOSTLY_WAITING = 0.10
_REDUCING = (
    "Overlap with backward: DDP with gradient_as_bucket_view and larger bucket_cap_mb; send less with bf16 "
    "gradients or gradient accumulation under no_sync()."
)
_SHARDING = (
    "Fetch shards earlier: FSDP's forward and backward prefetch, larger wrapped units; keep them after "
    "forward (reshard_after_forward=False) if memory allows."
)
_EXCHANGE = (
    "Hide the exchange behind other work (split both into chunks), or send less: lower precision, partners "
    "on the same machine."
)
_NO_BACKWARD = "Hide it behind other work: split the product it belongs to, or fuse both in one kernel."
_REMEDIES = (("alltoall", _EXCHANGE), ("gather", _SHARDING), ("reducescatter", _SHARDING))
_ALL_RANKS = "Give the traces of all ranks: part of it may be waiting for a late one."
_WAITING = "Give the traces of all ranks: most of it is waiting, for a late one or for a slow network."


def _exposed(context: RuleContext) -> float:
    return context.account(_ACCOUNT) or context.phase_share(PhaseKind.COMMUNICATION)


def _hidden(context: RuleContext) -> float | None:
    """Return the share of communication that computing hides."""
    total = context.step_share(context.activity.communication_ms)
    return max(0.0, 1.0 - context.account(_ACCOUNT) / total) if total else None


@rule(
    name="exposed-communication",
    area=_AREA,
    account=_ACCOUNT,
    sees="The device waits in collectives while nothing is computed.",
    evidence="share of the step in communication that nothing hides, how much is hidden, the "
    "longest collective",
    fix={
        "general": "Overlap communication with the backward pass, or send less of it.",
        "pytorch": _REDUCING,
        "jax": "Turn on XLA's latency-hiding scheduler, and shard so that collectives are fewer.",
    },
    wrong_when="one rank of several is given: then part of the time may be waiting for a late rank",
    check="Exposed communication shrinks in the ledger, and the step by as much.",
    realistic=0.6,
    because="the last bucket has no backward left to hide behind",
    explains=("weak-overlap",),
    sources="TL-17, XP-16, XP-17, TBP-04, GPF-14, NAI-09, NAI-10",
)
def exposed_communication(context: RuleContext, limits: Limits) -> Found | None:
    """Report communication that nothing hides."""
    share = _exposed(context)
    severity = severity_of(share, limits, "communication")
    if severity is None:
        return None
    evidence: dict[str, float | str] = {"exposed_share": share}
    hidden, reached = _hidden(context), _of_link(context)
    told = ""
    if hidden is not None:
        evidence["hidden_share"] = hidden
        good = f", {show_share(limits.good_overlap, 0)} is good" if hidden < limits.good_overlap else ""
        told = f"; {show_share(hidden, 0)} of all communication is hidden{good}"
    if context.activity.collectives:
        evidence["collective"] = context.activity.collectives[0].name
    if reached is not None and reached < _MOSTLY_WAITING:
        evidence["of_link"] = reached
        told += (
            f". The device's link needs {_little(reached)} of that time for its bytes: the rest is waiting, "
            "or a slower network"
        )
    claim = f"Communication that nothing hides takes {show_share(share)} of the step{told}."
    return Found(severity=severity, claim=claim, evidence=evidence, share=share, remedy=_remedy(context))


def _little(share: float) -> str:
    return "less than 1 %" if share < 0.01 else show_share(share, 0)


def _remedy(context: RuleContext) -> str | None:
    """Return what fits the longest collective; None where the rule's own sentence does."""
    if context.runtime is not Runtime.PYTORCH:
        return None
    missing = (context.profile.world_size or 1) > max(1, len(context.profile.ranks))
    if missing and (_of_link(context) or 1.0) < _MOSTLY_WAITING:
        return _WAITING
    name = next((one.name.lower().replace("_", "") for one in context.activity.collectives), "")
    fits = next((words for part, words in _REMEDIES if part in name), None)
    if fits is None and not context.phases.by_kind_ms.get(PhaseKind.BACKWARD):
        fits = _NO_BACKWARD
    return f"{_ALL_RANKS} {fits or _REDUCING}" if missing else fits


def _of_link(context: RuleContext) -> float | None:
    """Return the rate of the collectives as a share of the link's; None where bytes or link are not known."""
    link, all_of = context.target.figures.link(), context.activity.collectives
    known = [one for one in all_of if one.bytes and (one.group_size or 0) > 1 and one.ms]
    time_ms = sum(one.ms for one in known)
    if not link or not known or time_ms < 0.5 * sum(one.ms for one in all_of):
        return None
    return (
        sum((one.bytes or 0.0) * _trips(one) for one in known)
        / (context.mean_ms(time_ms) / 1000.0)
        / link[0].per_s
    )


@rule(
    name="weak-overlap",
    area=_AREA,
    account=_ACCOUNT,
    sees="Less than 70 % of the communication runs beside computation.",
    evidence="share of communication that is hidden, communication per step",
    fix={
        "general": "Start reductions earlier: smaller first buckets, streams of their own, no waits "
        "in backward."
    },
    wrong_when="there is little to hide behind",
    check="More of the communication is hidden.",
    realistic=0.5,
    because="the last bucket has no backward left to hide behind",
    sources="TL-18, NAI-09",
)
def weak_overlap(context: RuleContext, limits: Limits) -> Found | None:
    """Report communication beside which nothing runs."""
    hidden, share = _hidden(context), context.account(_ACCOUNT)
    if hidden is None or hidden >= limits.good_overlap or share < limits.communication_info_share:
        return None
    total = context.activity.communication_ms
    claim = f"{show_share(hidden, 0)} of {show_ms(total)} of communication a step is hidden; 70 % is good."
    return Found(
        severity="info", claim=claim, evidence={"hidden_share": hidden, "total_ms": total}, share=share
    )


def _small(context: RuleContext, limits: Limits) -> list[CollectiveTally]:
    known = [one for one in context.activity.collectives if one.bytes is not None]
    return [one for one in known if (one.bytes or 0.0) < limits.small_message_bytes * one.count]


@rule(
    name="small-messages",
    area=_AREA,
    account=_ACCOUNT,
    sees="Collectives move less than a megabyte each: latency, not bandwidth, is paid for.",
    evidence="collectives per step, mean bytes, share of the step exposed",
    fix={
        "general": "Gather small messages into larger buckets.",
        "pytorch": "Raise DDP's bucket_cap_mb, or wrap larger units with FSDP.",
    },
    wrong_when="the messages are few and hidden",
    check="Fewer, larger collectives.",
    realistic=0.6,
    because="a message of a megabyte takes little longer than one of a kilobyte",
    explains=("exposed-communication", "weak-overlap"),
    sources="TS-01",
)
def small_messages(context: RuleContext, limits: Limits) -> Found | None:
    """Report small messages that the device waits for."""
    small = _small(context, limits)
    count, whole = sum(one.count for one in small), sum(one.ms for one in context.activity.collectives)
    if count <= limits.copies_per_step or not whole:
        return None
    share = context.account(_ACCOUNT) * sum(one.ms for one in small) / whole
    severity = severity_of(share, limits, "communication")
    if severity is None:
        return None
    mean = sum(one.bytes or 0.0 for one in small) / count
    claim = (
        f"{show_count(round(count))} collectives a step move {show_bytes(mean)} each: "
        f"{show_share(share)} of the step waits for them."
    )
    evidence: dict[str, float | str] = {"collectives": count, "mean_bytes": mean, "exposed_share": share}
    return Found(severity=severity, claim=claim, evidence=evidence, share=share)


@rule(
    name="slow-link",
    area=_AREA,
    account=_ACCOUNT,
    sees="Collectives move data at less than half of the link's rate.",
    evidence="bytes per second over the link, the link's rate",
    fix={"general": "Check that the collectives use the fast link (NCCL_DEBUG=INFO) and its topology."},
    wrong_when="the time includes waiting for late ranks, or the ranks are on several machines",
    check="The collectives reach the link's rate.",
    realistic=0.5,
    because="large messages reach 70 to 90 % of a link",
    sources="GPF-09, XP-17",
)
def slow_link(context: RuleContext, limits: Limits) -> Found | None:
    """Report links below their rate."""
    link, share = context.target.figures.link(), context.account(_ACCOUNT)
    known = [
        one for one in context.activity.collectives if one.bytes and (one.group_size or 0) > 1 and one.ms
    ]
    if not link or not known or share < limits.communication_warning_share:
        return None
    waited = context.activity.skew_ms or 0.0
    moved_ms = sum(one.ms for one in known) - waited
    if moved_ms <= 0.0 or (context.activity.skew_ms is None and (context.profile.world_size or 1) > 1):
        return None
    rate = sum((one.bytes or 0.0) * _trips(one) for one in known) / (context.mean_ms(moved_ms) / 1000.0)
    reached = rate / link[0].per_s
    if reached >= limits.slow_link_share:
        return None
    claim = (
        f"Collectives move {show_si(rate, 'B/s')}, {show_share(reached, 0)} of the link's {link[0].shown}."
    )
    return Found(
        severity="info",
        claim=claim,
        evidence={"bytes_per_s": rate, "of_link": reached},
        share=share * (1.0 - reached),
    )


def _trips(one: CollectiveTally) -> float:
    ranks = one.group_size or 2
    times = next((trips for name, trips in _TRIPS.items() if name in one.name.lower()), 1.0)
    return times * (ranks - 1) / ranks


@rule(
    name="gloo-on-devices",
    area=_AREA,
    account=f"{_ACCOUNT}+exposed_copy+idle_sync+idle_host",
    sees="Ranks with accelerators talk through gloo, over the host.",
    evidence="gloo collectives per step, share of the step exposed",
    fix={
        "general": "Use the device's own communication library.",
        "pytorch": "init_process_group('nccl') for tensors on the device; gloo only for tensors on the host.",
    },
    wrong_when="only small host tensors go through gloo",
    check="The collectives are NCCL kernels.",
    realistic=0.6,
    because="gloo copies to the host and back",
    explains=("exposed-communication",),
    sources="TBP-06",
)
def gloo_on_devices(context: RuleContext, limits: Limits) -> Found | None:
    """Report gloo where the device could talk itself."""
    calls = context.activity.marks.get("gloo", 0.0)
    share = context.account(_ACCOUNT, "exposed_copy", "idle_sync", "idle_host")
    if not context.on_device or not calls or share < limits.communication_warning_share:
        return None
    claim = f"{show_count(round(calls))} collectives a step go through gloo, over the host."
    return Found(
        severity="warning", claim=claim, evidence={"calls": calls, "waiting_share": share}, share=share
    )


@rule(
    name="data-parallel",
    area=_AREA,
    account=f"{_ACCOUNT}+exposed_copy+idle_host+idle_sync",
    sees="One process drives several devices (torch.nn.DataParallel).",
    evidence="calls of DataParallel.forward per step, share of the step waiting",
    fix={
        "general": "One process for each device.",
        "pytorch": "DistributedDataParallel, one process for each device (torchrun).",
    },
    wrong_when="never for training speed",
    check="One trace for each rank, and no DataParallel in them.",
    realistic=0.5,
    because="replicas are made anew in every step by one Python thread",
    explains=("launch-gaps", "exposed-communication", "short-kernels"),
    sources="TBP-05, TG, AL",
)
def data_parallel(context: RuleContext, limits: Limits) -> Found | None:  # noqa: ARG001  there is no threshold
    """Report DataParallel."""
    calls = context.activity.marks.get("data_parallel", 0.0)
    if not calls:
        return None
    share = context.account(_ACCOUNT, "exposed_copy", "idle_host", "idle_sync")
    claim = "One process drives several devices (DataParallel): it makes new replicas in every step."
    return Found(
        severity="warning", claim=claim, evidence={"calls": calls, "waiting_share": share}, share=share
    )


RULES = (data_parallel, gloo_on_devices, small_messages, exposed_communication, weak_overlap, slow_link)
