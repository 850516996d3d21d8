"""Rules about communication: what the device waits for between ranks."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Remedy, Rule, Worth
from stepgrade.model.activity import CollectiveTally
from stepgrade.naming.collective_kind import CollectiveKind, collective_kind
from stepgrade.scoring.links import bus_factor
from stepgrade.scoring.phases import PhaseKind
from stepgrade.scoring.runtime import Runtime
from stepgrade.units import show_bytes, show_count, show_ms, show_share, show_si

_ACCOUNT = "exposed_communication"
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
_TENSOR = (
    "Keep the group of tensor parallelism on one machine's fastest links, or make it smaller; hide its "
    "collectives behind the products that they belong to, which asynchronous tensor parallelism splits."
)
_PIPELINE = (
    "Split the batch into more micro-batches, or interleave the stages, so that sending runs beside work; "
    "even out the stages."
)
_BY_PARALLELISM = {
    "data": _REDUCING,
    "fsdp": _SHARDING,
    "tensor": _TENSOR,
    "expert": _EXCHANGE,
    "pipeline": _PIPELINE,
}
_NO_BACKWARD = "Hide it behind other work: split the product it belongs to, or fuse both in one kernel."
_REMEDIES = {
    CollectiveKind.ALL_TO_ALL: _EXCHANGE,
    CollectiveKind.ALL_GATHER: _SHARDING,
    CollectiveKind.REDUCE_SCATTER: _SHARDING,
}
_ALL_RANKS = "Give the traces of all ranks: part of it may be waiting for a late one."
_WAITING = "Give the traces of all ranks: most of it is waiting, for a late one or for a slow network."


def _levels(limits: Limits) -> Levels:
    return Levels(
        limits.communication_info_share,
        limits.communication_warning_share,
        limits.communication_critical_share,
    )


def _hidden_share(context: RuleContext) -> float | None:
    """Return the share of communication that computing hides."""
    total = context.step_share(context.activity.communication_ms)
    return max(0.0, 1.0 - context.account(_ACCOUNT) / total) if total else None


def _measurable(context: RuleContext) -> list[CollectiveTally]:
    """Return the collectives whose rate over the link can be worked out."""
    collectives = context.activity.collectives
    return [each for each in collectives if each.bytes and (each.group_size or 0) > 1 and each.ms]


def _link_bytes(collectives: list[CollectiveTally]) -> float:
    """Return the bytes that cross one rank's link."""
    return sum((each.bytes or 0.0) * bus_factor(each.name, each.group_size) for each in collectives)


def _share_of_link(context: RuleContext) -> float | None:
    """Return the rate of the collectives as a share of the link's; None where bytes or link are not known."""
    link, known = context.target.figures.link(), _measurable(context)
    known_ms, total_ms = (sum(each.ms for each in some) for some in (known, context.activity.collectives))
    if not link or not known or known_ms < 0.5 * total_ms:
        return None
    return _link_bytes(known) / (context.mean_ms(known_ms) / 1000.0) / link[0].per_s


def exposed_communication(context: RuleContext) -> Found | None:
    share = context.account(_ACCOUNT) or context.phase_share(PhaseKind.COMMUNICATION)
    evidence: Evidence = {"exposed_share": share}
    claim = f"Communication that nothing hides takes {show_share(share)} of the step"
    hidden, of_link, good = _hidden_share(context), _share_of_link(context), context.limits.good_overlap
    if hidden is not None:
        evidence["hidden_share"] = hidden
        claim += f"; {show_share(hidden, 0)} of all communication is hidden"
        claim += f", {show_share(good, 0)} is good" if hidden < good else ""
    if context.activity.collectives:
        evidence["collective"] = context.activity.collectives[0].name
    if of_link is not None and of_link < _MOSTLY_WAITING:
        evidence["of_link"] = of_link
        needed = "less than 1 %" if of_link < 0.01 else show_share(of_link, 0)
        claim += (
            f". The device's link needs {needed} of that time for its bytes: the rest is waiting, or a "
            "slower network"
        )
    remedy = _remedy(context, of_link)
    return _levels(context.limits).found(share, f"{claim}.", evidence, remedy=remedy)


