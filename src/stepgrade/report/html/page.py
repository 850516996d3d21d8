"""The page around the sections: templates, style and script inlined, a strict policy, the JSON inside."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stepgrade.errors import MissingExtra
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.notes import Result
from stepgrade.report.names import json_text, shortened
from stepgrade.units import show_bytes, show_count, show_ms, show_rate, show_ratio, show_share, show_si

if TYPE_CHECKING:
    from jinja2 import Environment

_FOLDER = Path(__file__).parent
MOST_BYTES = 1_000_000
ROWS_KEPT = 2_000
SAMPLES_KEPT = 20_000
_NAME_CELLS = 200
_PROSE_CELLS = 800
_PLACE_CELLS = 120
_ACCOUNT_RULES = "/* the accounts of the ledger */"
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


def embedded(result: Result) -> str:
    """Return the JSON of a result, cut where it is huge, as text that cannot end the element it is in."""
    text = result.to_json()
    if len(text) > MOST_BYTES:
        text = msgspec.json.encode(_cut(msgspec.json.decode(text))).decode()
    safe = json_text(text)
    for character in "<>&":
        safe = safe.replace(character, f"\\u{ord(character):04x}")
    return safe


def fill(template: str, view: dict[str, Any]) -> str:
    """Return the template filled in; every text in `view` is escaped unless the template says it is ours."""
    return environment().get_template(template).render(view)


@cache
def environment() -> Environment:
    """Return the templates' environment; raise MissingExtra without Jinja2."""
    try:
        import jinja2  # optional
    except ImportError as error:
        raise MissingExtra("HTML needs Jinja2", hint="pip install 'stepgrade[html]'") from error
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        # A coordinate with as few digits as a screen can show.
        "place": lambda number: f"{number:.2f}".rstrip("0").rstrip("."),
        "name": lambda text: shortened(text, _NAME_CELLS, at_words=False),  # as report.js does
        "text": lambda text: shortened(text, _PROSE_CELLS),
        "place_in_code": lambda text: shortened(text, _PLACE_CELLS),
        "prose": _prose,
        "ms": show_ms,
        "share": show_share,
        "rate": show_rate,
        "ratio": show_ratio,
        "count": show_count,
        "si": show_si,
        "bytes": show_bytes,
    }
    return made


def _prose(text: str) -> str:
    """Return escaped text in which flags of the command line are set as code and not broken."""
    from markupsafe import Markup, escape  # comes with Jinja2

    escaped = str(escape(shortened(text, _PROSE_CELLS)))
    return Markup(re.sub(_OPTION, r'<code class="flag">\1</code>', escaped))  # noqa: S704  escaped above


@cache
def style() -> str:
    """Return the style sheet, with a rule for each account of the ledger."""
    rules = []
    for name, account in ACCOUNTS.items():
        rules.append(f".account-{name} {{ fill: var(--{account.colour}); }}")
        rules.append(f".account-{name} text {{ fill: var(--{account.label_colour}); }}")
    return asset("report.css").replace(_ACCOUNT_RULES, "\n".join(rules))


def account_colours() -> dict[str, str]:
    """Return the colour of each account on a light page, for what takes no style sheet."""
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
