"""A training under `stepgrade record` is seen to do exactly what it does without: each script is run both ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.record.harm import children, ends, surroundings
from tests.record.harm.running import Case, recorded_steps, run_both

GROUPS = (children, ends, surroundings)
CASES = {name: case for group in GROUPS for name, case in group.CASES.items()}
REPORTED = "a child that ends with sys.exit"  # which hung, and is not left to `make check`


def _marks(name: str, case: Case) -> tuple[pytest.MarkDecorator, ...]:
    is_slow = (case.trains or "import torch" in case.body) and name != REPORTED
    return (pytest.mark.slow,) if is_slow else ()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=_marks(name, case)) for name, case in CASES.items()]
)
def test_a_script_is_seen_to_do_the_same(tmp_path: Path, name: str) -> None:
    plain, recorded = run_both(CASES[name], tmp_path)
    assert recorded == plain
    assert plain.still_running == []
    if CASES[name].trains and CASES[name].is_recorded:
        steps, found = CASES[name].steps, recorded_steps(tmp_path)
        assert found if steps is None else steps in found


def test_no_script_is_counted_twice_and_the_docs_say_how_many_there_are() -> None:
    assert len(CASES) == sum(len(group.CASES) for group in GROUPS) >= 40
    assert f"{len(CASES)} scripts" in " ".join((ROOT / "docs" / "record.md").read_text().split())
