"""docs/api.md and docs/config.md say what the code says, and docs/index.md leads to every page."""

from __future__ import annotations

import re

import pytest

import stepgrade as sg
from stepgrade.cli.run_defaults import run_keys
from stepgrade.config import read_config
from stepgrade.config.limits import DEFAULT_LIMITS
from stepgrade.diagnosis.rules import settings_from
from tests.conftest import ROOT
from tests.docs.reference_pages import CONFIG, SECTIONS, reference_pages

DOCS = ROOT / "docs"
PAGES = reference_pages()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_written_from_the_code(name: str, pytestconfig: pytest.Config) -> None:
    path = DOCS / name
    if pytestconfig.getoption("--update-golden"):
        path.write_text(PAGES[name], encoding="utf-8")
    assert path.read_text(encoding="utf-8") == PAGES[name]


def test_the_example_of_a_configuration_is_one() -> None:
    text = CONFIG.split("```toml\n")[1].split("```")[0]
    config = read_config(text)
    assert config.gate.fail_on == ("grade:D",)
    assert settings_from(config).ignored_rules == {"tf32-matmuls"}
    assert set(config.run) <= set(run_keys())


def test_the_limits_of_the_page_are_the_defaults() -> None:
    text = PAGES["config.md"].split("```toml\n")[-1].split("```")[0]
    assert settings_from(read_config(text)).limits == DEFAULT_LIMITS


def test_the_page_lists_everything_public() -> None:
    listed = [name for names in SECTIONS.values() for name in names]
    assert sorted([*listed, "StepgradeError", "__version__"]) == sorted(sg.__all__)


def test_the_index_leads_to_every_page() -> None:
    linked = set(re.findall(r"\]\(([\w-]+\.md)\)", (DOCS / "index.md").read_text(encoding="utf-8")))
    assert linked == {path.name for path in DOCS.glob("*.md")} - {"index.md"}


@pytest.mark.parametrize(
    "page", sorted([*DOCS.rglob("*.md"), *ROOT.glob("*.md")]), ids=lambda path: path.name
)
def test_links_lead_somewhere(page: object) -> None:
    text = page.read_text(encoding="utf-8")  # type: ignore[attr-defined]  # a Path; ids= wants an object
    for target in re.findall(r"\]\((?!https?:|mailto:|#)([^)#\s]+)", text):
        assert (page.parent / target).exists(), target  # type: ignore[attr-defined]  # as above
