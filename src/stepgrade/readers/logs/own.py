"""Dialects of [[dialect]] in stepgrade.toml: by the text before each number, or by a template of the line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from stepgrade.config import DialectTable, check_names
from stepgrade.errors import BadConfig
from stepgrade.readers.logs.dialect import BETWEEN, Dialect, Field, LogContext, Row
from stepgrade.readers.logs.values import COLUMNS, NUMBER, UNITS, number

# Every name that a dialect in stepgrade.toml may use.
NAMES = (*COLUMNS, *UNITS)
_MOST_TEMPLATE = 1000
# Unlike NUMBER, it leaves a comma or a full stop after it to the text that follows.
_NUMBER = (
    r"\s*+([-+]?(?:\d++(?:[,_]\d{3}(?!\d))*+(?:\.\d++)?+|\.\d++)(?:[eE][-+]?\d{1,3})?+"
    r"|[-+]?(?:nan|inf)\w{0,5}+)"
)
_PLACEHOLDER = re.compile(r"\{(\w{1,40})\}")


def dialects_from(tables: Sequence[DialectTable]) -> tuple[Dialect, ...]:
    """Return the dialects of a stepgrade.toml; raise BadConfig at the first invalid one."""
    found = []
    for index, table in enumerate(tables):
        where = f"dialect[{index}]"
        if not table.contains.strip():
            raise BadConfig("needs some text that is in every step line", where=f"{where}.contains")
        if bool(table.line) == bool(table.fields):
            raise BadConfig("needs either a line or fields", where=where)
        template = Template(table.line, f"{where}.line") if table.line else None
        names = tuple(table.fields) if template is None else template.names
        check_names(names, NAMES, where)
        if "step" not in names:
            raise BadConfig("needs a step", where=where)
        dialect = Dialect(
            framework=table.name,
            anchor=table.contains.encode(),
            fields=tuple(
                Field(*UNITS.get(name, (name, 1.0)), f"{re.escape(before)}\\s*({NUMBER})")
                for name, before in table.fields.items()
            ),
            needs=("step",),
            reader=None if template is None else template.read,
            mean=table.mean,
            rank=-1,
        )
        found.append(dialect)
    return tuple(found)


class Template:
    """A line as a user writes it: `[train] {step}/{total} {} loss {loss}`, where {} is any text."""

    def __init__(self, template: str, where: str) -> None:
        if len(template) > _MOST_TEMPLATE:
            raise BadConfig(f"is longer than {_MOST_TEMPLATE} characters", where=where)
        segments = list(filter(None, map(str.strip, template.split("{}"))))
        self.names = tuple(name for segment in segments for name in _PLACEHOLDER.findall(segment))
        # Each segment is atomic and matches where it first can, so that no line takes long.
        atoms: list[str] = []
        for segment in segments:
            texts = _PLACEHOLDER.split(segment)[::2]
            if "" in texts[1:-1]:
                raise BadConfig("needs text between two numbers", where=where)
            words = [r"\s++".join(map(re.escape, re.split(r"\s+", text))) for text in texts]
            start = "" if words[0] else r"(?<![\w.,:/-])"
            atoms.append(f"(?>{BETWEEN if atoms else ''}{start}{_NUMBER.join(words)})")
        self.pattern = re.compile("".join(atoms).encode())

    def read(self, line: bytes, _at: float, _context: LogContext) -> Row | None:
        """Return the numbers of a line by column, in our units; None if the line does not fit."""
        match = self.pattern.search(line)
        if match is None:
            return None
        columns = (UNITS.get(name, (name, 1.0)) for name in self.names)
        found = zip(columns, match.groups(), strict=True)
        return {column: number(text) * scale for (column, scale), text in found}
