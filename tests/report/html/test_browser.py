"""The page in a real browser: offline, quiet, usable by pointer, keyboard and screen reader, on paper too."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec
import pytest

import stepgrade as sg
from stepgrade.model.comparison import Noise
from stepgrade.report.names import shortened
from stepgrade.units import MISSING, show_count, show_ms, show_share, show_si
from tests.measured import measured
from tests.report.html import cards
from tests.report.html.conftest import Opened
from tests.report.html.test_page import PAGES

Open = Callable[..., Opened]
ROWS = "#operations tbody tr"


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_opens_offline_and_says_nothing(open_page: Open, name: str, scheme: str) -> None:
    opened = open_page(PAGES[name](), color_scheme=scheme)
    assert opened.page.locator("h1").count() == 1
    assert opened.asked == [opened.path.as_uri()]
    assert opened.said == []


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [360, 3840])
def test_fits_every_screen(open_page: Open, name: str, width: int) -> None:
    opened = open_page(PAGES[name](), width=width)
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width
    texts = "main h1, main h2, main p, main li, main dd, main .figure"
    cut = f"[...document.querySelectorAll('{texts}')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1).length"
    assert opened.page.evaluate(cut) == 0


@pytest.mark.parametrize(
    ("name", "scheme", "width"),
    [
        ("full", "light", 1280),
        ("full", "dark", 1280),
        ("full", "light", 360),
        ("bare", "dark", 1280),
        ("hostile", "light", 360),
        ("step_profile", "light", 1280),
        ("parity", "light", 1280),
        ("parity", "dark", 360),
        ("gate", "light", 1280),
        ("gate", "dark", 360),
        ("hostile_gate", "light", 360),
    ],
)
def test_axe_finds_nothing_serious(open_page: Open, name: str, scheme: str, width: int) -> None:
    script = (
        files(pytest.importorskip("axe_playwright_python")).joinpath("axe.min.js").read_text(encoding="utf-8")
    )
    opened = open_page(PAGES[name](), color_scheme=scheme, width=width)
    opened.page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    opened.page.evaluate(script)
    found = opened.page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
    told = [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found]
    assert [one for one in told if one[1] in ("serious", "critical")] == []


def test_hostile_names_run_nothing(open_page: Open) -> None:
    for result in (cards.hostile_card(), cards.hostile_parity()):
        opened = open_page(result, width=360)
        page = opened.page
        for header in page.locator("table[data-rows] th:visible button").all():
            header.click()  # the script draws the rows anew
        for link in page.locator("nav a").all():
            link.click()
        page.locator("[data-tip]").first.hover()
        assert page.evaluate("typeof window.pwned") == "undefined"
        assert page.locator("main script, main img, main [onload], main [onerror]").count() == 0
        assert (opened.said, len(opened.asked)) == ([], 1)
        assert page.evaluate("document.documentElement.scrollWidth") <= 360


DRAWN = """(rows) => rows.map((row) => [...row.cells].map((cell) => [
    cell.className, cell.textContent.trim(), cell.querySelector("a")?.href, cell.querySelector("a")?.ariaLabel,
    parseFloat(cell.querySelector("rect")?.getAttribute("width") ?? 0)]))"""


def test_what_the_script_draws_is_what_the_page_had(open_page: Open) -> None:
    page = open_page(cards.hostile_card()).page
    before = page.locator(ROWS).evaluate_all(DRAWN)
    for _ in range(2):  # falling is the page's own order
        page.get_by_role("button", name="Per step").click()
    assert page.locator(ROWS).evaluate_all(DRAWN) == before


def test_numbers_look_the_same_in_both_languages(open_page: Open) -> None:
    sizes = (0.0, 0.125, 0.5, 2.5, 1e-9, 0.0004, 0.05, 0.25, 0.96, 0.99996, 1.0, 2.25, 9.95, 99.949, 99.95, 100.5, 999.5, 1234.5,
             9999.6, 10000.0, 59999.9, 60000.0, 123456.7, 1e7)  # fmt: skip
    ops = tuple(
        msgspec.structs.replace(
            cards.full_card().operations[0],
            name=f"op{place}",
            ms=size,
            share=size / 7,
            calls=size,
            flops=size * 1e6,
            bytes=size * 999,
        )
        for place, size in enumerate(sizes)
    )
    opened = open_page(cards.changed(cards.full_card(), operations=ops))
    opened.page.get_by_role("button", name="Per step").click()
    shown = opened.page.locator(ROWS).evaluate_all(
        "(rows) => rows.map((row) => [...row.cells].map((cell) => cell.textContent.trim()))"
    )
    by_name = {row[0]: row[2:7] for row in shown}
    assert by_name == {
        op.name: [
            show_ms(op.ms),
            show_share(op.share),
            show_count(op.calls),
            show_si(op.flops, "FLOP"),
            show_si(op.bytes, "B"),
        ]
        for op in ops
    }


def test_another_step_is_shown_by_pointer_and_keyboard(open_page: Open) -> None:
    page = open_page(cards.with_other_steps()).page

    def shown() -> list[bool]:
        return [page.locator(f".drawn-{place}").is_visible() for place in range(3)]

    assert shown() == [True, False, False]
    page.locator("#show-drawn-2").check()
    assert shown() == [False, False, True]
    page.keyboard.press("ArrowLeft")
    assert shown() == [False, True, False]
    page.locator(".drawn-1 a[data-times]").first.click()
    assert page.locator(".drawn-1 .lanes-inner").evaluate("e => parseFloat(e.style.width)") > 100


def test_zoom_shows_what_was_drawn_as_one(open_page: Open) -> None:
    """A thousand short slices are one block on the whole step, and come apart, with names, where a reader zooms in."""
    count = 1_000
    view = cards.make_view(0)
    lane = msgspec.structs.replace(
        view.lanes[2],
        start_ns=tuple(range(0, count * 2_000, 2_000)),
        dur_ns=(1_500,) * count,
        label=tuple(f"kernel_{number}" for number in range(count)),
        look=("gemm",) * count,
        count=(1,) * count,
    )
    views = (msgspec.structs.replace(view, lanes=(*view.lanes[:2], lane), waits=()),)
    opened = open_page(cards.changed(cards.full_card(), views=views))
    page = opened.page
    marks = page.locator(".lanes svg[data-span]").nth(2).locator(".mark")
    before = marks.count()
    page.locator(".lanes").focus()
    for _ in range(8):
        page.keyboard.press("+")
    page.locator(".lanes .strip .label").nth(5).wait_for()
    assert "events" not in marks.first.get_attribute("data-tip")
    page.locator("#lanes-search").fill("kernel_777")
    assert opened.texts(".finder [role=status]") == ["1 found"]
    page.keyboard.press("Enter")
    page.locator(".lanes .found").wait_for()
    assert page.locator(".lanes .found").get_attribute("data-tip") == "kernel_777: 1.5 µs"
    page.locator("#lanes-search").fill("")
    page.locator(".lanes").focus()
    page.keyboard.press("0")
    page.locator(".lanes .strip .label").first.wait_for(state="detached")
    assert marks.count() == before
    assert opened.said == []


def test_the_late_rank_is_drawn_first(open_page: Open) -> None:
    assert open_page(cards.full_card()).texts(".lanes-inner h3")[0] == "rank 1"


def test_a_part_of_the_icicle_fills_the_page_and_leads_back(open_page: Open) -> None:
    page = open_page(cards.full_card()).page
    part = page.locator('.icicles .mark[data-name="Block_2"]')
    width = part.locator("rect").evaluate("e => e.getBoundingClientRect().width")
    part.click()
    assert part.locator("rect").evaluate("e => e.getBoundingClientRect().width") > 2 * width
    assert page.locator(".crumbs button").all_inner_texts() == ["all", "Block_0", "Block_2"]
    page.locator(".crumbs button").first.click()
    assert abs(part.locator("rect").evaluate("e => e.getBoundingClientRect().width") - width) < 1
    assert page.locator(".crumbs button").count() == 0


def test_tables_sort_search_and_page(open_page: Open) -> None:
    opened = open_page(cards.full_card())
    page, names = opened.page, f"{ROWS} td:first-child"
    assert opened.texts(names)[:2] == ["op_000000", "op_000001"]
    page.locator('th[data-key="name"] button').click()
    page.locator('th[data-key="name"] button').click()
    assert opened.texts(names)[0] == "op_000059"
    assert (
        page.locator("th[aria-sort]").all_inner_texts() == ["Operation ↓"]
        or page.locator("th[aria-sort]").count() == 1
    )
    page.get_by_role("button", name="next page of operations").click()
    assert opened.texts('[data-status="operations"]') == ["26 to 50 of 60"]
    page.get_by_role("button", name="next page of operations").click()
    assert len(opened.texts(names)) == 10
    assert page.get_by_role("button", name="next page of operations").is_disabled()
    page.get_by_label("Search").fill("ATTEN")
    assert set(opened.texts(f"{ROWS} td.kind")) == {"attention"}
    page.get_by_label("Search").fill("nowhere")
    assert opened.texts('[data-status="operations"]') == ["nothing found"]
    page.get_by_label("Search").fill("")
    page.get_by_role("button", name="FLOPs").click()
    assert opened.texts(names)[0] == "op_000059"
    assert opened.texts(f"{ROWS} td:nth-child(6)")[-1] != MISSING


def test_unknown_numbers_sort_last_both_ways(open_page: Open) -> None:
    opened = open_page(cards.full_card(ops=9))
    for _ in range(2):
        opened.page.get_by_role("button", name="FLOPs").click()
        assert opened.texts(f"{ROWS} td:nth-child(6)")[-3:] == [MISSING] * 3


def test_tooltips_by_pointer_and_keyboard(open_page: Open) -> None:
    page = open_page(cards.full_card()).page
    page.locator("#ledger .stack [data-tip]").first.hover()
    assert "computes" in page.locator("#tip").inner_text()
    page.mouse.move(1, 1)
    assert page.locator("#tip").is_hidden()
    first = page.locator("#ranks .strip").first.locator("[data-tip]").first
    first.focus()
    assert page.locator("#tip").inner_text().startswith("rank 0: step time")
    page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text().startswith("rank 1: step time")
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    assert page.locator("#ranks .strip").first.locator('[tabindex="0"]').count() == 1


def test_every_chart_is_one_stop_of_the_tab_key(open_page: Open) -> None:
    page = open_page(cards.full_card()).page
    stops = "[...document.querySelectorAll('svg[role=group]')].map((c) => c.querySelectorAll('[tabindex=\"0\"]').length)"
    assert set(page.evaluate(stops)) == {1}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dark_and_light(open_page: Open, scheme: str) -> None:
    page = open_page(cards.full_card(), color_scheme=scheme).page
    paper = "getComputedStyle(document.body).backgroundColor"
    colours = {"light": "rgb(255, 255, 255)", "dark": "rgb(18, 21, 26)"}
    assert page.evaluate(paper) == colours[scheme]
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate(paper) == colours["light" if scheme == "dark" else "dark"]


def test_prints_with_the_numbers_unfolded(open_page: Open) -> None:
    page = open_page(cards.full_card(), color_scheme="dark").page
    page.evaluate(
        "addEventListener('beforeprint', () => { window.open_when_printed = document.querySelectorAll('details.numbers[open]').length })"
    )
    document = page.pdf(format="A4", print_background=True)
    assert document.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", document)) <= 12
    assert page.evaluate("window.open_when_printed") == page.locator("details.numbers").count()
    assert page.locator("details.numbers[open]").count() == 0


def test_the_json_can_be_saved(open_page: Open) -> None:
    card = cards.full_card()
    page = open_page(card, accept_downloads=True).page
    with page.expect_download() as started:
        page.get_by_role("button", name="Save the JSON").click()
    with open(started.value.path(), encoding="utf-8") as stream:  # noqa: PTH123  a path in text
        saved = json.load(stream)
    expected = json.loads(card.to_json())
    # The page may be mailed: the sender's folders are left out, and nothing else.
    expected["source"]["files"] = ["gpt_naive.json.gz"]
    expected["baseline"] = "gpt_fused.json.gz"
    assert saved == expected


def test_is_read_without_scripts(open_page: Open) -> None:
    page = open_page(cards.full_card(), java_script_enabled=False).page
    assert page.locator(ROWS).count() == 25
    assert page.locator("#theme").is_hidden()


PAINTED = """() => new Promise((done) => new PerformanceObserver((seen) => done(seen.getEntries().at(-1).startTime))
    .observe({ type: "paint", buffered: true }))"""


def test_paints_within_a_second(open_page: Open) -> None:
    assert open_page(cards.full_card()).page.evaluate(PAINTED) < 1000


def test_axe_would_see_something(browser: Any) -> None:
    page = browser.new_page()
    page.set_content("<img src='data:,'><button></button>")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    found = {one["id"] for one in page.evaluate("axe.run()")["violations"]}
    assert {"image-alt", "button-name"} <= found
    page.close()


def test_a_huge_run_stays_usable(open_page: Open) -> None:
    opened = open_page(cards.huge_card())
    page = opened.page
    page.get_by_role("button", name="Calls").click()
    assert page.locator(ROWS).count() <= 25  # only what is looked at is drawn
    assert opened.texts('[data-status="operations"]') == ["1 to 25 of 2,000"]
    assert page.locator("#ranks .strip").first.locator("[data-tip]").count() == 64
    assert page.evaluate("document.querySelectorAll('*').length") < 10_000


@measured
def test_a_huge_run_is_quick(open_page: Open) -> None:
    page = open_page(cards.huge_card()).page
    assert page.evaluate("performance.getEntriesByType('navigation')[0].domComplete") < 3000
    took = "(button) => { const begin = performance.now(); button.click(); document.body.offsetHeight; return performance.now() - begin }"
    assert page.get_by_role("button", name="Calls").evaluate(took) < 1000


def test_links_in_drawn_rows_are_the_page_s_own(open_page: Open) -> None:
    opened = open_page(cards.full_card())
    before = opened.page.locator(f"{ROWS} a.trace").first.get_attribute("href")
    opened.page.get_by_label("Search").fill("op_000001")
    after = opened.page.locator(f"{ROWS} a.trace").first.get_attribute("href")
    ends = [re.findall(r"=(\d+)", str(address))[-2:] for address in (before, after)]
    assert str(before).split("&vis")[0] == str(after).split("&vis")[0]
    # Browsers count in floats: at today's epoch they are off by a fraction of a microsecond.
    assert all(abs(int(a) - int(b)) < 1000 for a, b in zip(*ends, strict=True))


def test_long_names_can_be_distinguishable(open_page: Open) -> None:
    opened = open_page(cards.hostile_card())
    assert shortened("x" * 10_000, 200) in opened.texts(f"{ROWS} td:first-child")


def test_notebook_cards_need_no_style_sheet(browser: Any) -> None:
    page = browser.new_page()
    page.set_content(str(cards.full_card()._repr_html_()) + str(cards.parity_report()._repr_html_()))
    assert page.get_by_text("Held back by").is_visible()
    page.close()


def test_richer_cards_show_what_they_add(open_page: Open) -> None:
    """Fields that other parts of the analysis may add are shown when they are there."""

    class Change(msgspec.Struct, frozen=True, kw_only=True):
        metric: str = "step_time_ms"
        outcome: str = "regressed"
        before: float = 100.0
        now: float = 120.0
        change: float = 0.2
        low: float = 0.15
        high: float = 0.25
        why: str = "beyond the noise"
        more: str = ""
        noise: Noise = Noise(basis="given", share=0.05)
        before_runs: int = 1

    class Cause(msgspec.Struct, frozen=True, kw_only=True):
        kind: str = "operation"
        name: str = "attention"
        before: float = 10.0
        now: float = 30.0
        unit: str = "ms"

    class Like(msgspec.Struct, frozen=True, kw_only=True):
        model: str = "gpt"
        batch: int | None = None

    class Richer(sg.Scorecard, frozen=True, kw_only=True):  # type: ignore[misc]
        changes: tuple[Change, ...] = (Change(),)
        changed: tuple[Cause, ...] = (Cause(),)
        fingerprint: Like = Like()

    card = cards.step_profile_card()
    own = ("changes", "changed", "fingerprint")
    richer = Richer(**{name: getattr(card, name) for name in card.__struct_fields__ if name not in own})
    opened = open_page(richer)
    told = opened.page.locator("#baseline").inner_text()
    assert "+15.0 % to +25.0 %" in told
    assert "beyond the noise" in told
    assert "model gpt" in opened.page.locator("#provenance").inner_text()
    assert opened.said == []
