"""The recipes of docs/regressions.md, run step by step from an empty repository: first run to waiver."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.builders import make_step_profile
from tests.conftest import ROOT

DOCS = (ROOT / "docs" / "regressions.md").read_text()
CI = re.compile(r"GITHUB_|GITLAB_|CI_|CI$|GIT_|BUILDKITE|STEPGRADE_")


def recipe(heading: str) -> str:
    """Return the block under a heading of the page."""
    return re.split(r"```\w*\n", DOCS.split(f"### {heading}\n", 1)[1], maxsplit=2)[1]


class Project:
    """A repository with a training whose runs differ by a little noise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.random = random.Random(7)
        tools = folder.parent / "tools"
        tools.mkdir()
        (tools / "stepgrade").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m stepgrade "$@"\n')
        (tools / "stepgrade").chmod(0o755)
        self.environment = {name: text for name, text in os.environ.items() if not CI.match(name)} | {
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT / "src"),
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@b",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@b",
        }
        folder.mkdir()
        self.git("init", "-q", "-b", "main")

    def git(self, *words: str) -> str:
        ran = subprocess.run(
            ["git", *words],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return ran.stdout.strip()

    def train(self, *, slower: float = 0.0) -> str:
        """Commit a change, run the training, and leave its profile; return the commit."""
        self.git("commit", "-q", "--allow-empty", "-m", "a change")
        level = 100.0 * (1.0 + slower) * (1.0 + self.random.gauss(0.0, 0.01))
        samples = [level * (1.0 + self.random.gauss(0.0, 0.02)) for _ in range(50)]
        text = make_step_profile(steps=50, step_ms=sum(samples) / 50, samples_ms=samples)
        (self.folder / "trace.json.gz").write_bytes(gzip.compress(text.encode()))
        return self.git("rev-parse", "HEAD")

    def sh(self, script: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment | variables,
            capture_output=True,
            text=True,
            check=False,
        )

    def kept(self) -> list[tuple[str, str]]:
        rows = self.sh("stepgrade history list --format json").stdout.splitlines()
        return [(row["branch"], row["commit"]) for row in map(json.loads, rows)]

    def waive(self, until: str) -> None:
        """Write the page's own waiver, for the step time."""
        waiver = re.search(r"\[\[waiver\]\].*?(?=```)", DOCS, re.DOTALL)
        assert waiver
        text = waiver[0].replace("peak_memory_bytes", "step_time_ms")
        (self.folder / "stepgrade.toml").write_text(re.sub(r"until = \S+", f"until = {until}", text))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


@pytest.mark.parametrize(
    ("heading", "line", "lets_through"),
    [
        ("GitLab", r"- (stepgrade gate .*)", "exit_codes: [3]"),
        ("Jenkins", r"script: '(stepgrade gate [^']*)'", "if (code == 3) { unstable("),
    ],
)
def test_a_command_of_the_recipes(project: Project, heading: str, line: str, lets_through: str) -> None:
    """Exit code 3, which the recipe lets through, until three runs are there; then 0, 1 and the waiver."""
    text = recipe(heading)
    (command,) = re.findall(line, text)
    assert lets_through in text
    commits = []
    for number in range(3):
        commits.append(project.train())
        ran = project.sh(command)
        assert ran.returncode == 3, ran.stderr
        assert ("no history at" in ran.stdout) is (number == 0)
        assert project.kept() == [("main", commit) for commit in commits]
    commits.append(project.train())
    passed = project.sh(command)
    assert passed.returncode == 0, passed.stdout
    assert "by these few runs and what is usual elsewhere" in " ".join(passed.stdout.split())
    for name in re.findall(r"--also \w+=(\S+)", command):
        assert (project.folder / name).stat().st_size > 0

    project.git("checkout", "-q", "-b", "topic")
    project.train(slower=0.25)
    failed = project.sh(command)
    assert failed.returncode == 1, failed.stdout
    assert "step_time_ms +2" in failed.stdout
    assert [branch for branch, _ in project.kept()] == ["main"] * 4 + ["topic"]

    project.waive("2999-12-31")
    waived = project.sh(command)
    assert waived.returncode == 0, waived.stdout
    assert "[waived until 2999-12-31" in " ".join(waived.stdout.split())
    project.waive("2001-01-01")
    assert project.sh(command).returncode == 1


def test_github(project: Project) -> None:
    """The action: unmeasured passes as asked, runs of main alone are kept, a regression fails the job."""
    text = recipe("GitHub")
    block = text.split("OWNER/stepgrade@v0.2.0", 1)[1].split("- uses:", 1)[0]
    inputs = dict(re.findall(r"^    ([a-z]+): +(.*?)(?: +#.*)?$", block, re.MULTILINE))
    declared = re.findall(r"^  ([a-z-]+):$", (ROOT / "action.yml").read_text(), re.MULTILINE)
    assert inputs.keys() <= set(declared)
    assert inputs["save"] == "${{ github.ref == 'refs/heads/main' }}"

    def job(branch: str) -> tuple[int, str]:
        given = inputs | {"save": str(branch == "main").lower()}
        output = project.folder / "output"
        output.unlink(missing_ok=True)
        ran = project.sh(
            f'bash "{ROOT}/action/gate.sh"',
            **{f"STEPGRADE_{name.upper()}": value for name, value in given.items()},
            GITHUB_OUTPUT=str(output),
            GITHUB_REF_NAME=branch,
            GITHUB_SHA=project.git("rev-parse", "HEAD"),
        )
        annotations = [line for line in ran.stdout.splitlines() if line.startswith("::")]
        assert len(annotations) == len(set(annotations))
        (verdict,) = re.findall(r"^verdict=(.*)$", output.read_text(), re.MULTILINE)
        return ran.returncode, verdict

    project.train()
    assert job("topic") == (0, "could not be measured")
    assert project.kept() == []
    for _ in range(3):
        project.train()
        assert job("main") == (0, "could not be measured")
    project.train()
    assert job("main") == (0, "pass")
    project.train(slower=0.25)
    assert job("topic") == (1, "regressed")
    assert [branch for branch, _ in project.kept()] == ["main"] * 4
    project.waive("2999-12-31")
    assert job("topic") == (0, "pass")
