"""Imports go one way: no module imports itself by way of others, and no layer imports one above it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.house.measures import imports_of, modules_in_cycles


def test_no_module_imports_itself_by_way_of_others() -> None:
    assert modules_in_cycles(imports_of()) == []


def test_no_contract_has_exceptions() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = pyproject["tool"]["importlinter"]["contracts"]
    assert {contract["type"] for contract in contracts} == {"layers", "acyclic_siblings"}
    assert not any("ignore_imports" in contract for contract in contracts)


@pytest.mark.parametrize(
    "back",
    [
        "from package.room.low import x",
        "def f():\n    from package.room import low",
        "if TYPE_CHECKING:\n    import package.room.low",
    ],
)
def test_a_cycle_is_found_however_it_is_imported(tmp_path: Path, back: str) -> None:
    files = {
        "__init__": "",
        "free": "import package.room.low",
        "room/__init__": "",
        "room/low": "from package.other import high",
        "other/__init__": "",
        "other/high": back,
    }
    write(tmp_path, files)
    assert modules_in_cycles(imports_of(tmp_path / "package")) == ["package.other.high", "package.room.low"]


def test_a_cycle_through_the_init_of_a_package_is_found(tmp_path: Path) -> None:
    files = {
        "__init__": "",
        "user": "from package.room.low import x",
        "room/__init__": "from package.user import y",
        "room/low": "",
    }
    write(tmp_path, files)
    assert modules_in_cycles(imports_of(tmp_path / "package")) == ["package.room", "package.user"]


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / "package" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
