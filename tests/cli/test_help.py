"""Help fits on a screen and teaches: the common options, an example, and the way to the rest."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from stepgrade.cli.commands import COMMANDS, load_command
from tests.conftest import Ran

Run = Callable[..., Ran]
MOST_LINES = 30


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_on_a_screen(stepgrade: Run, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    ran = stepgrade(command, "--help")
    assert (ran.code, ran.err) == (0, "")
    lines = ran.out.splitlines()
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"usage: stepgrade {command}")
    assert re.search(rf"^examples:\n  stepgrade {command}\b", ran.out, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_a_line_of_help_in_full(stepgrade: Run, command: str) -> None:
    full = stepgrade(command, "--help-all").out
    parser = load_command(command)[1]
    for flag in set(parser.flags()) - {"--help-all"} if not parser.actions else ():
        assert flag in full
    assert all(action.help for action in parser.options())


@pytest.mark.parametrize("columns", ["60", "200"])
def test_prose_follows_the_width(stepgrade: Run, monkeypatch: pytest.MonkeyPatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = stepgrade("score", "--help").out.partition("examples:")[0]
    assert 50 < max(map(len, text.splitlines())) <= min(int(columns), 100)


def test_the_short_help_leads_to_the_full_one_and_to_the_file(stepgrade: Run) -> None:
    short = stepgrade("score", "--help").out
    assert "--help-all, or [run] in stepgrade.toml" in short
    assert "--packed-seq" not in short
    assert "--packed-seq" in stepgrade("score", "--help-all").out


def test_choices_are_listed_in_the_help_text(stepgrade: Run) -> None:
    assert re.search(
        r"--method NAME +what is trained: full, lora, qlora", stepgrade("score", "--help-all").out
    )


def test_an_action_has_help_of_its_own(stepgrade: Run) -> None:
    assert stepgrade("history", "add", "--help").out.startswith(
        "usage: stepgrade history add [options] SOURCE..."
    )


def test_the_old_name_of_what_if_is_a_synonym(stepgrade: Run) -> None:
    assert stepgrade("whatif", "--help").out == stepgrade("what-if", "--help").out
