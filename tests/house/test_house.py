"""The house itself: sizes, names, layers, what is imported when, what is shipped."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import stepgrade
from stepgrade import errors
from tests.conftest import ROOT

SOURCES = sorted((ROOT / "src" / "stepgrade").rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_say_why_they_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") < 400
    assert ast.get_docstring(ast.parse(text))


def test_functions_are_short() -> None:
    lengths = [
        node.end_lineno - node.lineno
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.end_lineno
    ]
    assert max(lengths) <= 60
    assert sorted(lengths)[len(lengths) * 9 // 10] <= 25


def test_public_names_are_few_sorted_and_there() -> None:
    assert stepgrade.__all__ == sorted(stepgrade.__all__)
    assert len(stepgrade.__all__) <= 24
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
    }
    assert not imported_by(["score", run, "--device", "gb10"]) & (heavy - imported_by_msgspec())


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
    assert names <= {"msgspec", "numpy", "rich", "click", "isal"}
