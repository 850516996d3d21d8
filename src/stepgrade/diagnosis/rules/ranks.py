"""Rules about several ranks: hangs, communication, and ranks that the others wait for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from stepgrade.diagnosis.context import RuleContext, Runtime
from stepgrade.diagnosis.rule import Evidence, Found, Remedy, Rule, Worth, on_amd
from stepgrade.model.activity import CollectiveTally, Straggler
from stepgrade.model.ranks import Communication, Hang, notes_of
from stepgrade.naming.kernels import CollectiveKind, collective_kind
from stepgrade.scoring.links import bus_factor
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import show_bytes, show_count, show_ms, show_ranks, show_share, show_si

_MOST_ROWS = 4
_REPEATED = 1.5  # reductions of a gradient per step
_MOSTLY_WAITING = 0.10  # a collective below this share of the link's rate mostly waits
_REDUCING = (
    "Overlap communication with the backward pass: DDP with gradient_as_bucket_view, a larger bucket_cap_mb; "
    "send less with bf16 gradients or gradient accumulation under no_sync()."
)
_SHARDING = (
    "Fetch shards earlier: FSDP's forward and backward prefetch, larger wrapped units; keep them after the "
    "forward pass (reshard_after_forward=False) if memory allows."
)
_EXCHANGE = (
    "Overlap the exchange with other work (split both into chunks), or send less: lower precision, partners "
    "on the same machine."
)
_TENSOR = (
    "Keep the tensor-parallel group on the fastest links of one machine, or make it smaller; overlap its "
    "collectives with the products they belong to (asynchronous tensor parallelism)."
)
_PIPELINE = (
    "Split the batch into more micro-batches or interleave the stages, so that sends overlap work; balance "
    "the stages."
)
_BY_PARALLELISM = {
    "data": _REDUCING,
    "fsdp": _SHARDING,
    "tensor": _TENSOR,
    "expert": _EXCHANGE,
    "pipeline": _PIPELINE,
}
_NO_BACKWARD = "Overlap it with other work: split the product it belongs to, or fuse both into one kernel."
_REMEDIES = {
    CollectiveKind.ALL_TO_ALL: _EXCHANGE,
    CollectiveKind.ALL_GATHER: _SHARDING,
    CollectiveKind.REDUCE_SCATTER: _SHARDING,
}
_ALL_RANKS = "Pass the traces of all ranks: part of the time may be waiting for a late rank."
_WAITING = "Pass the traces of all ranks: most of the time is waiting, for a late rank or a slow network."
# What to do about a late rank, by the account that it has more of.
_LATE = {
    "compute": "Check the clocks, temperature and power limit of rank {rank}, and its share of the work.",
    "idle_input": "Check the loader of rank {rank}: its workers, its storage, its share of the data.",
    "idle_host": "Check the host of rank {rank} for other load, pin its process to cores near its device, "
    "and collect garbage between steps, on all ranks at once.",
    "idle_sync": "Find what makes the host of rank {rank} wait for its device: .item(), printing or logging "
    "that only this rank does.",
    "exposed_copy": "Find the copies between host and device that only rank {rank} makes.",
}
_LATE_ON_A_PROCESSOR = {
    "compute": "Check the load on the machine of rank {rank}, and its share of the work.",
    "idle_host": "Take what only rank {rank} does (logging, saving, evaluation) out of the step.",
}
hang_rule = partial(Rule, area="hang", needs="profile.hang", sources="FR", severity="critical")
communication_rule = partial(Rule, area="communication", levels="communication")
ranks_rule = partial(Rule, area="ranks", levels="straggler")


def _at(where: str | None) -> str:
    return f" at {where}" if where else ""


def _collective(hang: Hang) -> str:
    return f"{hang.name or 'collective'} {hang.sequence} of {hang.group}"


@hang_rule(
    sees="Ranks wait in a collective that another never called.",
    evidence="who waits, in which collective and line; who is missing, and their last collective",
    fix="Look at what the missing rank does after its last collective: a branch that only some ranks take, "
    "fewer batches than the others (drop_last=True, or Join), a swallowed exception, a hung host (py-spy).",
    wrong_when="the job was running, and the rank only behind",
    check="All ranks reach the same collective.",
)
def rank_never_arrived(_: RuleContext, hang: Hang) -> Found | None:
    if hang.kind != "missing_rank":
        return None
    wait = "waits" if len(hang.waiting) == 1 else "wait"
    waits = f"{show_ranks(hang.waiting).capitalize()} {wait} in {_collective(hang)}{_at(hang.where)}"
    evidence: Evidence = {
        "waiting": float(len(hang.waiting)),
        "missing": float(len(hang.missing)),
        "where": hang.where or None,
    }
    if hang.missing:
        last = next((row for row in hang.last_calls if hang.missing[0] in row.ranks), None)
        after = ""
        if last and last.name:
            called = f"{last.name} {last.sequence} of {last.group}{_at(last.where)}"
            after = f"; its last collective was {called}"
        claim = f"{waits}, which {show_ranks(hang.missing)} never reached{after}."
    else:
        claim = f"{waits}; {show_ranks(hang.without_dump)} left no dump: it had exited or was killed."
    return Found(claim, evidence)


@hang_rule(
    sees="Ranks of a group call different collectives, sizes or types.",
    evidence="each rank's call, and where",
    fix="Make every rank of the group call the same collectives in the same order, with the same "
    "sizes and types; look for a condition on the rank or its data before that line.",
    wrong_when="sizes may differ, as in a custom all_to_all",
    check="All ranks make the same call.",
)
def collectives_differ(_: RuleContext, hang: Hang) -> Found | None:
    if hang.kind != "mismatch":
        return None
    gave = "; ".join(
        f"{row.value} on {show_ranks(row.ranks)}{_at(row.where)}" for row in hang.differences[:_MOST_ROWS]
    )
    claim = f"Ranks differ in the {hang.differ_in} of {_collective(hang)}: {gave}."
    evidence: Evidence = {"sequence": float(hang.sequence or 0), "values": float(len(hang.differences))}
    return Found(claim, evidence)


@hang_rule(
    sees="Ranks wait for each other in collectives of different groups.",
    evidence="which ranks wait where",
    fix="Call the collectives of overlapping groups in the same order on all ranks, and send before "
    "receiving the answer (batch_isend_irecv).",
    wrong_when="the calls are asynchronous and awaited later",
    check="No two ranks wait for each other.",
)
def ranks_wait_for_each_other(_: RuleContext, hang: Hang) -> Found | None:
    if hang.kind != "deadlock":
        return None
    waits = "; ".join(
        f"{show_ranks(row.ranks)} in {row.name} {row.sequence} of {row.group}{_at(row.where)}"
        for row in hang.circle[:_MOST_ROWS]
    )
    claim = f"Ranks wait for each other: {waits}."
    return Found(claim, {"ranks": float(len(hang.circle))})


@hang_rule(
    sees="All ranks called a collective that has not finished.",
    evidence="the collective and its unfinished ranks",
    fix="Check network and device: NCCL_DEBUG=INFO lists the links, dmesg the driver errors; an earlier "
    "kernel that never finishes also blocks it.",
    wrong_when="the dumps were written while it ran",
    check="The collective finishes.",
)
def collective_unfinished(_: RuleContext, hang: Hang) -> Found | None:
    if hang.kind != "unfinished":
        return None
    claim = (
        f"All ranks of {hang.group} called {_collective(hang)}{_at(hang.where)}, which has not finished on "
        f"{show_ranks(hang.waiting)}."
    )
    return Found(claim, {"waiting": float(len(hang.waiting))})


def _hidden_share(context: RuleContext) -> float | None:
    """Return the share of communication that overlaps computation."""
    total = context.step_share(context.activity.communication_ms)
    exposed = context.account("exposed_communication", "wait_ranks")
    return max(0.0, 1.0 - exposed / total) if total else None


def _measurable(context: RuleContext) -> list[CollectiveTally]:
    """Return the collectives with a known rate over the link."""
    collectives = context.activity.collectives
    return [each for each in collectives if each.bytes and (each.group_size or 0) > 1 and each.ms]


def _link_bytes(collectives: list[CollectiveTally]) -> float:
    """Return the bytes that cross one rank's link."""
    return sum((each.bytes or 0.0) * bus_factor(each.name, each.group_size) for each in collectives)


