"""Every number in a card's text is recomputed from the card's own tables: a sentence they do not support fails.

What fails today is in UNSUPPORTED, one line each. The list is strict: a sentence that becomes true, or a rule
that is not there any more, has to leave it.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepgrade.cli import main
from tests.golden_json.test_golden_json import EXPECTED, real_files
from tests.samples import shared

Card = dict[str, Any]
Values = Iterator[float] | list[float]

# Numbers of text that no field of the card holds, by the code of what says them.
UNSUPPORTED = {
    "finding clocks-apart": "how many events, and by how much, is in its text alone",
    "finding profiler-overhead": "the share is in its text alone",
    "finding warm-up-only": "the steps and their times are in its text alone",
    "finding unsteady-steps": "steps are counted without the warm-up, which no field holds",
    "finding recurring-slow-steps": "the longest pause is in its text alone",
    "finding uneven-ranks": "how often the slow rank is slow is in its text alone",
    "finding unexplained-idle": "of several ranks, text and evidence take different ones",
    "bottleneck computes": "on a processor the text leaves out calls of short operations, the ledger does not",
    "bottleneck class": "slow operations of every class are counted as matrix products",
}

_UNIT = r"%|µs|ms|s|min|h|x|GB/s|GiB|MiB|KiB|GB|MB|tok/s"
_NUMBER = re.compile(rf"(?<![\w.:/-])(\d{{1,3}}(?:,\d{{3}})+|\d+)(\.\d+)?(?:\s?({_UNIT}))?(?![\w.]*\w)")
# What one of a field is in the units that text may show it in.
_SCALES = {
    "%": (100.0,), "µs": (1e3, 1.0), "ms": (1.0, 1e3), "s": (1e-3, 1.0), "min": (1 / 60, 1 / 6e4),
    "h": (1 / 3600, 1 / 3.6e6), "GiB": (2.0**-30,), "MiB": (2.0**-20,), "KiB": (2.0**-10,), "GB": (1e-9,),
    "MB": (1e-6,), "GB/s": (1.0, 1e-9),
}  # fmt: skip


class Shown(NamedTuple):
    """A number as text shows it."""

    value: float
    decimals: int
    unit: str

    def is_one_of(self, values: Values) -> bool:
        """Return whether one of the values would be shown so."""
        tolerance = 0.5 * 10.0**-self.decimals * (1 + 1e-6) + 1e-9
        scales = _SCALES.get(self.unit, (1.0,))
        return any(abs(value * scale - self.value) <= tolerance for value in values for scale in scales)


def numbers_in(text: str, names: list[str]) -> list[Shown]:
    """Return the numbers of a sentence that are no part of a name, a shape, a file or a line in it."""
    for name in sorted(filter(None, names), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(name)}(?!\w)", " ", text)
    text = re.sub(r"[~\w/.-]+\.\w+:\d+|\S*::\S*|step_profiler_v\d|\(\d+(, \d+)*\)|contract v1", " ", text)
    return [
        Shown(float(whole.replace(",", "") + part), max(len(part) - 1, 0), unit)
        for whole, part, unit in _NUMBER.findall(text)
    ]


def _per_step(card: Card, evidence: dict[str, Any]) -> Values:
    steps = card["steps"]["count"], card["steps"]["steady"], 1
    total, median = evidence["total_ms"], evidence["median_total_ms"]
    return [total / median, *(one / count for one in (total, median) for count in steps if count)]


def _hang(card: Card, _: dict[str, Any]) -> Values:
    hang = card["hang"]
    yield from (*hang["missing"], *hang["waiting"], hang["sequence"], hang["sequence"] - 1)


# What a finding's text may say beyond its evidence: from which tables, or which number is a limit and always so.
DERIVED: dict[str, Callable[[Card, dict[str, Any]], Values]] = {
    "slow-layer": _per_step,
    "rank-never-arrived": _hang,
    "exposed-communication": lambda _, __: [0.7, 0.01],
    "fast-backward": lambda _, __: [2],
    "slow-backward": lambda _, __: [2],
    "misaligned-gemm": lambda _, __: [8],
    "short-kernels": lambda _, __: [10],
    "compiles-again": lambda card, _: [card["compile"]["compiles"]],
    "unsteady-steps": lambda card, _: [card["steps"]["count"], card["steps"]["steady"]],
    "out-of-memory": lambda card, _: list(((card["memory"] or {}).get("categories") or {}).values()),
    "recording-slows-host": lambda card, _: [card["ledger"]["idle_host"], card["ledger"]["idle_host"]
                                             + card["ledger"]["idle_sync"]],
}  # fmt: skip


def unsupported_findings(card: Card) -> Iterator[tuple[str, str]]:
    """Yield (code, text) of findings whose text says a number that neither evidence nor tables hold."""
    for finding in card["findings"]:
        evidence = finding["evidence"]
        names = [value for value in evidence.values() if isinstance(value, str)]
        held = [float(value) for value in evidence.values() if isinstance(value, int | float)]
        more = DERIVED.get(finding["rule"], lambda *_: [])
        for number in numbers_in(finding["claim"], names):
            if not number.is_one_of(held) and not number.is_one_of(more(card, evidence)):
                yield f"finding {finding['rule']}", f"{number.value} {number.unit}: {finding['claim']}"


# Which accounts of the ledger the causes of a kind share among them.
SHARED_ACCOUNTS = (
    # Where a source has no timeline, what is in no phase may be launches; on a processor, calls count as work.
    (
        {"compute", "memory_bw", "unknown", "launch", "host"},
        ("compute", "unattributed", "idle_host", "idle_sync"),
    ),
    ({"input"}, ("idle_input",)),
    ({"communication"}, ("exposed_communication",)),
    ({"transfer"}, ("exposed_copy",)),
)
CLASSES = {
    "matrix products": "gemm",
    "attention": "attention",
    "convolutions": "conv",
    "random numbers": "random",
}
_COMPUTES = re.compile(r"(?:the device|the processor) computes ([\d.]+) % of the step")
_IS_IN = re.compile(r"([\d.]+) % of the operations' time is in ([^;(]*)")


def unsupported_causes(card: Card) -> Iterator[tuple[str, str]]:
    """Yield (code, text) of causes whose shares are not those of the ledger, or whose text says another share."""
    for cause in card["causes"]:
        first, *_ = numbers_in(cause["evidence"], [])
        if not first.is_one_of([cause["share"]]):
            yield f"cause {cause['bottleneck']}", cause["evidence"]
    if ledger := card["ledger"]:
        for kinds, accounts in SHARED_ACCOUNTS:
            caused = sum(cause["share"] for cause in card["causes"] if cause["bottleneck"] in kinds)
            held = sum(ledger[name] or 0.0 for name in accounts)
            if abs(caused - held) > 0.001:  # what is shorter is no cause
                yield f"ledger {accounts[0]}", f"{accounts} {held:.4f}, causes {sorted(kinds)} {caused:.4f}"


def unsupported_bottleneck(card: Card) -> Iterator[tuple[str, str]]:
    """Yield (code, text) of what is said of the bottleneck and does not follow from ledger and operations."""
    text = " ".join(card["bottleneck_evidence"])
    for share in _COMPUTES.findall(text):
        if card["ledger"] and not Shown(float(share), 1, "%").is_one_of([card["ledger"]["compute"]]):
            yield "bottleneck computes", f"{text} ({card['ledger']['compute']:.1%} in the ledger)"
    for share, what in _IS_IN.findall(text):
        named = {kind for words, kind in CLASSES.items() if words in what}
        rows = [row for row in card["operations"] if row["class"] not in ("communication", "transfer")]
        held = sum(row["ms"] for row in rows if row["class"] in named) / sum(row["ms"] for row in rows)
        # Operations too short for the table are not in the sum.
        if named and not Shown(float(share), 0, "%").is_one_of([held]):
            yield "bottleneck class", f"{text} ({held:.1%} by the operations)"


def unsupported(card: Card) -> list[tuple[str, str]]:
    """Return what the card says and does not hold."""
    return [*unsupported_findings(card), *unsupported_causes(card), *unsupported_bottleneck(card)]


@cache
def kept_cards() -> dict[str, Card]:
    """Return the cards that the golden JSON holds."""
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))["json"]
        for path in EXPECTED.glob("score-*.json")
    }
    return {name: found[name] for name in sorted(found)}


@pytest.mark.parametrize("name", kept_cards())
def test_the_card_supports_what_it_says(name: str) -> None:
    assert [(code, text) for code, text in unsupported(kept_cards()[name]) if code not in UNSUPPORTED] == []


@cache
def real_cards() -> dict[str, Card]:
    """Return the cards of the real files beside this clone, scored once."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(shared("samples")):
        for number, name in enumerate(real_files()):
            path = Path(folder) / f"{number}.json"
            if main(["score", name, "--format", "json", "-o", str(path)]) in (0, 1) and path.exists():
                found[name] = json.loads(path.read_bytes())
    return found


@pytest.mark.samples
def test_cards_of_real_files_support_what_they_say() -> None:
    cards = real_cards()
    assert len(cards) > 100
    found = {name: unsupported(card) for name, card in cards.items()}
    assert [(name, row) for name, rows in found.items() for row in rows if row[0] not in UNSUPPORTED] == []
    codes = {code for rows in found.values() for code, _ in rows}
    codes |= {code for card in kept_cards().values() for code, _ in unsupported(card)}
    assert codes == set(UNSUPPORTED)  # what has become true leaves the list


def test_a_changed_number_is_noticed() -> None:
    """Change each number of each text in turn: the check must see most of these."""
    noticed = tried = 0
    for card in kept_cards().values():
        for finding in card["findings"]:
            for found in _NUMBER.finditer(finding["claim"]):
                other = str(int(found.group(1).replace(",", "")) + 7)
                claim = finding["claim"][: found.start(1)] + other + finding["claim"][found.end(1) :]
                tried += 1
                noticed += bool(
                    list(unsupported_findings({**card, "findings": [{**finding, "claim": claim}]}))
                )
    assert noticed > 0.95 * tried
