"""Traces of every reader with times before zero, beyond every clock, all the same: in every format a right exit."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path

import pytest

from tests.conftest import Ran
from tests.odd_times import CHANGES, EDGES, TIMELINES, with_times

FORMATS = ("perfetto", "html", "json", "markdown", "terminal")
OTHERS = (
    *(("score", "--no-cache", "--format", form) for form in FORMATS[1:]),
    *((command,) for command in ("inspect", "what-if", "convert")),
)
Run = Callable[..., Ran]


@pytest.mark.parametrize("name", TIMELINES)
def test_odd_times_are_shown_or_refused(name: str, tmp_path: Path, stepgrade: Run) -> None:
    path, out = tmp_path / "trace", tmp_path / "out"
    others = cycle(OTHERS)
    for why, change in {**CHANGES, **EDGES}.items():
        path.write_bytes(with_times(TIMELINES[name], change))
        ran = stepgrade("score", path, "--no-cache", "--format", "perfetto", "-o", out)
        assert ran.code in (0, 2, 3), (why, ran.err)
        assert out.exists() == (ran.code == 0), (why, ran.err)
        out.unlink(missing_ok=True)
        command, *options = next(others)
        ran = stepgrade(command, path, *options)
        assert ran.code in (0, 2, 3), (why, command, options, ran.err)


@pytest.mark.parametrize("text", ['{"traceEvents": []}', '{"schemaVersion": 1, "traceEvents": []}', "[]", ""])
def test_an_empty_trace(text: str, tmp_path: Path, stepgrade: Run) -> None:
    path = tmp_path / "trace.json"
    path.write_text(text)
    for form in FORMATS:
        assert stepgrade("score", str(path), "--format", form, "-o", str(tmp_path / "out")).code in (2, 3)
    assert [*tmp_path.iterdir()] == [path]
