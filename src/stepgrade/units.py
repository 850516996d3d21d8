"""Numbers to text, with their unit; the only place that rounds for people."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

NS_PER_MS = 1_000_000
BYTES_PER_GB = 1e9
MISSING = "\N{EN DASH}"

_SI_STEPS = ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BYTE_STEPS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def show_ms(ms: float | None) -> str:
    """Return a duration given in milliseconds, in the unit that reads best."""
    if ms is None or not math.isfinite(ms):
        return MISSING
    size = abs(ms)
    if size >= 60_000:
        return f"{ms / 60_000:,.1f} min"
    if size >= 10_000:
        return f"{ms / 1000:,.1f} s"
    if size >= 100:
        return f"{ms:,.0f} ms"
    if size >= 1 or size == 0:
        return f"{ms:.1f} ms"
    return f"{ms * 1000:.1f} µs"


def show_ranks(ranks: tuple[int, ...]) -> str:
    """Return ranks in words: rank 3; ranks 0 to 6; ranks 0, 2 and 4; of many scattered ones the first."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > 2 and ranks[-1] - ranks[0] == len(ranks) - 1:
        return f"ranks {ranks[0]} to {ranks[-1]}"
    if len(ranks) > 8:
        return f"ranks {', '.join(map(str, ranks[:6]))} and {len(ranks) - 6} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}" if ranks else "no rank"


def show_share(share: float | None, digits: int = 1) -> str:
    """Return a share (0 to 1) as a percentage."""
    if share is None or not math.isfinite(share):
        return MISSING
    return f"{share * 100:.{digits}f} %"


def show_graded_share(share: float | None, bounds: tuple[float, ...]) -> str:
    """Return a share with as many digits as it takes not to be rounded over one of the bounds."""
    if share is None:
        return MISSING
    for digits in (1, 2, 3, 4):
        if all((share >= bound) == (round(share, digits + 2) >= bound) for bound in bounds):
            return show_share(share, digits)
    return show_share(share, 6)


def show_delta(share: float, digits: int = 1) -> str:
    """Return a change (0.1 is ten percent more) with its sign."""
    return f"{share * 100:+.{digits}f} %"


def show_rate(rate: float | None, unit: str = "tok/s") -> str:
    """Return a throughput, in tokens per second unless another unit is given."""
    if rate is None or not math.isfinite(rate):
        return MISSING
    return f"{rate:,.0f} {unit}" if abs(rate) >= 100 else f"{rate:.1f} {unit}"


def show_shared_rate(rate: float, devices: int | None) -> str:
    """Return what one device allows, times the devices where they are several."""
    return f"{show_count(devices)} x {show_rate(rate)}" if devices and devices > 1 else show_rate(rate)


def show_samples_rate(samples_s: float | None) -> str:
    """Return a throughput in samples per second: images, rows, whatever a batch is made of."""
    return show_rate(samples_s, "samples/s")


def show_ratio(ratio: float | None) -> str:
    """Return a ratio of two like quantities."""
    if ratio is None or not math.isfinite(ratio):
        return MISSING
    return f"{ratio:.2f}x"


def show_bytes(count: float) -> str:
    """Return a number of bytes in binary units."""
    size, unit = next((step for step in _BYTE_STEPS if count >= step[0]), (0, ""))
    return f"{count / size:.1f} {unit}" if size else f"{count:.0f} B"


def show_count(count: float | None) -> str:
    """Return a count with thousands separators."""
    if count is None or not math.isfinite(count):
        return MISSING
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


def how_often(count: float) -> str:
    """Return how often something happens in a step, in words."""
    if 0.95 <= count < 1.05:
        return "once a step"
    return f"{show_count(round(count, 1) if count < 10 else round(count))} times a step"


def show_number(number: float | None, digits: int = 3) -> str:
    """Return a number without a unit, with so many digits that count and never with an exponent."""
    if number is None or not math.isfinite(number):
        return MISSING
    if number == int(number):
        return f"{number:,.0f}"
    places = digits - 1 - math.floor(math.log10(abs(number)))
    shown = f"{number:,.{min(max(places, 0), 9)}f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def show_si(amount: float | None, unit: str) -> str:
    """Return an amount in decimal units (16.9 MB, 6.42 GFLOP, 3 FLOP), with three digits that count."""
    if amount is None or not math.isfinite(amount):
        return MISSING
    if abs(amount) < 1000 and amount == int(amount):
        return f"{amount:.0f} {unit}"
    size, prefix = next((step for step in _SI_STEPS if abs(amount) >= step[0]), (1.0, ""))
    number = amount / size
    digits = 0 if abs(number) >= 100 else 1 if abs(number) >= 10 else 2
    return f"{number:,.{digits}f} {prefix}{unit}"


# The end of a figure's name -> how it is shown, where the name says its unit.
_BY_UNIT: tuple[tuple[str, Callable[[float], str]], ...] = (
    ("bytes_per_s", lambda figure: show_si(figure, "B/s")),
    ("bytes_per_step", show_bytes),
    ("bytes", show_bytes),
    ("gb_s", lambda figure: show_si(figure * BYTES_PER_GB, "B/s")),
    ("share", show_share),
    ("ms", show_ms),
    ("us", lambda figure: show_ms(figure / 1e3)),
    ("seconds", lambda figure: show_ms(figure * 1e3)),
    ("s", lambda figure: show_ms(figure * 1e3)),
)

# Shares by another name.
_SHARES = (
    "communication",
    "compute",
    "drift",
    "fragmentation",
    "in_most_steps",
    "of_link",
    "of_matmuls",
    "reached",
    "slower",
    "usual",
)


def show_named(name: str, figure: float) -> tuple[str, str]:
    """Return a figure's name in words, without the unit that it ends in, and the figure with that unit."""
    for unit, show in _BY_UNIT:
        if name == unit or name.endswith(f"_{unit}"):
            words = (
                name
                if unit == "share"
                else name[: -len(unit)].rstrip("_") or {"seconds": "time"}.get(unit, unit)
            )
            return words.replace("_", " "), show(figure)
    if name in _SHARES:
        return name.replace("_", " "), show_share(figure)
    return name.replace("_", " "), show_number(figure)


def show_figure(figure: float | None) -> str:
    """Return a data-sheet figure as it is printed there."""
    return MISSING if figure is None else f"{figure:,.6g}"


def show_numbers(numbers: Iterable[int]) -> str:
    """Return whole numbers in order, more than two that follow each other as a range: 0, 1, 4 to 9."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    few = len(runs) == 1 and runs[0][1] - runs[0][0] < 16
    return ", ".join(
        f"{first} to {last}" if last - first > 1 and not few else ", ".join(map(str, range(first, last + 1)))
        for first, last in runs
    )
