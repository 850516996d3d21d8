"""docs/formats.md has a section on each format, and it is the one beside the format's reader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import stepgrade.readers
from stepgrade.cli import inspect
from stepgrade.readers import registry
from tests.conftest import ROOT
from tests.docs.test_examples import BLOCK, checkout, replayed

__all__ = ["checkout"]

PAGE = ROOT / "docs" / "formats.md"
READERS = Path(stepgrade.readers.__file__).parent
SECTION = re.compile(r"^<!-- from readers/(\w+)\.md -->\n(.*?)^<!-- end -->$", re.MULTILINE | re.DOTALL)


def section(name: str, checkout: Path) -> str:
    """Return what is written beside the reader, with the real output under each command."""
    text = (READERS / f"{name}.md").read_text(encoding="utf-8")
    return BLOCK.sub(
        lambda block: f"```console\n{replayed(block[2], checkout)}```" if block[1] == "console" else block[0],
        text,
    )


def test_the_page_is_written_from_the_readers(checkout: Path, pytestconfig: pytest.Config) -> None:
    text = PAGE.read_text(encoding="utf-8")
    real = SECTION.sub(
        lambda found: f"<!-- from readers/{found[1]}.md -->\n{section(found[1], checkout)}<!-- end -->", text
    )
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(real, encoding="utf-8")
        text = real
    assert text == real


def test_every_format_has_its_section_and_no_other() -> None:
    found = dict(SECTION.findall(PAGE.read_text(encoding="utf-8")))
    assert sorted(found) == sorted(registry.BUILT_IN)
    assert all(text.startswith(f"## `{name}`: ") for name, text in found.items())
    assert {path.stem for path in READERS.glob("*.md")} == set(registry.BUILT_IN)


def test_the_help_names_every_format_of_a_run() -> None:
    """A scorecard is no run: it can only be compared with."""
    named = set(re.findall(r"^  (\w+) {2,}\S", inspect.__doc__ or "", re.MULTILINE))
    assert named == set(registry.BUILT_IN) - {"scorecard"}
