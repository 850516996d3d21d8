"""TensorBoard's event files: scalars by tag and step, and the settings that trainers write as text."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from math import isfinite

import msgspec

from stepgrade.protobuf import (
    FIXED32,
    FIXED64,
    LENGTH,
    VARINT,
    float_of,
    last_values,
    messages,
    signed,
    text_of,
)
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
        event = last_values(record)
        varint, stamp = event.get((2, VARINT), 0), float_of(event.get((1, FIXED64)))
        step = signed(varint) if isinstance(varint, int) else 0
        for item in messages(event.get((5, LENGTH)), 1):
            found = last_values(item)
            tag, tensor = text_of(found.get((1, LENGTH)), 400) or "", found.get((8, LENGTH))
            scalar = float_of(found.get((2, FIXED32)))
            if isinstance(tensor, memoryview):
                if tag.endswith(_TEXT):
                    _add_setting(tag.removesuffix(_TEXT), tensor, log)
                    continue
                scalar = _scalar_of(tensor)
            if scalar is None or tag.endswith(_SAMPLES_AXIS):
                continue
            if axes.has(tag, step):
                is_known = meaning(tag) not in (None, ("step", 1.0))
                row: dict[str, object] = {"step": step, tag: scalar} if is_known else {"step": step}
                if stamp is not None and isfinite(stamp):
                    row["wall_time"] = stamp
                log.add(row)
            elif _OF_EVALUATION.search(tag):
                log.add({tag if tag.startswith("eval") else f"eval/{tag}": scalar})


def records(chunks: Iterable[bytes]) -> Iterator[memoryview]:
    """Yield the data of each record of a TFRecord stream; lengths beyond the stream's end stop it."""
    held, start = bytearray(), 0  # the next record may start after what is held
    for chunk in chunks:
        held += chunk
        while len(held) - start >= _FRAME:
            (length,) = _LENGTH.unpack_from(held, start)
            content, end = start + _FRAME, start + _FRAME + length + 4
            if length <= _MOST_RECORD:
                if end > len(held):
                    break
                yield memoryview(bytes(held[content : content + length]))
            start = end
        done = min(start, len(held))
        del held[:done]
        start -= done


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


def _scalar_of(tensor: memoryview) -> float | None:
    found = last_values(tensor)
    for (number, _), content in found.items():
        if number in (4, 5, 6) and isinstance(content, memoryview) and len(content) in (4, 8):
            is_cut = found.get((1, VARINT)) == 2 and len(content) == 4  # half of a double
            return None if is_cut else float_of(content)
    return None


def _add_setting(name: str, tensor: memoryview, log: RecordLog) -> None:
    """Keep settings of the model and the run from a text."""
    text = next(map(text_of, messages(tensor, 8)), None)
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
