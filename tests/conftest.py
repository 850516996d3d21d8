"""What tests share: how the command is run, what no test may leave behind, their order, and who is skipped."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from stepgrade.cli import main
from tests import samples
from tests.leftovers import difference, put_back, state_of_the_process
from tests.store.server import running_server

ROOT = Path(__file__).resolve().parent.parent

# What takes long is left to `make check`; these are files and folders, or parts of a test's name.
SLOW = (
    "tests/cli/test_foreign_code.py::test_a_recording_imports",
    "tests/cli/test_memory_limit.py::test_bombs_of_other_profilers",
    "tests/cli/test_trace_fuzz.py",
    "tests/cli/test_traces.py::test_every_real_trace",
    "tests/diagnosis/test_wild_faults.py",
    "tests/docs/test_examples.py::test_the_demo_runs",
    "tests/engine/test_faults.py",
    "tests/faults/test_faults.py",
    "tests/fix/test_fix.py",
    "tests/fix/test_trials.py",
    "tests/gating/test_rates.py",
    "tests/hardware/test_planner.py::test_a_plans_memory_is",
    "tests/hardware/test_planner.py::test_torchtitan_is_asked",
    "tests/house/test_house.py::test_code_is_not_cut_smaller",
    "tests/house/test_house.py::test_the_table_of_the_decisions",
    "tests/house/test_public_names.py::test_no_module_hides",
    "tests/mutation/test_mutants.py::test_every_fault_in_this_package",
    "tests/readers/kineto/test_kineto_fuzz.py",
    "tests/readers/kineto/test_kineto_samples.py",
    "tests/readers/logs/test_metric_files.py::test_a_database_of_mlflow",
    "tests/readers/logs/test_real_run.py",
    "tests/readers/logs/test_traps.py::test_a_log_of_huge_size",
    "tests/readers/xplane/test_jax.py",
    "tests/record/integrations",
    "tests/record/test_own_updates.py",
    "tests/record/test_processes.py",
    "tests/record/test_ranks.py::test_a_slow_rank_is_found",
    "tests/record/test_repeat.py",
    "tests/report/html/test_browser.py",
    "tests/report/html/test_page.py::test_a_huge_card",
    "tests/scripts",
    "tests/store/test_history.py::test_eight_writers",
    "tests/report/test_names.py::test_a_name_of_ten_megabytes",
    "tests/report/test_odd_times.py",
    "tests/report/test_render.py::test_long_lists_of_a_document",
    "tests/torch_runs",
    "tests/timeline/test_invariants.py::test_real_traces",
    "tests/web/test_exchange.py::test_every_acknowledged",
    "tests/web/test_loopback.py::test_perfetto_itself",
)

# Of Chromium, so that it asks nobody anything.
CHROMIUM_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

NUMBERS = itertools.count()

# A shell lets what it runs in the background ignore Ctrl-C, and all that this starts; tests interrupt commands.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile(
    "house", deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
settings.load_profile("house")


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    """Fail a test that changes what the tests after it would meet: any of them may be the next one."""
    before = state_of_the_process()
    with put_back():
        yield
    changed = difference(before, state_of_the_process(known=before))
    assert not changed, f"the test left {changed}"


@pytest.fixture(autouse=True)
def _plain_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    for name in ("COLUMNS", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    # What another test, or the developer, has measured or read, or wants to send, is not this one's.
    # mktemp would look at all folders that were made before it.
    own = tmp_path_factory.getbasetemp() / "own" / str(next(NUMBERS))
    for name in ("cache", "outbox"):
        (own / name).mkdir(mode=0o700, parents=True)
        monkeypatch.setenv(f"STEPGRADE_{name.upper()}", str(own / name))
    monkeypatch.setenv("STEPGRADE_STATE", str(own / "state" / "measured.json"))
    yield
    shutil.rmtree(own, ignore_errors=True)


class Ran:
    """What a command line gave."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def stepgrade(capfd: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run the command in this process and return its exit code and output."""

    def run(*arguments: object) -> Ran:
        code = main([str(argument) for argument in arguments])
        captured = capfd.readouterr()
        return Ran(code, captured.out, captured.err)

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the switch that rewrites golden text, and the one that repeats an order."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden text of the renderers")
    parser.addoption(
        "--seed", type=int, help="run the tests in the order of this number; it is printed at the end"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Draw the order of this run; a worker of pytest-xdist is given it."""
    given = getattr(config, "workerinput", {"seed": config.option.seed})["seed"]
    config.option.seed = random.SystemRandom().randrange(1_000_000) if given is None else given


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a worker the order."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Number parameters that are bytes: two processes that pack the same may differ, by the time that gzip writes."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what takes long, and shuffle: the files, and the tests of each, which may share what it set up."""
    files: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.nodeid.startswith(SLOW):
            item.add_marker(pytest.mark.slow)
        files.setdefault(item.nodeid.partition("::")[0], []).append(item)
    dice = random.Random(config.option.seed)
    order = sorted(files)
    dice.shuffle(order)
    for name in order:
        dice.shuffle(files[name])
    items[:] = [item for name in order for item in files[name]]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what reads the samples where they are absent: the one place that asks."""
    samples.reader_is_marked = item.get_closest_marker("samples") is not None
    if samples.reader_is_marked and not samples.ARE_HERE:
        pytest.skip("samples not beside this clone")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say in one line what was skipped and why, and how to repeat the order."""
    reasons: Counter[str] = Counter()
    for report in terminalreporter.stats.get("skipped", ()):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[why.removeprefix("Skipped: ")] += 1
    if reasons:
        whys = ", ".join(f"{count} {why}" for why, count in reasons.most_common())
        terminalreporter.write_line(f"skipped {reasons.total()}: {whys}")
    terminalreporter.write_line(f"this order again: --seed {config.option.seed}")


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """Start PostgreSQL once for all tests of this process, and return its address."""
    with running_server() as running:
        yield running.url


@pytest.fixture(scope="session")
def _driven_browser() -> Iterator[tuple[Any, asyncio.AbstractEventLoop]]:
    """Start the system's Chromium once, and return it with the event loop of its driver."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = (
        os.environ.get("STEPGRADE_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    )
    if chromium is None:
        pytest.skip("no Chromium: install it, or name it in STEPGRADE_CHROMIUM")
    with playwright.sync_playwright() as started:
        loop = asyncio.get_running_loop()
        # A thread for what the driver waits for; there from the start, so that no test seems to have left it.
        waiting = ThreadPoolExecutor(1)
        waiting.submit(int).result()
        loop.set_default_executor(waiting)
        running = started.chromium.launch(executable_path=chromium, args=list(CHROMIUM_FLAGS))
        asyncio._set_running_loop(None)
        yield running, loop
        asyncio._set_running_loop(loop)
        running.close()


@pytest.fixture
def browser(_driven_browser: tuple[Any, asyncio.AbstractEventLoop]) -> Iterator[Any]:
    """Return the browser. Its driver's loop counts as running in this thread for as long as the test does.

    The synchronous driver never stops its loop, and nothing of asyncio could run in the thread afterwards.
    """
    running, loop = _driven_browser
    asyncio._set_running_loop(loop)
    yield running
    asyncio._set_running_loop(None)