def _remedy(context: RuleContext, of_link: float | None) -> str | None:
    """Return what fits the parallelism, else the longest collective; None where the rule's own does."""
    if context.runtime is not Runtime.PYTORCH:
        return None
    lacks_ranks = (context.profile.world_size or 1) > max(1, len(context.profile.ranks))
    if lacks_ranks and (of_link or 1.0) < _MOSTLY_WAITING:
        return _WAITING
    links = context.profile.links
    fitting = _BY_PARALLELISM.get("pipeline" if links and links.pipeline else context.parallelism or "")
    if fitting is None:
        longest = next((collective_kind(each.name) for each in context.activity.collectives), None)
        fitting = _REMEDIES.get(longest) if longest else None
    if context.work == "inference" and fitting in (None, _REDUCING, _SHARDING):
        fitting = _NO_BACKWARD
    return f"{_ALL_RANKS} {fitting or _REDUCING}" if lacks_ranks else fitting


def weak_overlap(context: RuleContext) -> Found | None:
    hidden, share, limits = _hidden_share(context), context.account(_ACCOUNT), context.limits
    if hidden is None or hidden >= limits.good_overlap or share < limits.communication_info_share:
        return None
    total_ms = context.activity.communication_ms
    claim = f"{show_share(hidden, 0)} of {show_ms(total_ms)} of communication a step is hidden; 70 % is good."
    return Found("info", claim, {"hidden_share": hidden, "total_ms": total_ms}, share=share)


def small_messages(context: RuleContext) -> Found | None:
    collectives, limits = context.activity.collectives, context.limits
    small = [
        each
        for each in collectives
        if each.bytes is not None and each.bytes < limits.small_message_bytes * each.count
    ]
    count, total_ms = sum(each.count for each in small), sum(each.ms for each in collectives)
    if count <= limits.copies_per_step or not total_ms:
        return None
    share = context.account(_ACCOUNT) * sum(each.ms for each in small) / total_ms
    mean = sum(each.bytes or 0.0 for each in small) / count
    claim = (
        f"{show_count(round(count))} collectives a step move {show_bytes(mean)} each: {show_share(share)} of "
        "the step is spent waiting for them."
    )
    return _levels(limits).found(
        share, claim, {"collectives": count, "mean_bytes": mean, "exposed_share": share}
    )


def slow_link(context: RuleContext) -> Found | None:
    link, share, known = context.target.figures.link(), context.account(_ACCOUNT), _measurable(context)
    if not link or not known or share < context.limits.communication_warning_share:
        return None
    skew_ms = context.activity.skew_ms
    moving_ms = sum(each.ms for each in known) - (skew_ms or 0.0)
    if moving_ms <= 0.0 or (skew_ms is None and (context.profile.world_size or 1) > 1):
        return None
    rate = _link_bytes(known) / (context.mean_ms(moving_ms) / 1000.0)
    reached = rate / link[0].per_s
    if reached >= context.limits.slow_link_share:
        return None
    claim = (
        f"Collectives move {show_si(rate, 'B/s')}, {show_share(reached, 0)} of the link's {link[0].shown}."
    )
    return Found("info", claim, {"bytes_per_s": rate, "of_link": reached}, share=share * (1.0 - reached))


def gloo_on_devices(context: RuleContext) -> Found | None:
    calls = context.activity.marks.get("gloo", 0.0)
    share = context.account(_ACCOUNT, "exposed_copy", "idle_sync", "idle_host")
    if not context.on_device or not calls or share < context.limits.communication_warning_share:
        return None
    if context.platform not in (None, "cuda", "rocm"):  # what else another device could use is not known
        return None
    claim = f"{show_count(round(calls))} collectives a step go through gloo, over the host."
    return Found("warning", claim, {"calls": calls, "waiting_share": share}, share=share)


def data_parallel(context: RuleContext) -> Found | None:
    calls = context.activity.marks.get("data_parallel", 0.0)
    if not calls:
        return None
    share = context.account(_ACCOUNT, "exposed_copy", "idle_host", "idle_sync")
    claim = "One process drives several devices (DataParallel): it makes new replicas in every step."
    return Found("warning", claim, {"calls": calls, "waiting_share": share}, share=share)