def _share_of_link(context: RuleContext) -> float | None:
    """Return the rate of the collectives as a share of the link's; None if bytes or link are unknown."""
    link, known = context.target.figures.link(), _measurable(context)
    known_ms, total_ms = (sum(each.ms for each in some) for some in (known, context.activity.collectives))
    if not link or not known or known_ms < 0.5 * total_ms:
        return None
    moving_ms = known_ms - (context.activity.skew_ms or 0.0)  # from the last arrival on, where that is known
    return (
        _link_bytes(known) / (context.mean_ms(moving_ms) / 1000.0) / link[0].per_s
        if moving_ms > 0.0
        else None
    )


def _remedy(context: RuleContext, of_link: float | None) -> str | None:
    """Return the remedy for the parallelism, else for the longest collective; None for the rule's own."""
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


data_parallel = communication_rule(
    sees="One process drives several devices (torch.nn.DataParallel).",
    evidence="DataParallel.forward calls per step, waiting share",
    fix="Use one process per device.",
    fix_pytorch="Use DistributedDataParallel, one process per device (torchrun).",
    wrong_when="never for training speed",
    check="One trace per rank, without DataParallel.",
    worth=Worth(
        "exposed_communication+exposed_copy+idle_host+idle_sync",
        0.5,
        "one Python thread rebuilds the replicas every step",
    ),
    explains=("launch-gaps", "exposed-communication", "short-kernels"),
    sources="TBP, TG, AL",
    claim="One process drives several devices (DataParallel) and rebuilds the replicas every step.",
    figures={
        "calls": "data_parallel_calls",
        "waiting_share": "exposed_communication+exposed_copy+idle_host+idle_sync",
    },
    severity="warning",
)


