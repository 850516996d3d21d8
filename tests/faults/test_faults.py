"""Some of the faults of the scenarios, evenly spread; `make faults` runs them all."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from tests.faults.harness import CRASH, Fault, Scenario, Share, build, spread
from tests.faults.recording import recorders
from tests.faults.remote import clients, databases
from tests.faults.run import run_apart
from tests.faults.scenarios import local
from tests.store.server import binaries

COUNT = int(os.environ.get("STEPGRADE_FAULTS", "3"))
# These write as others do, or take seconds each.
_LEFT_OUT = r"terminal,|markdown,|html,|pftrace$|version [2-9]|record$"


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            build(Path(folder))
        except RuntimeError as error:
            pytest.skip(str(error))


def check(found: list[Scenario]) -> None:
    """Run a few faults of each scenario, all in one process that has imported everything once."""
    names = [one.name for one in found if not re.search(_LEFT_OUT, one.name)]
    results = run_apart(names, Share(COUNT))
    assert [result.scenario for result in results] == names
    assert [problem for result in results for problem in result.wrong] == []
    assert all(result.runs for result in results)


def test_files() -> None:
    check(local())


def test_servers() -> None:
    check(clients())


def test_postgres() -> None:
    if binaries() is None:
        pytest.skip("PostgreSQL's server is not installed")
    check(databases())


def test_a_training_is_not_harmed() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    check(recorders())


def test_faults_are_evenly_spread() -> None:
    faults = [Fault(at, "write", 28) for at in range(1, 101)]
    assert [fault.at for fault in spread(faults, 4)] == [1, 26, 51, 76]
    assert spread(faults, None) == faults
    ways = [Fault(at, "sync", how) for at in (1, 2, 3) for how in (5, CRASH)]
    assert spread(ways, 0) == [ways[1], ways[2], ways[5]]
