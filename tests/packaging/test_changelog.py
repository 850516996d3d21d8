"""Fragments join the section of their release: a new one, or one that is written already."""

from __future__ import annotations

import datetime as dt
import importlib.util
from pathlib import Path

import stepgrade
from tests.conftest import ROOT

SPEC = importlib.util.spec_from_file_location("join", ROOT / "changes" / "join.py")
assert SPEC is not None
assert SPEC.loader is not None
join = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(join)
DAY = dt.date(2026, 11, 18)
BEFORE = "# Changelog\n\n<!-- releases -->\n\n## 0.1.0 (not tagged)\n\n### Added\n\n- old\n"


def test_a_release_gets_a_section_with_breaking_changes_first(tmp_path: Path) -> None:
    (tmp_path / "1-one.md").write_text("Added\nnew\nthing\n\nBreaking\ngone\n")
    text = join.joined(BEFORE, "0.2.0", DAY, join.fragments(tmp_path))
    section = "## 0.2.0 (2026-11-18, tag `v0.2.0`)\n\n### Breaking\n\n- gone\n\n### Added\n\n- new\n  thing\n"
    assert text == BEFORE.replace("## 0.1.0", f"{section}\n## 0.1.0")


def test_late_fragments_go_to_the_end_of_their_headings() -> None:
    text = join.joined(BEFORE, "0.2.0", DAY, {"Added": ["- new"], "Fixed": ["- repaired"]})
    again = join.joined(text, "0.2.0", DAY, {"Added": ["- late"], "Changed": ["- other"]})
    expected = "### Changed\n\n- other\n\n### Added\n\n- new\n- late\n\n### Fixed\n\n- repaired\n\n## 0.1.0"
    assert expected in again
    assert again.count("## 0.2.0") == 1
    assert join.joined(again, "0.2.0", DAY, {}) == again


def test_the_changelog_has_the_version_and_names_its_tag() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {stepgrade.__version__} (" in text
    assert f"tag `v{stepgrade.__version__}`" in text
    assert join.joined(text, stepgrade.__version__, DAY, {}) == text


def test_every_fragment_can_be_joined() -> None:
    waiting = [path.name for path in (ROOT / "changes").glob("[0-9]*.md")]
    assert sum(map(len, join.fragments().values())) >= len(waiting)
