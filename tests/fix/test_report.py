"""What a fix shows, in each format."""

from __future__ import annotations

import json

import pytest

from stepgrade import report
from tests.fix.reports import written_report


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_terminal_shows_verdicts_and_the_whole_diff(width: int) -> None:
    shown = report.render(written_report(), width=width)
    for words in ("accepted", "rejected", "cannot tell", "does not apply", "not tried", "+a = 2", "-a = 1"):
        assert words in shown
    diff_lines = [line for line in shown.splitlines() if line[:3] in ("  +", "  -", "  @")]
    assert all(len(line) <= width for line in shown.splitlines() if line not in diff_lines)


def test_markdown_fences_a_diff_that_holds_a_fence() -> None:
    shown = report.render(written_report("a = 1  # ````\n"), to="markdown")
    assert "`````diff\n" in shown
    assert shown.count("`````") == 2


def test_the_json_has_no_text_of_a_file_but_the_diff() -> None:
    document = json.loads(report.render(written_report(), to="json"))
    assert "edits" not in document
    assert document["together"]["diff"].startswith("--- a/train.py")
    assert [one["verdict"] for one in document["tries"]] == [
        "accepted",
        "rejected",
        "cannot_tell",
        "does_not_apply",
        "not_tried",
    ]


def test_names_in_a_diff_are_harmless() -> None:
    shown = report.render(written_report("a = '\x1b[31m'\n", "a = '\x9b2J'\n"))
    assert "\x1b" not in shown
    assert "\x9b" not in shown
