"""The fields of a result's JSON, walked from its types: what docs/contract.md has to describe."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator

import msgspec
from msgspec import structs

from stepgrade.model import Note


def fields_by_place(result: type[msgspec.Struct]) -> dict[str, tuple[str, ...]]:
    """Return the names of the fields at each place of the JSON, such as `operations[].longest`."""
    places: dict[str, tuple[str, ...]] = {}
    waiting = [("", result)]
    for place, kind in waiting:  # what is found below is put behind
        hints = typing.get_type_hints(kind)
        places[place] = tuple(field.encode_name for field in structs.fields(kind))
        for field in structs.fields(kind):
            below = [
                (f"{place}.{field.encode_name}".lstrip(".") + marks, inner)
                for marks, inner in _structs(hints[field.name])
            ]
            waiting += [
                (name, inner) for name, inner in below if inner is not Note
            ]  # notes are texts in JSON
    return places


def _structs(hint: object, marks: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the structs that a type holds, with [] for each list and {} for each table around them."""
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        yield marks, hint
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        for part in inside:
            yield from _structs(part, marks)
    elif origin is tuple:
        yield from _structs(inside[0], marks + "[]")
    elif origin is dict:
        yield from _structs(inside[1], marks + "{}")
