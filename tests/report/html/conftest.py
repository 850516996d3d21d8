"""Pages in a real browser without a network."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg


class Opened:
    """One page in the browser, and everything that it said or asked for."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page, self.path = page, path
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("dialog", lambda dialog: (self.said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: self.asked.append(request.url))
        page.goto(path.as_uri())

    def texts(self, query: str) -> list[str]:
        """Return the text of all elements that match."""
        return [text.strip() for text in self.page.locator(query).all_inner_texts()]


@pytest.fixture
def open_page(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Write a result as a page and open it from its file, with the network off."""
    contexts = []

    def opened(result: sg.Scorecard | sg.ParityReport, **options: Any) -> Opened:
        path = tmp_path / "report.html"
        path.write_text(sg.render(result, to="html"), encoding="utf-8")
        width, height = options.pop("width", 1280), options.pop("height", 900)
        context = browser.new_context(viewport={"width": width, "height": height}, offline=True, **options)
        contexts.append(context)
        return Opened(context.new_page(), path)

    yield opened
    for context in contexts:
        context.close()
