"""Logs that were made to do harm: long lines, bytes that are no text, escapes, patterns that never end."""

from __future__ import annotations

import importlib
import pkgutil
import random
import re
import time
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest

import stepgrade as sg
from stepgrade.config import DialectTable, read_config
from stepgrade.errors import BadConfig, StepgradeError
from stepgrade.readers.logs.dialect import MOST_EVENTS, Dialect, LogContext
from stepgrade.readers.logs.facts import NUMBERS, TEXTS
from stepgrade.readers.logs.frameworks import DIALECTS
from stepgrade.readers.logs.own import Template, dialects_from
from stepgrade.readers.logs.records import RecordLog
from stepgrade.readers.logs.runs import over_all
from stepgrade.readers.logs.scan import LogScanner
from stepgrade.readers.logs.steps import longest_bar
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource, ReadOptions
from tests.readers.logs.generated import Plan, generate
from tests.readers.logs.hard_lines import hard_lines, parse, shortest


def test_noise_of_every_kind_between_lines_changes_nothing() -> None:
    log, _ = generate(Plan(steps=600), "torchtitan")
    dice = random.Random(3)
    noise = [
        b"x" * 3_000_000,
        bytes(dice.randrange(1, 256) for _ in range(20_000)).replace(b"\n", b" "),
        b"\x1b[2J\x1b]0;title\x07" * 500,
        b"tps: " * 50_000,
        b"{'loss': '" * 10_000,
        b'{"step": ' + b"[" * 20_000,
        b"iteration 1/ 2 | elapsed time per iteration (ms): " * 2000,
        b"step: " + b"9" * 100_000,
    ]
    lines = log.splitlines(keepends=True)
    noisy = b"".join(
        line + (dice.choice(noise) + b"\n" if place % 20 == 7 else b"") for place, line in enumerate(lines)
    )
    clean, found = (read_source(ByteSource(text)).log for text in (log, noisy))
    assert isinstance(clean, sg.Profile)
    assert isinstance(found, sg.Profile)
    assert found.mean_step_ms == pytest.approx(clean.mean_step_ms, rel=0.02)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.framework)
def test_an_anchor_again_and_again_takes_linear_time_and_no_memory(dialect: object) -> None:
    anchor: bytes = dialect.anchor  # type: ignore[attr-defined]
    for text in (anchor * 60_000, (anchor + b" 1" * 40 + b"\n") * 5000, anchor + b"1" * 500_000):
        begun = time.process_time()
        scanner = LogScanner()
        scanner.feed(text)
        scanner.result()
        assert time.process_time() - begun < 20.0


def test_a_line_of_ten_megabytes_is_passed_by() -> None:
    scanner = LogScanner()
    tracemalloc.start()
    for _ in range(10):
        scanner.feed(b"a" * (1 << 20))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20


