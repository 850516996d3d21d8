"""What is shown is chosen once: every format has it, anything else is refused, and parameters get their flags."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from importlib import import_module
from itertools import compress
from pathlib import Path

import msgspec
import pytest

import stepgrade as sg
from stepgrade import report
from stepgrade.errors import BadOption
from stepgrade.model import Note
from stepgrade.model.comparison import Check, GateReport
from stepgrade.model.notes import NotebookResult, Result
from stepgrade.report.blocks import (
    ROWS_KEPT,
    Bars,
    Block,
    Bullets,
    Differences,
    Facts,
    Heading,
    Paragraph,
    Table,
)
from stepgrade.report.content import gate as gate_content
from stepgrade.report.content import parity as parity_content
from stepgrade.report.content import scorecard as scorecard_content
from stepgrade.report.names import markdown, printable
from tests.builders import make_profile
from tests.conftest import ROOT
from tests.report.html import cards

SOURCES = sorted((ROOT / "src" / "stepgrade" / "report").rglob("*.py"))


class Scorecard(msgspec.Struct):
    """A stranger that is only called like a result."""


class Stranger(Result, frozen=True):
    """A result that no content module knows."""


@pytest.mark.parametrize("to", report.FORMATS)
@pytest.mark.parametrize("thing", ["x", None, {}, Scorecard(), Stranger(), sg.Scorecard], ids=repr)
def test_what_is_no_result_is_refused(thing: object, to: str) -> None:
    with pytest.raises(BadOption, match="cannot render"):
        sg.render(thing, to=to)  # type: ignore[arg-type]  # that it is refused is what is tested


def test_every_result_has_content_and_is_found_where_it_is() -> None:
    for name in report._CONTENT:
        module, _, kind = name.rpartition(".")
        found = getattr(import_module(module), kind)
        assert f"{found.__module__}.{found.__qualname__}" == name
    ours, waiting = [], [Result]
    while waiting:
        kinds = [kind for kind in waiting.pop().__subclasses__() if kind.__module__.startswith("stepgrade.")]
        waiting += kinds
        ours += [kind for kind in kinds if kind is not NotebookResult]  # what two results have in common
    assert {f"{kind.__module__}.{kind.__qualname__}" for kind in ours} == set(report._CONTENT)


def test_a_format_that_is_none_is_refused() -> None:
    with pytest.raises(BadOption, match=r"no output format called 'pdf' .*terminal, markdown, json, html"):
        sg.render(cards.bare_card(), to="pdf")
    with pytest.raises(BadOption, match=r"the gate has no output format called 'pdf' .*junit"):
        sg.render(cards.gate_report(), to="pdf")
    with pytest.raises(BadOption, match="no output format called 'junit'"):
        sg.render(cards.bare_card(), to="junit")


def test_a_class_made_from_a_result_is_rendered_as_it() -> None:
    class Own(sg.Scorecard, frozen=True):
        """Somebody's own card."""

    card = cards.bare_card()
    own = Own(**{name: getattr(card, name) for name in sg.Scorecard.__struct_fields__})
    assert sg.render(own) == sg.render(card)


@pytest.mark.parametrize("to", report.FORMATS)
def test_a_card_of_no_file_is_rendered(to: str) -> None:
    card = cards.bare_card()
    card = cards.changed(card, source=msgspec.structs.replace(card.source, files=()))
    assert sg.render(card, to=to)


def texts_in(block: Block) -> list[str]:  # noqa: PLR0911  a case for each type of block
    """Return what a block says in a document, cell by cell."""
    match block:
        case Heading(only=None):
            return [block.text]
        case Paragraph(only=None):
            return [block.text[1:]]  # the first letter of a bold one is made a capital
        case Facts(only=None):
            return [text for row in block.rows if row.only is None for text in (row.name, row.text)]
        case Bars(only=None):
            return [text for row in block.rows if row.only is None for text in (row.name, *row.cells)]
        case Table(only=None):
            shown = [column.only in (None, "text") for column in block.columns]
            return [text for row in block.rows for text in compress(row, shown)]
        case Bullets(only=None):
            return [row.text for row in block.rows if row.only is None]
        case Differences(only=None):
            return [block.headline[1:], *block.texts]
    return []


@pytest.mark.parametrize(
    ("result", "content"),
    [
        (cards.full_card, scorecard_content.blocks),
        (cards.bundled_card, scorecard_content.blocks),
        (cards.bare_card, scorecard_content.blocks),
        (cards.parity_report, parity_content.blocks),
        (cards.gate_report, gate_content.blocks),
        (cards.unmeasured_gate, gate_content.blocks),
    ],
    ids=["full", "bundled", "bare", "parity", "gate", "unmeasured"],
)
def test_markdown_has_what_the_terminal_shows(
    result: Callable[[], Result], content: Callable[..., object]
) -> None:
    made = result()
    text = sg.render(made, to="markdown")
    said = [part for block in content(made, {}) for part in texts_in(block)]  # type: ignore[attr-defined]  # blocks
    assert said
    for part in said:
        assert markdown(part, 200)[:150].rstrip("\\") in text


def test_markdown_of_a_full_card_has_ledger_layers_and_ranks() -> None:
    text = sg.render(cards.full_card(), to="markdown")
    for part in (
        "### What the device does in a step\n\n| The device | Per step | Share |",
        "| computes |",
        "| Layer | Forward | Backward |",
        "| Rank | Waits per step | Of |",
        "| rank 0 |",
    ):
        assert part in text