gloo_on_devices = communication_rule(
    sees="Ranks with accelerators communicate through gloo, over the host.",
    evidence="gloo collectives per step, exposed share",
    fix="Use the device's own communication library.",
    fix_pytorch="Use init_process_group('nccl') for tensors on the device, gloo only on the host.",
    wrong_when="only small host tensors use gloo",
    check="The collectives are NCCL kernels.",
    worth=Worth(
        "exposed_communication+exposed_copy+idle_sync+idle_host", 0.6, "gloo copies to the host and back"
    ),
    explains=("exposed-communication",),
    sources="TBP",
    claim="{calls} collectives a step go through gloo, over the host.",
    figures={
        "calls": "gloo_calls",
        "waiting_share": "exposed_communication+exposed_copy+idle_sync+idle_host",
    },
    least={"waiting_share": "communication_warning_share"},
    severity="warning",
)


@communication_rule(
    sees="Collectives move less than a megabyte each, so that latency dominates.",
    evidence="collectives per step, mean bytes, exposed share",
    fix="Combine small messages into larger buckets.",
    fix_pytorch="Raise DDP's bucket_cap_mb; wrap larger units with FSDP.",
    wrong_when="the messages are few and overlapped",
    check="Fewer, larger collectives.",
    worth=Worth("exposed_communication", 0.6, "a megabyte takes little longer than a kilobyte"),
    explains=("exposed-communication", "weak-overlap"),
    sources="TS",
)
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
    share = context.account("exposed_communication") * sum(each.ms for each in small) / total_ms
    mean = sum(each.bytes or 0.0 for each in small) / count
    claim = (
        f"{show_count(round(count))} collectives a step move {show_bytes(mean)} each and cost "
        f"{show_share(share)} of the step."
    )
    return Found(claim, {"collectives": count, "mean_bytes": mean, "exposed_share": share}, share)


