"""Rules about copies between host and device."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.contract import Bottleneck as BottleneckV1
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Found, rule, severity_of
from stepgrade.diagnosis.rules.sync import kind_of_wait, lost_in
from stepgrade.model.activity import CopyTally
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import how_often, show_bytes, show_count, show_ms, show_share

_AREA = "transfer"
_PINNED = "a copy from pinned memory runs beside the kernels, as far as there is something to run beside"


def _lost(context: RuleContext, copies: list[CopyTally]) -> float:
    """Return the share of the step lost to copies to the device: exposed, or waited for."""
    there = [one for one in context.activity.copies if one.direction == "h2d"]
    whole, sent = sum(one.ms for one in context.activity.copies), sum(one.ms for one in there)
    mine = sum(one.ms for one in copies)
    stuck = lost_in(context, [one for one in context.activity.waits if kind_of_wait(one) == "copy"])
    exposed = context.account("exposed_copy") * mine / whole if whole else 0.0
    return exposed + (stuck * mine / sent if sent else 0.0)


@rule(
    name="heavy-transfer",
    area=_AREA,
    account="exposed_copy",
    sees="Copies between host and device take a share of the step in which nothing is computed.",
    evidence="share of the step in copies that no computation hides",
    fix={
        "general": "Copy less between host and device: keep tensors there, pin memory, overlap copies.",
        "pytorch": "Keep tensors on the device; copy batches with pin_memory=True and .to(device, "
        "non_blocking=True), a step ahead.",
        "jax": "Keep arrays on the device between steps; device_put the next batch while this one runs.",
        "reference": BottleneckV1.TRANSFER.recommendation(),
    },
    wrong_when="weights or optimizer state live on the host on purpose, because they do not fit",
    check="The h2d and d2h phases shrink, and the step by as much.",
    realistic=0.7,
    because="the bytes still have to move; overlapping hides most of it",
    sources="TL-01, TML-03, NAI-03, REF-01",
)
def heavy_transfer(context: RuleContext, limits: Limits) -> Found | None:
    """Report copies above the limit."""
    share = context.account("exposed_copy") or context.phase_share(PhaseKind.TRANSFER)
    severity = severity_of(share, limits, "copy")
    if severity is None:
        return None
    claim = f"Copies between host and device take {show_share(share)} of the step."
    return Found(severity=severity, claim=claim, evidence={"transfer_share": share}, share=share)


@rule(
    name="pageable-copies",
    area=_AREA,
    account="exposed_copy+idle_sync+idle_host",
    sees="Copies go from or to pageable host memory: they are staged, slow, and the host waits for them.",
    evidence="pageable copies per step, their time and bytes, the share of the step they hold up",
    fix={
        "general": "Copy from pinned (page-locked) host memory, asynchronously.",
        "pytorch": "Use DataLoader(pin_memory=True) and .to(device, non_blocking=True); pin buffers "
        "that you copy "
        "from yourself.",
    },
    wrong_when="the copy is of a value that the host needs at once: pinning does not make that asynchronous",
    check="The copies are named Pinned in the trace and the wait is gone.",
    realistic=0.7,
    because=_PINNED,
    explains=("heavy-transfer", "blocking-copy-sync", "sync-wait"),
    sources="NS-01, AL-03, TG",
)
def pageable_copies(context: RuleContext, limits: Limits) -> Found | None:
    """Report pageable copies that hold the step up."""
    pageable = [one for one in context.activity.copies if one.memory == "pageable" and one.direction == "h2d"]
    time_ms = sum(one.ms for one in pageable)
    share = _lost(context, pageable)
    severity = severity_of(share, limits, "copy")
    if severity is None or not pageable:
        return None
    count = sum(one.count for one in pageable)
    evidence: dict[str, float | str] = {"copies": count, "copy_ms": time_ms, "lost_share": share}
    return Found(
        severity=severity,
        claim=f"Copies come from pageable memory {how_often(count)} ({show_ms(time_ms)}): "
        f"{show_share(share)} of the step is lost to them.",
        evidence=evidence | _moved(pageable),
        share=share,
    )


def _moved(copies: list[CopyTally]) -> dict[str, float | str]:
    known = [one.bytes for one in copies if one.bytes is not None]
    return {"bytes": sum(known)} if len(known) == len(copies) else {}


@rule(
    name="many-small-copies",
    area=_AREA,
    account="exposed_copy+idle_sync+idle_host",
    sees="Many copies of a few bytes go to the device in each step.",
    evidence="copies per step, their mean size, the share of the step they hold up",
    fix={
        "general": "Gather small copies into one, or make the values on the device.",
        "pytorch": "Build masks, positions and scalars on the device (device=...), and copy the "
        "rest as one tensor.",
    },
    wrong_when="the copies run beside kernels and nothing waits for them",
    check="Fewer copies per step, and the wait shrinks.",
    realistic=0.6,
    because="one large copy takes about as long as one small one",
    explains=("heavy-transfer", "blocking-copy-sync"),
    sources="TL-01, PM-02, XP-04",
)
def many_small_copies(context: RuleContext, limits: Limits) -> Found | None:
    """Report small copies that come in numbers."""
    small = [one for one in context.activity.copies if one.direction == "h2d" and one.bytes is not None]
    small = [one for one in small if (one.bytes or 0.0) < limits.small_copy_bytes * one.count]
    count = sum(one.count for one in small)
    share = _lost(context, small)
    severity = severity_of(share, limits, "copy")
    if count <= limits.copies_per_step or severity is None:
        return None
    mean = sum(one.bytes or 0.0 for one in small) / count
    return Found(
        severity=severity,
        claim=f"{show_count(round(count))} copies a step take {show_bytes(mean)} each to the device: "
        f"{show_share(share)} of the step waits for them.",
        evidence={"copies": count, "mean_bytes": mean, "lost_share": share},
        share=share,
    )


@rule(
    name="offload-traffic",
    area=_AREA,
    account="exposed_copy",
    sees="Copies between host and device run in the backward pass or in the optimizer: state lives "
    "on the host.",
    evidence="milliseconds of copies in backward and optimizer, share of the step that nothing hides",
    fix={
        "general": "Keep gradients and optimizer state on the device if they fit; else overlap their copies.",
        "pytorch": "Shard optimizer state over the devices (FSDP, ZeRO) or use an 8-bit optimizer "
        "instead of CPU "
        "offload; with offload, copy on a stream of its own.",
    },
    wrong_when="offloading is what makes the model fit at all",
    check="Copies leave the backward pass and the optimizer.",
    realistic=0.5,
    because="the state must live somewhere; sharding costs communication instead",
    explains=("heavy-transfer",),
    sources="XP-06",
)
def offload_traffic(context: RuleContext, limits: Limits) -> Found | None:
    """Report copies in places where no input is expected."""
    there = [one for one in context.activity.copies if one.during in {"backward", "optimizer"}]
    total = sum(one.ms for one in context.activity.copies)
    late = sum(one.ms for one in there)
    share = context.account("exposed_copy") * late / total if total else 0.0
    severity = severity_of(share, limits, "copy")
    if severity is None:
        return None
    claim = (
        f"{show_ms(late)} of copies a step run in the backward pass or the optimizer: state is on the host."
    )
    return Found(severity=severity, claim=claim, evidence={"copy_ms": late, "lost_share": share}, share=share)


RULES = (pageable_copies, many_small_copies, offload_traffic, heavy_transfer)
