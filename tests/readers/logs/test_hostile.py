"""Logs that were made to do harm: long lines, bytes that are no text, escapes, patterns that never end."""

from __future__ import annotations

import random
import time
import tracemalloc

import pytest

import stepgrade as sg
from stepgrade.config import DialectTable, read_config
from stepgrade.errors import BadConfig, StepgradeError
from stepgrade.readers.logs.frameworks import DIALECTS
from stepgrade.readers.logs.own import check_pattern, dialects_from
from stepgrade.readers.logs.scan import LogScanner
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource, ReadOptions
from tests.readers.logs.generated import Plan, generate


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
    clean, found = (read_source(ByteSource(text)) for text in (log, noisy))
    assert isinstance(clean, sg.Profile)
    assert isinstance(found, sg.Profile)
    assert found.mean_step_ms == pytest.approx(clean.mean_step_ms, rel=0.02)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
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
    "pattern",
    [
        r"(?P<step>\d+)(a+)+$",
        r"(?P<step>(a|aa)+)$",
        r"(?P<step>.*.*.*.*.*x)",
        r"(?P<step>(\s*a?)*)b",
        r"(?P<step>a)\1",
        r"(?P<step>[a-z]*[a-z]*[a-z]*[a-z]*[a-z]*!)",
    ],
)
def test_a_pattern_that_may_take_forever_is_refused_at_once(pattern: str) -> None:
    begun = time.process_time()
    with pytest.raises(BadConfig):
        check_pattern(pattern, "here")
    assert time.process_time() - begun < 20.0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[dialect]]\nname = "a"\ncontains = "x"\n', "either a pattern or fields"),
        ('[[dialect]]\nname = "a"\ncontains = " "\nfields = { step = "s" }\n', "in every line"),
        ('[[dialect]]\nname = "a"\ncontains = "x"\nfields = { stepp = "s" }\n', "step"),
        ('[[dialect]]\nname = "a"\ncontains = "x"\nfields = { loss = "s" }\n', "needs a step"),
        ('[[dialect]]\nname = "a"\ncontains = "x"\npattern = "(?P<step>"\n', "no pattern"),
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
            pattern=r"batch: (?P<step>\d+), took (?P<step_ms>[\d.]+) ms, loss: (?P<loss>\S+)",
        ),
    ],
)
def test_a_dialect_of_ones_own_is_read(table: DialectTable) -> None:
    log = "".join(f"batch: {step}, took {250.0 + step % 2} ms, loss: 2.5\n" for step in range(1, 60)).encode()
    with pytest.raises(StepgradeError):
        read_source(ByteSource(log))
    profile = read_source(ByteSource(log, ReadOptions(dialects=(table,))))
    assert isinstance(profile, sg.Profile)
    assert profile.mean_step_ms == pytest.approx(250.5, rel=0.01)
    assert profile.recorded_steps == 59