@communication_rule(
    sees="Gradients are reduced after every micro-batch, where once a step is enough.",
    evidence="reductions and micro-batches per step, share",
    fix="Reduce gradients once a step, with the last micro-batch.",
    fix_pytorch="Run all micro-batches but the last under model.no_sync() (DDP), or "
    "set_requires_gradient_sync(False) (FSDP).",
    wrong_when="gradients of several micro-batches do not fit into memory",
    check="One reduction of each gradient a step.",
    worth=Worth("exposed_communication+wait_ranks+compute", 0.7, "the last reduction remains"),
    explains=("exposed-communication", "weak-overlap", "small-messages", "straggler-rank", "uneven-ranks"),
    sources="ours: PyTorch's DistributedDataParallel.no_sync",
)
def sync_every_micro_batch(context: RuleContext) -> Found | None:
    synced = context.activity.marks.get("synced_passes", 0.0)
    if synced < _REPEATED:
        return None
    total = context.step_share(context.activity.communication_ms)
    share = (1.0 - 1.0 / synced) * max(total, context.account("exposed_communication", "wait_ranks"))
    claim = (
        f"Gradients are reduced {show_count(round(synced))} times a step, after every micro-batch: "
        f"all but the last take {show_share(share)} of the step."
    )
    return Found(claim, {"reductions": synced, "share": share}, share)


@communication_rule(
    sees="The device communicates without computing anything.",
    evidence="exposed and hidden share, the longest collective",
    fix="Overlap communication with the backward pass, or send less.",
    fix_pytorch=_REDUCING,
    fix_jax="Turn on XLA's latency-hiding scheduler, and shard for fewer collectives.",
    wrong_when="some ranks are missing: part of it may be waiting for a late rank",
    check="Exposed communication shrinks in the ledger, and the step by as much.",
    worth=Worth("exposed_communication", 0.6, "the last bucket has no backward left to hide behind"),
    explains=("weak-overlap",),
    sources="TL, XP, TBP, GPF, NAI",
)
def exposed_communication(context: RuleContext) -> Found | None:
    share = context.account("exposed_communication") or context.phase_share(PhaseKind.COMMUNICATION)
    collectives = context.activity.collectives
    hidden, of_link, good = _hidden_share(context), _share_of_link(context), context.limits.good_overlap
    claim = f"Exposed communication takes {show_share(share)} of the step"
    if hidden is not None:
        claim += f"; {show_share(hidden, 0)} of all communication overlaps computation"
        claim += f", {show_share(good, 0)} is good" if hidden < good else ""
    is_waiting = of_link is not None and of_link < _MOSTLY_WAITING
    if of_link is not None and is_waiting:
        needed = "less than 1 %" if of_link < 0.01 else show_share(of_link, 0)
        claim += (
            f". The link needs {needed} of that time for its bytes; the rest is waiting or a slow network"
        )
    evidence: Evidence = {
        "exposed_share": share,
        "hidden_share": hidden,
        "collective": collectives[0].name if collectives else None,
        "of_link": of_link if is_waiting else None,
    }
    return Found(f"{claim}.", evidence, share, remedy=_remedy(context, of_link))


@communication_rule(
    sees="Less than 70 % of the communication overlaps computation.",
    evidence="hidden share, communication per step",
    fix="Start reductions earlier: smaller first buckets, separate streams, no waits in the backward pass.",
    wrong_when="there is little computation to overlap with",
    check="More of the communication overlaps computation.",
    worth=Worth("exposed_communication", 0.5, "the last bucket has no backward left to hide behind"),
    sources="TL, NAI",
)
def weak_overlap(context: RuleContext) -> Found | None:
    hidden, share, limits = _hidden_share(context), context.account("exposed_communication"), context.limits
    if hidden is None or hidden >= limits.good_overlap or share < limits.communication_info_share:
        return None
    total_ms = context.activity.communication_ms
    claim = f"{show_share(hidden, 0)} of {show_ms(total_ms)} of communication a step overlaps; 70 % is good."
    return Found(claim, {"hidden_share": hidden, "total_ms": total_ms}, share, severity="info")


@communication_rule(
    sees="Collectives reach less than half of the link's rate.",
    evidence="rate over the link, the link's rate",
    fix="Check with NCCL_DEBUG=INFO that the collectives use the fast link, and the topology.",
    fix_where=(
        on_amd(
            "Compare with rccl-tests on the same machine, and check the topology (NCCL_DEBUG=INFO); over "
            "PCIe RCCL copies directly between devices only with HSA_FORCE_FINE_GRAIN_PCIE=1.",
        ),
    ),
    wrong_when="it includes waiting for late ranks, or spans machines",
    check="The collectives reach the link's rate.",
    worth=Worth("exposed_communication", 0.5, "large messages reach 70 to 90 % of a link"),
    sources="GPF, XP",
)
def slow_link(context: RuleContext) -> Found | None:
    link, known = context.target.figures.link(), _measurable(context)
    share = context.account("exposed_communication")
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
    return Found(claim, {"bytes_per_s": rate, "of_link": reached}, share * (1.0 - reached), severity="info")


