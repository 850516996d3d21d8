"""The ledger's accounts are one table: a new account is a row in it and the time charged to it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.report.html import page
from tests.conftest import ROOT
from tests.house.measures import sources

TRACES = ROOT / "examples" / "traces"
NEW = """    idle_queue: Annotated[
        float | None,
        Account(
            words="waits in a queue",
            charged="it waits in a queue",
            colour="c-sync",
            cause="host",
            gap="waiting in a queue",
        ),
    ] = None
"""
# Where time is charged to accounts, and the advice for a rank that has more of one than the others.
LISTS = {
    "model/ledger.py",
    "timeline/ledger.py",
    "scoring/phases.py",
    "readers/recording.py",
    "diagnosis/rules/ranks.py",
}


def spelled(text: str) -> set[str]:
    """Return the accounts that a module names."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Attribute(attr=name) | ast.keyword(arg=name) | ast.Name(id=name):
                found.add(name)
            case ast.Constant(value=str(name)):
                found.update(name.split("+"))
    return found & set(ACCOUNTS)


def test_accounts_are_listed_in_their_table_alone() -> None:
    package = ROOT / "src" / "stepgrade"
    lists = {str(path.relative_to(package)) for path, text in sources().items() if len(spelled(text)) > 5}
    assert lists <= LISTS


@pytest.fixture(scope="module")
def patched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the package in which the gaps between operations are charged to a new account."""
    folder = tmp_path_factory.mktemp("patched")
    shutil.copytree(Path(sg.__file__).parent, folder / "stepgrade", ignore=shutil.ignore_patterns("*.pyc"))
    table = folder / "stepgrade" / "model" / "ledger.py"
    text = table.read_text(encoding="utf-8")
    table.write_text(text.replace("    unattributed: ", f"{NEW}    unattributed: "), encoding="utf-8")
    charging = next(path for path in folder.rglob("ledger.py") if '"idle_host": iv.gaps' in path.read_text())
    text = charging.read_text(encoding="utf-8")
    charging.write_text(text.replace('"idle_host": iv.gaps', '"idle_queue": iv.gaps'), encoding="utf-8")
    return folder


def run(patched: Path, *arguments: object) -> str:
    ran = subprocess.run(
        [sys.executable, "-m", "stepgrade", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(patched)},
        cwd=patched,
    )
    return ran.stdout


def test_a_new_account_is_summed_named_drawn_and_compared(patched: Path) -> None:
    trace, other = TRACES / "gpt_naive.json.gz", TRACES / "gpt_fused.json.gz"
    card, now = sg.score(trace), json.loads(run(patched, "score", trace, "--format", "json"))
    assert card.ledger is not None
    assert card.ledger.idle_host
    assert now["ledger"]["idle_queue"] == card.ledger.idle_host
    assert now["ledger"]["idle_host"] == 0.0
    assert sum(now["ledger"].values()) == pytest.approx(1.0)
    assert [row["share"] for row in now["causes"]] == [cause.share for cause in card.causes]
    assert "waits in a queue" in run(patched, "score", trace)
    assert "waits in a queue" in run(patched, "score", trace, "--format", "markdown")
    run(patched, "score", trace, "--format", "html", "-o", "card.html")
    html = (patched / "card.html").read_text(encoding="utf-8")
    assert ".account-idle_queue { fill: var(--c-sync); }" in html
    assert html.count('class="mark account-idle_queue"') > 1  # in the bar, and in the lanes of the step
    parity = json.loads(run(patched, "parity", trace, other, "--format", "json"))
    assert "waiting in a queue" in {part["name"] for part in parity["gap"]["parts"]}
    run(patched, "score", other, "--baseline", trace, "--format", "html", "-o", "change.html")
    assert "waits in a queue: " in (patched / "change.html").read_text(encoding="utf-8")


def test_every_account_has_a_rule_in_the_style_sheet() -> None:
    assert all(f".account-{name} {{" in page.style() for name in ACCOUNTS)
