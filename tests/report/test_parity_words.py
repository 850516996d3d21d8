"""Parity says and counts the same in the terminal, in Markdown, on the page, and to who prints it."""

from __future__ import annotations

import html
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.compare.parity import names_of_runs
from stepgrade.model import Profile, Source
from tests.builders import make_ops, make_profile
from tests.conftest import ROOT

RUNS = ROOT / "examples" / "runs"
TRACES = ROOT / "examples" / "traces"
BOTH = {
    "by name, ahead": (RUNS / "parity_fused.json", RUNS / "parity_naive.json"),
    "by name, behind": (RUNS / "parity_naive.json", RUNS / "parity_fused.json"),
    "by kind": (TRACES / "gpt_fused.json.gz", RUNS / "gpt_naive.json"),
}


def runtime(name: str, step_ms: float = 100.0, **total_ms: float) -> Profile:
    return make_profile(runtime=name, mean_step_ms=step_ms, operations=make_ops(**total_ms))


@pytest.mark.parametrize("which", BOTH)
def test_every_format_counts_the_same(which: str) -> None:
    pytest.importorskip("jinja2")
    report = sg.parity(*BOTH[which])
    counted = f"{len(report.behind) or 'none'} of 0.5 % of the time or more"
    counts = f"of {len(report.compared)} operations that both have, {counted}"
    ratio = f"takes {report.time_ratio:.2f}x the time of"
    texts = {
        "terminal": sg.render(report, width=400),
        "markdown": sg.render(report, to="markdown").replace("\\", ""),
        "html": html.unescape(re.sub(r"<[^>]*>", "", sg.render(report, to="html"))),
        "print": " ".join(str(report).split()),
        "notebook": html.unescape(re.sub(r"<[^>]*>", "", report._repr_html_() or "")),
    }
    for name, text in texts.items():
        plain = " ".join(text.split())
        assert counts in plain, name
        assert ratio in plain, name
    # Each operation that is counted is in the table of the page and of the Markdown.
    rows = re.findall(r'<tr><td class="name"><bdi>(.*?)</bdi>', sg.render(report, to="html"))
    assert len(rows) == min(len(report.compared), 25)
    for gap in report.compared:
        assert gap.op.replace(" · ", " · ") in texts["markdown"]


@pytest.mark.parametrize(
    ("ratio", "standing", "badge"),
    [
        (0.5, "ahead", "AHEAD"),
        (0.95, "parity", "PARITY"),
        (1.0, "behind", "NO PARITY"),
        (1.5, "behind", "NO PARITY"),
    ],
)
def test_who_is_faster_as_a_whole_has_no_lack_of_parity(ratio: float, standing: str, badge: str) -> None:
    """One operation is far behind in each; what the whole takes decides whether that matters."""
    report = sg.parity(runtime("ours", 100.0 * ratio, a=60.0, b=20.0), runtime("theirs", a=40.0, b=40.0))
    assert report.behind == ("a",)
    assert report.standing == standing
    assert badge in sg.render(report)
    assert ("contract v1" in str(report)) == bool(report.parity_achieved)


@given(st.floats(1.0, 1000.0), st.floats(1.0, 1000.0), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_faster_is_never_behind_and_both_cannot_be_ahead(
    ours: float, theirs: float, a: float, b: float
) -> None:
    left, right = runtime("ours", ours, a=a, b=b), runtime("theirs", theirs, a=b, b=a)
    there, back = sg.parity(left, right), sg.parity(right, left)
    for report, own, other in ((there, ours, theirs), (back, theirs, ours)):
        if own < other:
            assert report.standing != "behind"
        if report.standing == "ahead":
            assert own < other
    assert {there.standing, back.standing} != {"ahead"}


def named(path: str, runtime: str | None = None) -> Profile:
    return make_profile(source=Source(format="kineto", files=(path,)), runtime=runtime)


@pytest.mark.parametrize(
    ("runs", "names"),
    [
        ([named("a/gpt_fused.json.gz"), named("a/gpt_naive.json.gz")], ("gpt_fused", "gpt_naive")),
        ([named("x/run.pt.trace.json.gz"), named("y/run.pt.trace.json.gz")], ("x/run", "y/run")),
        ([named("t_2026-01-01.json"), named("t_2026-01-02.json")], ("t_2026-01-01", "t_2026-01-02")),
        ([named("a.json", "unsloth"), named("b.json", "pytorch")], ("unsloth", "pytorch")),
        ([named("a.json", "pytorch"), named("b.json", "pytorch")], ("a", "b")),
        ([named("c:\\\\runs\\\\a.json"), named("b.log")], ("a", "b")),
        ([named("a.json"), named("a.json")], ("a (1)", "a (2)")),
        ([named(".json"), named("standard input")], (".json", "standard input")),
    ],
)
def test_runs_are_called_by_whole_words(runs: list[Profile], names: tuple[str, str]) -> None:
    assert names_of_runs(runs) == names


def test_bars_give_way_to_names_that_would_be_cut_to_the_same() -> None:
    report = sg.parity(*BOTH["by name, behind"])
    for width in (50, 60, 80, 120):
        text = sg.render(report, width=width)
        names = re.findall(r"^  (\S.*?)  +[█▏▎▍▌▋▊▉ ]* +\S", text, re.MULTILINE)
        parts = [name for name in names if "…" in name]
        assert len(parts) == len(set(parts)), width
        assert all(len(line) <= width for line in text.splitlines())


def test_printing_a_result_shows_it(tmp_path: Path) -> None:
    path = str(RUNS / "gpt_naive.json")
    card = sg.score(path, device="rtx-4060-laptop")
    assert str(card) == sg.render(card).rstrip("\n")
    assert repr(card).startswith("<Scorecard ")
    gate = sg.gate(path, baseline=[card])
    for result in (gate, sg.inspect(path), sg.devices("4090"), sg.parity(path, path)):
        assert str(result) == sg.render(result).rstrip("\n")


def test_a_path_stands_for_its_profile() -> None:
    path = RUNS / "gpt_naive.json"
    profile, before = sg.load(path), RUNS / "gpt_fused.json"
    assert sg.score(path) == sg.score(profile) == sg.score(str(path))
    assert sg.score(path, baseline=before) == sg.score(profile, baseline=sg.load(before))
    assert sg.inspect(path) == sg.inspect(profile)
    assert sg.convert(path) == sg.convert(profile)
    assert sg.gate([path], baseline=[before]) == sg.gate([profile], baseline=[sg.load(before)])
    assert sg.gate(path, baseline=[before]) == sg.gate([path], baseline=[before])
    with pytest.raises(sg.StepgradeError, match="no such file"):
        sg.score("absent.json")


@pytest.mark.parametrize("wrong", [None, 3, {"steps": 1}, [1], b"{}"])
def test_what_is_neither_is_said(wrong: object) -> None:
    with pytest.raises(
        sg.StepgradeError, match=r"is not a profile \(give a path, or what stepgrade.load returns"
    ):
        sg.score(wrong)  # type: ignore[arg-type]  # that it is refused is what is tested
    with pytest.raises(sg.StepgradeError, match="is not a profile"):
        sg.parity(RUNS / "gpt_naive.json", wrong)  # type: ignore[arg-type]  # as above
