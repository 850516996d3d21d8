"""Every reader and format is fuzzed, and the fuzzer tells what it must not accept."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest

from stepgrade.cli import dispatch
from stepgrade.readers.registry import BUILT_IN, reader_for
from stepgrade.readers.source import ByteSource
from tests.conftest import ROOT
from tests.fuzz import judging, mutators
from tests.fuzz.inputs import KINDS, Dice, Input, formats, kind_of, make_input
from tests.fuzz.judging import judge
from tests.fuzz.mutators.wire import joined, split
from tests.fuzz.outputs import CHECKS, check_output
from tests.fuzz.run import Corpus, Tally
from tests.fuzz.samples import CANARY, CONFIG, SAMPLES, profiles, store

FOUND = Path(__file__).with_name("found")  # files that once led to a bug
COMMANDS_ON_FILES = (
    ("score", "f", "--format", "json"),
    ("inspect", "f", "--format", "json"),
    ("convert", "f"),
    ("parity", "f", "g", "--format", "json"),
    ("gate", "g", "--baseline", "f", "--format", "json"),
)
COMMANDS = ("score", "inspect", "convert", "gate", "parity", "what-if", "estimate", "plan", "history list")


def test_every_reader_has_files_to_damage() -> None:
    assert set(BUILT_IN) - set(SAMPLES) == set(), "give it a row in SAMPLES of tests/fuzz/samples.py"
    assert set(SAMPLES) - set(BUILT_IN) == set()
    assert set(SAMPLES) <= set(KINDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_output_format_is_read_by_a_parser(command: str) -> None:
    assert set(formats(command)) - set(CHECKS) == set(), "give it a row in CHECKS of tests/fuzz/outputs.py"
    assert formats(command)


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


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (SAMPLES["kineto"]()[0], "values of JSON"),
        (SAMPLES["nsys"]()[0], "rows and pages of SQLite"),
        (store(), "rows and pages of SQLite"),
        (SAMPLES["xplane"]()[0], "fields of protobuf"),
        (SAMPLES["snapshot"]()[0], "opcodes of a pickle"),
        (SAMPLES["metrics"]()[1], "records of TensorBoard"),
        (SAMPLES["metrics"]()[3], "records of W&B"),
        (SAMPLES["log"]()[2], "lines"),
        (CONFIG, "lines of TOML"),
    ],
)
def test_a_file_is_damaged_by_what_it_is_made_of(data: bytes, what: str) -> None:
    name, mutate = mutators.mutator_of(data)
    assert name == what
    made = {mutate(data, random.Random(number), data) for number in range(20)}
    assert len(made - {data}) > 10


def test_protobuf_that_is_split_and_joined_is_the_same() -> None:
    for sample in SAMPLES["xplane"]():
        assert joined(split(sample)) == sample


def test_an_input_is_the_same_for_the_same_name() -> None:
    for number in range(60):
        assert make_input(7, number) == make_input(7, number)
        assert make_input(7, number, 99) == make_input(7, number, 99)


def test_an_input_is_made_from_the_one_before_it() -> None:
    """The main file of the second is that of the first with more damage, of the same kind."""
    alike = 0
    for number in range(40):
        first, second = make_input(3, number), make_input(3, number, 1000 + number)
        assert second.kind == first.kind or {first.kind, second.kind} == {"device file", "model config"}
        alike += first.main[:200] == second.main[:200] != b""
    assert alike > 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_makes_inputs(kind: str) -> None:
    """A short run of it: some exit codes of ours, nothing wrong."""

    for number in range(4):
        item = KINDS[kind][1](Dice(f"{kind}:{number}"))
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
        ("\x0a\x05\x5a\xff", "perfetto"),
        ("\x12\x01\x00", "perfetto"),
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


def _touch(_: object) -> int:
    Path("../cache/checkpoint.pt").unlink()
    Path("p.json").write_text("other")
    Path("new.json").write_text("left")
    judging.opened = Path("p.json").open()  # type: ignore[attr-defined]  # noqa: SIM115  closed below
    return 0


def test_what_is_done_to_others_files_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "run", _touch)
    code, wrong = judge(Input("x", ("score", "p.json"), {"p.json": b"{}"}))
    judging.opened.close()  # type: ignore[attr-defined]
    assert code == 0
    text = "\n".join(wrong)
    for part in (
        "checkpoint.pt is somebody else's",
        "p.json' was changed",
        "new.json' was left",
        "open files",
    ):
        assert part in text


def test_parts_add_up_to_one_table() -> None:
    tally = Tally()
    for number in range(5):
        tally.add({"name": str(number), "kind": "a" if number % 2 else "b", "code": number % 4, "wrong": []})
    assert "| **all** | 5 | 2 | 1 | 1 | 1 | 0 |" in tally.table()
    assert tally.summary(3) == "fuzz: 5 inputs (seed 3, numbers 0 to 4), 0 wrong"
    tally.add(json.loads('{"name": "3.9", "kind": "a", "code": -1, "wrong": ["hang: more than 20 s"]}'))
    assert tally.summary(3).endswith("with gaps or repeats), 1 wrong")
    assert "| a | 3 |" in tally.table()


def test_inputs_that_lead_somewhere_new_are_damaged_further() -> None:
    corpus = Corpus(seed=1)
    first = 20_000
    number = next(n for n in range(first + 1, first + 500) if kind_of(1, n) == kind_of(1, first))
    corpus.add({"name": str(first), "new": ["a.py:1"], "main": True})
    corpus.add({"name": str(first + 1), "new": ["a.py:1"], "main": True})  # nothing that is not known
    found = {corpus.name(n) for n in range(number, number + 4000) if kind_of(1, n) == kind_of(1, first)}
    assert any(name[:-1] == (first,) for name in found)
    assert not any(first + 1 in name[:-1] for name in found)
    assert all(
        name[:-1] != (first,) for name in (corpus.name(n) for n in range(10_000))
    )  # the same everywhere


def test_jumps_in_the_package_are_seen() -> None:
    """In a process of its own, for coverage may watch this one."""
    code = """if True:
        from tests.fuzz.arcs import Arcs
        from tests.fuzz.inputs import Input
        from tests.fuzz.judging import judge
        from tests.fuzz.samples import profiles

        arcs, profile = Arcs(), profiles()[1]
        with arcs.watched() as few:
            judge(Input("x", ("devices", "nothing"), {}))
        with arcs.watched() as more:
            judge(Input("x", ("score", "p.json"), {"p.json": profile}))
        assert any(file == "cli/devices.py" for file, _ in few - more)
        assert any(file == "grading.py" for file, _ in more - few)
    """
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=300)


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.gz")), ids=lambda path: path.name)
@pytest.mark.parametrize("words", COMMANDS_ON_FILES, ids=lambda words: words[0])
def test_what_was_found_stays_cured(path: Path, words: tuple[str, ...]) -> None:
    files = {"f": path.read_bytes(), "g": profiles()[1]}
    code, wrong = judge(Input("found", words, files, "json"))
    assert (code in (0, 1, 2, 3), wrong) == (True, [])
