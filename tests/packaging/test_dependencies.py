"""Every dependency has an upper bound that was tested, and CI's lock lies within the bounds."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.conftest import ROOT

packaging_requirements = pytest.importorskip("packaging.requirements")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK = dict(
    line.split("==")
    for line in (ROOT / "requirements" / "lock.txt").read_text(encoding="utf-8").splitlines()
    if line and not line.startswith("#")
)


def requirements(*groups: str) -> list[packaging_requirements.Requirement]:
    texts = [text for group in groups for text in EXTRAS[group]] + PROJECT["dependencies"]
    return [packaging_requirements.Requirement(text) for text in texts]


@pytest.mark.parametrize("wanted", requirements(*EXTRAS), ids=str)
def test_a_dependency_has_an_upper_bound(wanted: packaging_requirements.Requirement) -> None:
    signs = {specifier.operator for specifier in wanted.specifier}
    assert wanted.name == "stepgrade" or signs & {"<", "<=", "==", "~="}, (
        f"{wanted}: which is the newest tested?"
    )


@pytest.mark.parametrize(
    "wanted", requirements("test", "dev", "integrations", "html", "postgres", "server", "mcp"), ids=str
)
def test_the_lock_holds_it_within_its_bounds(wanted: packaging_requirements.Requirement) -> None:
    name = re.sub(r"[-_.]+", "-", wanted.name).lower()
    if name != "stepgrade":
        assert wanted.specifier.contains(LOCK[name], prereleases=True)
