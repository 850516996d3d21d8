"""Results as one HTML file that opens offline: blocks through templates, and everything inside the file."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepgrade._version import __version__
from stepgrade.compare.parity import ParityReport
from stepgrade.errors import MissingExtra
from stepgrade.model.comparison import StepChange
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.memory import Memory
from stepgrade.model.notes import NO_FLAGS, Result
from stepgrade.model.scorecard import Scorecard, StepStats
from stepgrade.report.blocks import HTML, Badge
from stepgrade.report.content import gate, parity, scorecard_page
from stepgrade.report.content.parity import answer_badge, largest_gaps, names_of, ratio_cells
from stepgrade.report.content.scorecard import gain, grade_badge
from stepgrade.report.content.scorecard_page import FINDINGS_FIRST, bottleneck_words, ledger_slices, tiles
from stepgrade.report.figures import (
    Ceilings,
    Diverging,
    Icicle,
    LaneChart,
    LayerChart,
    Page,
    RankChart,
    RooflineChart,
    Shown,
    Stack,
    plain_page,
)
from stepgrade.report.html import charts, plots
from stepgrade.report.names import json_text, printable, shortened
from stepgrade.report.own_paths import without_own_paths
from stepgrade.units import show_bytes, show_count, show_ms, show_rate, show_ratio, show_share, show_si

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

_PAGES: dict[str, Callable[[Any, Mapping[str, str]], Page]] = {
    "scorecard": scorecard_page.page,
    "gate": gate.page,
    "parity": parity.page,
}


def page_of(
    kind: str | None,
    result: Result,
    flags: Mapping[str, str],
    frame: PageFrame | None = None,
    blocks: Iterable[Shown] = (),
) -> str:
    """Return a result as a whole page; raise MissingExtra without Jinja2.

    Scorecards, parity and gate reports have a layout of their own; of others the `blocks` are drawn.
    """
    text = result.to_json()
    if len(text) > MOST_BYTES:
        text = msgspec.json.encode(_cut(msgspec.json.decode(text))).decode()
    # Escaped so that the JSON cannot end its HTML element.
    escapes = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}
    page = _PAGES[kind](result, flags) if kind else plain_page(blocks)
    charts_drawn = (block for section in page.sections for block in section.blocks)
    lanes = next((plots.lane_details(block) for block in charts_drawn if isinstance(block, LaneChart)), None)
    view = {
        "page": page,
        "lanes": json_text(msgspec.json.encode(lanes).decode()).translate(escapes) if lanes else "",
        "write": write,
        "style": style(),
        "script": asset("report.js"),
        "policy": policy(),
        "frame": frame,
        "json": json_text(text).translate(escapes),
        "version": __version__,
    }
    return fill("page.html", view)


def framed_page(kind: str, result: Result, frame: PageFrame) -> tuple[str, str]:
    """Return the page of a result with a server's links above it, and the policy that it keeps to."""
    return page_of(kind, without_own_paths(result), {}, frame), policy()


_FOLDER = Path(__file__).parent
MOST_BYTES = 1_000_000
ROWS_KEPT = 2_000
SAMPLES_KEPT = 15_000
_NAME_CELLS = 200
_PROSE_CELLS = 800
_GAPS_SHOWN = 8
_ACCOUNT_RULES = "/* the accounts of the ledger */"
# A number with its unit, a dash, or nothing.
_FIGURE = r"(?:[≥~+\-\u2212\u2013]? ?[\d.,]+x?(?: [^ ]{1,8})?(?: /.*)?|\u2013)?$"
_OPTION = r"(?<![\w-])(--[a-z][a-z-]*)"


class PageFrame(msgspec.Struct, frozen=True, kw_only=True):
    """What a server shows above a report: links to its own pages, and how the run came to it."""

    links: tuple[tuple[str, str], ...]
    facts: tuple[tuple[str, str], ...] = ()


def policy() -> str:
    """Return what a page may do: our script and our style, by their digests, and nothing from elsewhere."""
    script = asset("report.js")
    return (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style())}'; "
        "base-uri 'none'; form-action 'none'"
    )


def fill(template: str, view: dict[str, Any]) -> str:
    """Render a template; every text in `view` is escaped unless the template marks it as safe."""
    return environment().get_template(template).render(view)


@cache
def environment(folder: Path | None = None) -> Environment:
    """Return the environment of our templates and those in `folder`; raise MissingExtra without Jinja2."""
    try:
        import jinja2  # optional
        import markupsafe  # comes with it
    except ImportError as error:
        raise MissingExtra("HTML needs Jinja2", hint="pip install 'stepgrade[html]'") from error

    def prose(text: str) -> str:
        """Return escaped text with command-line flags as unbroken code."""
        escaped = str(markupsafe.escape(shortened(text, _PROSE_CELLS)))
        return markupsafe.Markup(re.sub(_OPTION, r'<code class="flag">\1</code>', escaped))  # noqa: S704  escaped

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*([folder] if folder else []), _FOLDER / "templates"]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.tests["figure"] = lambda text: re.match(_FIGURE, text) is not None
    made.filters |= {
        # A coordinate with as few digits as a screen can show.
        "place": lambda number: f"{number:.2f}".rstrip("0").rstrip("."),
        "name": lambda text: shortened(text, _NAME_CELLS, at_words=False),  # as report.js does
        "text": lambda text: shortened(text, _PROSE_CELLS),
        "place_in_code": lambda text: shortened(text, charts.PLACE_CELLS),
        "prose": prose,
        "ms": show_ms,
        "share": show_share,
        "rate": show_rate,
        "ratio": show_ratio,
        "count": show_count,
        "si": show_si,
        "bytes": show_bytes,
    }
    return made


