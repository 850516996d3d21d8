"""Decode the fields of an event that are used, and its times as exact nanoseconds.

Times are microseconds in the trace. A double resolves nanoseconds only below 2**43 us: traces that count from
`baseTimeNanoseconds` stay below it; times since the epoch do not, and are read from their text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgspec
import numpy as np
from msgspec import Raw, Struct, field

from stepgrade.decoding import json_decoder
from stepgrade.model.events import NONE, Longs
from stepgrade.patterns import regex
from stepgrade.readers.kineto.categories import (
    COUNTER_CATEGORY,
    NPU_LAUNCHES,
    USED_CATEGORIES,
    is_allocation,
    uncategorised,
)

T = TypeVar("T")
_NO_TEXT: Final = Raw(b"")
_CONTROL: Final = regex(rb"[\x00-\x1f]")
_SURROGATE: Final = regex(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
# What a decoder may raise on foreign bytes; deep nesting raises RecursionError.
DECODE_ERRORS: Final = (ValueError, msgspec.MsgspecError, RecursionError)
# Any JSON value: some writers store ids as text, float or null. Check before use.
Json: TypeAlias = object


class Args(Struct, frozen=True, gc=False):
    """The arguments that are used."""

    external: Json = field(name="External id", default=NONE)
    external_old: Json = field(name="external id", default=NONE)
    correlation: Json = NONE
    device: Json = NONE
    stream: Json = NONE
    size: Json = field(name="bytes", default=NONE)
    sequence: Json = field(name="Sequence number", default=NONE)
    forward_thread: Json = field(name="Fwd thread id", default=NONE)
    dims: Raw = field(name="Input Dims", default=_NO_TEXT)
    dims_old: Raw = field(name="Input dims", default=_NO_TEXT)
    types: Raw = field(name="Input type", default=_NO_TEXT)
    concrete: Raw = field(name="Concrete Inputs", default=_NO_TEXT)
    strides: Raw = field(name="Input Strides", default=_NO_TEXT)
    backend: Raw = field(name="kernel_backend", default=_NO_TEXT)
    python_id: Json = field(name="Python id", default=NONE)
    python_parent: Json = field(name="Python parent id", default=NONE)
    collective: Json = field(name="Collective name", default=None)
    in_elements: Json = field(name="In msg nelems", default=None)
    out_elements: Json = field(name="Out msg nelems", default=None)
    dtype: Json = None
    group_size: Json = field(name="Group size", default=None)
    group: Json = field(name="Process Group Name", default=None)
    group_ranks: Json = field(name="Process Group Ranks", default=None)
    source_rank: Json = field(name="Src Rank", default=None)
    target_rank: Json = field(name="Dst Rank", default=None)
    rank: Json = NONE
    occupancy: Json = field(name="est. achieved occupancy %", default=None)
    blocks_per_sm: Json = field(name="blocks per SM", default=None)
    registers: Json = field(name="registers per thread", default=None)
    block: Raw = _NO_TEXT
    shared: Json = field(name="shared memory", default=None)
    label: Json = field(name="name", default=None)
    value: Json = field(name="", default=None)  # of a counter
    task: Json = field(name="Task Type", default=None)
    memory_kind: Json = field(name="Device Type", default=NONE)
    memory_device: Json = field(name="Device Id", default=NONE)
    memory_bytes: Json = field(name="Bytes", default=NONE)
    address: Json = field(name="Addr", default=NONE)
    allocated: Json = field(name="Total Allocated", default=NONE)
    reserved: Json = field(name="Total Reserved", default=NONE)
    order: Json = field(name="Ev Idx", default=NONE)


_NO_ARGS: Final = Args()


class Event(Struct, gc=False):
    """One event; its times are numbers of microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Json = NONE
    tid: Json = NONE
    ts: Json = None
    dur: Json = None
    id: Json = NONE
    args: Args = _NO_ARGS


class TextTimedEvent(Event, gc=False):
    """The same event with its times left as text."""

    ts: Raw = _NO_TEXT
    dur: Raw = _NO_TEXT


# An event whose fields are left as text, to recover the valid ones.
_LooseEvent: Any = msgspec.defstruct(
    "_LooseEvent", [(name, Raw, _NO_TEXT) for name in Event.__struct_fields__], gc=False
)
decode_events = json_decoder(list[Event]).decode
decode_text_timed = json_decoder(list[TextTimedEvent]).decode
decode_loosely = json_decoder(_LooseEvent).decode
# Only finds where a value ends; numbers are not converted, since they may have a million digits.
scan_value = json.JSONDecoder(strict=False, parse_int=len, parse_float=len).raw_decode
_decode_text = json_decoder(str).decode
_decode_any = msgspec.json.decode
_decode_args = json_decoder(Args).decode


class Unusable(ValueError):
    """An event with an invalid time; the text is the reason."""


