"""What a report is made of: content modules choose blocks once; terminal, Markdown and HTML write them.

Texts in blocks are formatted but not escaped: names from files are made harmless by the writers.
`only` says where a part is shown: "brief" where room is scarce (the terminal), "full" where every row has
room (Markdown, and a terminal that is asked for all), "text" in both of these, "page" in HTML, "document" in
Markdown and HTML, None everywhere.
A page has blocks of its own besides (`report/figures.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from stepgrade.units import show_share

Only = Literal["brief", "full", "text", "page", "document"] | None
TERMINAL: tuple[Only, ...] = (None, "brief", "text")
FULL: tuple[Only, ...] = (None, "full", "text")
MARKDOWN: tuple[Only, ...] = (None, "full", "text", "document")
HTML: tuple[Only, ...] = (None, "page", "document")
# How a page draws the cells of a column.
ROWS_KEPT = 100  # of a table in a document
Look = Literal["", "name", "isolated", "number", "strong", "prose", "verdict", "severity"]


class Title(Struct, frozen=True):
    """The first line: a heading in a document, one line in a terminal where `name` gives way to fit."""

    heading: str
    before: str
    name: str = ""
    after: str = ""
    style: str = "dim"


class Space(Struct, frozen=True):
    """An empty line; documents have their own."""


class Heading(Struct, frozen=True):
    """The title of a section; `name`, from a file, is shortened to fit behind it."""

    text: str
    name: str = ""
    narrow: str = ""  # instead of `text` where there is little room
    only: Only = None
    level: int = 3  # of a page
    nav: str = ""  # begins a section of a page, under this name in its navigation


class Paragraph(Struct, frozen=True):
    """Text in a style ("title" is bold in documents), wrapped at an indent; `mark` comes before it.

    On a page the text may go on with a `name` from a file and what is `after` it.
    """

    text: str
    style: str | None = None
    indent: int = 2
    hanging: int = 0  # how much further the lines after the first are indented
    mark: str = ""
    only: Only = None
    name: str = ""
    after: str = ""


class Badge(Struct, frozen=True):
    """The answer in a word, with what it means beside it and `lines` below.

    `scale` (0 to 1) is drawn as a point on a line with `marks` at their shares. A page has `title` beside
    it, in which every second part is a name from a file, and `points` below.
    """

    text: str
    style: str
    headline: str = ""
    headline_style: str | None = None
    lines: tuple[str, ...] = ()
    scale: float | None = None
    marks: tuple[tuple[float, str], ...] = ()
    only: Only = None
    title: tuple[str, ...] = ()
    meaning: str = ""  # of a page, before the lines
    points: tuple[str, ...] = ()
    is_grade: bool = False


class Fact(Struct, frozen=True):
    """A label and its value."""

    name: str
    text: str
    style: str = "title"
    text_style: str | None = None
    only: Only = None
    names: tuple[str, ...] = ()  # from files, each on a line of a page before the text


class Facts(Struct, frozen=True):
    """Labels with their values beside them, or below them where `width` is 0."""

    rows: tuple[Fact, ...]
    width: int = 12
    header: tuple[str, str] = ("Metric", "Value")
    only: Only = None


class Bar(Struct, frozen=True):
    """One row of bars: `length` is drawn, `figures` are beside it; a document has `cells` instead."""

    name: str
    length: float
    figures: str
    cells: tuple[str, ...]
    narrow: str = ""  # instead of `figures` where there is little room
    only: Only = None


class Bars(Struct, frozen=True):
    """Bars, each as a share of the longest; `header` names the columns of a document's table."""

    header: tuple[str, ...]
    rows: tuple[Bar, ...]
    has_long_names: bool = False
    only: Only = None
    whole: float | None = None  # on a page: what the lengths are shares of, instead of the longest


