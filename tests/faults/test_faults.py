"""Some of the faults of every scenario, evenly spread; `make faults` runs them all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from tests.faults.harness import Fault, build, spread
from tests.faults.run import run_apart, scenarios
from tests.store.server import binaries

COUNT = int(os.environ.get("STEPGRADE_FAULTS", "4"))


@pytest.fixture(scope="module", autouse=True)
def _compiler() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            build(Path(folder))
        except RuntimeError as error:
            pytest.skip(str(error))


@pytest.mark.parametrize("name", [one.name for one in scenarios()])
def test_nothing_is_lost_when_a_call_fails(name: str) -> None:
    if "PostgreSQL" in name and binaries() is None:
        pytest.skip("PostgreSQL's server is not installed")
    (result,) = run_apart([name], COUNT)
    assert result.runs
    assert result.wrong == []


def test_faults_are_evenly_spread() -> None:
    faults = [Fault(at, "write", 28) for at in range(1, 101)]
    assert [fault.at for fault in spread(faults, 4)] == [1, 26, 51, 76]
    assert spread(faults, None) == faults
