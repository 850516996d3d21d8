"""TensorBoard's event files: scalars by tag and step, and the settings that trainers write as text."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from math import isfinite

import msgspec

from stepgrade.protobuf import FIXED32, FIXED64, LENGTH, VARINT, double_of, float_of, signed, text_of, values
from stepgrade.readers.logs.names import meaning
from stepgrade.readers.logs.records import RecordLog

SIGN = re.compile(rb"(?s)\A.{8}.{4}\x09.{8}.{0,24}?brain\.Event:\d")
_LENGTH = struct.Struct("<Q")
_FRAME = 12  # length and its checksum, before the data; four bytes of checksum after it
# A longer record is an image, a graph or damaged: skipped, or the end.
_MOST_RECORD = 64 << 20
_MOST_TAGS = 1 << 16  # no run has so many; bounds the memory of hostile files
_TEXT = "/text_summary"
_SAMPLES_AXIS = (" vs samples", " vs tokens", "-vs-samples")
_OF_EVALUATION = re.compile(r"(?:^|[/_. -])(?:eval|evaluation|val|valid|validation|test)(?:$|[/_. -])", re.I)
_CONFIG_TAGS = frozenset({"model_config", "model config"})
_ARGUMENT_TAGS = frozenset({"args", "hparams", "config"})


def read_events(chunks: Iterable[bytes], log: RecordLog) -> None:
    """Add the scalars and texts of one file; a record that is cut off ends it."""
    axes = _Axes()
    for record in records(chunks):
        step, stamp, summary = 0, None, None
        for number, kind, value in values(record):
            if number == 1 and kind == FIXED64:
                stamp = double_of(value)
            elif number == 2 and kind == VARINT and isinstance(value, int):
                step = signed(value)
            elif number == 5 and kind == LENGTH:
                summary = value
        if summary is None or isinstance(summary, int):
            continue
        for number, kind, item in values(summary):
            if number == 1 and kind == LENGTH and not isinstance(item, int):
                _add(item, step, stamp, log, axes)


def records(chunks: Iterable[bytes]) -> Iterator[memoryview]:
    """Yield the data of each record of a TFRecord stream; lengths beyond the stream's end stop it."""
    held, wanted, skip = bytearray(), _FRAME, 0
    length: int | None = None
    for chunk in chunks:
        if skip:
            passed = min(skip, len(chunk))
            skip -= passed
            held += chunk[passed:]
        else:
            held += chunk
        offset = 0
        while not skip and len(held) - offset >= wanted:
            if length is None:
                (length,) = _LENGTH.unpack_from(held, offset)
                offset += _FRAME
                wanted = length + 4
                if length > _MOST_RECORD:
                    skip = max(0, wanted - (len(held) - offset))
                    offset = min(len(held), offset + wanted)
                    length, wanted = None, _FRAME
                continue
            yield memoryview(bytes(held[offset : offset + length]))
            offset += wanted
            length, wanted = None, _FRAME
        del held[:offset]


class _Axes:
    """Tracks which tags count training steps: others count evaluations, epochs or samples."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}  # by tag
        self._others: set[str] = set()
        self._newest = 0

    def has(self, tag: str, step: int) -> bool:
        """Tell whether a scalar belongs to a training step."""
        if tag in self._others or (len(self._last) >= _MOST_TAGS and tag not in self._last):
            return False
        went_back = self._last.get(tag, step) > step
        self._last[tag] = step
        if _OF_EVALUATION.search(tag) or (step < self._newest and not went_back):
            # A resumed run goes back in its existing tags; a tag that lags counts something else.
            self._others.add(tag)
            return False
        self._newest = step
        return True


def _add(item: memoryview, step: int, stamp: float | None, log: RecordLog, axes: _Axes) -> None:
    tag, scalar, tensor = "", None, None
    for number, kind, value in values(item):
        if number == 1 and kind == LENGTH:
            tag = text_of(value, 400) or ""
        elif number == 2 and kind == FIXED32:
            scalar = float_of(value)
        elif number == 8 and kind == LENGTH and not isinstance(value, int):
            tensor = value
    if tensor is not None and tag.endswith(_TEXT):
        _setting(tag.removesuffix(_TEXT), tensor, log)
        return
    scalar = scalar if tensor is None else number_of(tensor)
    if scalar is not None and not tag.endswith(_SAMPLES_AXIS):
        _add_scalar(tag, scalar, step, stamp, log, axes)


def _add_scalar(tag: str, scalar: float, step: int, stamp: float | None, log: RecordLog, axes: _Axes) -> None:
    is_known = meaning(tag) not in (None, ("step", 1.0))
    if axes.has(tag, step):
        row: dict[str, object] = {"step": step, tag: scalar} if is_known else {"step": step}
        if stamp is not None and isfinite(stamp):
            row["wall_time"] = stamp
        log.add(row)
    elif _OF_EVALUATION.search(tag):
        log.add({tag if tag.startswith("eval") else f"eval/{tag}": scalar})


def number_of(tensor: memoryview) -> float | None:
    """Return the value of a scalar tensor."""
    dtype, content = 0, None
    for number, kind, value in values(tensor):
        if number == 1 and kind == VARINT and isinstance(value, int):
            dtype = value
        elif number in (4, 5, 6) and not isinstance(value, int):
            content = value
    if content is None or len(content) not in (4, 8):
        return None
    return double_of(content) if dtype == 2 or len(content) == 8 else float_of(content)


def _setting(name: str, tensor: memoryview, log: RecordLog) -> None:
    """Keep settings of the model and the run from a text."""
    text = next((text_of(value) for number, _, value in values(tensor) if number == 8), None)
    if text is None:
        return
    if name in _CONFIG_TAGS:
        log.header.config = text.encode()
    elif name in _ARGUMENT_TAGS:
        try:
            arguments = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            return
        for key, value in arguments.items() if isinstance(arguments, dict) else ():
            log.set(str(key), value)
    else:
        log.set(name, text.strip())
