"""The trust page names tests that exist, and every row says which one holds it."""

from __future__ import annotations

import re

from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "trust.md").read_text(encoding="utf-8")
# Rows that ask something of the reader: nothing of ours can hold them.
FOR_THE_READER = ("CI variables for commit and branch",)


def test_every_test_that_is_named_exists() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert len(named) > 20
    for path, test in named:
        text = (ROOT / path).read_text(encoding="utf-8")
        assert not test or f"def {test}(" in text, f"{path} has no {test}"


def test_every_row_is_held_by_a_test() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ") and "|---" not in line]
    bodies = [row for row in rows if not row.startswith(("| what |", "| file |"))]
    assert len(bodies) > 15
    for row in bodies:
        if row.split(" | ")[0].removeprefix("| ") not in FOR_THE_READER:
            assert "`tests/" in row.split(" | ")[-1], row


def test_it_is_linked() -> None:
    for page in (
        "README.md",
        "SECURITY.md",
        "docs/index.md",
        "docs/cluster.md",
        "docs/team.md",
        "mkdocs.yml",
    ):
        assert "trust.md" in (ROOT / page).read_text(encoding="utf-8"), page
