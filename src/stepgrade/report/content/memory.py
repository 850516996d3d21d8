"""What one device holds in a planned run, whether it fits, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import (
    Bar,
    Bars,
    Block,
    Bullet,
    Bullets,
    Column,
    Fact,
    Facts,
    Heading,
    Only,
    Paragraph,
    Space,
    Table,
    Title,
    bullets,
    facts,
)
from stepgrade.units import show_bytes, show_count, show_rate, show_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepgrade.hardware.estimate import Estimate
    from stepgrade.hardware.memory.changes import MemoryChange
    from stepgrade.hardware.memory.fit import MemoryFit
    from stepgrade.hardware.plan_table import PlanTable, RankedPlan

VERDICTS = {"fits": "fits", "does_not_fit": "does not fit", "too_close": "too close to call"}
PHASES = {
    "loss": "when the loss is computed",
    "backward": "when the backward pass begins",
    "end_of_backward": "when the backward pass ends",
    "optimizer": "when the optimizer steps",
}
TRAINERS = {
    "torchtitan": "torchtitan",
    "megatron": "Megatron-LM",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
}
_PARTS = {"measured_difference": "measured difference"}
_NAME_WIDTH = 16


def memory_blocks(found: Estimate, memory: MemoryFit) -> Iterator[Block]:
    """Yield what a device holds at its peak, its capacity, the largest micro-batch, and the way to fit."""
    yield Heading("Memory of one device")
    band = f"{show_bytes(memory.low_bytes)} to {show_bytes(memory.high_bytes)}"
    rows = {"needs": f"{show_bytes(memory.need_bytes)} ({band})"}
    if memory.capacity_bytes is not None and memory.verdict is not None:
        rows["has"] = f"{show_bytes(memory.capacity_bytes)} as its driver reports: {VERDICTS[memory.verdict]}"
    taken = memory.reserved_bytes + memory.parts["context"]
    if show_bytes(taken) != show_bytes(memory.need_bytes):
        rows["takes"] = f"{show_bytes(taken)} where there is room: the allocator keeps what it can"
    stage = f" on pipeline stage {memory.stage + 1}" if found.plan.parallel.pipeline > 1 else ""
    rows["peak"] = PHASES[memory.phase] + stage
    if memory.largest_micro_batch is not None:
        many = "sequence" if memory.largest_micro_batch == 1 else "sequences"
        fits = f"{memory.largest_micro_batch:,} {many} of {found.plan.seq:,} tokens"
        rows["micro-batch"] = (
            f"at most {fits}" if memory.largest_micro_batch else "does not fit, even with a micro-batch of 1"
        )
    if memory.is_anchored:
        rows["anchor"] = "predicted from the run that was measured"
    yield facts(rows, _NAME_WIDTH)
    bars = []
    for name, amount in memory.parts.items():
        cells = show_bytes(amount), show_share(amount / memory.need_bytes)
        if amount > 0:
            bars.append(Bar(_PARTS.get(name, name), amount, f"{cells[0]:>10} {cells[1]:>7}", cells))
    yield Bars(("Memory of", "Bytes", "Share"), tuple(bars))
    if memory.changes or memory.least_devices is not None:
        yield from _change_blocks(memory)
    if memory.another_training is not None:
        yield Heading("Another training that fits")
        yield Bullets((Bullet(_change_text(memory.another_training)),))


def _change_text(change: MemoryChange) -> str:
    return f"{change.text}: saves {show_bytes(change.saves_bytes)}, {change.price}"


def _change_blocks(memory: MemoryFit) -> Iterator[Block]:
    """Yield the changes of the same training, cheapest first, or how many devices it takes."""
    enough = bool(memory.changes) and memory.changes[-1].verdict == "fits"
    count = len(memory.changes)
    title = "The cheapest change that makes it fit" if count == 1 else "The cheapest changes that make it fit"
    yield Heading(title if enough else "Cheapest changes, which are not enough")
    points = [
        Bullet(_change_text(change), mark=f"{place}.") for place, change in enumerate(memory.changes, 1)
    ]
    yield Bullets(tuple(points))
    if memory.least_devices is not None:
        yield Paragraph(f"{memory.least_devices} such devices hold it with FSDP and full checkpointing")


def plans(found: PlanTable, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield the plans as a table, what limits each, and the flags that launch the best of them."""
    step = f"{found.global_batch:,} x {found.seq:,} tokens per step"
    run = f"{found.model}, {step}"
    yield Title("Plans", f"stepgrade · {found.devices} x {found.device} · {step}")
    yield Space()
    yield Paragraph(f"{found.devices} x {found.device}: {run}", only="full")
    if not found.plans:
        yield Paragraph("no plan fits", style="title")
    else:
        best = found.plans[0]
        verdict = "" if best.verdict == "fits" else ", if it fits, which is too close to call"
        mfu = f" ({show_share(best.mfu, 0)} MFU)" if best.mfu is not None else ""
        yield Paragraph(f"{show_rate(best.tok_s)}{mfu} at most{verdict}: {_sharing(best)}", style="title")
        yield _plan_table(found)
        shown: set[str] = set()
        for place, plan in enumerate(found.plans, 1):
            yield from _launch(plan, place, only="full" if plan.trainer in shown else None)
            shown.add(plan.trainer)
    considered = f"{show_count(found.considered)} plans considered"
    capacity = f"each device has {show_bytes(found.capacity_bytes)}"
    notes = (found.model, f"{considered}; {capacity}", *texts_of(found.notes, flags))
    yield Heading("Notes")
    yield bullets(notes, style="dim")