def _slowest_is(*kinds: str) -> Callable[[RuleContext], bool]:
    def is_so(context: RuleContext) -> bool:
        many = context.profile.many_ranks
        return bool(many and many.slow and many.slow[0].kind in kinds)

    return is_so


@ranks_rule(
    sees="One pipeline stage computes longer than the others, and they wait for it.",
    evidence="the rank, its compute and the others', micro-batches, the unavoidable bubble",
    fix="Move layers from this stage to others; the first and last also have the embedding and the loss.",
    wrong_when="devices differ in speed on purpose",
    check="All stages are equally busy, and the bubble is near the schedule's.",
    worth=Worth("wait_ranks+exposed_communication", 0.8, "the slowest stage sets the pace", "stragglers"),
    explains=("exposed-communication", "weak-overlap", "straggler-rank", "uneven-ranks"),
    sources="ours: zero-bubble, Megatron",
    needs="profile.links",
)
def slow_stage(context: RuleContext, links: Communication) -> Found | None:
    pipeline = links.pipeline
    if pipeline is None:
        return None
    slowest = pipeline.slow_stage(context.limits.slow_stage_ratio)
    if slowest is None:
        return None
    usual = pipeline.usual_ms(slowest)
    lost_ms = (slowest.busy_ms - usual) * context.times.scale
    share = min(context.step_share(lost_ms), context.account("exposed_communication", "wait_ranks"))
    claim = (
        f"The pipeline stage on rank {slowest.rank} computes {show_ms(slowest.busy_ms)} a step; the others "
        f"compute {show_ms(usual)} and wait for it."
    )
    evidence: Evidence = {
        "rank": float(slowest.rank),
        "busy_ms": slowest.busy_ms,
        "others_ms": usual,
        "micro_batches": pipeline.micro_batches,
        "ideal_bubble_share": pipeline.ideal_bubble_share,
    }
    return Found(claim, evidence, share)


@ranks_rule(
    sees="One rank's experts receive more tokens, and the others wait for it.",
    evidence="the rank, its tokens over the mean, waiting per step",
    fix="Balance the router: a load-balancing loss or bias, a capacity factor, more experts per rank.",
    wrong_when="the all-to-alls carry something other than tokens",
    check="The busiest rank receives about the mean, and waiting in all-to-alls shrinks.",
    worth=Worth("wait_ranks+exposed_communication", 0.8, "the busiest rank sets the pace", "stragglers"),
    explains=("exposed-communication", "weak-overlap", "straggler-rank", "uneven-ranks"),
    sources="ours: Megatron, DeepEP",
    needs="profile.links",
)
def uneven_experts(context: RuleContext, links: Communication) -> Found | None:
    worst = max(links.experts, key=lambda use: use.max_over_mean or 0.0, default=None)
    ratio = worst.max_over_mean if worst else None
    if worst is None or ratio is None or ratio < context.limits.uneven_experts_ratio:
        return None
    rank, wait_ms = worst.busiest_rank, worst.wait_ms
    share = context.step_share(wait_ms * context.times.scale)
    claim = (
        f"Rank {rank} receives {ratio:.2f}x the tokens of the mean rank in all-to-alls; waiting for "
        f"it takes {show_ms(wait_ms)} a step, {show_share(share)} of it."
    )
    evidence: Evidence = {"rank": float(rank), "max_over_mean": ratio, "wait_ms": wait_ms}
    return Found(claim, evidence, share)


