"""Rules about copies between host and device."""

from __future__ import annotations

from stepgrade.config.limits import Limits
from stepgrade.contract import Bottleneck as BottleneckV1
from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Rule, Worth
from stepgrade.diagnosis.rules.synchronisation import idle_share_of, kind_of_wait
from stepgrade.model.activity import CopyRow
from stepgrade.scoring.phases import PhaseKind
from stepgrade.units import how_often, show_bytes, show_count, show_ms, show_share

_BY_COPIES = "exposed_copy+idle_sync+idle_host"


def _levels(limits: Limits) -> Levels:
    return Levels(limits.copy_info_share, limits.copy_warning_share, limits.copy_critical_share)


def _lost_share(context: RuleContext, copies: list[CopyRow]) -> float:
    """Return the share of the step lost to these copies to the device: exposed, or waited for."""
    copies_ms = sum(copy.ms for copy in copies)
    total_ms = sum(copy.ms for copy in context.activity.copies)
    to_device_ms = sum(copy.ms for copy in context.activity.copies if copy.direction == "h2d")
    waited = idle_share_of(context, [wait for wait in context.activity.waits if kind_of_wait(wait) == "copy"])
    exposed = context.account("exposed_copy") * copies_ms / total_ms if total_ms else 0.0
    return exposed + (waited * copies_ms / to_device_ms if to_device_ms else 0.0)


def heavy_transfer(context: RuleContext) -> Found | None:
    share = context.account("exposed_copy") or context.phase_share(PhaseKind.TRANSFER)
    claim = f"Copies between host and device take {show_share(share)} of the step."
    return _levels(context.limits).found(share, claim, {"transfer_share": share})


def pageable_copies(context: RuleContext) -> Found | None:
    pageable = [
        copy for copy in context.activity.copies if copy.memory == "pageable" and copy.direction == "h2d"
    ]
    if not pageable:
        return None
    count, ms = sum(copy.calls for copy in pageable), sum(copy.ms for copy in pageable)
    share = _lost_share(context, pageable)
    claim = (
        f"Copies come from pageable memory {how_often(count)} ({show_ms(ms)}): {show_share(share)} of the "
        "step is lost to them."
    )
    evidence: Evidence = {"copies": count, "copy_ms": ms, "lost_share": share}
    sizes = [copy.bytes for copy in pageable if copy.bytes is not None]
    if len(sizes) == len(pageable):
        evidence["bytes"] = sum(sizes)
    return _levels(context.limits).found(share, claim, evidence)


def many_small_copies(context: RuleContext) -> Found | None:
    limits = context.limits
    small = [
        copy
        for copy in context.activity.copies
        if copy.direction == "h2d"
        and copy.bytes is not None
        and copy.bytes < limits.small_copy_bytes * copy.calls
    ]
    count = sum(copy.calls for copy in small)
    if count <= limits.copies_per_step:
        return None
    share, mean = _lost_share(context, small), sum(copy.bytes or 0.0 for copy in small) / count
    claim = (
        f"{show_count(round(count))} copies a step take {show_bytes(mean)} each to the device: "
        f"{show_share(share)} of the step is spent waiting for them."
    )
    return _levels(limits).found(share, claim, {"copies": count, "mean_bytes": mean, "lost_share": share})


def offload_traffic(context: RuleContext) -> Found | None:
    copies = context.activity.copies
    total_ms = sum(copy.ms for copy in copies)
    ms = sum(copy.ms for copy in copies if copy.during in {"backward", "optimizer"})
    share = context.account("exposed_copy") * ms / total_ms if total_ms else 0.0
    claim = f"{show_ms(ms)} of copies a step run in the backward pass or the optimizer: state is on the host."
    return _levels(context.limits).found(share, claim, {"copy_ms": ms, "lost_share": share})


RULES = (
    Rule(
        name="pageable-copies",
        find=pageable_copies,
        sees="Copies use pageable host memory: they are staged, slow, and block the host.",
        evidence="pageable copies per step, time, bytes, share of the step",
        fix="Copy from pinned (page-locked) host memory, asynchronously.",
        fix_pytorch="Use DataLoader(pin_memory=True) and .to(device, non_blocking=True); pin buffers that "
        "you copy from yourself.",
        wrong_when="the host needs the value at once: pinning does not help",
        check="The copies are named Pinned in the trace and the wait is gone.",
        worth=Worth(_BY_COPIES, 0.7, "a copy from pinned memory overlaps kernels, if there are any"),
        explains=("heavy-transfer", "blocking-copy-sync", "sync-wait"),
        sources="NS, AL, TG",
    ),
    Rule(
        name="many-small-copies",
        find=many_small_copies,
        sees="Each step copies many small values to the device.",
        evidence="copies per step, mean size, share of the step",
        fix="Gather small copies into one, or make the values on the device.",
        fix_pytorch="Build masks, positions and scalars on the device (device=...), and copy the rest as "
        "one tensor.",
        wrong_when="the copies overlap kernels and nothing waits for them",
        check="Fewer copies per step, and the wait shrinks.",
        worth=Worth(_BY_COPIES, 0.6, "one large copy takes about as long as one small one"),
        explains=("heavy-transfer", "blocking-copy-sync"),
        sources="TL, PM, XP",
    ),
    Rule(
        name="offload-traffic",
        find=offload_traffic,
        sees="The backward pass or optimizer copies between host and device: state is on the host.",
        evidence="milliseconds of copies in backward and optimizer, exposed share of the step",
        fix="Keep gradients and optimizer state on the device if they fit; else overlap their copies.",
        fix_pytorch="Shard optimizer state over the devices (FSDP, ZeRO) or use an 8-bit optimizer instead "
        "of CPU offload; with offload, copy on a stream of its own.",
        wrong_when="the model fits only with offloading",
        check="Copies leave the backward pass and the optimizer.",
        worth=Worth(
            "exposed_copy", 0.5, "the state must live somewhere; sharding costs communication instead"
        ),
        explains=("heavy-transfer",),
        sources="XP",
    ),
    Rule(
        name="heavy-transfer",
        find=heavy_transfer,
        sees="Copies between host and device are exposed for much of the step.",
        evidence="exposed copy share of the step",
        fix="Copy less between host and device: keep tensors there, pin memory, overlap copies.",
        fix_pytorch="Keep tensors on the device; copy batches with pin_memory=True and .to(device, "
        "non_blocking=True), a step ahead.",
        fix_jax="Keep arrays on the device between steps; device_put the next batch while this one runs.",
        fix_reference=BottleneckV1.TRANSFER.recommendation(),
        wrong_when="weights or optimizer state are on the host because they do not fit",
        check="The h2d and d2h phases shrink, and the step by as much.",
        worth=Worth("exposed_copy", 0.7, "the bytes still have to move; overlapping hides most of it"),
        sources="TL, TML, NAI, REF",
    ),
)