def _plan_table(found: PlanTable) -> Table:
    """Return a row for each plan, without the columns that none of them needs."""
    sizes = {
        "TP": [str(plan.tensor) for plan in found.plans],
        "PP": [
            f"{plan.pipeline}x{plan.virtual}" if plan.virtual > 1 else str(plan.pipeline)
            for plan in found.plans
        ],
        "CP": [str(plan.context) for plan in found.plans],
        "EP": [str(plan.expert) for plan in found.plans],
    }
    used = {name: cells for name, cells in sizes.items() if set(cells) != {"1"}}
    columns = (
        Column("", width=2, right=True, title="Place"),
        Column("tok/s", width=8, right=True, title="tok/s"),
        Column("memory", width=8, right=True),
        Column("trainer", width=11),
        # Four of them, and all the others, fit into 80 columns.
        *(Column(name, width=4 if name == "PP" else 2, right=True, title=name) for name in used),
        Column("sharing", width=17),
        Column("batch", width=6, title="Micro-batches"),
        Column("redone", width=6, title="Recomputed"),
        Column("verdict", fills=True, only="full"),
    )
    rows = tuple(
        (
            str(place + 1),
            f"{plan.tok_s:,.0f}",
            show_bytes(plan.need_bytes),
            TRAINERS[plan.trainer],
            *(cells[place] for cells in used.values()),
            _copies(plan),
            f"{plan.micro_batches}x{plan.micro_batch}",
            plan.checkpointing,
            VERDICTS[plan.verdict],
        )
        for place, plan in enumerate(found.plans)
    )
    return Table(columns, rows, is_spaced=True, is_cut=True)


def _launch(plan: RankedPlan, place: int, only: Only) -> Iterator[Block]:
    """Yield what limits a plan and how to launch it; a terminal has the best of each trainer."""
    yield Heading(f"{place}. {TRAINERS[plan.trainer]}: {_sharing(plan)}", only=only)
    band = f"{show_bytes(plan.low_bytes)} to {show_bytes(plan.high_bytes)}"
    rows = {"memory": f"{show_bytes(plan.need_bytes)} ({band}): {VERDICTS[plan.verdict]}"}
    rows["limits"] = (
        "; ".join(why.text for why in plan.why_not_better) or "limited by compute; no faster plan found"
    )
    rows["start with"] = plan.flags
    yield Facts(tuple(Fact(name, text) for name, text in rows.items()), header=("What", "Value"), only=only)


def _sharing(plan: RankedPlan) -> str:
    """Return a plan in a few words, without what it does not use."""
    sizes = {"TP": plan.tensor, "PP": plan.pipeline, "CP": plan.context, "EP": plan.expert}
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1]
    if plan.expert_tensor is not None:
        words.append("whole experts")
    if plan.virtual > 1:
        words.append(f"{plan.virtual} virtual stages")
    words.append(_copies(plan))
    of = "micro-batches of" if plan.micro_batches > 1 else "micro-batch of"
    words.append(f"{plan.micro_batches} {of} {plan.micro_batch}")
    if plan.loss == "fused":
        words.append("fused loss")
    words.append(
        "nothing recomputed" if plan.checkpointing == "none" else f"{plan.checkpointing} checkpointing"
    )
    return ", ".join(words)


def _copies(plan: RankedPlan) -> str:
    """Return how a plan shards, and among how many: devices that share a sequence hold shards as well."""
    peers = plan.replicas * plan.context
    return f"{plan.data} {peers}" if peers > 1 else "one replica"