@pytest.mark.parametrize(
    "dialect",
    [dialect for dialect in DIALECTS if len(dialect.fields) > 2],
    ids=lambda dialect: dialect.framework,
)
def test_fields_again_and_again_take_linear_time(dialect: Dialect) -> None:
    """Of n places of each of six fields, n to the sixth ways to fail: hours for a line of 4 kB."""
    fields = [shortest(parse(field.pattern.encode())) for field in dialect.fields]
    sound = dialect.anchor + b" ".join(fields) + dialect.anchor + b"\n"
    hard = dialect.anchor + b"".join((field + b" ") * (380 // (len(field) + 1)) for field in fields[:-1])
    scanner = LogScanner()
    begun = time.process_time()
    scanner.feed(sound * 20 + (hard + dialect.anchor + b"\n") * 40)
    scanner.result()
    assert time.process_time() - begun < 20.0


# Of lines that users describe themselves.
TEMPLATES = (
    "[train] {step} {} {step_s} s/step",
    "{step}/{total} {} {} loss {loss}",
    "{} step {step} loss {loss} took {step_ms}ms",
    "{step} {loss} {step_s}",
)


@pytest.mark.parametrize(
    ("template", "line", "row"),
    [
        (TEMPLATES[0], b"12:00 [train] 1,200 lr 0.1 0.25 s/step", {"step": 1200.0, "step_s": 0.25}),
        (TEMPLATES[1], b"r0 3/10 | it 7 | loss nan.", {"step": 3.0, "total": 10.0, "loss": float("nan")}),
        (
            TEMPLATES[2],
            b"a step  5  loss  -2e-3 took 250.5ms",
            {"step": 5.0, "loss": -2e-3, "step_s": 0.2505},
        ),
        (TEMPLATES[3], b"2026-11-18 5 2.5 0.1", {"step": 5.0, "loss": 2.5, "step_s": 0.1}),
        ("step {step}, loss {loss}.", b"step 5, loss 2.5.", {"step": 5.0, "loss": 2.5}),
        ("{} step {step} loss {loss} {}", b"step 5 loss 2.5", {"step": 5.0, "loss": 2.5}),
        ("step {step} loss {loss}", b"step 5 it 3 loss 2.5", None),
    ],
)
def test_a_template_takes_the_numbers_at_its_names(
    template: str, line: bytes, row: dict[str, float] | None
) -> None:
    found = Template(template, "here").read(line, 0.0, LogContext())
    assert found == (row if row is None else pytest.approx(row, nan_ok=True))


# Only ever held to a whole name or to its beginning, so that a search through it says nothing.
NEVER_SEARCHED = {
    "stepgrade.readers.processes._QUALIFIED",
    "stepgrade.report.own_paths._TO_AN_ENDING",
    "stepgrade.readers.nsys.reader._VERSION",
    "stepgrade.readers.xplane.operations._WRAPPED",
}


def patterns_of_ours() -> Iterator[tuple[str, re.Pattern[bytes]]]:
    """Yield every pattern of the package that a stranger's text is searched with, by its name."""
    for found in pkgutil.walk_packages(sg.__path__, "stepgrade."):
        if not found.name.startswith(("stepgrade.record", "stepgrade.__main__")):
            for name, value in vars(importlib.import_module(found.name)).items():
                if isinstance(value, re.Pattern):
                    text = value.pattern if isinstance(value.pattern, bytes) else value.pattern.encode()
                    yield f"{found.name}.{name}", re.compile(text, value.flags & ~re.UNICODE)
    for dialect in DIALECTS:
        for field in dialect.fields:
            yield f"{dialect.framework}: {field.means}", re.compile(field.pattern.encode())
    yield from ((f"template: {line}", Template(line, "here").pattern) for line in TEMPLATES)
    for fact in (*NUMBERS, *TEXTS):
        yield f"header: {fact.name}", re.compile(fact.pattern, re.MULTILINE)


def test_no_pattern_of_ours_takes_the_square_of_a_line() -> None:
    slow, searched = {}, 0
    for name, pattern in patterns_of_ours():
        if name in NEVER_SEARCHED:
            continue
        searched += 1
        for head, part in hard_lines(parse(pattern.pattern, pattern.flags)):
            for size, most_s in (
                (2_000, 0.003),
                (20_000, 1.0),
            ):  # only what takes its time at first is tried on
                line = (head + part * (size // len(part) + 1))[:size] + b"\0"
                begun = time.process_time()
                list(pattern.finditer(line))
                if time.process_time() - begun < most_s:
                    break
            else:
                slow[name] = head, part
    assert slow == {}
    assert searched > 300


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[dialect]]\nname = "a"\ncontains = "x"\n', "either a line or fields"),
        ('[[dialect]]\nname = "a"\ncontains = " "\nfields = { step = "s" }\n', "in every step line"),
        ('[[dialect]]\nname = "a"\ncontains = "x"\nfields = { stepp = "s" }\n', "step"),
        ('[[dialect]]\nname = "a"\ncontains = "x"\nfields = { loss = "s" }\n', "needs a step"),
        (
            '[[dialect]]\nname = "a"\ncontains = "x"\nline = "s {step}{loss}"\n',
            "text between two numbers",
        ),
        ('[[dialect]]\nname = "a"\ncontains = "x"\nline = "s {stepp}"\n', "unknown key 'stepp'"),
        ('[[dialect]]\nname = "a"\ncontains = "x"\nline = "s {loss}"\n', "needs a step"),
        ('[[dialect]]\nname = "a"\ncontains = "x"\nline = "' + "x" * 1001 + '"\n', "longer than 1000"),
        ('[[dialect]]\nname = "a"\ncontains = "x"\npattern = "(?P<step>a)"\n', "no longer supported"),
    ],
)
def test_a_dialect_that_makes_no_sense_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadConfig, match=words):
        dialects_from(read_config(text).dialects)


