"""Rules about ranks that differ: one that the others wait for, a part of them, or all in turn."""

from __future__ import annotations

from collections.abc import Callable

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Remedy, Rule, Worth
from stepgrade.model.many_ranks import notes_of
from stepgrade.statistics import median
from stepgrade.units import show_ms, show_share

_REASONS = {
    "compute": "it computes longer: check its clocks, temperature and share of the work",
    "idle_input": "it waits for input: check its loader and storage",
    "idle_host": "its host launches late: check other load, core pinning and garbage collection there",
    "idle_sync": "its host waits for the device more often: look for code that only this rank runs",
    "exposed_copy": "it copies more: look for code that only this rank runs",
    "unattributed": "the trace does not show why",
}
_ON_A_PROCESSOR = {
    "compute": "it computes longer: check other load there and its share of the work",
    "idle_host": "it does something else than operations",
}


def _levels(limits: Limits) -> Levels:
    return Levels(
        limits.straggler_info_share, limits.straggler_warning_share, limits.straggler_critical_share
    )


def straggler_rank(context: RuleContext) -> Found | None:
    late = context.activity.straggler
    if late is None:
        return None
    # Waiting that computing hides costs nothing; the mean over the ranks includes the one that never waits.
    exposed = context.account("exposed_communication") * late.ranks / max(1, late.ranks - 1)
    share = min(context.step_share(late.caused_ms), exposed)
    reasons = _REASONS if context.activity.driver != "host" else _REASONS | _ON_A_PROCESSOR
    reason = f"; {reasons[late.trouble]}" if late.trouble in reasons else ""
    last = late.last_share
    often = "" if last is None else f", which is last in {show_share(last, 0)} of the collectives"
    claim = f"The other ranks wait {show_ms(late.caused_ms)} a step for rank {late.rank}{often}{reason}."
    evidence: Evidence = {"rank": float(late.rank), "wait_ms": late.caused_ms, "share": share}
    if last is not None:
        evidence |= {"last_share": last}
    if late.trouble:
        evidence |= {"account": late.trouble, "excess_share": late.trouble_excess}
    return _levels(context.limits).found(share, claim, evidence, line=late.line)


def uneven_ranks(context: RuleContext) -> Found | None:
    skew_ms = context.activity.skew_ms
    if not skew_ms or context.activity.straggler is not None:
        return None
    share = context.step_share(skew_ms)
    evidence: Evidence = {"wait_ms": skew_ms, "share": share}
    many = context.profile.many_ranks
    slow = [note.text for note in notes_of(many)] if many else []
    claim = f"Ranks wait {show_ms(skew_ms)} a step for each other, {show_share(share)} of it"
    claim += f". {slow[0]}" if slow else ", and none is always the last."
    if many and many.slow:
        evidence |= {"slow": many.slow[0].name, "slower": many.slow[0].slower}
    return _levels(context.limits).found(share, claim, evidence)


def _slowest_is(*kinds: str) -> Callable[[RuleContext], bool]:
    def is_so(context: RuleContext) -> bool:
        many = context.profile.many_ranks
        return bool(many and many.slow and many.slow[0].kind in kinds)

    return is_so


def slow_stage(context: RuleContext) -> Found | None:
    links = context.profile.links
    pipeline = links.pipeline if links else None
    if pipeline is None:
        return None
    slowest = max(pipeline.stages, key=lambda stage: (stage.busy_ms, -stage.rank))
    others = [stage.busy_ms for stage in pipeline.stages if stage is not slowest]
    usual = median(others)
    if slowest.busy_ms < context.limits.slow_stage_ratio * usual:
        return None
    lost_ms = (slowest.busy_ms - usual) * context.times.scale
    share = min(context.step_share(lost_ms), context.account("exposed_communication"))
    claim = (
        f"The pipeline's stage on rank {slowest.rank} computes {show_ms(slowest.busy_ms)} a step, "
        f"the others {show_ms(usual)}: they wait for it."
    )
    evidence: Evidence = {
        "rank": float(slowest.rank),
        "busy_ms": slowest.busy_ms,
        "others_ms": usual,
        "micro_batches": pipeline.micro_batches,
        "ideal_bubble_share": pipeline.ideal_bubble_share,
    }
    return _levels(context.limits).found(share, claim, evidence)


