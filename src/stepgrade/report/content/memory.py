"""What one device holds in a planned run, whether it fits, and what would make it fit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepgrade.report.blocks import Bar, Bars, Block, Bullet, Bullets, Heading, Paragraph, facts
from stepgrade.units import show_bytes, show_share

if TYPE_CHECKING:
    from stepgrade.hardware.estimate import Estimate
    from stepgrade.hardware.memory.fit import MemoryFit

VERDICTS = {"fits": "fits", "does_not_fit": "does not fit", "too_close": "too close to call"}
PHASES = {
    "loss": "when the loss is computed",
    "backward": "when the backward pass begins",
    "end_of_backward": "when the backward pass ends",
    "optimizer": "when the optimizer steps",
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
    stage = f" on pipeline stage {memory.stage + 1}" if found.plan.parallel.pipeline > 1 else ""
    rows["peak"] = PHASES[memory.phase] + stage
    if memory.largest_micro_batch is not None:
        fits = f"{memory.largest_micro_batch:,} sequences of {found.plan.seq:,} tokens"
        rows["micro-batch"] = (
            f"at most {fits}" if memory.largest_micro_batch else "not even one sequence fits"
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
    if not memory.changes and memory.least_devices is None:
        return
    enough = bool(memory.changes) and memory.changes[-1].verdict == "fits"
    count = len(memory.changes)
    title = "The cheapest change that makes it fit" if count == 1 else "The cheapest changes that make it fit"
    yield Heading(title if enough else "Cheapest changes, which are not enough")
    points = [
        Bullet(f"{change.text}: saves {show_bytes(change.saves_bytes)}, {change.price}", mark=f"{place}.")
        for place, change in enumerate(memory.changes, 1)
    ]
    yield Bullets(tuple(points))
    if memory.least_devices is not None:
        yield Paragraph(f"{memory.least_devices} such devices hold it with FSDP and full checkpointing")
