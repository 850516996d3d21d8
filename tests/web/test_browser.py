"""The pages in a real browser: from the first visit to a regression that is seen, acknowledged, waived and back.

`STEPGRADE_PICTURES=docs/images` keeps pictures of the pages for the docs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepgrade.store import open_history
from tests.conftest import ROOT
from tests.web.conftest import card
from tests.web.live import Live, live_server
from tests.web.scenes import fill

pytestmark = pytest.mark.slow
PAGES = {
    "home": "/",
    "trend": "/p/llm/trend?branch=main&fingerprint={digest}",
    "runs": "/p/llm/runs",
    "run": "/p/llm/runs/{last}",
    "compare": "/p/llm/compare?a=118&b=121",
    "findings": "/p/llm/findings",
    "alerts": "/p/llm/alerts",
    "settings": "/p/llm/settings",
    "admin": "/admin",
    "empty-trend": "/p/vision/trend",
    "empty-runs": "/p/vision/runs",
    "empty-compare": "/p/vision/compare",
    "empty-findings": "/p/vision/findings",
    "empty-alerts": "/p/vision/alerts",
}
PICTURES = {
    f"server-{name}"
    for name in ("home", "trend", "trend-narrow", "runs", "run", "compare", "findings", "alerts")
}
SEND = """
import os, sys
import msgspec
from stepgrade.store.remote import RemoteHistory
from stepgrade.store import NewRun
from stepgrade.model.scorecard import Scorecard
with RemoteHistory(sys.argv[1]) as remote:
    for number, line in enumerate(sys.stdin):
        remote.send_now(NewRun(card=Scorecard.from_json(line), branch="main", commit=f"c{number}"))
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Live, dict[str, str]]]:
    place = tmp_path_factory.mktemp("scene") / "team.db"
    fill(place)
    with open_history(str(place), project="llm") as history:
        rows = history.runs()
    with live_server(place) as server:
        yield server, {"digest": rows[0].digest, "last": str(rows[-1].id)}


def open_page(browser: Any, address: str, **options: Any) -> Any:
    width = options.pop("width", 1280)
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    page.said = []
    page.on("console", lambda message: page.said.append(message.text))
    page.on("pageerror", lambda error: page.said.append(str(error)))
    assert page.goto(address).status == 200
    return page


@pytest.mark.parametrize(("scheme", "width"), [("light", 1280), ("dark", 360)])
def test_every_page_is_clean_fits_and_says_nothing(
    browser: Any, scene: tuple[Live, dict[str, str]], scheme: str, width: int
) -> None:
    server, fills = scene
    axe = (
        files(pytest.importorskip("axe_playwright_python")).joinpath("axe.min.js").read_text(encoding="utf-8")
    )
    for name, path in PAGES.items():
        page = open_page(
            browser, server.url + path.format(**fills), color_scheme=scheme, width=width, bypass_csp=True
        )
        assert page.locator("h1").count() == 1, name
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
        page.evaluate(axe)
        found = page.evaluate("axe.run(document, { resultTypes: ['violations'] })")["violations"]
        told = [(one["id"], one["impact"], one["nodes"][0]["html"][:200]) for one in found]
        assert [one for one in told if one[1] in ("serious", "critical")] == [], name
        assert page.said == [], name
        keep_picture(page, f"server-{name}" if scheme == "light" else f"server-{name}-narrow")
        page.context.close()


def keep_picture(page: Any, name: str) -> None:
    folder = os.environ.get("STEPGRADE_PICTURES")
    if folder and name in PICTURES:
        page.evaluate("for (const one of document.querySelectorAll('details')) one.open = false")
        page.screenshot(path=str(ROOT / folder / f"{name}.png"))


def test_the_keyboard_is_enough(browser: Any, scene: tuple[Live, dict[str, str]]) -> None:
    server, fills = scene
    page = open_page(browser, server.url + PAGES["trend"].format(**fills), java_script_enabled=True)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    seen = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.innerText || document.activeElement.name"))
    assert {"Runs", "Show", "Compare both", "CSV"} <= seen
    page.context.close()


def test_a_team_from_its_first_visit_to_a_waiver_that_ends(  # noqa: PLR0915  one story
    browser: Any, tmp_path: Path
) -> None:
    """Without any script, with tokens: what people do, and what CI does meanwhile."""
    place = tmp_path / "team.db"
    made = subprocess.run(
        [
            sys.executable,
            "-m",
            "stepgrade",
            "admin",
            "token",
            "--name",
            "alice",
            "--role",
            "admin",
            "--history",
            str(place),
        ],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    with live_server(place, "--tokens") as server:
        page = open_page(browser, server.url + "/", java_script_enabled=False)
        assert page.url.endswith("/login")
        page.get_by_label("Token").fill("sg_wrong")
        page.get_by_role("button", name="Sign in").click()
        assert "unknown" in page.locator("h1").inner_text()
        page.goto(server.url + "/login")
        page.get_by_label("Token").fill(made.stdout.strip())
        page.get_by_role("button", name="Sign in").click()
        assert page.locator("h1").inner_text() == "Projects"
        assert "No runs yet" in page.locator("main").inner_text()
        page.get_by_label("Name").fill("llm")
        page.get_by_role("button", name="Create project").click()
        assert page.url.endswith("/p/llm/trend")
        page.goto(server.url + "/admin")
        page.get_by_label("Name").fill("ci")
        page.get_by_label("Project").select_option("llm")
        page.get_by_role("button", name="Create token").click()
        secret = page.locator("main pre").inner_text().strip()
        page.goto(server.url + "/admin")
        assert secret not in page.content()

        steps = [100.0 + n % 3 for n in range(8)] + [130.0 + n % 3 for n in range(6)]
        lines = "\n".join(
            msgspec.json.encode(msgspec.json.decode(card(ms).to_json())).decode() for ms in steps
        )
        subprocess.run(
            [sys.executable, "-c", SEND, f"{server.url}/llm"],
            input=lines,
            text=True,
            check=True,
            cwd=ROOT,
            env=os.environ | {"STEPGRADE_TOKEN": secret},
        )
        page.goto(server.url + "/")
        page.get_by_role("link", name="1 open").click()
        assert page.locator("article").count() == 1
        assert "Step time +29" in page.locator("article h3").inner_text()
        page.get_by_role("link", name="Show the trend").click()
        assert page.locator("line.change.slower").count() == 1
        page.get_by_role("link", name="Compare both").click()
        assert "Before and now" in page.locator("main").inner_text()
        page.get_by_role("link", name="Alerts").click()
        page.get_by_role("button", name="Acknowledge").click()
        assert "a reason is required" in page.locator("h1").inner_text()
        page.go_back()
        page.get_by_label("Reason").fill("new kernel, <b>known</b>")
        page.get_by_role("button", name="Acknowledge").click()
        assert "Acknowledged by alice: new kernel, <b>known</b>" in page.locator("article").inner_text()
        page.get_by_label("Reason").fill("until the next release")
        page.get_by_role("button", name="Waive").click()
        assert page.locator("h2").inner_text() == "Waived (1)"
        with open_history(str(place)) as history:  # the day after
            history.database.execute("update stepgrade_alert set waived_until = '2020-01-01'")
        end = time.monotonic() + 600.0
        while "Open (1)" not in page.locator("main").inner_text() and time.monotonic() < end:
            time.sleep(0.3)
            page.reload()
        assert "the waiver expired on 2020-01-01" in page.locator("article").inner_text()
        page.get_by_role("button", name="Sign out").click()
        page.goto(server.url + "/")
        assert page.url.endswith("/login")
        page.context.close()
