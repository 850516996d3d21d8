"""Every figure is where a reader can see it, with its unit, and the terminal and the page say the same."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import StepgradeError
from stepgrade.model.notes import Result
from tests.golden_json.inputs import write_inputs
from tests.report.html.conftest import Opened
from tests.report.html.test_page import PAGES

OWN = {name: make for name, make in PAGES.items() if "hostile" not in name}
# What no reader should have to work out.
FORBIDDEN = {
    "an exponent": r"\d\.?\d*e[+-]\d",
    "a dictionary or a list": r"(?<![\w.])[\[{(]'",
    "digits that say nothing": r"\b0\.00 (?:FLOP|B)\b",
    "the plural of one": r"(?<![\d.,:/-])1 (?:steps|ranks|devices|operations|events|files|runs|warnings|layers|samples)\b",
    "a value of Python": r"(?<![\w`])(?:None|nan|inf|True|False)(?![\w`=.])",
    "a count without separators": r"(?<![\w.,/:#+-])\d{8,}(?![\w.-])",
}
# Of our own advice, which quotes code.
QUOTED = r"\w+[=:](?:None|True|False)|\bis None\b|\w+\\?\('\w+'"

FIGURE = r"(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?: (?:ms|µs|s|min|%|[KMGT]iB|[kMGTPE]?(?:FLOP|B)(?:/s)?|(?:tok|samples)/s)|x)(?![\w/])"


@cache
def _inputs(folder: Path) -> tuple[Path, ...]:
    write_inputs(folder)
    return tuple(sorted(folder.iterdir()))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Result]:
    """Return the card of one source of every kind, and the pages' own results."""
    found: dict[str, Result] = {name: make() for name, make in OWN.items()}
    for path in _inputs(tmp_path_factory.mktemp("inputs")):
        try:
            found[path.name] = sg.score(sg.load(path))
        except StepgradeError:
            continue  # a model, a scorecard, a profile without steps
    assert len(found) > 40
    return found


def text_of(page: str) -> str:
    """Return what a reader of a page sees, or is told by a tooltip."""
    body = re.sub(r"(?s)<(script|style|noscript).*?</\1>", " ", page)
    tips = " ".join(re.findall(r'data-tip="([^"]*)"', body))
    # A tag inside a sentence is nothing, between cells it is a gap.
    body = re.sub(r"</?(?:b|bdi|code|span|a|i)\b[^>]*>", "", body)
    return html.unescape(re.sub(r"<[^>]*>", "\n", body) + tips)


def test_no_text_has_to_be_worked_out(results: dict[str, Result]) -> None:
    found = []
    for name, result in results.items():
        texts = {
            "page": text_of(sg.render(result, to="html")),
            "terminal": sg.render(result, to="terminal", width=100),
            "markdown": sg.render(result, to="markdown"),
        }
        for where, text in texts.items():
            for what, pattern in FORBIDDEN.items():
                for hit in re.finditer(pattern, re.sub(QUOTED, "", text)):
                    near = text[max(0, hit.start() - 40) : hit.end() + 20]
                    found.append(f"{name}, {where}: {what}: {hit[0]!r} in {near!r}")
    assert not found, "\n".join(found)


def test_page_and_terminal_say_the_same(results: dict[str, Result]) -> None:
    missing = []
    for name, result in results.items():
        page = re.sub(r"\s+", " ", text_of(sg.render(result, to="html")))
        shown = re.sub(r"\s+", " ", sg.render(result, to="terminal", width=200).replace("· 100 %", ""))
        figures = set(re.findall(FIGURE, page))
        missing += [
            f"{name}: {figure}"
            for figure in dict.fromkeys(re.findall(FIGURE, shown))
            if figure not in figures
        ]
    assert not missing, "\n".join(missing)


# Of every table: which heads are neither on the screen, nor in a region that scrolls to them.
HIDDEN = """() => [...document.querySelectorAll("main table")].flatMap((table) => {
    const region = table.closest(".scroll");
    const frame = (region ?? document.documentElement).getBoundingClientRect();
    const scrolls = region && ["auto", "scroll"].includes(getComputedStyle(region).overflowX) && region.tabIndex === 0;
    return [...table.querySelectorAll("th")].filter((head) => {
        const box = head.getBoundingClientRect();
        if (getComputedStyle(head).display === "none") return false;
        const inside = box.left >= -1 && box.right <= Math.min(frame.right, innerWidth) + 1;
        return !(inside || (scrolls && box.right - frame.left + region.scrollLeft <= region.scrollWidth + 1)) || box.width < 8;
    }).map((head) => `${region?.ariaLabel}: ${head.textContent}`);
})"""
# Figures that are cut off by the next cell, or by the edge of their own.
CUT = """() => [...document.querySelectorAll("main td.number, main .figure, main .tiles .value")]
    .filter((cell) => cell.scrollWidth > cell.clientWidth + 1 && getComputedStyle(cell).overflow !== "visible")
    .map((cell) => cell.textContent)"""
FIRST_FIGURE = """() => [...document.querySelectorAll("main .scroll table")].filter((table) => {
    const figure = table.querySelector("td.number");
    return figure && figure.getBoundingClientRect().right > table.closest(".scroll").getBoundingClientRect().right + 1;
}).map((table) => table.closest(".scroll").ariaLabel)"""
UNFOLD = "for (const one of document.querySelectorAll('details')) one.open = true"


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("width", [360, 1400, 3840])
def test_every_column_is_in_view_or_its_region_scrolls(
    open_page: Callable[..., Opened], name: str, width: int
) -> None:
    page = open_page(OWN[name](), width=width).page
    page.evaluate(UNFOLD)
    assert page.evaluate(HIDDEN) == []
    assert page.evaluate(CUT) == []
    assert page.evaluate(FIRST_FIGURE) == []
    if width > 1000:
        wider = "[...document.querySelectorAll('main .scroll')].filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.ariaLabel)"
        assert page.evaluate(wider) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN)
def test_every_column_is_on_paper(open_page: Callable[..., Opened], name: str) -> None:
    page = open_page(OWN[name](), width=688).page  # A4 without its margins
    page.emulate_media(media="print")
    page.evaluate(UNFOLD)
    cut = "[...document.querySelectorAll('main th, main td, main .figure')].filter((e) => e.getBoundingClientRect().right > 690).map((e) => e.textContent.trim())"
    assert page.evaluate(cut) == []


@pytest.mark.slow
def test_every_table_sorts_by_size_whatever_the_unit(open_page: Callable[..., Opened]) -> None:
    page = open_page(OWN["bundled"]()).page
    page.evaluate(UNFOLD)
    table = page.locator("table[data-sorts]").filter(has_text="Loses").first
    column = table.locator("tbody td:nth-child(2)")
    before = column.all_inner_texts()
    table.get_by_role("button", name="Loses").click()
    assert column.all_inner_texts() != before[:1]
    falling = column.all_inner_texts()
    table.get_by_role("button", name="Loses").click()
    assert column.all_inner_texts() == falling[::-1]
    sizes = [
        float(text.split()[0].replace(",", "")) * {"µs": 1e-3, "ms": 1.0, "s": 1e3}[text.split()[1]]
        for text in falling
    ]
    assert sizes == sorted(sizes, reverse=True)
