"""The tests themselves: they need nothing beside the clone, no order, and leave nothing behind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from tests import samples
from tests.conftest import ROOT, pytest_collection_modifyitems, pytest_runtest_setup
from tests.leftovers import difference, put_back, state_of_the_process


def test_one_file_alone_knows_where_the_samples_are() -> None:
    named = re.compile(r"""["'/]shared["'/]""")
    others = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if path.name not in ("samples.py", Path(__file__).name) and named.search(path.read_text("utf-8"))
    ]
    assert others == [], "ask tests/samples.py, which sees to it that the test is marked"


def test_a_test_without_the_marker_is_refused_the_samples() -> None:
    with pytest.raises(AssertionError, match=r"pytest\.mark\.samples"):
        samples.shared("samples")


@pytest.mark.samples
def test_a_test_with_the_marker_is_given_them() -> None:
    assert samples.shared("samples").is_dir()


@pytest.mark.parametrize("is_marked", [True, False])
def test_without_samples_what_is_marked_is_skipped(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, is_marked: bool
) -> None:
    monkeypatch.setattr(samples, "ARE_HERE", False)
    monkeypatch.setattr(samples, "reader_is_marked", False)
    if is_marked:
        request.node.add_marker(pytest.mark.samples)
        with pytest.raises(pytest.skip.Exception, match="samples not beside this clone"):
            pytest_runtest_setup(request.node)
    else:
        pytest_runtest_setup(request.node)
    (parameter,) = samples.each_of("samples/kineto/*.json*")  # one that is seen to be skipped
    assert [mark.name for mark in parameter.marks] == ["samples"]


def test_the_order_is_that_of_the_seed_and_files_stay_together(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Item:
        def __init__(self, nodeid: str) -> None:
            self.nodeid = nodeid

    def order(seed: int) -> list[str]:
        monkeypatch.setattr(request.config.option, "seed", seed)
        items = [Item(f"tests/x/test_{file}.py::test_{number}") for file in "abcdef" for number in range(9)]
        pytest_collection_modifyitems(request.config, items)  # type: ignore[arg-type]  # its name is all that counts
        return [item.nodeid for item in items]

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == sorted(order(2))
    files = [name.partition("::")[0] for name in order(3)]
    assert sum(one != other for one, other in pairwise(files)) == 5


def _folder() -> Iterator[None]:
    before = Path.cwd()
    os.chdir(tempfile.gettempdir())
    yield
    os.chdir(before)


def _loop() -> Iterator[None]:
    loop = asyncio.new_event_loop()
    asyncio._set_running_loop(loop)
    yield
    asyncio._set_running_loop(None)
    loop.close()


def _thread() -> Iterator[None]:
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    yield
    end.set()
    thread.join()


def _signal() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize("change", [_folder, _loop, _thread, _signal])
def test_what_a_test_leaves_behind_is_seen(
    change: Callable[[], Iterator[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.leftovers._PATIENCE_S", 0.0)
    before = state_of_the_process()
    left = change()
    next(left)
    changed = state_of_the_process(known=before)
    assert next(left, "undone") == "undone"
    assert difference(before, changed)
    assert not difference(before, state_of_the_process(known=before))


def test_the_environment_and_the_path_of_imports_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPGRADE_CHANGED", "before")
    monkeypatch.setenv("STEPGRADE_GONE", "before")
    environment, path = dict(os.environ), [*sys.path]
    with put_back():
        os.environ["STEPGRADE_LEFT"] = os.environ["STEPGRADE_CHANGED"] = "left"
        del os.environ["STEPGRADE_GONE"]
        sys.path.insert(0, "left")
    assert (dict(os.environ), sys.path) == (environment, path)
