"""Names of any length in the width of a terminal: as the obvious slow version has them, in bounded work."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

import stepgrade as sg
from stepgrade.report import names
from stepgrade.report.names import cells, distinguishable, json_text, printable, shortened, wrapped
from tests.report.html import cards

TEXTS = st.text(st.sampled_from("ab ·é漢\u0301"), max_size=40)
MEGABYTES = 3_000_000


def slow_front(text: str, width: int) -> str:
    return next(text[:end] for end in range(len(text), -1, -1) if cells(text[:end]) <= width)


@given(TEXTS, st.integers(2, 12))
def test_shortened_is_what_fits_from_both_ends(text: str, width: int) -> None:
    shown = shortened(text, width)
    if cells(text) <= width:
        assert shown == text
        return
    front, back = shown.split("…")
    assert cells(shown) <= width
    assert text.startswith(front)
    assert text.endswith(back)
    # Not more is given up for whole words than half of each end.
    assert len(front) >= len(slow_front(text, width // 2)) // 2
    assert len(back) >= len(slow_front(text[::-1], (width - 1) // 2)) // 2


@pytest.mark.parametrize(
    ("name", "width", "shown"),
    [
        ("autograd::engine::evaluate_function: ViewBackward0", 26, "autograd::…: ViewBackward0"),
        ("aten::_scaled_dot_product_flash_attention_for_cpu_backward", 26, "aten::_scaled…cpu_backward"),
        ("/data/runs/2026/trace_of_the_long_night.json.gz", 26, "/data/runs/…_night.json.gz"),
        ("x" * 40, 11, "xxxxx…xxxxx"),
    ],
)
def test_names_are_cut_between_words(name: str, width: int, shown: str) -> None:
    assert shortened(name, width) == shown


@given(
    st.lists(st.text("ab_-: /é漢", min_size=1, max_size=60), min_size=2, max_size=4, unique=True),
    st.integers(8, 40),
)
def test_names_beside_each_other_fit_and_keep_where_they_differ(texts: list[str], width: int) -> None:
    shown = distinguishable(texts, width)
    assert all(cells(name) <= width for name in shown)
    if all(cells(text) <= width for text in texts):
        assert shown == texts


def test_what_long_names_have_in_common_gives_way() -> None:
    runs = ("modded-nanogpt_20251031_adamhook_after_rank0", "modded-nanogpt_20251031_adamhook_before_rank0")
    assert distinguishable(runs, 24) == ["…adamhook_after_rank0", "…adamhook_before_rank0"]
    days = ("trace_2024-01-01_of_the_long_night", "trace_2024-01-02_of_the_long_night")
    assert distinguishable(days, 24) == ["trace_2024-01-01_of_the…", "trace_2024-01-02_of_the…"]


@given(TEXTS, st.integers(1, 12))
def test_wrapped_lines_fit_and_lose_nothing(text: str, width: int) -> None:
    lines = wrapped(text, width)
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(cells(line) <= max(width, 2) for line in lines)


@pytest.mark.parametrize("letter", ["x", "·", "漢"])
def test_a_name_of_megabytes_is_not_measured_whole(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    cell = names._cell
    monkeypatch.setattr(names, "_cell", lambda character: looked_at.append(1) or cell(character))
    assert cells(shortened(letter * MEGABYTES, 60)) <= 60
    assert len(looked_at) < 1000


@pytest.mark.parametrize("letter", ["x", "·"])
def test_wrapping_looks_at_every_character_about_once(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    cell = names._cell
    monkeypatch.setattr(names, "_cell", lambda character: looked_at.append(1) or cell(character))
    lines = wrapped(printable(letter * 100_000), 80)
    assert len(lines) == 1250
    assert len(looked_at) < 110_000


COMMANDS = [
    "::stop-commands::x",
    "::error file=a::b",
    "  ::set-output name=x::y",
    "##vso[task.setvariable variable=PATH]x",
    "##[error]x",
    "##teamcity[buildStop]",
    "a ##vso[task.complete]",
]


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize("to", ["terminal", "markdown", "json", "html", "junit", "sarif"])
def test_no_name_commands_a_ci_system(name: str, to: str) -> None:
    """GitHub obeys a line that begins with ::, Azure ##vso[ and TeamCity ##teamcity[ anywhere in a line."""
    made = cards.hostile_gate((name,) * 9) if to in ("junit", "sarif") else cards.hostile_card((name,) * 9)
    for width in (30, 80, 200):
        text = sg.render(made, to=to, width=width) if to == "terminal" else sg.render(made, to=to)
        lines = [line.strip() for line in text.splitlines()]
        # The rules of our own style sheet are not a name.
        assert not any(line.startswith("::") and name.strip()[:6] in line for line in lines)
        assert not any(sign in text for sign in ("##vso[", "##[", "##teamcity["))
    if to == "json":
        assert name in "".join(strings(json.loads(text)))


def strings(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in strings(part)]
    if isinstance(value, list):
        return [text for part in value for text in strings(part)]
    return [value] if isinstance(value, str) else []


@pytest.mark.parametrize("to", ["terminal", "markdown", "html", "junit", "sarif"])
def test_a_name_of_ten_megabytes_is_cut(to: str) -> None:
    name = "x" * 10_000_000
    made = cards.hostile_gate((name,) * 9) if to in ("junit", "sarif") else cards.hostile_card((name,) * 9)
    assert len(sg.render(made, to=to)) < 1_000_000


@pytest.mark.parametrize(
    "sign", "\u200b\u200c\u200d\u2060\ufeff\u034f\u115f\u3164\uffa0\u2800\u180e\U000e0061\U000e0100"
)
def test_what_cannot_be_seen_is_spelt_out(sign: str) -> None:
    """Two names that look alike are told apart, in text and in JSON."""
    assert printable(f"aten{sign}::mm").isascii()
    document = json_text(json.dumps({"name": f"aten{sign}::mm"}, ensure_ascii=False))
    assert document.isascii()
    assert json.loads(document) == {"name": f"aten{sign}::mm"}
