"""The house itself: sizes, names, how the code is cut, what is imported when, what is shipped."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stepgrade
from stepgrade import errors
from tests.conftest import ROOT
from tests.house.measures import (
    BEFORE,
    TABLE,
    body_lines,
    helpers_used_once,
    imports_of,
    lines_of_code,
    sources,
    static_rows,
    twin_types,
    written_lines,
)

SOURCES = sources()
# Ratchets: lower them when a change gets below; they never go up.
MOST_HELPERS_USED_ONCE = 9.3  # private or public, per 1,000 written lines; the goal is 9
MOST_SHORT_HELPERS = 0.7  # of these, with up to three lines
MOST_LINES = 600


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_one_idea_and_say_which(path: Path) -> None:
    assert SOURCES[path].count("\n") < MOST_LINES
    assert ast.get_docstring(ast.parse(SOURCES[path]))


def test_functions_can_be_read_at_once() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path, text in SOURCES.items()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno > 80
    ]
    assert long == []


def test_code_is_not_cut_smaller_than_its_ideas() -> None:
    once, code = helpers_used_once(SOURCES), sum(lines_of_code(text) for text in SOURCES.values())
    short = [node for _, node in once if node.name.startswith("_") and body_lines(node) <= 3]
    assert len(once) / written_lines(SOURCES) * 1000 <= MOST_HELPERS_USED_ONCE
    assert len(short) / code * 1000 <= MOST_SHORT_HELPERS


def test_a_public_helper_is_counted_like_a_private_one(tmp_path: Path) -> None:
    """Dropping an underscore satisfies no ratchet; a second user, here or elsewhere, does."""
    one, other = tmp_path / "one.py", tmp_path / "other.py"
    texts = {
        one: "def _a(): ...\ndef b(): ...\ndef c(): ...\ndef d(): ...\n_a(); b(); c(); d(); d()\n",
        other: "from one import c\n",
    }
    assert [node.name for _, node in helpers_used_once(texts)] == ["_a", "b"]


def test_a_function_that_only_its_decorator_uses_is_counted(tmp_path: Path) -> None:
    """Registering a function satisfies no ratchet either; one that is called by its name is no entry of a table."""
    text = "@rule\ndef a(): ...\n@cache\ndef b(): ...\nb()\n"
    assert [node.name for _, node in helpers_used_once({tmp_path / "one.py": text})] == ["a"]


def test_the_table_of_the_decisions_has_the_rows_that_are_measured() -> None:
    page = (ROOT / "docs" / "decisions.md").read_text(encoding="utf-8")
    shown = re.search(TABLE, page)
    assert shown is not None
    rows = [line.split("|")[1].strip() for line in shown[0].splitlines()[2:]]
    assert rows == list(BEFORE)
    assert [*static_rows()] == rows[: len(static_rows())]


def test_no_two_public_types_share_a_name() -> None:
    """One type per idea: a name that stands for two things is two ideas or one too many."""
    homes: dict[str, list[str]] = {}
    per_framework = {
        "StepgradeCallback"
    }  # Hugging Face's and Lightning's are imported from different modules
    for path, text in SOURCES.items():
        if path.parent.name == "contract":  # the reference's own names
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(str(path.relative_to(ROOT / "src")))
    assert {name for name, places in homes.items() if len(places) > 1} <= per_framework


def test_a_quantity_has_one_type() -> None:
    """Whoever divides by the steps, or adds a share, does so in the type that is there."""
    assert twin_types(sources(ROOT / "src" / "stepgrade" / "model")) == []


def test_twins_are_found() -> None:
    total = "class KernelTime(Struct):\n name: str\n total_ms: float\n calls: float\n registers: int\n"
    row = "class KernelRow(Struct):\n name: str\n ms: float\n calls: float\n registers: int\n roof: str\n"
    more = "class KernelUse(KernelRow):\n share: float\n"
    named = "class Call(Struct):\n name: str\n group: str\n state: str\n calls: str\n where: str\n"
    assert twin_types({Path("one.py"): total, Path("two.py"): row + more + named}) == [
        ("KernelTime", "KernelRow")
    ]


def test_public_names_are_sorted_and_there() -> None:
    assert stepgrade.__all__ == sorted(stepgrade.__all__)
    for name in stepgrade.__all__:
        assert getattr(stepgrade, name) is not None
    with pytest.raises(AttributeError):
        _ = stepgrade.absent  # type: ignore[attr-defined]  # that it is refused is what is tested


def test_every_error_is_in_the_drawn_tree() -> None:
    for name, value in vars(errors).items():
        if isinstance(value, type) and issubclass(value, errors.StepgradeError):
            assert name in (errors.__doc__ or "")


def imported_by(arguments: list[str]) -> set[str]:
    code = f"import sys; from stepgrade.cli import main; main({arguments!r}); print(*sys.modules, file=sys.stderr)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(ran.stderr.split())


def test_version_imports_nothing() -> None:
    assert not imported_by(["--version"]) & {"msgspec", "typing", "argparse", "stepgrade.grading"}


def test_a_step_profile_is_scored_without_heavy_imports() -> None:
    run = str(ROOT / "examples" / "runs" / "gpt_naive.json")
    heavy = {
        "numpy",
        "pathlib",
        "importlib.metadata",
        "inspect",
        "dataclasses",
        "statistics",
        "gzip",
        "logging",
        "sqlite3",
        "stepgrade.store",
        "stepgrade.compare.effect",
        "stepgrade.report.content.comparison",
        "stepgrade.timeline",
        "stepgrade.costs",
        "stepgrade.ranks",
        "stepgrade.trace",
        "stepgrade.gating.run",
    }
    assert not imported_by(["score", run, "--device", "gb10"]) & (heavy - imported_by_msgspec())


def test_help_imports_no_decoder() -> None:
    assert not imported_by(["--help"]) & {"msgspec", "stepgrade.config", "stepgrade.grading"}


def test_a_trace_or_log_is_scored_without_what_numpy_and_python_import_late() -> None:
    """The second time it comes from the cache: only replays of a trace's steps still need numpy."""
    for run in (ROOT / "examples" / "titan.log", ROOT / "examples" / "traces" / "h100_ddp.json.gz"):
        first, second = (imported_by(["score", str(run)]) for _ in range(2))
        assert not first & {"numpy.ma", "importlib.metadata", "email"}
        assert not second & {"stepgrade.readers.kineto.reader", "stepgrade.trace.profile", "numpy.ma"}
        assert ("numpy" in second) == (run.suffix == ".gz")


def test_patterns_that_are_compiled_late_are_valid() -> None:
    """Importing their modules says nothing of them."""
    late = 0
    for name in [name for name in imports_of() if name != "stepgrade.__main__"]:
        if not name.startswith(
            ("stepgrade.naming", "stepgrade.readers", "stepgrade.trace", "stepgrade.timeline")
        ):
            continue
        for value in list(vars(importlib.import_module(name)).values()):
            if type(value).__name__ == "_Pattern":
                late += value.groups >= 0
    assert late > 50


def imported_by_msgspec() -> set[str]:
    ran = subprocess.run(
        [sys.executable, "-c", "import sys, msgspec; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(ran.stdout.split())


def test_few_dependencies() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {requirement.split(">")[0] for requirement in project["dependencies"]}
    assert names <= {"msgspec", "numpy", "isal"}
