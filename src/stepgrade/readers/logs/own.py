"""Dialects of [[dialect]] in stepgrade.toml: by the text before each number, or by a template of the line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepgrade.config import DialectTable
from stepgrade.errors import BadConfig, did_you_mean
from stepgrade.readers.logs.dialect import BETWEEN, Dialect, Field, Row
from stepgrade.readers.logs.values import COLUMNS, GIB, MIB, number

# Names in stepgrade.toml for numbers whose unit is not ours.
_UNITS = {
    "step_ms": ("step_s", 1e-3),
    "interval_ms": ("interval_s", 1e-3),
    "elapsed_ms": ("elapsed_s", 1e-3),
    "mfu_percent": ("mfu", 1e-2),
    "memory_gib": ("memory_bytes", GIB),
    "memory_mib": ("memory_bytes", MIB),
}
NAMES = (*COLUMNS, *_UNITS)
_MOST_TEMPLATE = 1000
# Unlike NUMBER, it leaves a comma or a full stop after it to the text that follows.
_NUMBER = (
    r"\s*+([-+]?(?:\d++(?:[,_]\d{3}(?!\d))*+(?:\.\d++)?+|\.\d++)(?:[eE][-+]?\d{1,3})?+"
    r"|[-+]?(?:nan|inf)\w{0,5}+)"
)
_PLACEHOLDER = re.compile(r"\{(\w{1,40})\}")


def dialects_from(tables: Sequence[DialectTable]) -> tuple[Dialect, ...]:
    """Return the dialects of a stepgrade.toml; raise BadConfig at the first invalid one."""
    return tuple(dialect_of(table, f"dialect[{number}]") for number, table in enumerate(tables))


def dialect_of(table: DialectTable, where: str) -> Dialect:
    """Return the dialect of one table; raise BadConfig at `where`."""
    if not table.contains.strip():
        raise BadConfig("needs some text that is in every step line", where=f"{where}.contains")
    if bool(table.line) == bool(table.fields):
        raise BadConfig("needs either a line or fields", where=where)
    template = Template(table.line, f"{where}.line") if table.line else None
    names = tuple(table.fields) if template is None else template.names
    for name in names:
        if name not in NAMES:
            raise BadConfig(f"there is no {name!r}", where=where, hint=did_you_mean(name, NAMES))
    if "step" not in names:
        raise BadConfig("needs a step", where=where)
    return Dialect(
        name=f"own: {table.name}",
        framework=table.name,
        anchor=table.contains.encode(),
        fields=tuple(
            Field(re.escape(before), *_UNITS.get(name, (name, 1.0))) for name, before in table.fields.items()
        ),
        reader=None if template is None else lambda _: template.read,
        mean=table.mean,
        rank=-1,
    )


class Template:
    """A line as a user writes it: `[train] {step}/{total} {} loss {loss}`, where {} is any text."""

    def __init__(self, template: str, where: str) -> None:
        if len(template) > _MOST_TEMPLATE:
            raise BadConfig(f"is longer than {_MOST_TEMPLATE} characters", where=where)
        segments = list(filter(None, map(str.strip, template.split("{}"))))
        self.names = tuple(name for segment in segments for name in _PLACEHOLDER.findall(segment))
        # Each segment is atomic and matches where it first can, so that no line takes long.
        atoms = [
            f"(?>{BETWEEN if index else ''}{_segment(text, where)})" for index, text in enumerate(segments)
        ]
        self.pattern = re.compile("".join(atoms).encode())

    def read(self, line: bytes, _: float) -> Row | None:
        """Return the numbers of a line by column, in our units; None if the line does not fit."""
        match = self.pattern.search(line)
        if match is None:
            return None
        columns = (_UNITS.get(name, (name, 1.0)) for name in self.names)
        found = zip(columns, match.groups(), strict=True)
        return {column: number(text) * scale for (column, scale), text in found}


def _segment(template: str, where: str) -> str:
    """Return the pattern of a template without gaps."""
    texts = _PLACEHOLDER.split(template)[::2]
    if "" in texts[1:-1]:
        raise BadConfig("needs text between two numbers", where=where)
    words = [r"\s++".join(map(re.escape, re.split(r"\s+", text))) for text in texts]
    return ("" if words[0] else r"(?<![\w.,:/-])") + _NUMBER.join(words)
