"""Every reader has sound files that the fuzzer damages, and the fuzzer tells what it must not accept."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from stepgrade.cli import dispatch
from stepgrade.readers.registry import BUILT_IN, reader_for
from stepgrade.readers.source import ByteSource
from tests.fuzz.inputs import KINDS, Input, make_input
from tests.fuzz.run import Tally, check_output, judge
from tests.fuzz.samples import CANARY, SAMPLES, profiles


def test_every_reader_has_files_to_damage() -> None:
    assert set(BUILT_IN) - set(SAMPLES) == set(), "give it a row in SAMPLES of tests/fuzz/samples.py"
    assert set(SAMPLES) - set(BUILT_IN) == set()
    assert set(SAMPLES) <= set(KINDS)


@pytest.mark.parametrize("name", SAMPLES)
def test_the_files_are_of_that_reader_and_hold_a_canary(name: str) -> None:
    for sample in SAMPLES[name]():
        assert reader_for(ByteSource(sample)).name == name
        assert CANARY.encode() in sample or b"my_secret" not in sample


@pytest.mark.parametrize("name", SAMPLES)
def test_undamaged_files_are_read(name: str) -> None:
    for sample in SAMPLES[name]():
        argv = ("score", "f", "--format", "json")
        if name in ("scorecard", "parity_profile"):  # no run of its own
            argv = ("gate", "g", "--baseline", "f", "--format", "json")
        if name == "parity_profile":
            argv = ("parity", "f", "f", "--format", "json")
        code, wrong = judge(Input(name, argv, {"f": sample, "g": profiles()[1]}, "json"))
        assert (code in (0, 1, 3), wrong) == (True, [])


def test_an_input_is_the_same_for_the_same_number() -> None:
    for number in range(40):
        assert make_input(7, number) == make_input(7, number)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_makes_inputs(kind: str) -> None:
    """A short run of it: some exit codes of ours, nothing wrong."""

    for number in range(4):
        item = KINDS[kind][1](random.Random(f"{kind}:{number}"))
        code, wrong = judge(item)
        assert (code in (0, 1, 2, 3), wrong) == (True, []), item.argv


@pytest.mark.parametrize(
    ("text", "to"),
    [
        ('{"a": NaN}', "json"),
        ("{", "sarif"),
        ('{"a": 1}\n{', "lines"),
        ("<a><b></a>", "junit"),
        ("<p><b></p>", "html"),
        ('<p onclick="x()">a</p>', "html"),
        ("a\x1b[2J", "terminal"),
        ("\n::error::x", "terminal"),
        ("a\n##vso[task.setvariable]x", "markdown"),
    ],
)
def test_a_wrong_output_is_seen(text: str, to: str) -> None:
    with pytest.raises((ValueError, SyntaxError)):
        check_output(text, to)


def test_what_must_not_happen_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "run", lambda _: print(CANARY) or 70)  # type: ignore[func-returns-value]
    code, wrong = judge(Input("x", ("score", "f"), {}, "terminal"))
    assert code == 70
    assert {problem.split()[0] for problem in wrong} == {"exit", "canary"}


def test_parts_add_up_to_one_table(tmp_path: Path) -> None:
    tally = Tally()
    for number in range(5):
        tally.add({"number": number, "kind": "a" if number % 2 else "b", "code": number % 4, "wrong": []})
    assert "| **all** | 5 | 2 | 1 | 1 | 1 | 0 |" in tally.table()
    assert tally.summary(3) == "fuzz: 5 inputs (seed 3, numbers 0 to 4), 0 wrong"
    tally.add(json.loads('{"number": 9, "kind": "a", "code": -1, "wrong": ["hang: more than 20 s"]}'))
    assert tally.summary(3).endswith("with gaps or repeats), 1 wrong")
    assert "| a | 3 |" in tally.table()


@pytest.mark.parametrize(
    ("kind", "seed"),
    [
        ("metrics", "metrics:113:x"),  # a number of 5,000 digits
        ("metrics", "metrics:137:x"),  # steps that take no time
        ("metrics", "metrics:353:x"),
        ("nsys", "nsys:376:x"),  # a size of a row for which SQLite raises MemoryError
    ],
)
def test_what_was_found_stays_cured(kind: str, seed: str) -> None:
    code, wrong = judge(KINDS[kind][1](random.Random(seed)))
    assert (code in (0, 1, 2, 3), wrong) == (True, [])
