"""The few fields of an event that are used, decoded by type; everything else is skipped unread."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field

from stepgrade.model.events import NONE
from stepgrade.readers.kineto.eras import USED_CATEGORIES
from stepgrade.readers.kineto.times import text_ns

_NO_TEXT: Final = Raw(b"")
# What a decoder may raise on a stranger's bytes; RecursionError is how deep nesting shows.
DECODE_ERRORS: Final = (ValueError, msgspec.MsgspecError, RecursionError)


class Args(Struct, frozen=True, gc=False):
    """The arguments that are used. Ids are `Any`: strangers write them as text, floats or null too."""

    external: Any = field(name="External id", default=NONE)
    external_old: Any = field(name="external id", default=NONE)
    correlation: Any = NONE
    device: Any = NONE
    stream: Any = NONE
    size: Any = field(name="bytes", default=NONE)
    sequence: Any = field(name="Sequence number", default=NONE)
    forward_thread: Any = field(name="Fwd thread id", default=NONE)
    dims: Raw = field(name="Input Dims", default=_NO_TEXT)
    dims_old: Raw = field(name="Input dims", default=_NO_TEXT)
    types: Raw = field(name="Input type", default=_NO_TEXT)
    concrete: Raw = field(name="Concrete Inputs", default=_NO_TEXT)
    python_id: Any = field(name="Python id", default=NONE)
    python_parent: Any = field(name="Python parent id", default=NONE)
    collective: Any = field(name="Collective name", default=None)
    in_elements: Any = field(name="In msg nelems", default=None)
    out_elements: Any = field(name="Out msg nelems", default=None)
    dtype: Any = None
    group_size: Any = field(name="Group size", default=None)
    group: Any = field(name="Process Group Name", default=None)
    group_ranks: Any = field(name="Process Group Ranks", default=None)
    rank: Any = NONE
    label: Any = field(name="name", default=None)


_NO_ARGS: Final = Args()


class Event(Struct, gc=False):
    """One event; its times are numbers of microseconds."""

    ph: str = ""
    cat: str = ""
    name: str = ""
    pid: Any = NONE
    tid: Any = NONE
    ts: Any = None
    dur: Any = None
    args: Args = _NO_ARGS


class TextTimedEvent(Event, gc=False):
    """The same event with its times left as text."""

    ts: Raw = _NO_TEXT
    dur: Raw = _NO_TEXT


class LooseEvent(Struct, gc=False):
    """An event whose fields are left as text, to take what is sound of it."""

    ph: Raw = _NO_TEXT
    cat: Raw = _NO_TEXT
    name: Raw = _NO_TEXT
    pid: Raw = _NO_TEXT
    tid: Raw = _NO_TEXT
    ts: Raw = _NO_TEXT
    dur: Raw = _NO_TEXT
    args: Raw = _NO_TEXT


decode_events = msgspec.json.Decoder(list[Event]).decode
decode_text_timed = msgspec.json.Decoder(list[TextTimedEvent]).decode
decode_loosely = msgspec.json.Decoder(LooseEvent).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_any = msgspec.json.Decoder().decode
_decode_args = msgspec.json.Decoder(Args).decode


class Unusable(ValueError):
    """An event that we would use, if only its times made sense; the text says what is wrong."""


def mend(loose: LooseEvent) -> Event | None:
    """Return the event with its times in nanoseconds, None for one that is not used; may raise Unusable."""
    event = Event(
        ph=_text(loose.ph),
        cat=_text(loose.cat),
        name=_text(loose.name),
        pid=_scalar(loose.pid),
        tid=_scalar(loose.tid),
        args=_args(loose.args),
    )
    if event.ph == "M":
        event.cat = ""  # it names a thread, whatever else it says it is
        return event
    if event.cat not in USED_CATEGORIES:
        return event if event.cat else None
    if event.ph != "X":
        return None
    event.ts, event.dur = _times(loose)
    return event


def _times(loose: LooseEvent) -> tuple[int, int]:
    try:
        start_ns, dur_ns = text_ns(bytes(loose.ts)), text_ns(bytes(loose.dur))
    except ValueError:
        raise Unusable("without a usable time") from None
    if dur_ns < 0:
        raise Unusable("with a negative duration")
    return start_ns, dur_ns


def _text(raw: Raw) -> str:
    try:
        return _decode_text(raw)
    except DECODE_ERRORS:
        return ""


def _scalar(raw: Raw) -> Any:
    try:
        value = _decode_any(raw)
    except DECODE_ERRORS:
        return NONE
    return value if isinstance(value, int | float | str) else NONE


def _args(raw: Raw) -> Args:
    try:
        return _decode_args(raw)
    except DECODE_ERRORS:
        return _NO_ARGS
