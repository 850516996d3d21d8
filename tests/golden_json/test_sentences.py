"""Every number in a card's text is recomputed from the card's own tables: a sentence they do not support fails.

Findings with their advice and consequences, causes, the bottleneck, notes, ceilings, changes and the headline, on the
golden cards, the run of every rule, runs drawn by seed, and the real files. What fails today is in UNSUPPORTED, one line each. The list is strict: a sentence that becomes true, or a rule that is not there any
more, has to leave it; a note with numbers and no row in NOTES fails.
"""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

import pytest

from stepgrade.cli import main
from stepgrade.diagnosis.rules import RULES
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.content.scorecard import grade_badge
from tests.diagnosis.test_rules import FIRES, card_of, ignoring
from tests.golden_json.test_golden_json import EXPECTED, real_files
from tests.golden_json.test_wide import CASES as WIDE
from tests.samples import shared

Card = dict[str, Any]
Values = Iterator[float] | list[float]
Row = tuple[str, str]  # the code of what states something, and its text

# Numbers that no field of the card holds, by the code of what states them: the part of the text that is excused,
# and why. All other numbers of such a text are held to the card.
UNSUPPORTED = {
    "finding clocks-apart": (r"^.*", "how many events, and by how much, is in its text alone"),
    "finding profiler-overhead": (r"[\d.]+ %", "the share is in its text alone"),
    "finding warm-up-only": (r"^\d+ of \d+ steps|[\d.,]+ m?s at first", "the first steps and their time are in its text alone"),
    "finding unsteady-steps": (r"of \d+ steps", "steps are counted without the warm-up, which no field holds"),
    "finding recurring-slow-steps": (r"[\d.,]+ m?s at most", "the longest pause is in its text alone"),
    "consequence": (r"^.*", "the evidence of a finding that is another one's consequence is not in the card"),
    "bottleneck lines": (r"^\d+ % of that in", "how much of the wait is at that line is in its text alone"),
    "note clocks": (r"^.*", "how many events, and by how much, is in its text alone"),
    "note device_unknown": (r"with [\d.]+ GB.*", "what the file says of its device is in its text alone"),
    "note dispatched": (r"^\d+", "lines of the log are counted in its text alone"),
    "note first_steps_left_out": (r"first \d+|took .*", "the steps that are left out are in its text alone"),
    "note kinds_of_steps": (r"work: .*", "the medians of each kind are in its text alone"),
    "note last_steps_left_out": (r"took [\d.,]+ m?s.*", "the steps that are left out are in its text alone"),
    "note mfu_palm": (r"[\d.]+ %", "another convention's count is in its text alone"),
    "note no_step_times": (r"^[\d,]+", "lines of the log are counted in its text alone"),
    "note one_rank": (r"rank \d+ of \d+", "the rank and the size of the world are in its text alone"),
    "note printed_mfu": (r"the log prints [^;]*|counts, \d+ TFLOP/s", "what the log prints is in its text alone"),
    "note profiler_overhead": (r"[\d.]+ %", "the share is in its text alone"),
    "note ranks_in_log": (r"^\d+", "ranks in a log are counted in its text alone"),
    "note ranks_missing": (r"^\d+ of \d+", "the size of the world is in its text alone"),
    "note samples_thinned": (r"of [\d,]+ steps", "steps before thinning are counted in its text alone"),
    "note start_left_out": (r"[\d.,]+ m?s", "the line that is left out is in its text alone"),
    "note steps_left_out": (r"of [\d,]+ steps|the mean of all is .*", "steps without the warm-up are counted in its text alone"),
    "note straggler": (r"\d+ of \d+ collectives", "collectives of the whole trace are counted in its text alone"),
    "note unlaunched": (r"^[\d,]+ of [\d,]+|\d+ of them", "events without a launch are counted in its text alone"),
    "note v1_ratio": (r"says .*", "the reference's own figure is in its text alone"),
    "note warm_up": (r"^\d+ of \d+ steps|[\d.,]+ m?s at first", "the first steps are in its text alone"),
}  # fmt: skip

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
        text = re.sub(rf"(?<![\w.]){re.escape(name)}(?!\w)", " ", text)
    text = re.sub(r"[~\w/.-]+\.\w+:\d+|\S*::\S*|step_profiler_v\d|\(\d+(, \d+)*\)|contract v1", " ", text)
    return [
        Shown(float(whole.replace(",", "") + part), max(len(part) - 1, 0), unit)
        for whole, part, unit in _NUMBER.findall(text)
    ]


