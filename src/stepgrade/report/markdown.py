"""Reports as Markdown for issues, pull requests and notebooks; every text is escaped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from stepgrade.report.blocks import (
    MARKDOWN,
    Badge,
    Bars,
    Block,
    Bullets,
    Code,
    Differences,
    Facts,
    Heading,
    Paragraph,
    Space,
    Table,
    Title,
)
from stepgrade.report.names import markdown as escaped
from stepgrade.report.names import printable, without_line_commands

_NAME_CELLS = 200
_TEXT_CELLS = 1000


def write(blocks: Iterable[Block]) -> str:
    """Return the blocks that are for a document."""
    shown = (
        block
        for block in blocks
        if isinstance(block, Title | Space) or getattr(block, "only", "page") in MARKDOWN
    )
    parts = ["\n".join(_lines(block)) for block in shown]
    return without_line_commands("\n\n".join(part for part in parts if part), r"\::") + "\n"


def _lines(block: Block) -> list[str]:  # noqa: C901, PLR0911  a case for each type of block
    match block:
        case Title():
            return [f"## {escaped(block.heading, _NAME_CELLS)}"] if block.heading else []
        case Heading():
            return [f"### {escaped(f'{block.text} {block.name}'.rstrip(), _NAME_CELLS)}"]
        case Paragraph():
            text = _capital(block.text) if block.style == "title" else block.text
            return [_styled(text, block.style)]
        case Badge():
            headline = f": {escaped(block.headline, _TEXT_CELLS)}" if block.headline else ""
            below = [line for text in block.lines for line in ("", escaped(text, _TEXT_CELLS))]
            return [f"**{escaped(block.text)}**{headline}", *below]
        case Facts():
            known = [fact for fact in block.rows if fact.only in MARKDOWN]
            return _table(
                block.header, [(escaped(fact.name), _styled(fact.text, fact.text_style)) for fact in known]
            )
        case Bars():
            drawn = [row for row in block.rows if row.only in MARKDOWN]
            return _table(
                block.header, [(escaped(row.name), *(escaped(cell) for cell in row.cells)) for row in drawn]
            )
        case Table():
            shown = [index for index, column in enumerate(block.columns) if column.only in MARKDOWN]
            columns = [block.columns[index] for index in shown]
            heads = [column.title or column.head.capitalize() for column in columns]
            rows = [[escaped(row[index], _TEXT_CELLS) for index in shown] for row in block.rows]
            return _table(heads, rows, [column.right for column in columns])
        case Bullets():
            return [
                f"{'  ' if row.indent > 4 else ''}{row.mark if row.mark.endswith('.') else '-'} "
                f"{escaped(f'{row.label}: {row.text}'.removeprefix(': '), _TEXT_CELLS)}"
                for row in block.rows
                if row.only in MARKDOWN
            ]
        case Code():
            fence = "`" * max(3, len(max(re.findall(r"`+", block.text), key=len, default="")) + 1)
            return [f"{fence}diff", *map(printable, block.text.splitlines()), fence]
        case Differences():
            points = [f"- {escaped(text, _TEXT_CELLS)}" for text in block.texts]
            return [_styled(_capital(block.headline), "title"), "", *points]
    return []


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _styled(text: str, style: str | None) -> str:
    shown = escaped(text, _TEXT_CELLS)
    return f"**{shown}**" if style == "title" else shown


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> list[str]:
    """Return a table of escaped cells; none without rows."""
    if not rows:
        return []
    rule = ["---:" if is_right else "---" for is_right in right] or ["---"] * len(header)
    return [f"| {' | '.join(line)} |" for line in ([escaped(head) for head in header], rule, *rows)]
