"""The result's own JSON inside the page, for machines and for the tables that are paged."""

from __future__ import annotations

import msgspec

from stepgrade.model.notes import Note, Result
from stepgrade.model.scorecard import LayerStep, Operation, Scorecard
from stepgrade.report.names import json_text, shortened

MOST_BYTES = 1_000_000
ROWS_KEPT = 2_000
SAMPLES_KEPT = 20_000
_NAME_CELLS = 200


def embedded(result: Result) -> str:
    """Return JSON that cannot end the element it is in; a very long one is cut, and its notes say so."""
    text = result.to_json()
    if len(text) > MOST_BYTES and isinstance(result, Scorecard):
        text = cut(result).to_json()
    safe = json_text(text)
    for character in "<>&":
        safe = safe.replace(character, f"\\u{ord(character):04x}")
    return safe


def cut(card: Scorecard) -> Scorecard:
    """Return the card with its longest lists cut and its longest names shortened."""
    notes = [
        Note(
            "copy_cut",
            f"this copy holds the first {kept:,} of {count:,} {what}; --format json writes them all",
        )
        for what, count, kept in (
            ("operations", len(card.operations), ROWS_KEPT),
            ("step times", len(card.steps.samples_ms) if card.steps else 0, SAMPLES_KEPT),
        )
        if count > kept
    ]
    return msgspec.structs.replace(
        card,
        operations=tuple(_short_operation(op) for op in card.operations[:ROWS_KEPT]),
        layers=tuple(_short_layer(layer) for layer in card.layers[:ROWS_KEPT]),
        steps=msgspec.structs.replace(card.steps, samples_ms=card.steps.samples_ms[:SAMPLES_KEPT])
        if card.steps
        else None,
        notes=(
            *card.notes,
            *notes,
            Note("copy_cut", "names longer than 200 characters are shortened in this copy"),
        ),
    )


def _short_operation(op: Operation) -> Operation:
    return msgspec.structs.replace(op, name=shortened(op.name, _NAME_CELLS))


def _short_layer(layer: LayerStep) -> LayerStep:
    name = None if layer.name is None else shortened(layer.name, _NAME_CELLS)
    return msgspec.structs.replace(layer, name=name, ops={})