def _layers(card: Card, evidence: dict[str, Any]) -> Values:
    """Yield the time of the layer and the median one, and how often the first holds the second."""
    field = {"forward": "fwd_ms", "backward": "bwd_ms"}[evidence["direction"]]
    times = {row["layer"]: row[field] for row in card["layers"] if row[field] is not None}
    yield from (times[int(evidence["layer"])], median(times.values()))
    yield evidence["total_ms"] / evidence["median_total_ms"]
    yield len({row["layer"] for row in card["layers"] if row["slow"]}) - 1


def _numbers_of(value: Any) -> Values:
    """Yield every number in a part of a card."""
    if isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers_of(inner)
    elif isinstance(value, int | float):
        yield value


def _hang(card: Card, _: dict[str, Any]) -> Values:
    yield from _numbers_of(card["hang"])
    yield (card["hang"]["sequence"] or 0) - 1  # before it


def _of_peak(field: str) -> Callable[[Card, dict[str, Any]], Values]:
    return lambda card, evidence: [evidence[field] / card["memory"]["peak_bytes"]]


def _fullness(card: Card) -> Values:
    """Yield how full memory is, which advice on the batch states."""
    memory = card["memory"] or {}
    if memory.get("capacity_bytes") and memory.get("peak_bytes"):
        yield memory["peak_bytes"] / memory["capacity_bytes"]