@cache
def style() -> str:
    """Return the style sheet, with a rule for each account of the ledger."""
    rules = []
    for name, account in ACCOUNTS.items():
        rules.append(f".account-{name} {{ fill: var(--{account.colour}); }}")
        rules.append(f".account-{name} text {{ fill: var(--{account.label_colour}); }}")
    return asset("report.css").replace(_ACCOUNT_RULES, "\n".join(rules))


def account_colours() -> dict[str, str]:
    """Return the colour of each account on a light page, for output without a style sheet."""
    palette = dict(re.findall(r"--([\w-]+): (#\w{6});", asset("report.css").partition("}")[0]))
    return {name: palette[account.colour] for name, account in ACCOUNTS.items()}


@cache
def asset(name: str) -> str:
    """Return a file of the page."""
    return (_FOLDER / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _cut(document: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON with its longest lists cut and its longest texts shortened; its notes say so."""
    counts: list[int] = []

    def cut(value: Any, name: str = "") -> Any:
        match value:
            case str():
                return shortened(value, _PROSE_CELLS)
            case dict():
                kept = {} if name in ("ops", "kernels") else value  # the largest part, and drawn already
                pairs = list(kept.items())[:ROWS_KEPT]
                return {shortened(key, _NAME_CELLS): cut(inner, key) for key, inner in pairs}
            case list():
                most = SAMPLES_KEPT if value and isinstance(value[0], int | float) else ROWS_KEPT
                if len(value) > most:
                    counts.append(len(value))
                return [cut(inner) for inner in value[:most]]
        return value

    small: dict[str, Any] = cut(document)
    notes = [
        f"texts longer than {_PROSE_CELLS} characters and names longer than {_NAME_CELLS} are shortened here"
    ]
    if counts:
        notes.append(
            f"lists of up to {max(counts):,} entries are cut in this copy; the JSON output has them all"
        )
    return small | {"notes": [*small.get("notes", []), *notes]}


_LAYOUTS: dict[type, Callable[[Any], Any]] = {
    Badge: charts.badge,
    Ceilings: charts.ceilings,
    Stack: charts.stack,
    Diverging: charts.diverging,
    StepChange: charts.waterfall,
    LayerChart: charts.layers,
    StepStats: charts.steps,
    Memory: charts.memory,
    RankChart: charts.ranks,
    Icicle: charts.icicle,
    RooflineChart: plots.roofline,
    LaneChart: plots.timeline,
}


def write(block: Shown) -> Markup | str:
    """Return a block as HTML with every text escaped; empty for blocks of the terminal alone."""
    if getattr(block, "only", None) not in HTML:
        return ""
    kind = type(block)
    laid_out = _LAYOUTS[kind](block) if kind in _LAYOUTS else block
    written: Markup = getattr(_macros(), kind.__name__)(laid_out)
    return written


@cache
def _macros() -> object:
    known = {
        "write": write,
        "media": HTML,
        "perfetto": scorecard_page,
        "operations_shown": scorecard_page.OPERATIONS_SHOWN,
        "gaps_shown": parity.ROWS_SHOWN,
    }
    return environment().get_template("blocks.html", globals=known).module


def card_for_notebooks(result: Scorecard | ParityReport) -> str | None:
    """Return a compact card as plain HTML, with its styles on the elements since notebooks keep no others.

    None without Jinja2: a notebook then shows the Markdown.
    """
    result = without_own_paths(result)
    try:
        if isinstance(result, ParityReport):
            view = {
                "badge": answer_badge(result),
                "tiles": ratio_cells(result, *names_of(result)),
                "gaps": largest_gaps(result)[:_GAPS_SHOWN],
            }
            return fill("notebook_parity.html", view)
        first = result.findings[:FINDINGS_FIRST]
        view = {
            "card": result,
            "file": shortened(result.source.files[0], 80) if result.source.files else "",
            "badge": grade_badge(result, NO_FLAGS),
            "tiles": list(tiles(result, NO_FLAGS)),
            "bottleneck": bottleneck_words(result),
            "legend": ledger_slices(result.ledger, result.step_time_ms),
            "findings": [(printable(finding.claim), gain(finding)) for finding in first],
            "colours": {f"account-{name}": colour for name, colour in account_colours().items()},
        }
        return fill("notebook.html", view)
    except MissingExtra:
        return None
