"""Reports for a terminal: drawn at its width, in colour where it has colour.

Drawn by hand because a scorecard must appear at once: importing a rendering library takes longer
than everything else that `stepgrade score` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

from stepgrade.report.blocks import (
    FULL,
    TERMINAL,
    Badge,
    Bars,
    Block,
    Bullet,
    Bullets,
    Chart,
    Code,
    Column,
    Differences,
    Facts,
    Heading,
    Only,
    Paragraph,
    Space,
    Table,
    Title,
)
from stepgrade.report.names import cells, printable, shortened, without_line_commands, wrapped

# The sixteen base colours follow the user's theme, so they read on dark and on light backgrounds.
_STYLES = {
    "title": "1",
    "dim": "2",
    "bar": "36",
    "good": "32",
    "fair": "33",
    "bad": "31",
    "badge-good": "1;30;42",
    "badge-fair": "1;30;43",
    "badge-bad": "1;37;41",
    "badge-none": "7",
}
_EIGHTHS = " ▏▎▍▌▋▊▉"
LEAST_WIDTH = 40
LEAST_FACT_WIDTH = 22
LEAST_NAME_WIDTH = 12
LEAST_BAR_WIDTH = 4
# Below this, what has a narrow form is drawn in it.
NARROW = 60
CHART_ROWS = 10


def write(blocks: Iterable[Block], *, width: int, color: bool, full: bool = False) -> str:
    """Return the blocks as lines of at most `width` cells; styles become escape codes only with `color`.

    With `full` every row is drawn, otherwise what there is room for.
    """
    canvas = _Canvas(width=width, color=color, medium=FULL if full else TERMINAL)
    canvas.draw(blocks)
    return without_line_commands("\n".join(canvas.lines)) + "\n"


class _Canvas:
    """Collects lines."""

    def __init__(self, *, width: int, color: bool, medium: tuple[Only, ...]) -> None:
        self.medium = medium
        self.width = max(LEAST_WIDTH, width)
        self.lines: list[str] = []
        self._color = color

    def style(self, text: str, style: str | None) -> str:
        """Return `text` in a style, or as it is when colour is off."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._color and style and text else text

    def line(self, text: str = "") -> None:
        self.lines.append(text.rstrip())

    def paragraph(self, text: str, indent: str, first: str | None = None, style: str | None = None) -> None:
        """Add text made printable and wrapped to the width; `first` replaces the first line's indent."""
        for number, part in enumerate(wrapped(shortened(text), self.width - cells(indent))):
            self.line((first if first is not None and number == 0 else indent) + self.style(part, style))

    def draw(self, blocks: Iterable[Block]) -> None:
        for block in blocks:
            if isinstance(block, Space):
                self.line()
            elif isinstance(block, Title) or getattr(block, "only", "page") in self.medium:
                getattr(self, f"draw_{type(block).__name__.lower()}")(block)

    def draw_paragraph(self, block: Paragraph) -> None:
        mark = f"{block.mark} " if block.mark else ""
        first = " " * block.indent + (f"{self.style(block.mark, 'fair')} " if mark else "")
        self.paragraph(block.text, " " * (block.indent + block.hanging + len(mark)), first, block.style)

    def draw_title(self, title: Title) -> None:
        """Draw the first line; the name is shortened to make the rest fit."""
        if not title.before:
            return
        before, after = shortened(title.before), shortened(title.after)
        room = max(8, self.width - cells(before) - cells(after))
        text = f"{before}{shortened(title.name, room)}{after}"
        self.line(self.style(shortened(text, self.width) if title.style == "dim" else text, title.style))

    def draw_heading(self, heading: Heading) -> None:
        text = heading.narrow if heading.narrow and self.width < NARROW else heading.text
        if heading.name:
            text = f"{text} {shortened(heading.name, self.width - cells(text) - 1)}"
        self.line()
        self.paragraph(text, "", style="title")

    def draw_badge(self, badge: Badge) -> None:
        """Draw the answer, what it means, and its position on a scale."""
        answer = shortened(badge.text)
        first = f"  {self.style(f' {answer} ', badge.style)}  "
        indent = " " * (cells(answer) + 6)
        if badge.headline:
            self.paragraph(badge.headline, indent, first, badge.headline_style)
        else:
            self.line(first)
        for text in badge.lines:
            self.paragraph(text, indent)
        if badge.scale is not None:
            # 0 to 100 % on one line: the grades where they begin, and where the run stands.
            width = min(60, self.width - 14)
            ruler = ["·"] * (width + 1)
            for share, mark in badge.marks:
                ruler[round(share * width)] = mark
            at = round(min(badge.scale, 1.0) * width)
            before, after = "".join(ruler[:at]), "".join(ruler[at + 1 :])
            self.line(f"{indent}{before}{self.style('◆', 'title')}{after} 100 %")

    def draw_facts(self, block: Facts) -> None:
        """Draw names and text beside them, or below them where the width leaves too little room."""
        for fact in block.rows:
            if fact.only not in self.medium:
                continue
            title = f"  {self.style(padded(shortened(fact.name), block.width), fact.style)}"
            if block.width and self.width >= block.width + LEAST_FACT_WIDTH:
                self.paragraph(fact.text, " " * (block.width + 2), title, fact.text_style)
            else:
                self.line(title)
                self.paragraph(fact.text, "    ", style=fact.text_style)

    def draw_bars(self, block: Bars) -> None:
        """Draw one bar a row: name, length as a share of the longest, and figures at the right."""
        is_narrow = self.width < NARROW
        rows = [
            (row.name, row.length, row.narrow if is_narrow and row.narrow else row.figures)
            for row in block.rows
            if row.only in self.medium
        ]
        longest = max((length for _, length, _ in rows), default=0.0)
        figures_width = max((cells(figures) for _, _, figures in rows), default=0)
        widest = self.width // (2 if block.has_long_names and not is_narrow else 3)
        names_width = max((cells(shortened(name, self.width)) for name, _, _ in rows), default=0)
        name_width = min(names_width, max(LEAST_NAME_WIDTH, widest))
        names, at_words = {name for name, _, _ in rows}, True
        if len({shortened(name, name_width) for name in names}) < len(names):
            # Names that are cut to the same letters say nothing: the bars give way, then whole words.
            name_width = min(names_width, max(name_width, self.width - figures_width - LEAST_BAR_WIDTH - 6))
            at_words = len({shortened(name, name_width) for name in names}) == len(names)
        bar_width = max(LEAST_BAR_WIDTH, self.width - name_width - figures_width - 6)
        for name, length, figures in rows:
            shown = padded(shortened(name, name_width, at_words=at_words), name_width)
            share = length / longest if longest > 0 else 0.0
            full, eighths = divmod(round(max(0.0, min(1.0, share)) * bar_width * 8), 8)
            drawn = ("█" * full + _EIGHTHS[eighths].rstrip()).ljust(bar_width)
            self.line(f"  {shown}  {self.style(drawn, 'bar')}  {figures:>{figures_width}}")

    def draw_table(self, table: Table) -> None:
        if self.width < table.least_width:
            self.draw(table.otherwise)
            return
        shown = [
            (index, column)
            for index, column in enumerate(table.columns)
            if column.only in self.medium and column.role != "group"
        ]
        columns = [column for _, column in shown]
        taken = table.indent - columns[0].gap + sum(column.width + column.gap for column in columns)
        widths = [
            max(LEAST_NAME_WIDTH, self.width - taken) if column.fills else column.width for column in columns
        ]
        # The head of a first column of names begins at the edge, over the rows' indent.
        over = 0 if columns[0].right else table.indent
        head = "".join(_filled(columns, [widths[0] + over, *widths[1:]], [column.head for column in columns]))
        if table.is_spaced:
            self.line()
        is_wide = cells(head) > self.width and table.narrow_head
        self.line(self.style(table.narrow_head if is_wide else head, table.head_style))
        above = [""] * len(table.columns)
        for row in table.rows:
            for column, text, last in zip(table.columns, row, above, strict=True):
                if column.role == "group" and text != last:
                    self.line(self.style(shortened(text), column.style))
            texts = [
                "" if column.role == "once" and row[index] == above[index] else shortened(row[index])
                for index, column in shown
            ]
            parts, above = _filled(columns, widths, texts), list(row)
            indent, plain = " " * table.indent, "".join(parts)
            if table.narrow_head and cells(plain) + table.indent > self.width:
                self.line(indent + texts[0])
                self.paragraph(" ".join(texts[1:]), f"{indent}  ")
            elif table.is_cut:
                self.line(shortened(indent + plain, self.width))
            else:
                styled = (self.style(part, column.style) for part, column in zip(parts, columns, strict=True))
                self.line(indent + "".join(styled))

    def draw_bullets(self, block: Bullets) -> None:
        for row in block.rows:
            if row.only not in self.medium:
                continue
            if block.is_spaced:
                self.line()
            first = f"{' ' * row.indent}{self.style(row.mark, row.mark_style)} "
            self.paragraph(row.text, " " * (row.indent + len(row.mark) + 1), first, row.style)

    def draw_code(self, code: Code) -> None:
        """Draw each line as it is, in full: a diff that is cut could not be applied."""
        for line in code.text.splitlines():
            style = {"+": "good", "-": "bad"}.get(line[:1]) if line[:3] not in ("+++", "---") else "title"
            self.line(f"  {self.style(printable(line), style)}")

    def draw_differences(self, block: Differences) -> None:
        self.draw_paragraph(Paragraph(block.headline, style="title", mark="!"))
        self.draw_bullets(Bullets(tuple(Bullet(text, indent=4) for text in block.texts)))

    def draw_chart(self, chart: Chart) -> None:
        """Draw `·` where values are, `─` where their median is, `│` at a change of level."""
        values = chart.values
        margin = max(len(label) for label in chart.labels) + 3
        width = min(max(10, self.width - margin - 2), len(values))
        low, high = min(values), max(values)
        scale = (CHART_ROWS - 1) / (high - low) if high > low else 0.0
        grid = [[" "] * width for _ in range(CHART_ROWS)]
        edges = [round(index * len(values) / width) for index in range(width + 1)]
        for column, (start, end) in enumerate(pairwise(edges)):
            here = sorted(values[start:end])
            for value, sign in ((here[0], "·"), (here[-1], "·"), (here[len(here) // 2], "─")):
                grid[round((high - value) * scale)][column] = sign
            if any(start <= change < end for change in chart.changes):
                for row in grid:
                    row[column] = "│" if row[column] == " " else row[column]
        labels = (chart.labels[0], *("",) * (CHART_ROWS - 2), chart.labels[1])
        for label, row in zip(labels, grid, strict=True):
            self.line(f"  {label:>{margin - 3}} ┤{''.join(row)}")


def _filled(columns: Sequence[Column], widths: Sequence[int], texts: Sequence[str]) -> list[str]:
    """Return the cells of a line filled up to their columns, each but the first with its gap before it."""
    parts = []
    for index, (column, width, text) in enumerate(zip(columns, widths, texts, strict=True)):
        shown = shortened(text, width) if column.fills else text
        gap = " " * column.gap if index else ""
        parts.append(gap + (f"{shown:>{width}}" if column.right else padded(shown, width)))
    return parts


def padded(text: str, width: int) -> str:
    """Return printable text filled up with spaces to `width` cells."""
    return text + " " * max(0, width - cells(text))
