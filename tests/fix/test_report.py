"""What a fix shows, in each format."""

from __future__ import annotations

import json

import pytest
from msgspec import structs

from stepgrade import report
from stepgrade.model.notes import Note
from tests.fix.reports import written_report
from tests.fuzz.outputs import check_output
from tests.report.html.cards import HOSTILE


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


@pytest.mark.parametrize("to", ["terminal", "markdown", "json"])
@pytest.mark.parametrize(
    "odd", [*HOSTILE, "\n::error::x", "##vso[task.setvariable]x", "\udcff", "a\x9b2Jb", "\0"]
)
def test_every_text_may_be_hostile(odd: str, to: str) -> None:
    found = written_report(f"a = {odd}\n", f"b = {odd}\n", odd)
    tries = tuple(
        structs.replace(
            one, change=odd, what=odd, how=odd, why=odd, breaks=odd, where=odd, diff=one.diff and odd
        )
        for one in found.tries
    )
    base = structs.replace(found.base, grade=odd, bottleneck=odd)
    assert found.together is not None
    together = structs.replace(found.together, changes=(odd,), dropped=(odd,), written_changes=(odd,))
    notes = (Note("wrote_here", f"trials wrote {odd} in the folder itself"),)
    hostile = structs.replace(
        found, command=(odd, odd), base=base, tries=tries, together=together, notes=notes
    )
    check_output(report.render(hostile, to=to), to)


def test_names_in_a_diff_are_harmless() -> None:
    shown = report.render(written_report("a = '\x1b[31m'\n", "a = '\x9b2J'\n"))
    assert "\x1b" not in shown
    assert "\x9b" not in shown