# What a finding's text may say beyond its evidence: from which tables, or which number is a limit and always so.
DERIVED: dict[str, Callable[[Card, dict[str, Any]], Values]] = {
    "slow-layer": _layers,
    "rank-never-arrived": _hang,
    "collectives-differ": _hang,
    "ranks-wait-for-each-other": _hang,
    "collective-unfinished": _hang,
    "exposed-communication": lambda _, __: [0.7, 0.01],
    "slow-link": lambda _, evidence: [evidence["bytes_per_s"] / evidence["of_link"]],
    "fast-backward": lambda _, __: [2],
    "slow-backward": lambda _, __: [2],
    "misaligned-gemm": lambda _, __: [8],
    "odd-vocabulary": lambda _, evidence: [64, *map(int, re.findall(r"\d+", evidence["shape"]))],
    "short-kernels": lambda _, __: [10],
    "launch-gaps": lambda _, evidence: [float(f"{evidence.get('queue_depth', 0.0):.2g}")],
    "slow-launches": lambda _, __: [5, 0.020],
    "activations-kept": _of_peak("activation_bytes"),
    "optimizer-unsharded": _of_peak("optimizer_bytes"),
    "memory-grows": lambda card, evidence: [card["memory"]["headroom_bytes"] // evidence["bytes_per_step"]],
    "compiles-again": lambda card, _: [card["compile"]["compiles"]],
    "unsteady-steps": lambda card, _: [card["steps"]["count"], card["steps"]["steady"]],
    "skipped-steps": lambda card, _: [card["steps"]["count"]],
    "starved-loader": lambda card, _: [card["steps"]["count"]],
    "uneven-experts": lambda card, evidence: [evidence["wait_ms"] / card["step_time_ms"]],
    "out-of-memory": lambda card, _: list(((card["memory"] or {}).get("categories") or {}).values()),
    "longest-rl-part": lambda card, _: [card["step_time_ms"]],
    "warm-up-only": lambda card, _: [card["steps"]["median_ms"]],
    "uneven-ranks": lambda card, _: _slow(card),
    "unexplained-idle": lambda card, _: [card["ledger"]["unattributed"]],
    "recording-slows-host": lambda card, _: [card["ledger"]["idle_host"], card["ledger"]["idle_host"]
                                             + card["ledger"]["idle_sync"]],
}  # fmt: skip


@cache
def advice_of(rule: str) -> frozenset[tuple[float, str]]:
    """Return the numbers that the advice of a rule states on every run."""
    (row,) = (row for row in RULES if row.name == rule)
    fixed = [
        row.fix,
        row.fix_pytorch,
        row.fix_jax,
        row.fix_reference,
        row.check,
        row.worth and row.worth.because,
    ]
    texts = [*fixed, *(remedy.text for remedy in row.fix_where)]
    return frozenset((number.value, number.unit) for number in numbers_in(" ".join(filter(None, texts)), []))


def unsupported_text(code: str, text: str, names: list[str], values: Values, excused: bool) -> Iterator[Row]:
    """Yield (code, text) for each number of a text that is none of the values; what is excused may be left out."""
    held = list(values)
    shown = re.sub(UNSUPPORTED[code][0], " ", text) if excused and code in UNSUPPORTED else text
    for number in numbers_in(shown, names):
        if not number.is_one_of(held):
            yield code, f"{number.value} {number.unit}: {text}"


def unsupported_findings(card: Card, excused: bool = True) -> Iterator[Row]:
    """Yield (code, text) of findings whose text states a number that neither evidence nor tables hold."""
    for finding in card["findings"]:
        evidence = finding["evidence"]
        names = [value for value in evidence.values() if isinstance(value, str)]
        held = [float(value) for value in evidence.values() if isinstance(value, int | float)]
        more = DERIVED.get(finding["rule"], lambda *_: [])
        values = [*held, *more(card, evidence)]
        claim = _ELSEWHERE.sub(" ", finding["claim"])
        yield from unsupported_text(f"finding {finding['rule']}", claim, names, values, excused)
        for text in (finding["remedy"], finding["check"], finding["gain_basis"]):
            for number in numbers_in(text, names):
                is_fixed = (number.value, number.unit) in advice_of(finding["rule"])
                if not is_fixed and not number.is_one_of([*values, *_fullness(card)]):
                    yield f"advice {finding['rule']}", f"{number.value} {number.unit}: {text}"
        for text in finding["consequences"]:
            yield from unsupported_text("consequence", text, [], [], excused)


# Which accounts of the ledger the causes of a kind share among them.
SHARED_ACCOUNTS = (
    # Where a source has no timeline, what is in no phase may be launches; on a processor, calls count as work.
    (
        {"compute", "memory_bw", "unknown", "launch", "host"},
        ("compute", "unattributed", "idle_host", "idle_sync"),
    ),
    ({"input"}, ("idle_input",)),
    ({"communication"}, ("exposed_communication",)),
    ({"straggler"}, ("wait_ranks",)),
    ({"transfer"}, ("exposed_copy",)),
)
PRODUCTS = ("gemm", "convolution", "attention")
CLASSES = {
    "matrix products": "gemm", "convolutions": "convolution", "element-wise operations": "elementwise",
    "norms": "norm", "optimizer updates": "optimizer", "embedding lookups": "embedding",
    "index operations": "indexing", "copies or fills": "copy", "reductions": "reduction",
    "random numbers": "random",
}  # fmt: skip
_DRAWS = re.compile(
    r"aten::(rand|normal|uniform|bernoulli|exponential|geometric|cauchy|log_normal|multinomial|poisson)"
)
_IS_IN = re.compile(
    r"([\d.]+) % of the operations' time is in ([^;(]*?)(?:, ([\d.]+) % in work that mostly moves memory)?(?=;| \(|$)"
)


def _share_of_classes(card: Card, words: str) -> float:
    """Return the share of the operations' time that the card's own table has for what these words name."""
    table = [
        (row, "random" if _DRAWS.match(row["name"]) else row["class"], row["ms"])
        for row in card["operations"]
        if row["class"] != "communication" and row["ms"]
    ]
    moving = "move" in words and sum(
        ms for row, kind, ms in table
        if kind != "other"
        and (row["roof"] == "memory" if row["roof"] and row["flops"] and row["bytes"] else kind not in PRODUCTS)
        and (words in _ALL_MOVING or kind in _named(words))
    )  # fmt: skip
    whole = sum(ms for _, _, ms in table)
    return (moving or sum(ms for _, kind, ms in table if kind in _named(words))) / whole


_ALL_MOVING = ("those that mostly move memory", "work that mostly moves memory")


def _named(words: str) -> set[str]:
    names = re.split(r", | and ", words.removesuffix(", which mostly move memory"))
    return {CLASSES.get(name, name) for name in names}


def unsupported_causes(card: Card, excused: bool = True) -> Iterator[Row]:
    """Yield (code, text) of causes whose shares are not those of the ledger, or whose text states another share."""
    for cause in card["causes"]:
        # Of calls, the text names two parts: the first is in the ledger, both add up to the share.
        idle = (card["ledger"] or {}).get("idle_host") or 0.0
        parts = [idle, cause["share"] - idle] if "rather than on work" in cause["evidence"] else []
        code = f"cause {cause['bottleneck']}"
        yield from unsupported_text(code, cause["evidence"], [], [cause["share"], *parts], excused)
        left = (card["step_time_ms"] or 0.0) * (1.0 - cause["share"])
        is_held = cause["remaining_ms"] is not None and cause["gain_by"] != "replay"
        if is_held and abs(cause["remaining_ms"] - left) > 1e-3 * (left + 1e-3):
            yield f"remaining {cause['bottleneck']}", f"{cause['remaining_ms']} instead of {left}"
    if ledger := card["ledger"]:
        for kinds, accounts in SHARED_ACCOUNTS:
            caused = sum(cause["share"] for cause in card["causes"] if cause["bottleneck"] in kinds)
            held = sum(ledger.get(name) or 0.0 for name in accounts)
            if abs(caused - held) > 0.001:  # what is shorter is no cause
                yield f"ledger {accounts[0]}", f"{accounts} {held:.4f}, causes {sorted(kinds)} {caused:.4f}"


def unsupported_bottleneck(card: Card, excused: bool = True) -> Iterator[Row]:
    """Yield (code, text) of statements on the bottleneck that do not follow from causes, ledger and operations."""
    shares = {cause["bottleneck"]: cause["share"] for cause in card["causes"]}
    worked = sum(shares.get(kind, 0.0) for kind in ("compute", "memory_bw", "unknown"))
    ledger = card["ledger"] or {}
    values = [worked, shares.get(card["bottleneck"], 0.0), card["efficiency"], card["launches_per_step"], 0.3,
              ledger.get("compute"), ledger.get("unattributed"), card["wall_coverage"],
              sum(phase["share"] for name, phase in card["phases"].items() if name.endswith(("h2d", "d2h"))),
              sum(phase["share"] for phase in card["phases"].values())]  # fmt: skip
    for text in card["bottleneck_evidence"]:
        code = "bottleneck lines" if "of that in" in text else "bottleneck"
        late = [*_evidence(card, "straggler-rank", "rank"), *_evidence(card, "slow-stage", "rank")]
        held = [value for value in (*values, *late) if value is not None]
        slow = [row["name"] for row in (card["many_ranks"] or {}).get("slow", ())]
        yield from unsupported_text(code, _IS_IN.sub(" ", text), slow, held, excused)
        for stated in re.findall(r"computes ([\d.]+) % of the step", text):
            if not Shown(float(stated), 1, "%").is_one_of([ledger.get("compute") or 0.0]):
                yield "bottleneck computes", f"{text} ({ledger.get('compute')} in the ledger)"
        for share, what, moving in _IS_IN.findall(text):
            for stated, words in ((share, what), (moving, _ALL_MOVING[1])):
                if stated and not Shown(float(stated), 1, "%").is_one_of([_share_of_classes(card, words)]):
                    yield (
                        "bottleneck class",
                        f"{text} ({_share_of_classes(card, words):.1%} by the operations)",
                    )


def _rank_accounts(card: Card) -> Values:
    for row in card["ranks"]:
        yield row["rank"]
        yield from (value for value in row["ledger"].values() if value is not None)


def _slow(card: Card) -> Values:
    for row in (card["many_ranks"] or {}).get("slow", ()):
        shares = row["slower"], row["always"]
        yield from (*filter(None, shares), *map(float, row["ranks"].split(", ")))


def _evidence(card: Card, rule: str, *fields: str) -> Values:
    return [one["evidence"][name] for one in card["findings"] if one["rule"] == rule for name in fields]


def _again(card: Card) -> Values:
    """Yield the forward work that the mean step repeats; figures of a card are of the median one."""
    again = _evidence(card, "recomputed-forward", "again_ms") or [
        sum(row["recompute_ms"] or 0.0 for row in card["layers"])
    ]
    steps = card["steps"]
    yield from (
        again
        if not steps["samples_ms"]
        else (ms * mean(steps["samples_ms"]) / steps["median_ms"] for ms in again)
    )


def _arithmetic(card: Card) -> Values:
    done, ledger = card["arithmetic"] or {}, card["ledger"] or {}
    yield from (value for value in (done.get("share"), ledger.get("compute")) if value is not None)
    if done:
        caused = sum(cause["share"] for cause in card["causes"] if cause["bottleneck"] == "compute")
        yield caused * (1.0 - done["known_share"])
    yield sum(ledger.get(name) or 0.0 for name in ("compute", "unattributed"))


# What a note may state, by its code: without a row, none of its numbers is supported.
NOTES: dict[str, Callable[[Card], Values]] = {
    "at_most": _arithmetic,
    "few_shapes": lambda card: [card["cost_known_share"], 0.8],
    "first_steps_left_out": lambda card: [card["steps"]["count"], card["steps"]["median_ms"]],
    "host_slowed": lambda card: [card["ledger"]["idle_host"],
                                 card["ledger"]["idle_host"] + card["ledger"]["idle_sync"]],
    "kinds_of_steps": lambda _: [2],
    "last_step_open": lambda card: [card["steps"]["count"]],
    "last_steps_left_out": lambda card: [card["steps"]["count"]],
    "phases_overlap": lambda card: [sum(phase["share"] for phase in card["phases"].values())],
    "printed_rate": lambda card: [card["printed"]["tok_s"], card["throughput_tok_s"]],
    "printed_mfu": lambda card: [] if card["mfu"] is None else [card["mfu"]],
    "recompute": _again,
    "samples_thinned": lambda card: [len(card["steps"]["samples_ms"])],
    "slow_link": _slow,
    "slow_neighbours": _slow,
    "slow_rank": _slow,
    "slow_stage": _slow,
    "steps_left_out": lambda card: [card["steps"]["count"], card["steps"]["count"] - card["steps"]["steady"],
                                    card["steps"]["warm_up"], card["steps"]["outliers"],
                                    card["steps"]["warm_up"] + card["steps"]["outliers"]],
    "straggler": lambda card: _evidence(card, "straggler-rank", "rank", "wait_ms"),
    "straggler_account": _rank_accounts,
    "unattributed": lambda card: [card["ledger"]["unattributed"], *_rank_accounts(card)],
    "v1_launch_overhead": lambda card: [card["ledger"]["unattributed"], card["steps"]["count"], 0.0],
    "v1_ratio": lambda card: [card["forward_backward_ratio"]],
    "warm_up": lambda card: [card["steps"]["median_ms"]],
}  # fmt: skip
_ELSEWHERE = re.compile(r"\(The same on (\d+) more ranks?\.\)|\(on rank (\d+)\)")


def unsupported_notes(card: Card, excused: bool = True) -> Iterator[Row]:
    """Yield (code, text) of notes that state a number that the card does not hold, or that are not notes of the card."""
    ranks = (card["many_ranks"] or {}).get("ranks") or len(card["ranks"])
    coded = [note["text"] for note in card["notes_coded"]]
    for text in (*card["notes"], *card["fitness"], *card["ungraded_because"], *card["differences"]):
        if text not in coded:
            yield "note without a code", text
    for note in card["notes_coded"]:
        code, text = f"note {note['code']}", note["text"]
        for others, rank in _ELSEWHERE.findall(text):
            if int(others or rank) >= ranks:
                yield "note of more ranks than there are", text
        shown = re.sub(r"'[^']*'|`[^`]*`|, line \d+$", " ", _ELSEWHERE.sub(" ", text))
        has_numbers = bool(numbers_in(shown, []))
        values = NOTES.get(note["code"], lambda _: [])(card) if has_numbers else []
        yield from unsupported_text(code, shown, [], values, excused)
        if note["code"] == "at_most" and text[0] != card["grade_at_most"]:
            yield "note of another grade", text


_PER_TOKEN = re.compile(r"([\d.]+) ([TGM]?)(?:FLOP|B)/s.* over ([\d.]+) ([TGMk]?)(?:FLOP|B) per token")
_SI = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


def unsupported_figures(card: Card, _: bool = True) -> Iterator[Row]:
    """Yield (code, text) of ceilings, changes and headlines whose text and figures do not agree."""
    for row in card["ceilings"]:
        rate, prefix, cost, small = _PER_TOKEN.search(row["convention"]).groups()
        by_text = float(rate) * _SI[prefix] / (float(cost) * _SI[small])
        if abs(row["tok_s"] / by_text - 1.0) > 0.005:
            yield "ceiling", f"{row['tok_s']}: {row['convention']}"
    for row in card["changes"]:
        shares = [abs(row[name]) for name in ("change", "low", "high") if row[name] is not None]
        yield from unsupported_text(f"change {row['metric']}", row["why"], [], shares, False)
        if row["before"] and abs(row["now"] / row["before"] - 1.0 - row["change"]) > 1e-5:
            yield f"change {row['metric']}", f"{row['change']} from {row['before']} to {row['now']}"
    badge = grade_badge(Scorecard.from_json(json.dumps(card).encode()), {})
    allowed = [*_arithmetic(card), *([] if card["efficiency"] is None else [card["efficiency"]])]
    yield from unsupported_text("headline", badge.headline, [], allowed, False)


CHECKS = (
    unsupported_findings,
    unsupported_causes,
    unsupported_bottleneck,
    unsupported_notes,
    unsupported_figures,
)


def unsupported(card: Card, excused: bool = True) -> list[Row]:
    """Return what the card states and does not hold."""
    return [row for check in CHECKS for row in check(card, excused)]


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
    assert unsupported(kept_cards()[name]) == []


@pytest.mark.parametrize("name", FIRES)
def test_the_run_of_every_rule_supports_what_it_says(name: str) -> None:
    assert unsupported(json.loads(card_of(FIRES[name]).to_json())) == []


@pytest.mark.parametrize("name", FIRES)
def test_what_a_consequence_says_is_what_its_rule_would_say(name: str) -> None:
    """A consequence has no evidence in the card: without the finding that explains it, its own finding has."""
    for finding in card_of(FIRES[name]).findings:
        if finding.consequences:
            alone = json.loads(card_of(FIRES[name], config=ignoring(finding.rule)).to_json())
            assert unsupported(alone) == []
            said, causes = set[str](), [finding.rule]
            while alone["findings"]:  # the first of those left may explain another in turn
                said |= {text for one in alone["findings"] for text in (one["claim"], *one["consequences"])}
                causes.append(alone["findings"][0]["rule"])
                alone = json.loads(card_of(FIRES[name], config=ignoring(*causes)).to_json())
            assert set(finding.consequences) <= said


@cache
def drawn_cards() -> dict[str, Card]:
    """Return the cards of the runs, logs and clusters that are drawn by seed."""
    found = {}
    for name, case in WIDE.items():
        if case.argv[0] == "score" and "perfetto" not in case.argv:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                case.write()
                if main([*case.argv, "--format", "json", "-o", "card.json"]) in (0, 1):
                    found[name] = json.loads(Path("card.json").read_bytes())
    return found


def test_cards_of_drawn_runs_support_what_they_say() -> None:
    assert len(drawn_cards()) > 100
    assert [(name, row) for name, card in drawn_cards().items() for row in unsupported(card)] == []


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
    assert [(name, row) for name, card in cards.items() for row in unsupported(card)] == []
    every = (*cards.values(), *kept_cards().values(), *drawn_cards().values())
    codes = {code for card in every for code, _ in unsupported(card, excused=False)}
    assert codes == set(UNSUPPORTED)  # what has become true leaves the list
    states = {note["code"] for card in every for note in card["notes_coded"]}
    assert set(NOTES) <= states


def changed_texts(card: Card) -> Iterator[tuple[str, str, Card]]:
    """Yield (code, text, card) with each number of each text of the card changed in turn."""
    for field, key in (("findings", "claim"), ("causes", "evidence"), ("notes_coded", "text")):
        for number, row in enumerate(card[field]):
            code = " ".join((field, str(row.get("rule") or row.get("bottleneck") or row.get("code"))))
            for text in _with_another_number(row[key]):
                rows = [*card[field][:number], {**row, key: text}, *card[field][number + 1 :]]
                yield code, text, {**card, field: rows}
    for text in card["bottleneck_evidence"]:
        for changed in _with_another_number(text):
            yield "bottleneck", changed, {**card, "bottleneck_evidence": [changed]}


def _with_another_number(text: str) -> Iterator[str]:
    for found in _NUMBER.finditer(text):
        other = str(int(found.group(1).replace(",", "")) + 7)
        yield text[: found.start(1)] + other + text[found.end(1) :]


def test_a_changed_number_is_noticed() -> None:
    """Change each number of each text in turn: the check must see nearly all that are not excused."""
    missed, tried = [], 0
    for name, card in kept_cards().items():
        for code, text, changed in changed_texts(card):
            tried += 1
            if not any(list(check(changed)) for check in CHECKS[:4]):
                missed.append((name, code, text))
    excused = [
        row
        for row in missed
        if row[1].replace("findings", "finding").replace("notes_coded", "note") in UNSUPPORTED
    ]
    assert tried > 300
    assert len(missed) - len(excused) < 0.03 * tried, [row for row in missed if row not in excused]