def uneven_experts(context: RuleContext) -> Found | None:
    links = context.profile.links
    worst = max(links.experts if links else (), key=lambda one: one.max_over_mean or 0.0, default=None)
    ratio = worst.max_over_mean if worst else None
    if worst is None or ratio is None or ratio < context.limits.uneven_experts_ratio:
        return None
    rank, wait_ms = worst.busiest_rank, worst.wait_ms
    share = context.step_share(wait_ms * context.times.scale)
    claim = (
        f"Rank {rank} receives {ratio:.2f}x the tokens of the mean rank in all-to-alls; ranks wait "
        f"{show_ms(wait_ms)} a step in these, {show_share(share)} of it."
    )
    evidence: Evidence = {"rank": float(rank), "max_over_mean": ratio, "wait_ms": wait_ms}
    return _levels(context.limits).found(share, claim, evidence)


RULES = (
    Rule(
        name="slow-stage",
        find=slow_stage,
        sees="One pipeline stage computes longer than the others, which wait for it.",
        evidence="the rank, its and the others' compute per step, micro-batches, the unavoidable bubble",
        fix="Move layers from that stage to others: the first and last also hold embedding and loss.",
        wrong_when="stages run on devices of different speed on purpose",
        check="All stages are busy for as long, and the bubble is near its schedule's.",
        worth=Worth("exposed_communication", 0.8, "the slowest stage sets the pace of all"),
        explains=("exposed-communication", "weak-overlap", "straggler-rank", "uneven-ranks"),
        sources="ours: zero-bubble, Megatron",
    ),
    Rule(
        name="uneven-experts",
        find=uneven_experts,
        sees="One rank's experts receive more tokens, and the others wait for it.",
        evidence="the rank, what it receives over the mean, milliseconds waited per step",
        fix="Balance the router: a load-balancing loss or bias, a capacity factor, more experts per rank.",
        wrong_when="the all-to-alls carry something other than tokens",
        check="The busiest rank receives about the mean, and waiting in all-to-alls shrinks.",
        worth=Worth("exposed_communication", 0.8, "the busiest rank sets the pace of all"),
        explains=("exposed-communication", "weak-overlap", "straggler-rank", "uneven-ranks"),
        sources="ours: Megatron, DeepEP",
    ),
    Rule(
        name="straggler-rank",
        find=straggler_rank,
        sees="One rank is late to most collectives, and the others wait for it.",
        evidence="the rank, how often it is last, milliseconds the others wait per step, the exposed "
        "share, which account grew",
        fix="Compare that rank's trace with a fast one's: the account that grew is the cause.",
        fix_where=(
            Remedy(
                "on processors",
                lambda context: context.platform == "cpu",
                "Take what only that rank does out of the step, or give it as much work as the others.",
            ),
        ),
        wrong_when="the ranks' clocks differ by more than the waits, or profiling began at different times",
        check="The ranks arrive together, and exposed communication shrinks on all of them.",
        worth=Worth(
            "exposed_communication+idle_host+idle_input+idle_sync+exposed_copy+compute",
            0.8,
            "the run is then as fast as the next slowest rank",
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
    ),
    Rule(
        name="uneven-ranks",
        find=uneven_ranks,
        sees="Ranks wait in collectives: for a slow host, stage or link, or for each other in turn.",
        evidence="milliseconds waited per step; what is slow, and by how much",
        fix="Even out the work: batches by tokens instead of samples, sequences of like length, equal "
        "experts.",
        fix_where=(
            Remedy(
                "with slow hosts or ranks",
                _slowest_is("host", "hosts", "neighbours", "rank"),
                "Run without what is named, or swap it. Look there for lower clocks, heat, a power limit, "
                "memory errors and other load.",
            ),
            Remedy(
                "with a slow stage",
                _slowest_is("stage"),
                "Move layers from that stage to others: the first and last also hold embedding and loss.",
            ),
            Remedy(
                "with a slow link or switch",
                _slowest_is("link", "switch"),
                "Run nccl-tests over the ranks that are named, and over others: look for a port at a lower "
                "rate, errors on a cable, traffic of others on the switch.",
            ),
        ),
        wrong_when="the ranks' clocks differ by more than the waits",
        check="The ranks arrive together.",
        worth=Worth("exposed_communication", 0.6, "some spread of the ranks stays"),
        explains=("exposed-communication", "weak-overlap", "small-messages", "slow-link"),
        sources="TG, SM, NAI, HTA",
    ),
)