@ranks_rule(
    sees="One rank is late to most collectives, and the others wait for it.",
    evidence="the rank, how often it is last, how long others wait, the exposed share, which account grew",
    fix="Follow the account that the rank has more of: its host (load, pinning, garbage collection), loader, "
    "syncs, copies, or clocks and share of the work. If there is none, compare its trace with a fast rank's.",
    wrong_when="clocks differ by more than the waits, or profiling began at different times",
    check="The ranks arrive together, and exposed communication shrinks on all.",
    worth=Worth(
        "wait_ranks+exposed_communication+idle_host+idle_input+idle_sync+exposed_copy+compute",
        0.8,
        "the run is then as fast as its next slowest rank",
        "stragglers",
    ),
    explains=(
        "exposed-communication",
        "weak-overlap",
        "small-messages",
        "slow-link",
        "launch-gaps",
        "host-stall",
        "python-overhead",
        "input-wait",
        "loader-on-main-thread",
        "uneven-ranks",
    ),
    sources="TL, HTA, TML, NVR, AL, XP, GPF",
    needs="activity.straggler",
)
def straggler_rank(context: RuleContext, late: Straggler) -> Found | None:
    # Overlapped waiting costs nothing; the mean over all ranks includes the straggler, which never waits.
    is_split = context.ledger is not None and context.ledger.wait_ranks is not None
    waiting = context.account("wait_ranks" if is_split else "exposed_communication")
    share = min(context.step_share(late.caused_ms), waiting * late.ranks / max(1, late.ranks - 1))
    on_processor = context.activity.driver == "host"
    reason = late.reason(on_processor=on_processor)
    reason = f"; {reason}" if reason else ""
    remedies = _LATE | _LATE_ON_A_PROCESSOR if on_processor else _LATE
    remedy = remedies.get(late.trouble or "", "Compare the trace of rank {rank} with that of a fast rank.")
    last = late.last_share
    often = "" if last is None else f", which is last in {show_share(last, 0)} of the collectives"
    claim = f"The other ranks wait {show_ms(late.caused_ms)} a step for rank {late.rank}{often}{reason}."
    evidence: Evidence = {
        "rank": float(late.rank),
        "wait_ms": late.caused_ms,
        "share": share,
        "last_share": last,
        "account": late.trouble or None,
        "excess_share": late.trouble_excess if late.trouble else None,
    }
    return Found(claim, evidence, share, remedy=remedy.format(rank=late.rank), line=late.line)


@ranks_rule(
    sees="Ranks wait in collectives for a slow host, stage or link, or for each other in turn.",
    evidence="waiting per step; what is slow, and by how much",
    fix="Balance the work: batch by tokens instead of samples, sequences of similar length, even experts.",
    fix_where=(
        Remedy(
            "with slow hosts or ranks",
            _slowest_is("host", "hosts", "neighbours", "rank"),
            "Replace the named host or rank, or run without it. Check it for low clocks, heat, a power "
            "limit, memory errors and other load.",
        ),
        Remedy(
            "with a slow stage",
            _slowest_is("stage"),
            "Move layers from this stage to others; the first and last also have the embedding and the loss.",
        ),
        Remedy(
            "with a slow link or switch",
            _slowest_is("link", "switch"),
            "Run nccl-tests over the named ranks and over others: look for a port at a lower rate, cable "
            "errors, other traffic on the switch.",
        ),
    ),
    wrong_when="clocks differ by more than the waits",
    check="The ranks arrive together.",
    worth=Worth("wait_ranks+exposed_communication", 0.6, "ranks always differ a little", "stragglers"),
    explains=("exposed-communication", "weak-overlap", "small-messages", "slow-link"),
    sources="TG, SM, NAI, HTA",
)
def uneven_ranks(context: RuleContext) -> Found | None:
    skew_ms = context.activity.skew_ms
    if not skew_ms or context.activity.straggler is not None:
        return None
    share = context.step_share(skew_ms)
    many = context.profile.many_ranks
    slow = [note.text for note in notes_of(many)] if many else []
    claim = f"Ranks wait {show_ms(skew_ms)} a step for each other, {show_share(share)} of it"
    claim += f". {slow[0]}" if slow else "; no rank is always last."
    part = many.slow[0] if many and many.slow else None
    evidence: Evidence = {
        "wait_ms": skew_ms,
        "share": share,
        "slow": part.name if part else None,
        "slower": part.slower if part else None,
    }
    return Found(claim, evidence, share)
