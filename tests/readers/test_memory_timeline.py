"""Memory timelines of PyTorch: both forms tell the same, and what is broken is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.errors import BadInput, StepgradeError
from stepgrade.report import render
from tests.samples import shared

TIME_US = 1_794_811_706_585_954
# time, action, bytes, category: what was there before, an activation, a gradient in its place.
EVENTS = [
    [-1, 1, 4000, 0],
    [-1, 1, 8000, 1],
    [TIME_US * 1000, 2, 100, 2],
    [TIME_US * 1000 + 2_000_000, 2, 5000, 4],
    [TIME_US * 1000 + 3_000_000, 3, -100, 2],
    [TIME_US * 1000 + 3_000_000, 3, 100, 2],
    [TIME_US * 1000 + 4_000_000, 2, 4000, 5],
    [TIME_US * 1000 + 5_000_000, 4, -5000, 4],
]
SUMS = [
    [TIME_US, TIME_US, TIME_US + 2000, TIME_US + 4000, TIME_US + 5000],
    [
        [0, 4000, 8000, 0, 0, 0, 0, 0, 0],
        [0, 4000, 8000, 100, 0, 0, 0, 0, 0],
        [0, 4000, 8000, 100, 0, 5000, 0, 0, 0],
        [0, 4000, 8000, 100, 0, 5000, 4000, 0, 0],
        [0, 4000, 8000, 100, 0, 0, 4000, 0, 0],
    ],
]
AT_PEAK = {"weights": 4000, "optimizer": 8000, "other": 100, "activations": 5000, "gradients": 4000}


def load(path: Path, document: Any) -> Any:
    path.write_text(json.dumps(document))
    return sg.load(path)


@pytest.mark.parametrize("document", [EVENTS, SUMS], ids=["events", "sums"])
def test_the_peak_by_category_and_the_curve(tmp_path: Path, document: Any) -> None:
    profile = load(tmp_path / "timeline.json", document)
    assert profile.source.format == "memory_timeline"
    memory = profile.memory
    assert memory.peak_bytes == sum(AT_PEAK.values())
    assert memory.categories == AT_PEAK
    curve = memory.curve
    assert curve.has_times
    assert (curve.at_ms[0], curve.at_ms[curve.peak_index], curve.at_ms[-1]) == (0.0, 4.0, 5.0)
    assert sum(curve.categories[name][curve.peak_index] for name in curve.categories) == memory.peak_bytes


def test_it_is_shown_and_not_graded(tmp_path: Path) -> None:
    card = sg.score(load(tmp_path / "timeline.json", EVENTS))
    assert card.grade == "ungraded"
    shown = render(card)
    assert "Device memory" in shown
    assert "activations" in shown


def test_every_colour_of_the_curve_is_in_the_legend(tmp_path: Path) -> None:
    """Gradients that are made after the peak have a colour as well."""
    late = [*EVENTS[:6], *EVENTS[7:], [TIME_US * 1000 + 6_000_000, 2, 300, 5]]
    page = render(sg.score(load(tmp_path / "timeline.json", late)), to="html")
    assert "none at the peak" in page


@pytest.mark.parametrize(
    "document",
    [
        [SUMS[0], SUMS[1][:-1]],
        [SUMS[0], [[0, 1, 2]] * 5],
        [*EVENTS, [TIME_US, 2, 1e300, 3]],
        [*EVENTS, [TIME_US, 2, 5, 99]],
        [*EVENTS, [TIME_US, 2, "5", 3]],
        [*EVENTS, [TIME_US, 2, 5]],
    ],
)
def test_what_is_no_timeline_is_refused(tmp_path: Path, document: Any) -> None:
    with pytest.raises(BadInput):
        load(tmp_path / "timeline.json", document)


def test_one_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(EVENTS)[:-20])
    with pytest.raises(StepgradeError):
        sg.load(path)


def test_a_picture_says_what_to_export_instead(tmp_path: Path) -> None:
    path = tmp_path / "timeline.html"
    head = '<html>\n<head><meta charset="utf-8" /><title>GPU Memory Timeline HTML</title></head>\n<body>\n'
    path.write_text(head + "<img src='data:image/png;base64,iVBORw0'></body></html>")
    with pytest.raises(StepgradeError, match=r"\.raw\.json\.gz"):
        sg.load(path)


@pytest.mark.samples
def test_the_forms_of_one_run_agree() -> None:
    folder = shared("samples/memory/timeline")
    sums = sg.load(folder / "own_cpu_torch2.13_timeline.json.gz").memory
    events = sg.load(folder / "own_cpu_torch2.13_timeline.raw.json.gz").memory
    assert sums is not None and events is not None  # noqa: PT018
    assert sums.categories == events.categories
    assert sums.categories["activations"] == 5_359_112
    assert sums.categories["weights"] == 3_386_880
    other = sg.load(folder / "hta_memory_timeline.raw.gz").memory
    assert other is not None
    assert (other.peak_bytes or 0) / 2**30 == pytest.approx(2.871, abs=0.001)
