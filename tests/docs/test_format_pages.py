"""The pages of single formats show cards of real files, as they are today."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import ROOT, Ran
from tests.samples import shared

PAGES = sorted((ROOT / "docs" / "formats").glob("*.md"))
CARD = re.compile(
    r"^<!-- card of (\S+), first (\d+) lines -->\n```text\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
Run = Callable[..., Ran]


@pytest.mark.samples
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_cards_are_those_of_the_samples(page: Path, stepgrade: Run, pytestconfig: pytest.Config) -> None:
    text = page.read_text(encoding="utf-8")

    def replayed(block: re.Match[str]) -> str:
        out = stepgrade("score", shared("samples") / block[1], "--color", "never").out
        # The first line names the file where it lies here.
        shown = "\n".join(out.splitlines()[2 : 2 + int(block[2])])
        return f"<!-- card of {block[1]}, first {block[2]} lines -->\n```text\n{shown}\n```"

    real = CARD.sub(replayed, text)
    if pytestconfig.getoption("--update-golden"):
        page.write_text(real, encoding="utf-8")
        text = real
    assert text == real


def test_every_page_has_a_recipe_and_a_card() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert "## Record" in text, page.name
        assert all(found[3].strip() for found in CARD.finditer(text)), page.name
        assert CARD.search(text), page.name