@pytest.mark.parametrize(
    "table",
    [
        DialectTable(
            name="mine", contains="batch: ", fields={"step": "batch:", "step_ms": "took", "loss": "loss:"}
        ),
        DialectTable(
            name="mine",
            contains="batch: ",
            line="batch: {step}, took {step_ms} ms, loss: {loss}",
        ),
        DialectTable(name="mine", contains="batch: ", line="batch: {step} {} {step_ms} ms{}"),
    ],
)
def test_a_dialect_of_ones_own_is_read(table: DialectTable) -> None:
    log = "".join(f"batch: {step}, took {250.0 + step % 2} ms, loss: 2.5\n" for step in range(1, 60)).encode()
    with pytest.raises(StepgradeError):
        read_source(ByteSource(log))
    profile = read_source(ByteSource(log, ReadOptions(dialects=(table,)))).log
    assert isinstance(profile, sg.Profile)
    assert profile.mean_step_ms == pytest.approx(250.5, rel=0.01)
    assert profile.recorded_steps == 59


def test_times_that_begin_again_add_up_in_one_pass() -> None:
    dice = np.random.default_rng(5)
    elapsed = dice.uniform(0.0, 9.0, 400)
    epochs = sorted(dice.choice(np.arange(1, 400), 90, replace=False).tolist())
    attempts = sorted(dice.choice(np.arange(1, 400), 90, replace=False).tolist())
    expected = elapsed.copy()
    for row in {*epochs, *(row for row in attempts if elapsed[row] < elapsed[row - 1])}:
        expected[row:] += elapsed[row - 1]
    assert over_all(elapsed, epochs, attempts) == pytest.approx(expected)
    totals = dice.integers(1, 60, 400).astype(float)
    by_hand = max({*totals.tolist()}, key=lambda total: (elapsed[totals == total].max(), total))
    assert longest_bar({"total": totals, "elapsed_s": elapsed}) == by_hand


def test_events_and_totals_of_records_are_not_kept_without_end() -> None:
    log = RecordLog("a")
    for step in range(MOST_EVENTS + 500):
        log.add({"step": step, "eval_loss": 2.0})
        log.add({"train_runtime": 5.0, "train_steps_per_second": float(step)})
    scanned = log.scanned()
    assert len(scanned.events) == MOST_EVENTS
    assert scanned.totals is not None
    assert scanned.totals.steps_s == MOST_EVENTS + 499.0


@pytest.mark.parametrize(
    ("table", "steps"),
    [
        (b"\r%s", 39),  # csv takes a carriage return in the middle of a line for a mistake of the file's
        (b"%s\rloss\r\n", 39),
        (b"%s40,2.5,20.0,a\rb\n41,2.5,20.5,c\n", 41),
        (b'%s40,2.5,20.0,"' + b"x" * 200_000 + b'"\n41,2.5,20.5,c\n42,2.5,21.0,c\n', 42),
    ],
)  # fmt: skip
def test_a_row_that_is_none_costs_that_row(table: bytes, steps: int) -> None:
    rows = b"".join(b"%d,2.5,%.1f,note\n" % (step, step / 2) for step in range(1, 40))
    profile = read_source(ByteSource(table % (b"step,loss,elapsed,note\n" + rows))).log
    assert isinstance(profile, sg.Profile)
    assert profile.recorded_steps == steps
    assert profile.mean_step_ms == pytest.approx(500.0)
