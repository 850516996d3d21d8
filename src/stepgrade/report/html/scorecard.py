"""A scorecard as the sections of a page; each formats what the analysis found, or says why it is empty."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import msgspec

from stepgrade.errors import name_fields
from stepgrade.model import Span
from stepgrade.model.finding import Finding
from stepgrade.model.notes import NO_FLAGS, texts_of
from stepgrade.model.scorecard import AT_MOST, UNGRADED, Scorecard
from stepgrade.report.content.details import details
from stepgrade.report.content.hang import VERDICTS, hang_rows
from stepgrade.report.content.scorecard import GRADES, gain, headline, is_worth_showing
from stepgrade.report.html import (
    changes,
    layers,
    ledger,
    memory,
    modules,
    perfetto,
    ranks,
    roofline,
    steps,
    timeline,
)
from stepgrade.report.html.page import ROWS_KEPT
from stepgrade.report.html.plot import Mark, Scale, joined
from stepgrade.report.names import printable, shortened
from stepgrade.report.words import BASES, BOTTLENECKS, GRADE_MEANINGS, ROOFS
from stepgrade.scoring.standing import standings, tail_of
from stepgrade.units import MISSING, show_count, show_ms, show_rate, show_samples_rate, show_share, show_si

FINDINGS_FIRST = 3
OPERATIONS_SHOWN = 25
FILES_SHOWN = 16


def view(card: Scorecard, flags: Mapping[str, str]) -> dict[str, Any]:
    """Return what the template shows."""
    name = printable(card.source.format)
    if card.source.files:
        more = f" and {len(card.source.files) - 1} more" if len(card.source.files) > 1 else ""
        name = shortened(card.source.files[0], 120) + more
    spans = {op.name: op.longest for op in card.operations}
    findings = [_finding(finding, card, spans) for finding in card.findings]
    longest = card.operations[0].ms if card.operations else None
    return {
        "card": card,
        "title": f"{card.grade}: {shortened(card.source.files[0], 80)}" if card.source.files else card.grade,
        "file": name,
        "verdict": verdict(card, flags),
        "ledger": ledger.view(card),
        "roofline": roofline.view(card, flags),
        "layers": layers.view(card, flags),
        # The first page of a table that the script sorts, searches and pages, and what it leaves out.
        "operations": {
            "rows": [
                {
                    "op": op,
                    "name": shortened(op.name, 200),
                    "place": shortened(joined(op.where, op.module), 120),
                    "width": (op.ms or 0.0) / longest * 100.0 if longest else 0.0,
                    "link": perfetto.link(op.longest, card.source),
                }
                for op in card.operations[:OPERATIONS_SHOWN]
            ],
            "count": len(card.operations),
            "shown": OPERATIONS_SHOWN,
            "tail": tail_of(card.operations, ROWS_KEPT),
            "kept": ROWS_KEPT,
            "has_links": any(op.longest for op in card.operations),
            "address": perfetto.ADDRESS,
            "margin": perfetto.MARGIN,
        },
        "details": [
            (each, [(printable(row.name), *row.cells) for row in each.rows[:ROWS_KEPT]])
            for each in details(card)
        ],
        # A log of torch.compile alone tells of no step: sections on steps would say so one by one.
        "only_compiled": card.compile is not None and not card.operations and card.steps is None,
        "steps": steps.view(card),
        "timeline": timeline.view(card, flags),
        "modules": modules.view(card),
        "memory": memory.view(card),
        "hang": {"verdict": VERDICTS[card.hang.kind], "rows": [*hang_rows(card.hang)]} if card.hang else None,
        # The first are on the first screen as well.
        "findings": {
            "rows": findings,
            "first": findings[:FINDINGS_FIRST],
            "more": max(0, len(findings) - FINDINGS_FIRST),
        },
        "baseline": changes.view(card, flags),
        "ranks": ranks.view(card, flags),
        "provenance": _provenance(card, flags),
        "step_link": perfetto.link(card.typical_step, card.source),
        "server": perfetto.SERVER,
    }


def verdict(card: Scorecard, flags: Mapping[str, str] = NO_FLAGS) -> dict[str, Any]:
    """Return the first screen: the grade and what it is of, rate, ceilings, what holds the run back."""
    is_graded = card.grade != UNGRADED
    found = standings(card)
    scale = Scale(low=0.0, high=max((standing.ceiling.tok_s for standing in found), default=0.0))
    ceilings = []
    for standing in found:
        ceiling, width = standing.ceiling, scale.place(standing.ceiling.tok_s)
        ceilings.append(
            {
                "name": f"{ROOFS[ceiling.kind]}, {BASES[ceiling.basis]}",
                "rate": show_rate(ceiling.tok_s),
                "share": show_share(standing.share),
                "width": width,
                "reached": 0.0 if standing.share is None else min(width, width * standing.share),
                "is_known": standing.share is not None,
                "counts": standing.counts,
                "tip": joined(ceiling.convention, ceiling.source),
            }
        )
    bound = next((f": {note.text}" for note in card.ungraded_because if note.code == AT_MOST), "")
    begins = [*((share * 100.0, grade) for share, grade in GRADES), (100.0, "")]
    return {
        "grade": card.grade if is_graded else MISSING,
        "is_graded": is_graded,
        "headline": headline(card) if is_graded else f"Not graded{bound}",
        "meaning": GRADE_MEANINGS.get(card.grade, "not graded"),
        "of": _what_it_grades(card) if is_graded else "",
        "reasons": texts_of((note for note in card.ungraded_because if note.code != AT_MOST), flags),
        "marker": None if card.efficiency is None else min(100.0, card.efficiency * 100.0),
        "zones": [
            Mark(x=begin, width=following - begin, label=grade, look=f"grade-{grade}")
            for (begin, grade), (following, _) in pairwise(begins)
        ],
        "tiles": _tiles(card, flags),
        "bottleneck": BOTTLENECKS.get(card.bottleneck, card.bottleneck),
        "ceilings": ceilings,
        "no_ceiling": "No ceiling in tokens per second is known. "
        + name_fields("Give {device} and {model} with {batch} and {seq}.", flags),
    }


def _what_it_grades(card: Scorecard) -> str:
    """Return what was compared with what, and by which count."""
    on = f" on {card.device.name}" if card.device and card.device.name else ""
    if card.ceilings and card.throughput is not None:
        roof = card.ceilings[0]
        return f"{show_rate(card.throughput.tok_s)}{on} against {show_rate(roof.tok_s)}: {roof.convention}."
    done = card.arithmetic
    if done is None:
        return ""
    peak = show_si(done.peak_flops_s, "FLOP/s")
    return (
        f"{show_si(done.achieved_flops_s, 'FLOP/s')}{on} against {peak} {done.dtype or ''}, "
        "from the matrix products whose shapes were recorded."
    )


def _interval(show: Callable[[float], str], low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"95 % interval {show(low)} to {show(high)}"


def _tiles(card: Scorecard, flags: Mapping[str, str]) -> list[tuple[str, str, str]]:
    rate, per_step = card.throughput, card.steps
    if rate is None and card.samples_s is not None:
        tiles = [("Throughput", show_samples_rate(card.samples_s), "samples per step over the step time")]
    elif rate is None:
        supply = name_fields("give {tokens_per_step} or {throughput_tok_s}", flags)
        tiles = [("Throughput", "not known", supply)]
    else:
        interval = _interval(show_rate, rate.low, rate.high)
        tiles = [("Throughput", show_rate(rate.tok_s), joined(interval, rate.basis))]
    basis = "average; single steps were not recorded"
    if per_step is not None and per_step.median_ms is not None:
        interval = _interval(show_ms, per_step.low_ms, per_step.high_ms)
        count = f"{show_count(len(per_step.samples_ms))} steps"
        basis = joined(f"median {show_ms(per_step.median_ms)}", interval, count)
    tiles.append(("Step", show_ms(card.step_time_ms), basis))
    if card.mfu is not None:
        hfu = None if card.hfu is None else f"HFU {show_share(card.hfu)}"
        tiles.append(("MFU", show_share(card.mfu), joined(card.flops_convention, hfu)))
    elif card.arithmetic is not None and is_worth_showing(card.arithmetic):
        share = "" if card.arithmetic.share is None else f"{show_share(card.arithmetic.share)} of the peak"
        tiles.append(("Arithmetic", show_si(card.arithmetic.achieved_flops_s, "FLOP/s"), share))
    if card.launches_per_step is not None:
        tiles.append(("Launches", show_count(round(card.launches_per_step)), "per step"))
    return tiles


def _finding(finding: Finding, card: Scorecard, spans: Mapping[str, Span | None]) -> dict[str, Any]:
    """Return the claim, the numbers behind it, what to do, what it may bring, how to check."""
    names = (value for value in finding.evidence.values() if isinstance(value, str))
    named = next((spans[name] for name in names if name in spans), None)
    evidence = []
    for name, value in finding.evidence.items():
        if isinstance(value, str):
            shown = printable(value)
        elif name.endswith("_ms"):
            shown = show_ms(value)
        else:
            shown = show_share(value) if name.endswith("share") else f"{value:,.4g}"
        evidence.append((name.replace("_", " "), shown))
    return {
        "rule": finding.rule,
        "severity": finding.severity,
        "claim": printable(finding.claim),
        "gain": gain(finding),
        "evidence": evidence,
        "remedy": printable(finding.remedy),
        "check": printable(finding.check),
        "gain_basis": printable(finding.gain_basis),
        "consequences": [printable(text) for text in finding.consequences],
        "link": perfetto.link(named or card.typical_step, card.source),
    }


def _provenance(card: Scorecard, flags: Mapping[str, str]) -> dict[str, Any]:
    """Return where the numbers come from: the source, the device, the counts, and what to be wary of."""
    device, done = card.device, card.arithmetic
    seen = name_fields("not known: give {device}", flags)
    if device is not None:
        count = f"{show_count(device.count)} devices" if device.count else None
        seen = joined(device.name or device.key or "described by figures", count, device.basis)
    tokens = "" if card.flops_per_token is None else show_si(card.flops_per_token, "FLOP")
    known = ""
    if done is not None and done.known_share is not None:
        known = f"{done.known_share * 100:.0f} % of the time in matrix products, convolutions and attention"
    # What other runs must share to be compared with this one.
    circumstances = {} if card.fingerprint is None else msgspec.to_builtins(card.fingerprint)
    pairs = ((name, value) for name, value in circumstances.items() if value not in (None, {}, []))
    facts = [
        ("format", joined(card.source.format, card.source.producer)),
        ("device", seen),
        ("throughput", card.throughput.basis if card.throughput else ""),
        *((f"{limit.kind} ceiling", f"{limit.convention}; {limit.source}") for limit in card.ceilings),
        ("FLOPs per token", joined(tokens, card.flops_convention) if tokens else ""),
        ("bytes per token", "" if card.bytes_per_token is None else show_si(card.bytes_per_token, "B")),
        ("shapes known for", known),
        ("fingerprint", ", ".join(f"{name} {value}" for name, value in pairs)),
        ("scorecard", f"contract v{card.schema_version}"),
    ]
    return {
        "facts": [(name, printable(value)) for name, value in facts if value],
        "files": [shortened(name, 300) for name in card.source.files[:FILES_SHOWN]],
        "files_left": max(0, len(card.source.files) - FILES_SHOWN),
        "warnings": texts_of(card.unreported_warnings, flags),
        "notes": texts_of(card.notes, flags),
    }
