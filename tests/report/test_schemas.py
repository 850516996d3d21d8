"""JUnit and SARIF of every verdict, held to the schemas that Jenkins and code scanning go by."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.config import Budget, Config, GateTable, Waiver
from stepgrade.model import Source
from stepgrade.report import render
from tests.builders import make_profile
from tests.schemas import junit_schema, sarif_schema

HOSTILE = "<gemm>&\"'%0A\x00\x1b[31m\ud800\ufffe ]]> "
QUIET = GateTable(run_noise=0.01)
OLD = make_profile(mean_step_ms=100.0)
SLOW = make_profile(
    mean_step_ms=150.0,
    source=Source(
        format="step_profiler_v2", files=(f"{HOSTILE}.json", "b.json"), producer="step_profiler_v2"
    ),
)


def waived(reason: str) -> Config:
    return Config(gate=QUIET, waivers=(Waiver(metric="*", until=dt.date(2999, 1, 1), reason=reason),))


REPORTS: dict[str, Any] = {
    "pass": lambda: sg.gate([OLD], baseline=[make_profile(mean_step_ms=100.5)], config=Config(gate=QUIET)),
    "itself": lambda: sg.gate([OLD], baseline=[OLD]),
    "regressed": lambda: sg.gate([SLOW], baseline=[OLD], config=Config(gate=QUIET)),
    "improved": lambda: sg.gate([OLD], baseline=[SLOW], config=Config(gate=QUIET)),
    "cannot tell": lambda: sg.gate([SLOW], baseline=[OLD]),
    "waived": lambda: sg.gate([SLOW], baseline=[OLD], config=waived(HOSTILE)),
    "bounds": lambda: sg.gate(
        [SLOW],
        config=Config(
            budgets=(
                Budget(metric="step_time_ms", at_most=120.0, at_least=1.0),
                Budget(metric="mfu", at_least=0.5),
                Budget(metric=f"op:{HOSTILE}", allow=0.1),
            )
        ),
    ),
    "ungraded": lambda: sg.gate([SLOW], fail_on=["grade:C"]),
    "not comparable": lambda: sg.gate(
        [sg.score(SLOW, tokens_per_step=10.0)], baseline=[sg.score(OLD, tokens_per_step=20.0)]
    ),
    "no history": lambda: sg.gate([SLOW], against="history:main", history="absent/history.db"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_junit_is_what_jenkins_reads(name: str) -> None:
    junit_schema().validate(render(REPORTS[name](), to="junit"))


@pytest.mark.parametrize("name", REPORTS)
def test_sarif_is_what_code_scanning_reads(name: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    schema = sarif_schema()
    document = json.loads(render(REPORTS[name](), to="sarif"))
    kind = jsonschema.validators.validator_for(schema)
    kind(schema, format_checker=kind.FORMAT_CHECKER).validate(document)


def test_the_schemas_refuse_what_is_wrong() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    report = REPORTS["regressed"]()
    assert not junit_schema().is_valid(render(report, to="junit").replace("failure", "fault"))
    document = json.loads(render(report, to="sarif"))
    document["runs"][0]["results"][0]["level"] = "grave"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, sarif_schema())


@pytest.mark.parametrize("name", REPORTS)
def test_github_says_everything_once(name: str) -> None:
    lines = render(REPORTS[name](), to="github").splitlines()
    texts = [line.split("::", 2)[2] for line in lines if line.startswith("::")]
    assert len(texts) == len(set(texts))
    assert not any(text in other for text in texts for other in texts if other is not text)
    if REPORTS[name]().exit_code:
        assert texts