class Column(Struct, frozen=True):
    """A column: `width` 0 takes what its text needs, `fills` what the others leave.

    `role` "group" draws a line of its own in a terminal whenever the cell changes, "once" leaves out
    a cell that is like the one above.
    """

    head: str
    width: int = 0
    right: bool = False
    gap: int = 1
    fills: bool = False
    style: str | None = None
    role: Literal["group", "once"] | None = None
    title: str = ""  # the head in a document, where it is another
    only: Only = None
    look: Look = ""


class Table(Struct, frozen=True):
    """Rows of cells, with `is_spaced` after an empty line; below `least_width` `otherwise` is drawn instead.

    With `narrow_head`, a row that is too wide is drawn in two lines; with `is_cut`, it is cut. A page has a
    `label` for it, under which it is folded away if `is_folded`.
    """

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    indent: int = 2
    is_spaced: bool = False
    head_style: str | None = "title"
    narrow_head: str = ""
    is_cut: bool = False
    least_width: int = 0
    otherwise: tuple[Block, ...] = ()
    only: Only = None
    label: str = ""
    is_folded: bool = False


class Bullet(Struct, frozen=True):
    """One point of a list; `label` comes before the text in a document, `mark` in a terminal."""

    text: str
    mark: str = "·"
    mark_style: str | None = None
    style: str | None = None
    label: str = ""
    indent: int = 2
    only: Only = None
    figure: str = ""  # behind the text, on a page


class Bullets(Struct, frozen=True):
    """A list; with `is_spaced` an empty line comes before each point in a terminal."""

    rows: tuple[Bullet, ...]
    is_spaced: bool = False
    only: Only = None
    look: Literal["", "reasons", "note", "todo", "regressions", "alone"] = ""  # on a page


class Code(Struct, frozen=True):
    """Text whose lines stay as they are, such as a diff."""

    text: str
    only: Only = None


class Chart(Struct, frozen=True):
    """A series of values with labels for the highest and the lowest, and where its level changes."""

    values: tuple[float, ...]
    labels: tuple[str, str]
    changes: tuple[int, ...]
    only: Only = "brief"


class Differences(Struct, frozen=True):
    """How the setups of two runs differ; shown first, because it decides what the figures mean."""

    headline: str
    texts: tuple[str, ...]
    only: Only = None


Block = (
    Title | Space | Heading | Paragraph | Badge | Facts | Bars | Table | Bullets | Code | Chart | Differences
)


def bullets(texts: Iterable[str], *, style: str | None = None, is_spaced: bool = False) -> Bullets:
    """Return plain points."""
    return Bullets(tuple(Bullet(text, style=style) for text in texts), is_spaced=is_spaced)


def facts(rows: dict[str, str], width: int = 12, header: tuple[str, str] = ("What", "Value")) -> Facts:
    """Return labels and values that are shown everywhere."""
    return Facts(tuple(Fact(name, text) for name, text in rows.items()), width=width, header=header)


def share_bar(name: str, length: float, amount: str, share: float, width: int = 9) -> Bar:
    """Return a bar with an amount, right-aligned in `width` cells, and its share of the whole."""
    return Bar(name, length, f"{amount:>{width}} {show_share(share):>7}", (amount, show_share(share)))


def shorten(rows: Iterable[Bar], shown: int) -> tuple[Bar, ...]:
    """Return rows of which a terminal draws the first `shown`."""
    return tuple(row if index < shown else replace(row, only="full") for index, row in enumerate(rows))


def bar_table(
    heading: Heading, bars: Bars, shown: int, *, kept: int = ROWS_KEPT, count: int = 0, counts: bool = True
) -> Iterator[Block]:
    """Yield bars under a heading: a terminal draws `shown` of them, a document `kept`, of `count` in all.

    With `counts` the terminal says how many it leaves out.
    """
    only: Only = None if shown else "full"
    yield replace(heading, only=only)
    yield replace(bars, rows=shorten(bars.rows[:kept], shown), only=only)
    count = count or len(bars.rows)
    rest: tuple[tuple[int, Only], ...] = ((count - shown if counts else 0, "brief"), (count - kept, "full"))
    for left, where in rest:
        if shown and left > 0:
            yield Paragraph(f"{left:,} more in the JSON", style="dim", only=where)
