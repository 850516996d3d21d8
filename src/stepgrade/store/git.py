"""The commit and branch of a run, from CI's variables or the checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from stepgrade.files import scratch_folder

# GitHub, GitLab, Jenkins and Buildkite check out a bare commit and name the branch in the environment.
_BRANCHES = ("GITHUB_HEAD_REF", "GITHUB_REF_NAME", "CI_COMMIT_REF_NAME", "GIT_BRANCH", "BUILDKITE_BRANCH")
_COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILDKITE_COMMIT")
_GIT_S = 5.0
_COPY_S = 600.0
_NOTHING_RUNS = ("-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}")
# What git sets for its hooks: with these, whatever is done to a copy would be done to the checkout.
_WHERE_GIT_IS = frozenset(
    [
        *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR", "GIT_NAMESPACE", "GIT_PREFIX"),
        *("GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_SHALLOW_FILE", "GIT_TEMPLATE_DIR"),
    ]
)


def commit_here() -> str | None:
    """Return the commit that CI names, else the checkout's; None outside of both."""
    return _first(_COMMITS) or _git("rev-parse", "HEAD") or None


def branch_here() -> str | None:
    """Return the branch that CI names, else the checkout's; None on a bare commit."""
    branch = _first(_BRANCHES) or _git("symbolic-ref", "--short", "HEAD")
    return branch.removeprefix("origin/") if branch else None


def date_of(commit: str) -> str | None:
    """Return when a commit of the checkout was made; None for one that it does not have."""
    if not re.fullmatch(r"[0-9A-Fa-f]{4,64}", commit):
        return None
    return _git("show", "--no-patch", "--no-show-signature", "--format=%cI", commit)


def top_here() -> str | None:
    """Return the top folder of the checkout."""
    return _git("rev-parse", "--show-toplevel")


def fork_of(name: str) -> str | None:
    """Return the commit at which the checkout left a branch or commit; None if it is not known here."""
    for each in (name, f"origin/{name}"):
        if commit := _git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{each}^{{commit}}"):
            return _git("merge-base", "HEAD", commit)
    return None


def copy_at(top: str, commit: str, folder: str) -> bool:
    """Write the files of a commit into a new folder; nothing in the checkout or its .git changes."""
    copy = ("clone", "--quiet", "--shared", "--no-checkout", "--", top, folder)
    # Named, or git would look for a repository around the copy where that is damaged, and change it.
    own = (f"--git-dir={os.path.join(folder, '.git')}", f"--work-tree={folder}")
    out = (*own, "-C", folder, "checkout", "--quiet", "--detach", commit)
    environment = {name: value for name, value in os.environ.items() if name not in _WHERE_GIT_IS}
    return all(_git(*words, seconds=_COPY_S, environment=environment) is not None for words in (copy, out))


def changed_in(folder: str) -> str | None:
    """Return a file of the checkout with changes that are not committed, "" if all are; None if unknown.

    Outside of a checkout nothing is known, and "" is returned.
    """
    words = ("--no-optional-locks", "-C", folder, "status", "--porcelain", "-z", "--untracked-files=no")
    found = _git(*words)
    if found:
        return found.split("\0", 1)[0].partition(" ")[2].lstrip()
    here = os.path.realpath(folder)
    is_checkout = any(
        os.path.lexists(os.path.join(each, ".git")) for each in (here, *map(str, Path(here).parents))
    )
    return None if found is None and is_checkout else ""


def branch_problem(folder: str, branch: str) -> str | None:
    """Return why no commit can be made there on a new branch of that name; None if it can."""
    name = f"refs/heads/{branch}"
    if _git("-C", folder, "rev-parse", "--verify", "--quiet", "HEAD") is None:
        return "there is no commit to begin at"
    if _git("check-ref-format", name) is None:
        return "git takes no such name of a branch"
    if _git("-C", folder, "rev-parse", "--verify", "--quiet", "--end-of-options", name) is not None:
        return "there is a branch of that name"
    return None if _git("-C", folder, "var", "GIT_COMMITTER_IDENT") else "git has no user.name and user.email"


def commit_on_branch(folder: str, branch: str, texts: Mapping[str, tuple[str, str]], message: str) -> bool:
    """Commit new texts of files on a new branch, given beside those of now; tell whether it is there.

    The checkout, its index and its branch stay as they are: the branch appears last, when all is done.
    """
    with scratch_folder() as scratch:
        index = {**os.environ, "GIT_INDEX_FILE": os.path.join(scratch, "index")}
        top = _git("-C", folder, "rev-parse", "--show-prefix")
        if top is None or _git("-C", folder, "read-tree", "HEAD", environment=index) is None:
            return False
        for name, (before, after) in texts.items():
            entry = (_git("-C", folder, "ls-tree", "HEAD", "--", name) or "").split("\t")[0]
            mode, _, committed = entry.rpartition(" ")
            hashed = [
                _git("-C", folder, "hash-object", *words, "--no-filters", "--stdin", given=text)
                for words, text in (([], before), (["-w"], after))
            ]
            entry = f"{mode.split(' ')[0]},{hashed[1]},{top}{name}"
            if (
                hashed[0] != committed
                or _git("-C", folder, "update-index", "--cacheinfo", entry, environment=index) is None
            ):
                return False
        tree = _git("-C", folder, "write-tree", environment=index)
        commit = tree and _git("-C", folder, "commit-tree", tree, "-p", "HEAD", "-m", message)
        made = commit and _git("-C", folder, "update-ref", f"refs/heads/{branch}", commit, "0" * len(commit))
    return made is not None and bool(commit)


def _first(names: tuple[str, ...]) -> str | None:
    return next((text for name in names if (text := os.environ.get(name))), None)


def _git(
    *arguments: str, seconds: float = _GIT_S, environment: dict[str, str] | None = None, given: str = ""
) -> str | None:
    """Return what git says, None if it fails; a checkout's settings make it run nothing.

    Nor is git itself looked for in the checkout.
    """
    folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    git = shutil.which("git", path=os.pathsep.join(filter(os.path.isabs, folders)))
    if git is None or not os.path.isabs(git):  # Windows looks into the current folder first
        return None
    try:
        ran = subprocess.run(  # noqa: S603  fixed arguments
            [git, "-P", *_NOTHING_RUNS, *arguments],
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",  # a branch name may not be valid UTF-8
            env=environment,
            check=False,
            timeout=seconds,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return ran.stdout.strip() if ran.returncode == 0 else None
