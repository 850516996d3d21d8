"""Decode pickles of plain values, and refuse all others at the first opcode that is not allowed.

`pickle.load` can run code, and nine bytes can make it allocate gigabytes. Here only the opcodes of dicts,
lists, tuples, texts and numbers exist, no allocation is sized by a number in the file, and memory is checked
while the file is read.

Large files repeat the same few shapes of rows: dicts with keys in the memo. Each shape becomes a pattern that
matches the values of a whole row at once; everything else goes opcode by opcode.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from struct import unpack
from typing import Any, Final, NamedTuple, TypeAlias

from stepgrade.errors import BadInput
from stepgrade.memory import check

Plain: TypeAlias = bool | int | float | str | list["Plain"] | tuple["Plain", ...] | dict[str, "Plain"] | None

# Of a row: a key is a text that was kept, and a value a number, a constant, what was kept, a short text, or a
# list of what was kept. No two begin alike and none is given back, so that matching never starts over.
_KEPT: Final = rb"(?:h.|j.{4})"
_SHORT_TEXT: Final = b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(17))
_NUMBER: Final = b"|".join(rb"\x%02x.{%d}" % (size, size) for size in range(10))
_VALUE: Final = (
    rb"(?>K.|M..|J.{4}|%b|\x8a(?>%b)|[N\x88\x89]|G.{8}|\x8c(?>%b)\x94?|\]\x94?(?>\(%b++e|%ba)?)"
    % (_KEPT, _NUMBER, _SHORT_TEXT, _KEPT, _KEPT)
)
_ROW: Final = re.compile(rb"(?s)\}\x94?\((?>%b%b)++u" % (_KEPT, _VALUE))
_PAIR: Final = re.compile(rb"(?s)(%b)%b" % (_KEPT, _VALUE))
_KEPT_ONE: Final = re.compile(rb"(?s)%b" % _KEPT)
_MOST_SHAPES: Final = 16  # a snapshot has five; each takes a millisecond to compile
_MOST_KEYS: Final = 32
_MOST_KNOWN: Final = 1 << 16  # values that are decoded once, by their bytes

DEEPEST: Final = 32  # marks that are open at once; a memory snapshot has eight
LONGEST_TEXT: Final = 1 << 16
LONGEST_INTEGER: Final = 9  # bytes: all of 64 bits, and a sign
_LONGEST_ARGUMENT: Final = LONGEST_TEXT + 16
_NEWEST_PROTOCOL: Final = 5
# Measured, and rounded up: an object with its references in the stack, the memo and its container.
_OBJECT_BYTES: Final = 120
_NUMBER_BYTES: Final = 48
_ITEM_BYTES: Final = 16
_PAIR_BYTES: Final = 64
_CHARACTER_BYTES: Final = 4
_GET, _LONG_GET, _MEMOIZE, _STOP, _DICT = b"hj\x94.}"
_LIST, _TEXT, _DOUBLE, _LONG, _SIGNED = b"]\x8cG\x8aJ"
_CONSTANTS: Final = {0x88: True, 0x89: False, ord("N"): None}
_UNDONE: Final = "a row that is not whole yet"
_FRAME_BYTES: Final = 8
# What is refused, by what it would do.
_CALLS: Final = "could run code"
_REFUSED: Final = {
    **dict.fromkeys(b"c\x93i", ("GLOBAL", _CALLS)),
    **dict.fromkeys(b"R\x81\x92o", ("REDUCE", _CALLS)),
    **dict.fromkeys(b"b", ("BUILD", _CALLS)),
    **dict.fromkeys(b"\x82\x83\x84", ("EXT", _CALLS)),
    **dict.fromkeys(b"PQ", ("PERSID", _CALLS)),
    **dict.fromkeys(b"\x8f\x90\x91", ("SET", "PyTorch does not write")),
    **dict.fromkeys(b"BC\x8e\x96\x97\x98", ("BYTES", "PyTorch does not write")),
    **dict.fromkeys(b"\x8b\x8d", ("LONG4", "can claim more than the file holds")),
    **dict.fromkeys(b"ISLVFTUpgld012", ("of protocol 0", "PyTorch does not write")),
}


class Row(tuple[Any, ...]):
    """A dict in less memory: the indices of its keys, which all rows of a shape share, then its values."""

    __slots__ = ()

    def get(self, key: str, default: Plain = None) -> Plain:
        """Return a value by its key."""
        offset = self[0].get(key)
        return default if offset is None else self[offset]

    def __contains__(self, key: object) -> bool:
        return key in self[0]


class _Shape(NamedTuple):
    """The rows with the same keys."""

    pattern: re.Pattern[bytes]
    offsets: dict[str, int]


def decode(chunks: Iterator[bytes], most_bytes: int, *, has_rows: bool = False) -> Plain:
    """Return the value of a pickle; raise BadInput if it is not plain, TooLarge beyond `most_bytes`.

    With `has_rows` dicts may be a `Row`, and lists of what was kept before are tuples, equal ones the same.
    """
    try:
        return _Machine(chunks, most_bytes, has_rows=has_rows).run()
    except (IndexError, TypeError):
        # An empty stack, or a container of the wrong type.
        raise BadInput("is a damaged pickle: its opcodes are inconsistent") from None


class _Machine:
    """The stack and the memo of a pickle, and its bytes from an offset on."""

    def __init__(self, chunks: Iterator[bytes], most_bytes: int, *, has_rows: bool) -> None:
        self._chunks, self._most_bytes, self._has_rows = chunks, most_bytes, has_rows
        self._shapes: list[_Shape] = []
        # Values in rows by the bytes of their opcodes; texts and lists may be memoized again.
        self._known: dict[bytes, Plain] = {}
        self._seen: dict[bytes, Any] = {}
        self.data, self.offset = b"", 0
        self.before = 0  # bytes that were left behind
        self.is_last = False  # nothing comes after `data`
        self.stack: list[Plain] = []
        self.marked: list[list[Plain]] = []  # the stacks below the open marks
        self.memo: list[Plain] = []
        self.needed = 0
        self.frame_end = 0

    def run(self) -> Plain:
        """Return the value that the opcodes make."""
        memo = self.memo
        while True:
            # Beyond this offset an opcode may not be complete, unless the source has ended.
            safe = self._move()
            while self.offset <= safe and self.needed <= self._most_bytes:
                data, offset = self.data, self.offset
                code = data[offset]
                self.offset = offset + 1
                if code == _GET:  # most opcodes are this one and the next two
                    self.stack.append(memo[data[offset + 1]])
                    self.offset = offset + 2
                elif code == _LONG_GET:
                    self.stack.append(memo[self._whole(4)])
                elif code == _MEMOIZE:
                    memo.append(self.stack[-1])
                elif code == _STOP:
                    if self.marked or len(self.stack) != 1:
                        raise IndexError
                    check(self.needed, self._most_bytes)
                    return self.stack[0]
                elif code == _DICT and self._rows(offset):
                    continue
                elif code in _OPCODES:
                    _OPCODES[code](self, code)
                else:
                    name, why = _REFUSED.get(code, (f"{code:#04x}", "is not known"))
                    raise self._refusal(name, why)
                self.needed += _ITEM_BYTES

    def _rows(self, begin: int) -> bool:
        """Decode all rows of one shape that begin here; return False without any."""
        if len(self.marked) >= DEEPEST:
            return False
        for number, shape in enumerate(self._shapes):
            self.offset = begin
            self._read_rows(shape)
            if self.offset > begin:
                self._shapes.insert(0, self._shapes.pop(number))  # more of them will come
                return True
        self.offset = begin + 1
        row = _ROW.match(self.data, begin) if len(self._shapes) < _MOST_SHAPES else None
        if row is None:
            return False
        keys = _PAIR.findall(row[0], row[0].index(b"(") + 1)
        names = {name: offset for offset, name in enumerate(map(self._value, keys), 1) if type(name) is str}
        if len(names) != len(keys) or len(keys) > _MOST_KEYS:
            return False
        pairs = b"".join(re.escape(key) + b"(%b)" % _VALUE for key in keys)
        self._shapes.append(_Shape(re.compile(rb"(?s)\}\x94?\(%bu" % pairs), names))
        return self._rows(begin)

    def _read_rows(self, shape: _Shape) -> None:
        data, memo, known, value_of = self.data, self.memo, self._known, self._value
        match, offsets = shape.pattern.match, shape.offsets
        size = _OBJECT_BYTES + len(offsets) * (
            _NUMBER_BYTES if self._has_rows else _NUMBER_BYTES + _PAIR_BYTES
        )
        while self.needed <= self._most_bytes and (found := match(data, self.offset)):
            own = len(memo)
            is_kept = data[self.offset + 1] == _MEMOIZE
            if is_kept:
                memo.append(_UNDONE)
            values = [known[part] if part in known else value_of(part) for part in found.groups()]
            row: Any = Row((offsets, *values)) if self._has_rows else dict(zip(offsets, values, strict=True))
            if is_kept:
                memo[own] = row
            self.stack.append(row)
            self.needed += size
            self.offset = found.end()

    def _value(self, part: bytes) -> Plain:
        """Return the value of the opcodes of a field in a row; memoize it if they do."""
        code = part[0]
        if code == _TEXT:
            text = self._seen.get(part)
            if text is None:
                text = part[2 : 2 + part[1]].decode(errors="replace")
                self._remember(self._seen, part, text)
            if len(part) > 2 + part[1]:
                self.memo.append(text)
            return text
        if code == _LIST:
            return self._list(part)
        if code in (_GET, _LONG_GET):
            value = self.memo[int.from_bytes(part[1:], "little")]
            if value is _UNDONE:  # a row that holds itself
                raise TypeError
        elif code == _DOUBLE:
            value = unpack(">d", part[1:])[0]
        elif code in _CONSTANTS:
            value = _CONSTANTS[code]
        else:
            is_long = code == _LONG
            value = int.from_bytes(part[1 + is_long :], "little", signed=is_long or code == _SIGNED)
        self._remember(self._known, part, value)
        return value

    def _list(self, part: bytes) -> Plain:
        is_kept = part[1:2] == b"\x94"
        items = self._seen.get(part)
        if items is None:
            first = 1 + is_kept
            items = tuple(
                map(self._value, _KEPT_ONE.findall(part, first + (part[first : first + 1] == b"(")))
            )
            self._remember(self._seen, part, items)
        value: Plain = items if self._has_rows else [*items]
        if not self._has_rows:
            self.needed += _OBJECT_BYTES + len(items) * _ITEM_BYTES
        if is_kept:
            self.memo.append(value)
        return value

    def _remember(self, values: dict[bytes, Any], part: bytes, value: object) -> None:
        if len(values) >= _MOST_KNOWN:
            values.clear()
        values[part] = value
        self.needed += _OBJECT_BYTES + len(part) * _CHARACTER_BYTES

    def _move(self) -> int:
        """Read on until there is enough for any opcode, or the source ends; return up to where it is."""
        check(self.needed, self._most_bytes)
        self.before += self.offset
        pieces, size = [self.data[self.offset :]], len(self.data) - self.offset
        while size <= _LONGEST_ARGUMENT and not self.is_last:
            chunk = next(self._chunks, b"")
            self.is_last = not chunk
            pieces.append(chunk)
            size += len(chunk)
        self.data, self.offset = b"".join(pieces), 0
        if not size:
            raise _cut_off()
        return size - 1 if self.is_last else size - _LONGEST_ARGUMENT

    def _part(self, size: int) -> bytes:
        part = self.data[self.offset : self.offset + size]
        if len(part) < size:
            raise _cut_off()
        self.offset += size
        return part

    def _whole(self, size: int) -> int:
        return int.from_bytes(self._part(size), "little")

    def _refusal(self, name: str, why: str) -> BadInput:
        where = f"at byte {self.before + self.offset - 1}"
        hint = "PyTorch's dumps contain plain values only: write it again"
        return BadInput(f"is a pickle with the opcode {name}, which {why}, {where}", hint=hint)

    def _since_mark(self) -> list[Plain]:
        items, self.stack = self.stack, self.marked.pop()
        return items

    def protocol(self, _: int) -> None:
        if self.before + self.offset != 1 or not 2 <= self._whole(1) <= _NEWEST_PROTOCOL:
            raise self._refusal("PROTO", "does not begin the file, or is not known")

    def frame(self, _: int) -> None:
        begins, size = self.before + self.offset + _FRAME_BYTES, self._whole(_FRAME_BYTES)
        if not size or begins < self.frame_end:
            raise self._refusal("FRAME", "is empty, or inside another one")
        self.frame_end = begins + size

    def mark(self, _: int) -> None:
        if len(self.marked) >= DEEPEST:
            raise self._refusal("MARK", f"nests deeper than {DEEPEST}")
        self.marked.append(self.stack)
        self.stack = []

    def put(self, code: int) -> None:
        if self._whole(1 if code == ord("q") else 4) != len(self.memo):
            raise self._refusal("BINPUT", "does not number what it keeps one by one")
        self.memo.append(self.stack[-1])

    def number(self, code: int) -> None:
        self.needed += _NUMBER_BYTES
        if code == _DOUBLE:
            self.stack.append(unpack(">d", self._part(8))[0])
        elif code in b"KM":
            self.stack.append(self._whole(b"KM".index(code) + 1))
        else:
            size = 4 if code == _SIGNED else self._whole(1)
            if size > LONGEST_INTEGER:
                raise self._refusal("LONG1", "is longer than 64 bits")
            self.stack.append(int.from_bytes(self._part(size), "little", signed=True))

    def text(self, code: int) -> None:
        size = self._whole(4 if code == ord("X") else 1)
        if size > LONGEST_TEXT:
            raise self._refusal("BINUNICODE", f"is longer than {LONGEST_TEXT} bytes")
        self.needed += _OBJECT_BYTES + size * _CHARACTER_BYTES
        self.stack.append(self._part(size).decode(errors="replace"))

    def constant(self, code: int) -> None:
        self.stack.append(_CONSTANTS[code])

    def empty(self, code: int) -> None:
        self.needed += _OBJECT_BYTES
        self.stack.append({} if code == ord("}") else [])

    def make_tuple(self, code: int) -> None:
        if code == ord("t"):
            items = self._since_mark()
        else:
            left = len(self.stack) - (code - 0x84 if code > 0x84 else 0)
            if left < 0:
                raise IndexError
            items = self.stack[left:]
            del self.stack[left:]
        self.needed += _OBJECT_BYTES + len(items) * _ITEM_BYTES
        self.stack.append(tuple(items))

    def append(self, code: int) -> None:
        items = self._since_mark() if code == ord("e") else [self.stack.pop()]
        into = self.stack[-1]
        if type(into) is not list:
            raise TypeError
        into.extend(items)
        self.needed += len(items) * _ITEM_BYTES

    def set_items(self, code: int) -> None:
        if code == ord("u"):
            items = self._since_mark()
        else:
            items = self.stack[-2:]
            del self.stack[-2:]
        into = self.stack[-1]
        if type(into) is not dict or len(items) % 2:
            raise TypeError
        for offset in range(0, len(items), 2):
            key = items[offset]
            if type(key) is not str:  # numbers can be made to collide
                raise TypeError
            into[key] = items[offset + 1]
        self.needed += len(items) * _PAIR_BYTES // 2


_METHODS: Final = {
    b"\x80": _Machine.protocol,
    b"\x95": _Machine.frame,
    b"(": _Machine.mark,
    b"qr": _Machine.put,
    b"KMJ\x8aG": _Machine.number,
    b"\x8cX": _Machine.text,
    b"N\x88\x89": _Machine.constant,
    b"}]": _Machine.empty,
    b")t\x85\x86\x87": _Machine.make_tuple,
    b"ae": _Machine.append,
    b"su": _Machine.set_items,
}
_OPCODES: Final[dict[int, Callable[[_Machine, int], None]]] = {
    code: method for codes, method in _METHODS.items() for code in codes
}


def _cut_off() -> BadInput:
    return BadInput("is a truncated pickle", hint="was the process killed while it was written?")
