"""The commit and branch of a run, from CI's variables or the checkout."""

from __future__ import annotations

import os
import shutil
import subprocess

# GitHub, GitLab, Jenkins and Buildkite check out a bare commit and name the branch in the environment.
_BRANCHES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME", "GIT_BRANCH", "BUILDKITE_BRANCH")
_COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILDKITE_COMMIT")
_GIT_S = 5.0
_NOTHING_RUNS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")


def commit_here() -> str | None:
    """Return the commit that CI names, else the checkout's; None outside of both."""
    return _first(_COMMITS) or _git("rev-parse", "HEAD")


def branch_here() -> str | None:
    """Return the branch that CI names, else the checkout's; None on a bare commit."""
    branch = _first(_BRANCHES) or _git("symbolic-ref", "--short", "HEAD")
    return branch.removeprefix("origin/") if branch else None


def _first(names: tuple[str, ...]) -> str | None:
    return next((text for name in names if (text := os.environ.get(name))), None)


def _git(*arguments: str) -> str | None:
    """Return what git says; a checkout's settings make it run nothing, and git is not looked for in it."""
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    git = shutil.which("git", path=os.pathsep.join(filter(os.path.isabs, folders)))
    if git is None or not os.path.isabs(git):  # Windows looks into the current folder first
        return None
    try:
        ran = subprocess.run(  # noqa: S603  fixed arguments
            [git, "-P", *_NOTHING_RUNS, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # a branch name may not be valid UTF-8
            check=False,
            timeout=_GIT_S,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip() or None if ran.returncode == 0 else None
