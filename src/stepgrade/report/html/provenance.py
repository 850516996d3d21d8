"""Where the numbers come from: the source, the device, the counts they rest on, and what to be wary of."""

from __future__ import annotations

from typing import Any

import msgspec

from stepgrade.model.scorecard import Scorecard
from stepgrade.report.html.plot import joined
from stepgrade.report.names import printable, shortened
from stepgrade.units import show_count, show_si

FILES_SHOWN = 16


def view(card: Scorecard) -> dict[str, Any]:
    """Return facts as pairs, and the notes."""
    return {
        "facts": [(name, value) for name, value in _facts(card) if value],
        "files": [shortened(name, 300) for name in card.source.files[:FILES_SHOWN]],
        "files_left": max(0, len(card.source.files) - FILES_SHOWN),
        "fitness": [printable(note.text) for note in card.unreported_warnings],
        "notes": [printable(note.text) for note in card.notes],
    }


def _facts(card: Scorecard) -> list[tuple[str, str]]:
    ceilings = [
        (f"{ceiling.kind} ceiling", printable(f"{ceiling.convention}; {ceiling.source}"))
        for ceiling in card.ceilings
    ]
    return [
        ("format", printable(joined(card.source.format, card.source.producer))),
        ("device", _device(card)),
        ("throughput", printable(card.throughput.basis) if card.throughput else ""),
        *ceilings,
        ("FLOPs per token", _per_token(card.flops_per_token, "FLOP", card.flops_convention)),
        ("bytes per token", _per_token(card.bytes_per_token, "B", None)),
        ("shapes known for", _known(card)),
        ("fingerprint", _fingerprint(card)),
        ("scorecard", f"contract v{card.schema_version}"),
    ]


def _fingerprint(card: Scorecard) -> str:
    """Return what other runs must share to be compared with this one."""
    circumstances = getattr(card, "fingerprint", None)
    if circumstances is None:
        return ""
    pairs = msgspec.to_builtins(circumstances).items()
    return printable(", ".join(f"{name} {value}" for name, value in pairs if value not in (None, {}, [])))


def _device(card: Scorecard) -> str:
    device = card.device
    if device is None:
        return "not known: name it with --device KEY"
    count = f"{show_count(device.count)} devices" if device.count else None
    return joined(device.name or device.key or "described by figures", count, device.basis)


def _per_token(amount: float | None, unit: str, convention: str | None) -> str:
    return "" if amount is None else joined(show_si(amount, unit), convention)


def _known(card: Scorecard) -> str:
    done = card.arithmetic
    if done is None or done.known_share is None:
        return ""
    return f"{done.known_share * 100:.0f} % of the time in matrix products, convolutions and attention"
