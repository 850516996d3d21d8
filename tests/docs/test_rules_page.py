"""docs/rules.md says what the rules say."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT
from tests.docs.rules_page import rules_page

PAGE = ROOT / "docs" / "rules.md"


def test_the_page_is_written_from_the_rules(pytestconfig: pytest.Config) -> None:
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(rules_page(), encoding="utf-8")
    assert PAGE.read_text(encoding="utf-8") == rules_page()
