"""What the device's memory held at its peak, who allocated it, and why it ran out."""

from __future__ import annotations

from collections.abc import Iterator

from stepgrade.model.memory import CATEGORIES, Memory, OutOfMemory
from stepgrade.report.blocks import Bar, Bars, Block, Column, Heading, Table, bullets, facts
from stepgrade.report.names import shortened
from stepgrade.units import show_bytes, show_count, show_share

_NAME_WIDTH = 16
_HOLDERS_SHOWN = 6


def memory_use_blocks(memory: Memory | None) -> Iterator[Block]:
    """Yield the memory at its peak; nothing where the source does not tell of it."""
    if memory is None:
        return
    if memory.out_of_memory is not None:
        yield Heading("Out of memory")
        yield bullets(failure_lines(memory.out_of_memory))
    if memory.peak_bytes is None:
        return
    yield Heading("Memory of the device")
    yield facts(dict(memory_rows(memory)), _NAME_WIDTH)
    whole = sum(memory.categories.values())
    bars = []
    for name in CATEGORIES:
        if amount := memory.categories.get(name):
            cells = show_bytes(amount), show_share(amount / whole)
            bars.append(Bar(name, amount, f"{cells[0]:>10} {cells[1]:>7}", cells))
    if bars:
        yield Bars(("At the peak", "Bytes", "Share"), tuple(bars))
    if memory.holders:
        yield Heading("Who allocated it")
        yield Table(
            (Column("From", fills=True), Column("As", width=12), Column("Bytes", width=10, right=True)),
            tuple(
                (shortened(holder.shown, 60), shortened(holder.category or "", 20), show_bytes(holder.bytes))
                for holder in memory.holders[:_HOLDERS_SHOWN]
            ),
        )


def memory_rows(memory: Memory) -> Iterator[tuple[str, str]]:
    """Yield the figures by their names."""
    if memory.peak_bytes is not None:
        of = f" of {show_bytes(memory.capacity_bytes)}" if memory.capacity_bytes else ""
        yield "peak", f"{show_bytes(memory.peak_bytes)}{of}"
    place = memory.peak_at
    if place is not None and (place.op or place.where):
        where = [shortened(part, 60) for part in (place.layer, place.where) if part]
        yield (
            "peak at",
            " in ".join((shortened(place.op or "code", 60), *where[:1]))
            + (f" ({where[1]})" if len(where) > 1 else ""),
        )
    if memory.headroom_bytes is not None:
        left = memory.headroom_bytes
        yield "left", show_bytes(left) if left >= 0 else f"nothing: {show_bytes(-left)} too much"
    if memory.reserved_bytes:
        lost = memory.fragmentation
        in_fragments = f", {show_share(lost)} of it in no tensor at the peak" if lost else ""
        yield "reserved", f"{show_bytes(memory.reserved_bytes)}{in_fragments}"
    if memory.retries:
        yield "retries", f"{show_count(memory.retries)} times the allocator found no room and asked again"
    if memory.growth is not None:
        yield "grows", f"{show_bytes(memory.growth.bytes_per_step)} with every step"


def failure_lines(failed: OutOfMemory) -> Iterator[str]:
    """Yield what was asked, what held the memory, and what else was on the device."""
    where = f" in {shortened(failed.where, 80)}" if failed.where else ""
    if failed.asked_bytes is None and failed.allocated_bytes is None:
        yield "The driver or one of its libraries found no room; its message has no figures."
    if failed.asked_bytes is not None:
        also = ""
        if failed.free_bytes is not None:
            also = f", and the device had {show_bytes(failed.free_bytes)} free"
        elif failed.allocated_bytes is None and failed.capacity_bytes is not None:
            also = f", and the device has {show_bytes(failed.capacity_bytes)}"
        yield f"{show_bytes(failed.asked_bytes)} were asked for{where}{also}."
    if failed.allocated_bytes is not None:
        of = f" of {show_bytes(failed.capacity_bytes)}" if failed.capacity_bytes else ""
        yield f"{show_bytes(failed.allocated_bytes)}{of} were in tensors."
    if failed.unallocated_bytes is not None:
        spare = show_bytes(failed.unallocated_bytes)
        enough = failed.asked_bytes is not None and failed.unallocated_bytes >= failed.asked_bytes
        why = ": enough, but in no piece that is large enough" if enough else ""
        yield f"{spare} were reserved and in no tensor{why}."
    if failed.context_bytes:
        yield f"{show_bytes(failed.context_bytes)} were the driver's and the libraries' of this process."
    if failed.other_processes_bytes:
        yield f"{show_bytes(failed.other_processes_bytes)} were held by other processes on the device."
