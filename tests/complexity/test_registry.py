"""Every reader and every part of the analysis has a shape that grows through it, and the shapes run."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade
from stepgrade.readers.registry import BUILT_IN
from tests.complexity.measure import MOST, exponents, run_once
from tests.complexity.shapes import SHAPES

SOURCE = Path(stepgrade.__file__).parent
COVERED = {name for shape in SHAPES.values() for name in shape.covers}
# What holds no loop over an input: types, tables and words.
WITHOUT_INPUT = {
    "readers/compiled",  # loads the library
    "costs/own",  # asks whether there are any
    "compare/turns",  # as many pairs of runs as the user asks for
    "readers/kineto/workers",  # the same chunks in another process; tests/readers/kineto/test_kineto_workers.py
    "readers/remote",  # the same bytes from elsewhere; tests/readers/test_remote.py
}


def test_every_reader_and_analysis_is_covered() -> None:
    found = {
        path.relative_to(SOURCE).with_suffix("").as_posix()
        for room in (
            "loading",
            "readers",
            "timeline",
            "costs",
            "ranks",
            "replay",
            "trace",
            "whatif",
            "compare",
        )
        for path in (SOURCE / room).rglob("*.py")
        if path.name != "__init__.py"
    }
    assert found - COVERED - WITHOUT_INPUT == set(), "give it a shape in tests/complexity/shapes.py"
    assert {name for name in COVERED if not (SOURCE / f"{name}.py").exists()} == set()


def test_every_built_in_format_is_covered() -> None:
    missing = {
        name
        for name in BUILT_IN
        if not any(part == f"readers/{name}" or part.startswith(f"readers/{name}/") for part in COVERED)
    }
    assert missing == set()


@pytest.mark.parametrize("name", SHAPES)
def test_every_shape_runs(name: str) -> None:
    shape = SHAPES[name]
    assert run_once(shape.argv, shape.make(max(4, shape.size // 10))) in (0, 1, 2, 3)


@pytest.mark.parametrize("name", ["events with Windows paths", "layers of a journal", "a key of many parts"])
def test_lines_of_python_are_counted_where_valgrind_is_not(name: str) -> None:
    exponent, counts = exponents([name], by_lines=True)[name]
    assert exponent <= MOST, counts
