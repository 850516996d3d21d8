"""docs/rules.md and the pages under docs/rules/ say what the rules say."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.docs.rules_page import rules_pages

DOCS = ROOT / "docs"
PAGES = rules_pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_written_from_the_rules(name: str, pytestconfig: pytest.Config) -> None:
    path = DOCS / name
    if pytestconfig.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(PAGES[name], encoding="utf-8")
    assert path.read_text(encoding="utf-8") == PAGES[name]


def test_no_page_is_left_of_an_area_that_is_gone() -> None:
    assert {f"rules/{path.name}" for path in (DOCS / "rules").glob("*.md")} == set(PAGES) - {"rules.md"}
