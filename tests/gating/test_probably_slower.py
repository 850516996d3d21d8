"""Probably slower: between pass and fail in every output, and a failure only where the project says so."""

from __future__ import annotations

import json
from typing import Any
from xml.etree.ElementTree import fromstring

import pytest

import stepgrade as sg
from stepgrade.config import Config, GateTable
from stepgrade.report import GATE_FORMATS
from tests.builders import make_profile

EARLIER = [make_profile(mean_step_ms=100.0 + 2.0 * (n % 4)) for n in range(10)]
SLOWER = make_profile(mean_step_ms=109.0)
WORDS = "probably slower"


def gated(run: Any = SLOWER, **table: Any) -> sg.GateReport:
    return sg.gate([run], baseline=EARLIER, config=Config(gate=GateTable(**table)))


def test_it_passes_unless_it_is_to_fail() -> None:
    report = gated()
    assert (report.verdict, report.exit_code, report.reasons) == (WORDS, 0, ())
    assert [check.status for check in report.checks] == [WORDS]
    failed = gated(probably_slower="fail")
    assert (failed.verdict, failed.exit_code) == ("regressed", 1)
    assert [check.status for check in failed.checks] == [WORDS]
    assert failed.reasons == (failed.checks[0].note,)
    assert gated(EARLIER[0], probably_slower="fail").verdict == "pass"


@pytest.mark.parametrize("to", GATE_FORMATS)
def test_every_output_says_so(to: str) -> None:
    report = gated()
    assert WORDS in sg.render(report, to=to)  # type: ignore[arg-type]  # one of the formats
    assert WORDS not in sg.render(gated(EARLIER[0]), to=to)  # type: ignore[arg-type]  # as above


@pytest.mark.parametrize("fails", [False, True])
def test_what_machines_make_of_it(fails: bool) -> None:
    report = gated(probably_slower="fail" if fails else "pass")
    suite = fromstring(sg.render(report, to="junit"))
    assert suite.attrib["failures"] == ("1" if fails else "0")
    (result,) = json.loads(sg.render(report, to="sarif"))["runs"][0]["results"]
    assert (result["kind"], result["level"]) == ("fail", "error" if fails else "warning")
    annotation = sg.render(report, to="github").splitlines()[0]
    assert annotation.startswith("::error" if fails else "::warning")
    (change, *_) = json.loads(sg.render(report, to="json"))["changes"]
    assert change["outcome"] == WORDS
    assert change["more"]