RULES = (
    Rule(
        name="data-parallel",
        find=data_parallel,
        sees="One process drives several devices (torch.nn.DataParallel).",
        evidence="DataParallel.forward calls per step, share of the step waiting",
        fix="One process for each device.",
        fix_pytorch="DistributedDataParallel, one process for each device (torchrun).",
        wrong_when="never for training speed",
        check="One trace per rank, without DataParallel.",
        worth=Worth(
            "exposed_communication+exposed_copy+idle_host+idle_sync",
            0.5,
            "replicas are made anew in every step by one Python thread",
        ),
        explains=("launch-gaps", "exposed-communication", "short-kernels"),
        sources="TBP, TG, AL",
    ),
    Rule(
        name="gloo-on-devices",
        find=gloo_on_devices,
        sees="Ranks with accelerators communicate through gloo, over the host.",
        evidence="gloo collectives per step, exposed share of the step",
        fix="Use the device's own communication library.",
        fix_pytorch="init_process_group('nccl') for tensors on the device, and gloo only for tensors on the "
        "host.",
        wrong_when="only small host tensors use gloo",
        check="The collectives are NCCL kernels.",
        worth=Worth(
            "exposed_communication+exposed_copy+idle_sync+idle_host", 0.6, "gloo copies to the host and back"
        ),
        explains=("exposed-communication",),
        sources="TBP",
    ),
    Rule(
        name="small-messages",
        find=small_messages,
        sees="Collectives move less than a megabyte each: latency limits them.",
        evidence="collectives per step, mean bytes, exposed share of the step",
        fix="Gather small messages into larger buckets.",
        fix_pytorch="Raise DDP's bucket_cap_mb; wrap larger units with FSDP.",
        wrong_when="the messages are few and hidden",
        check="Fewer, larger collectives.",
        worth=Worth(_ACCOUNT, 0.6, "a message of a megabyte takes little longer than one of a kilobyte"),
        explains=("exposed-communication", "weak-overlap"),
        sources="TS",
    ),
    Rule(
        name="exposed-communication",
        find=exposed_communication,
        sees="The device communicates while nothing computes.",
        evidence="exposed share of the step, hidden share, the longest collective",
        fix="Overlap communication with the backward pass, or send less of it.",
        fix_pytorch=_REDUCING,
        fix_jax="Turn on XLA's latency-hiding scheduler, and shard so that collectives are fewer.",
        wrong_when="only one of several ranks is given: part may be waiting for a late rank",
        check="Exposed communication shrinks in the ledger, and the step by as much.",
        worth=Worth(_ACCOUNT, 0.6, "the last bucket has no backward left to hide behind"),
        explains=("weak-overlap",),
        sources="TL, XP, TBP, GPF, NAI",
    ),
    Rule(
        name="weak-overlap",
        find=weak_overlap,
        sees="Less than 70 % of the communication overlaps computation.",
        evidence="hidden share of communication, communication per step",
        fix="Start reductions earlier: smaller first buckets, streams of their own, no waits in backward.",
        wrong_when="there is little to hide behind",
        check="More of the communication is hidden.",
        worth=Worth(_ACCOUNT, 0.5, "the last bucket has no backward left to hide behind"),
        sources="TL, NAI",
    ),
    Rule(
        name="slow-link",
        find=slow_link,
        sees="Collectives use less than half of the link's rate.",
        evidence="rate over the link, the link's rate",
        fix="Check that the collectives use the fast link (NCCL_DEBUG=INFO) and its topology.",
        fix_where=(
            Remedy(
                "on AMD's devices",
                lambda context: context.platform == "rocm",
                "Compare with rccl-tests on the same machine, and check the topology (NCCL_DEBUG=INFO); over "
                "PCIe RCCL copies directly between devices only with HSA_FORCE_FINE_GRAIN_PCIE=1.",
            ),
        ),
        wrong_when="the time includes waiting for late ranks, or ranks are on several machines",
        check="The collectives reach the link's rate.",
        worth=Worth(_ACCOUNT, 0.5, "large messages reach 70 to 90 % of a link"),
        sources="GPF, XP",
    ),
)