def repair(text: bytes) -> Event | None:
    """Return an event with its times in nanoseconds, None if it is not used.

    Raise Unusable for an invalid time, and one of DECODE_ERRORS for a text that is not JSON.
    """
    try:
        loose = decode_loosely(text)
    except DECODE_ERRORS:
        # Replace bytes that are not UTF-8, control characters and unpaired surrogates.
        whole = _SURROGATE.sub(rb"\\ufffd", text.decode(errors="replace").encode())
        loose = decode_loosely(_CONTROL.sub(b" ", whole))
    event = Event(
        ph=_decoded(_decode_text, loose.ph, ""),
        cat=_decoded(_decode_text, loose.cat, ""),
        name=_decoded(_decode_text, loose.name, ""),
        args=_decoded(_decode_args, loose.args, _NO_ARGS),
    )
    for name in ("pid", "tid", "id"):
        value = _decoded(_decode_any, getattr(loose, name), NONE)
        setattr(event, name, value if isinstance(value, int | float | str) else NONE)
    if event.ph == "M":
        event.cat = ""  # it names a thread, whatever its category
        return event
    is_launch = event.cat == NPU_LAUNCHES and event.ph == "s"
    is_sample = event.cat == COUNTER_CATEGORY and event.ph == "C"
    is_instant = is_launch or is_sample or is_allocation(event.name, event.ph)
    is_known = uncategorised(event.name, event.pid, event.args.task) is not None
    if event.cat not in USED_CATEGORIES and not is_instant and not is_known:
        return event if event.cat else None
    if event.ph != "X" and not is_instant:
        return None
    try:
        event.ts = text_ns(bytes(loose.ts))
        event.dur = 0 if is_instant else text_ns(bytes(loose.dur))
    except ValueError:
        raise Unusable("without a usable time") from None
    if event.dur < 0:
        raise Unusable("with a negative duration")
    return event


def _decoded(decode: Callable[[Raw], T], raw: Raw, default: T) -> T:
    try:
        return decode(raw)
    except DECODE_ERRORS:
        return default


LIMIT_NS = 1 << 61
LIMIT_US = LIMIT_NS // 1000
EXACT_US = float(1 << 43)
_PLAIN = regex(rb"(-?)(\d{1,18})(?:\.(\d{1,3}))?")
_NUMBER = regex(rb"-?\d{1,40}(?:\.\d{1,40})?(?:[eE][+-]?\d{1,2})?")


class NeedsText(Exception):
    """The numbers of this trace cannot be exact as doubles: read them as text."""


# Converts the times of many events into nanoseconds, or raises ValueError for all of them.
Clock: TypeAlias = Callable[[Sequence[Json]], Longs]


def from_numbers(values: Sequence[Json]) -> Longs:
    """Return ints or floats of microseconds as nanoseconds; NeedsText where doubles are too coarse."""
    times = np.array(values)
    if times.dtype == np.int64:
        if times.max() >= LIMIT_US or times.min() <= -LIMIT_US:
            raise ValueError("times out of range")
        return times * 1000
    if times.dtype.kind == "U":
        raise NeedsText  # torch_npu writes them as text
    if times.dtype != np.float64:
        raise ValueError("times that are not numbers")
    if np.abs(times).max() >= EXACT_US:
        raise NeedsText
    whole = np.floor(times)
    thousandths: Longs = np.rint((times - whole) * 1000).astype(np.int64)
    nanoseconds: Longs = whole.astype(np.int64) * 1000 + thousandths
    return nanoseconds


def from_texts(values: Sequence[Json]) -> Longs:
    """Return raw JSON numbers of microseconds as nanoseconds."""
    texts = cast("Sequence[Raw]", values)  # of a TextTimedEvent
    return np.array([text_ns(bytes(text)) for text in texts], dtype=np.int64)


def from_ns(values: Sequence[Json]) -> Longs:
    """Return nanoseconds that were already checked."""
    return np.array(values, dtype=np.int64)


def text_ns(text: bytes) -> int:
    """Return a JSON number of microseconds as nanoseconds, rounded half to even past three decimals.

    It may be quoted.
    """
    text = text.strip(b'"')
    plain = _PLAIN.fullmatch(text)
    if plain:
        sign, whole, part = plain.groups()
        size = int(whole) * 1000 + (int(part.ljust(3, b"0")) if part else 0)
        time = -size if sign else size
    elif _NUMBER.fullmatch(text):
        from decimal import ROUND_HALF_EVEN, Decimal  # few traces need it, and it loads slowly

        time = int((Decimal(text.decode()) * 1000).to_integral_value(ROUND_HALF_EVEN))
    else:
        raise ValueError("a time that is not a number")
    if abs(time) >= LIMIT_NS:
        raise ValueError("a time out of range")
    return time
