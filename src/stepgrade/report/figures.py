"""What only a page draws: charts, tables that a script sorts, and the sections around them.

Like all blocks they hold what is shown, not where it is drawn. Some results of scoring are drawn as they
are: the StepStats, the Memory, a StepChange.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from stepgrade.model.comparison import StepChange
from stepgrade.model.memory import Memory
from stepgrade.model.operations import LayerStep, ModuleStep, Operation
from stepgrade.model.profile import RankRow
from stepgrade.model.scorecard import Finding, StepStats
from stepgrade.model.step_view import StepView
from stepgrade.report.blocks import HTML, MARKDOWN, Block, Column, Heading, Paragraph, Space, Table, Title
from stepgrade.scoring.charts import Roofline, Standing, Tail


class Figure(Struct, frozen=True):
    """A block of a page alone."""


Shown = Block | Figure | StepStats | Memory | StepChange


class Section(Struct, frozen=True):
    """One section of a page: its address, its name in the navigation, its title, and what it shows."""

    id: str
    nav: str
    title: str  # empty where a Badge holds it
    blocks: tuple[Shown, ...]


class Page(Struct, frozen=True):
    """A whole page."""

    title: str
    about: str
    sections: tuple[Section, ...]


class Tiles(Figure, frozen=True):
    """Figures in boxes: name, value, and what it rests on."""

    rows: tuple[tuple[str, str, str], ...]


class Halves(Figure, frozen=True):
    """Columns beside each other; below each other on a narrow screen."""

    columns: tuple[tuple[Shown, ...], ...]


class Ceilings(Figure, frozen=True):
    """The ceilings as bars on one scale, with the run's share of each."""

    rows: tuple[Standing, ...]


class Slice(Struct, frozen=True, kw_only=True):
    """One part of a whole; `look` names its colour."""

    name: str
    share: float
    figures: str = ""
    look: str


class Stack(Figure, frozen=True):
    """Parts of a whole side by side; several wholes below each other, with name and figure."""

    rows: tuple[tuple[str, tuple[Slice, ...], str], ...]


class Legend(Figure, frozen=True):
    """What the colours of a chart stand for."""

    rows: tuple[Slice, ...]
    name: str = ""


class FallRow(Struct, frozen=True, kw_only=True):
    """A bar from `low` to `high` beside a middle line at 0, with a dot at a value in it."""

    name: str
    low: float
    high: float
    figures: str
    tip: str
    look: str
    dot: float | None = None


class Diverging(Figure, frozen=True):
    """Bars on both sides of a middle line; the axis reaches at least `least_reach` each way."""

    rows: tuple[FallRow, ...]
    least_reach: float = 0.0


class OperationTable(Figure, frozen=True):
    """The first rows of the operations with their links; a script sorts, searches and pages all of them."""

    rows: tuple[tuple[Operation, str | None], ...]
    count: int
    has_links: bool
    has_roofs: bool
    tail: Tail | None  # what the script's table leaves out


class Gaps(Figure, frozen=True):
    """Operations of two runtimes: name, ours, theirs, lost, ratio. A script sorts what the JSON lists."""

    ours: str
    theirs: str
    rows: tuple[tuple[str, ...], ...]
    count: int
    is_listed: bool


class FindingRow(Struct, frozen=True, kw_only=True):
    """A finding with its gain, its evidence in words, and a link to the trace."""

    finding: Finding
    gain: str
    evidence: tuple[tuple[str, str], ...]
    link: str | None


class FindingList(Figure, frozen=True):
    """Findings in full, or a brief to-do list that says how many `more` there are."""

    rows: tuple[FindingRow, ...]
    is_brief: bool = False
    more: int = 0


class TraceHelp(Figure, frozen=True):
    """How to look at the trace in Perfetto, with a link to a typical step."""

    link: str


class RooflineChart(Figure, frozen=True):
    """Operations under the roofs of the device, and which roofs are missing."""

    found: Roofline
    missing: str


class LayerChart(Figure, frozen=True):
    """Layers side by side, and how backward compares with forward."""

    layers: tuple[LayerStep, ...]
    ratio: float | None
    left_out: int


class Icicle(Figure, frozen=True):
    """Modules, the operations that they call and their kernels, each as wide as its time."""

    modules: tuple[ModuleStep, ...]


class RankChart(Figure, frozen=True):
    """Ranks from left to right, darker where a figure is greater."""

    ranks: tuple[RankRow, ...]


class LaneChart(Figure, frozen=True):
    """Steps of every rank on a common clock; what findings are about is pinned."""

    steps: tuple[tuple[StepView, ...], ...]
    findings: tuple[Finding, ...]
    another: str  # how to see other steps
    left_out: int  # ranks


def sections_of(blocks: Iterable[Shown]) -> tuple[Section, ...]:
    """Return the blocks for a page in sections: the verdict, and one for each heading with a `nav`."""
    found: list[tuple[str, str, list[Shown]]] = [("Verdict", "", [])]
    for block in blocks:
        if isinstance(block, Title | Space) or getattr(block, "only", None) not in HTML:
            continue
        if isinstance(block, Heading) and block.nav:
            found.append((block.nav, block.text, []))
        else:
            found[-1][2].append(block)
    return tuple(
        Section(nav.lower().replace(" ", "-"), nav, title, tuple(shown))
        for nav, title, shown in found
        if shown
    )


def plain_page(blocks: Iterable[Shown]) -> Page:
    """Return the page of a result without charts of its own: what a document has, under its title."""
    shown = list(blocks)
    title = next((block for block in shown if isinstance(block, Title)), Title("", ""))
    about = "".join((title.before, title.name, title.after)).removeprefix("stepgrade · ")
    heading = Heading(title.heading or about, level=1)
    kept = (
        replace(block, only=None) if getattr(block, "only", None) == "full" else block
        for block in shown
        if not isinstance(block, Title | Space) and getattr(block, "only", None) in MARKDOWN
    )
    return Page(title.heading or about, about, (Section("verdict", "Answer", "", (heading, *kept)),))


def empty(text: str, headline: str = "Not compared.") -> Paragraph:
    """Return why there is no answer."""
    return Paragraph(text, style="empty", mark=headline, only="page")


def note(text: str) -> Paragraph:
    """Return a remark below a chart or a table."""
    return Paragraph(text, style="note", only="page")


def numbers(header: tuple[str, ...], rows: Iterable[tuple[str, ...]], title: str = "The numbers") -> Table:
    """Return a table that is folded away; its first cells are names."""
    return Table(tuple(Column(head) for head in header), tuple(rows), label=title, is_folded=True)
