"""Which layers look at everything before a token, and which only at a window."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from stepgrade.hardware.models.fields import Fields

WINDOWED_TYPES = frozenset({"sliding_attention", "chunked_attention"})
FULL_TYPES = frozenset({"full_attention"})


class Spans(Struct, frozen=True, kw_only=True):
    """How many layers attend to everything, how many to `window` tokens."""

    full: int
    windowed: int = 0
    window: int | None = None

    def groups(self) -> list[tuple[int, int | None]]:
        """Return (layers, window) for each kind there is."""
        return [
            (count, window) for count, window in ((self.full, None), (self.windowed, self.window)) if count
        ]


def same_everywhere(fields: Fields, depth: int, default: int | None = None) -> Spans:
    """Return the spans of a model whose `sliding_window` holds for all its layers."""
    return alternating(fields, depth, lambda _: True, default)


def alternating(
    fields: Fields, depth: int, is_windowed: Callable[[int], bool], default: int | None = None
) -> Spans:
    """Return the spans from `layer_types` when the config lists them, else from the family's pattern."""
    window = fields.whole("sliding_window", default=default or 0, least=0)
    if not window or not fields.flag("use_sliding_window", default=True):
        return Spans(full=depth)
    listed = fields.sequence("layer_types")
    if listed is None:
        windowed = sum(1 for index in range(depth) if is_windowed(index))
    else:
        windowed = _count_listed(fields, listed, depth)
    return Spans(full=depth - windowed, windowed=windowed, window=window)


def _count_listed(fields: Fields, listed: list[object], depth: int) -> int:
    if len(listed) != depth:
        raise fields.refuse("layer_types", f"lists {len(listed)} layers, num_hidden_layers says {depth}")
    strange = [kind for kind in listed if kind not in WINDOWED_TYPES | FULL_TYPES]
    if strange:
        raise fields.refuse(
            "layer_types", f"has a kind of layer that is not modelled: {str(strange[0])[:40]!r}"
        )
    return sum(1 for kind in listed if kind in WINDOWED_TYPES)
