"""CONTRIBUTING.md is true: its rooms are those of the package, in the layers that import-linter holds."""

from __future__ import annotations

import re
import tomllib

from tests.conftest import ROOT

TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
UNLISTED = {"__init__", "__main__", "_version", "py"}  # the package's own files, and py.typed


def listed() -> list[list[str]]:
    """Return the rooms of the table, layer by layer."""
    layers: dict[int, list[str]] = {}
    for layer, room in re.findall(r"^\| (\d+) \| `(\w+)` \|", TEXT, re.MULTILINE):
        layers.setdefault(int(layer), []).append(room)
    assert list(layers) == list(range(1, len(layers) + 1))
    return [sorted(rooms) for rooms in layers.values()]


def test_the_table_has_the_layers_of_import_linter() -> None:
    contract = PYPROJECT["tool"]["importlinter"]["contracts"][0]
    held = [sorted(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    assert listed() == held
    assert contract["exhaustive"]


def test_every_room_is_in_the_table() -> None:
    package = ROOT / "src" / "stepgrade"
    there = {
        path.stem.partition(".")[0] for path in package.iterdir() if path.suffix in ("", ".py", ".typed")
    }
    assert {room for layer in listed() for room in layer} == there - UNLISTED - {"__pycache__"}


def test_files_that_are_named_exist() -> None:
    for name in re.findall(r"`((?:\w+/)+[\w.]+|\w+\.(?:py|toml|md))`", TEXT):
        places = (ROOT / name, ROOT / "src" / "stepgrade" / name)
        assert name.startswith("readers/your_format.") or any(place.exists() for place in places), name
