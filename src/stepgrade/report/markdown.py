"""Reports as Markdown for issues, pull requests and notebooks; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from stepgrade.report.blocks import (
    Badge,
    Bars,
    Block,
    Bullets,
    Facts,
    Heading,
    Paragraph,
    Space,
    Table,
    Title,
)
from stepgrade.report.names import markdown as escaped
from stepgrade.report.names import without_line_commands

_NAME_CELLS = 200
_TEXT_CELLS = 1000


def write(blocks: Iterable[Block]) -> str:
    """Return the blocks that are for a document."""
    shown = (block for block in blocks if isinstance(block, Title | Space) or block.only != "brief")
    parts = ["\n".join(_lines(block)) for block in shown]
    return without_line_commands("\n\n".join(part for part in parts if part), r"\::") + "\n"


def _lines(block: Block) -> list[str]:  # noqa: PLR0911  a case for each type of block
    match block:
        case Title():
            return [f"## {escaped(block.heading, _NAME_CELLS)}"] if block.heading else []
        case Heading():
            return [f"### {escaped(f'{block.text} {block.name}'.rstrip(), _NAME_CELLS)}"]
        case Paragraph():
            capital = 1 if block.style == "title" else 0
            return [_styled(block.text[:capital].upper() + block.text[capital:], block.style)]
        case Badge():
            headline = f": {escaped(block.headline, _TEXT_CELLS)}" if block.headline else ""
            below = [line for text in block.lines for line in ("", escaped(text, _TEXT_CELLS))]
            return [f"**{escaped(block.text)}**{headline}", *below]
        case Facts():
            known = [fact for fact in block.rows if fact.only != "brief"]
            return _table(
                block.header, [(escaped(fact.name), _styled(fact.text, fact.text_style)) for fact in known]
            )
        case Bars():
            drawn = [row for row in block.rows if row.only != "brief"]
            return _table(
                block.header, [(escaped(row.name), *(escaped(cell) for cell in row.cells)) for row in drawn]
            )
        case Table():
            shown = [place for place, column in enumerate(block.columns) if column.only != "brief"]
            columns = [block.columns[place] for place in shown]
            heads = [column.title or column.head.capitalize() for column in columns]
            rows = [[escaped(row[place], _TEXT_CELLS) for place in shown] for row in block.rows]
            return _table(heads, rows, [column.right for column in columns])
        case Bullets():
            return [
                f"{'  ' if row.indent > 4 else ''}{row.mark if row.mark.endswith('.') else '-'} "
                f"{escaped(f'{row.label}: {row.text}'.removeprefix(': '), _TEXT_CELLS)}"
                for row in block.rows
                if row.only != "brief"
            ]
    return []


def _styled(text: str, style: str | None) -> str:
    shown = escaped(text, _TEXT_CELLS)
    return f"**{shown}**" if style == "title" else shown


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool] = ()) -> list[str]:
    """Return a table of escaped cells; none without rows."""
    if not rows:
        return []
    rule = ["---:" if is_right else "---" for is_right in right] or ["---"] * len(header)
    return [f"| {' | '.join(line)} |" for line in ([escaped(head) for head in header], rule, *rows)]