def test_long_lists_of_a_document_end_somewhere() -> None:
    text = sg.render(cards.huge_card(), to="markdown")
    assert text.count("| rank ") == ROWS_KEPT
    assert f"{512 - ROWS_KEPT} more in the JSON" in text


@pytest.mark.parametrize("make", [cards.hostile_card, cards.hostile_parity, cards.hostile_gate])
def test_hostile_names_break_no_table_and_reach_no_terminal(make: Callable[[], Result]) -> None:
    text = sg.render(make(), to="markdown")
    assert all(line == printable(line) for line in text.split("\n"))
    columns = 0
    for line in text.split("\n"):
        count = len(re.findall(r"(?<!\\)\|", line))
        if line.startswith("| ") and columns:
            assert count == columns
        columns = count if line.startswith("| ") else 0
    for width in (40, 80, 200):
        assert all(line == printable(line) for line in sg.render(make(), width=width).split("\n"))


SUPPLY = Note("no_rate", "no rate is known", supply="{throughput_tok_s} or {tokens_per_step}")
FLAGS = {"throughput_tok_s": "--throughput TOK_S", "tokens_per_step": "--tokens-per-step N"}


@pytest.mark.parametrize("to", ["terminal", "markdown", "html"])
@pytest.mark.parametrize("field", ["notes", "ungraded_because", "fitness", "differences"])
def test_parameters_are_named_by_their_flags_where_flags_are_known(field: str, to: str) -> None:
    card = cards.changed(cards.bare_card(), baseline="old.json", **{field: (SUPPLY,)})
    plain, flagged = (sg.render(card, to=to, width=200), report.render(card, to=to, width=200, flags=FLAGS))
    shown = re.sub(r"</?code.*?>|\\", "", flagged)
    assert "give --throughput TOK_S or --tokens-per-step N" in shown
    assert "give throughput_tok_s or tokens_per_step" in plain.replace("\\", "")


@pytest.mark.parametrize("to", ["terminal", "markdown", "html", "junit", "github", "sarif"])
def test_reasons_of_the_gate_name_flags_too(to: str) -> None:
    made = cards.changed(cards.unmeasured_gate(), reasons=(SUPPLY,))  # type: ignore[arg-type]  # any struct
    shown = re.sub(r"</?code.*?>|\\", "", report.render(made, to=to, width=200, flags=FLAGS))
    assert "no rate is known: give --throughput TOK_S or --tokens-per-step N" in shown


def test_json_names_parameters_as_python_does() -> None:
    card = cards.changed(cards.bare_card(), notes=(SUPPLY,))
    text = report.render(card, to="json", flags=FLAGS)
    assert "give throughput_tok_s or tokens_per_step" in text
    assert "no rate is known: give --throughput" not in text


def test_junit_of_hostile_names_is_xml_with_true_counts() -> None:
    import xml.etree.ElementTree as ET

    names = ("a<failure>&\"'", "b\x1b[31m\x00\n", "c]]>", "d\ud800")
    statuses = ("regressed", "cannot tell", "waived", "pass")
    checks = tuple(
        Check(
            metric=name, status=status, text=f"<failure {name}", waiver=name if status == "waived" else None
        )
        for name, status in zip(names, statuses, strict=True)
    )
    made = GateReport(
        verdict="regressed", exit_code=1, source="x", baseline=None, grade="B", efficiency=None, checks=checks
    )
    root = ET.fromstring(sg.render(made, to="junit"))
    (suite,) = root
    assert {name: suite.attrib[name] for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4", "failures": "1", "errors": "1", "skipped": "1"
    }  # fmt: skip
    assert [case.attrib["name"] for case in suite] == [
        "a<failure>&\"'",
        "b\\x1b[31m\\x00\\x0a",
        "c]]>",
        "d\\ud800",
    ]
    assert suite[0][0].text == suite[0][0].attrib["message"] == "<failure a<failure>&\"'"


def is_text_of_a_message(node: ast.expr) -> bool:
    """Tell whether an expression is the text of a note, a reason, a warning or a claim."""
    if isinstance(node, ast.Attribute):
        return node.attr in ("text", "claim", "why", "said")
    return isinstance(node, ast.Name) and node.id in ("text", "note", "reason", "warning", "claim", "message")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_message_is_recognised_by_its_words(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looks = node.func.attr in ("startswith", "endswith", "find", "index", "count", "removeprefix")
            assert not (looks and is_text_of_a_message(node.func.value)), f"{path}:{node.lineno}"
        if isinstance(node, ast.Compare):
            within = any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops)
            constant = isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
            found = within and constant and any(map(is_text_of_a_message, node.comparators))
            assert not found, f"{path}:{node.lineno}"


def test_rates_in_samples_stay_in_their_columns() -> None:
    before = make_profile(samples_per_step=64.0, samples_ms=(100.0,) * 10)
    now = make_profile(samples_per_step=64.0, samples_ms=(1030.0,) * 10, mean_step_ms=1030.0)
    lines = str(sg.gate(now, baseline=[before])).splitlines()
    head = next(line for line in lines if line.startswith("Metric"))
    rows = [line for line in lines if line.startswith(("  step time", "  samples"))]
    assert len(rows) == 2
    assert {row.find("  +") + 2 if "  +" in row else row.find("  -") + 2 for row in rows} == {
        head.find("change")
    }
