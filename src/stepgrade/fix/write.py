"""Write the accepted edits into the user's files: whole or not at all, and with a way back."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from stepgrade.errors import BadInput
from stepgrade.files import write_by, write_whole
from stepgrade.fix.edit import diff_of
from stepgrade.model.fix import FixReport, Gain, Together
from stepgrade.store.git import branch_problem, changed_in, commit_on_branch
from stepgrade.units import show_share

REVERSE = "stepgrade-fix-reverse.patch"


def check_clean(folder: str, *, allow_dirty: bool, branch: str | None = None) -> None:
    """Raise BadInput when the folder has changes that are not committed, or an older patch to undo.

    Also when there can be no new branch of that name.
    """
    problem = None if branch is None else branch_problem(folder, branch)
    if problem is not None:
        raise BadInput(problem, where=branch)
    if branch is None and os.path.lexists(os.path.join(folder, REVERSE)):
        raise _older_patch()
    changed = "" if allow_dirty else changed_in(folder)
    if changed is None:
        problem = "git does not tell whether all changes are committed"
        raise BadInput(problem, where=folder, supply="{allow_dirty}")
    if changed:
        problem = f"{changed} has changes that are not committed"
        raise BadInput(problem, where=folder, hint="commit them", supply="{allow_dirty}")


def _older_patch() -> BadInput:
    return BadInput(
        "is of an earlier run", where=REVERSE, hint=f"undo it with `git apply {REVERSE}` or remove it"
    )


def _message(found: FixReport, together: Together, written: Gain) -> str:
    """Return the message of a commit: what was measured, and what may break."""
    whats = {one.change: one for one in found.tries}
    rows = [
        f"- {whats[name].what} ({whats[name].how}). It may break: {whats[name].breaks}."
        for name in together.written_changes
    ]
    span = f"{show_share(written.low)} to {show_share(written.high)}"
    measured = f"A step takes {show_share(written.gain)} less ({span} in {written.rounds} rounds); same work."
    return "\n".join([f"Make {found.command[0]} faster", "", measured, "", *rows, ""])


def write_edits(folder: str, found: FixReport, branch: str | None = None) -> str:
    """Write what was accepted and tried as written, or commit it on a new branch; return what was done."""
    together = found.together
    if together is None or together.written is None or together.diff is None:
        return "nothing was written: no accepted change could be tried as an edit of the script"
    names = sorted(found.edits)
    try:
        before = {name: Path(folder, name).read_bytes() for name in names}
    except OSError as error:
        raise BadInput(f"cannot be read: {error.strerror or error}", where=", ".join(names)) from error
    texts = {name: before[name].decode(errors="replace") for name in names}
    if "".join(diff_of(texts[name], found.edits[name], name) for name in names) != together.diff:
        raise BadInput("changed while it was tried; nothing was written", where=", ".join(names))
    done, files = ", ".join(together.written_changes), ", ".join(names)
    if branch is not None:
        both = {name: (texts[name], found.edits[name]) for name in names}
        if not commit_on_branch(folder, branch, both, _message(found, together, together.written)):
            raise BadInput("git could not commit the edit; nothing was changed", where=branch)
        return f"{done} committed on the branch {branch}; the checkout is as it was"
    back = "".join(diff_of(found.edits[name], texts[name], name) for name in names).encode()
    name = REVERSE
    try:
        write_by(os.path.join(folder, REVERSE), lambda file: file.write(back), only_new=True)
        for name in names:
            write_whole(os.path.join(folder, name), found.edits[name].encode())
    except FileExistsError as error:  # another one has written meanwhile
        raise _older_patch() from error
    except BaseException as error:  # a full disk, Ctrl-C: all of it or nothing
        _put_back(folder, before, back)
        if isinstance(error, OSError):
            problem = f"cannot be written: {error.strerror or error}; all files are as before"
            raise BadInput(problem, where=name) from error
        raise
    return f"{done} written to {files}; `git apply {REVERSE}` undoes it"


def _put_back(folder: str, before: dict[str, bytes], back: bytes) -> None:
    """Give the files what they had; one may be written although that has failed. The way back is the last."""
    for name, content in before.items():
        try:
            if Path(folder, name).read_bytes() != content:
                write_whole(os.path.join(folder, name), content)
        except OSError as error:
            problem = f"is edited, and cannot be written again: {error.strerror or error}"
            raise BadInput(problem, where=name, hint=f"{REVERSE} has the way back") from error
    with suppress(OSError):
        if Path(folder, REVERSE).read_bytes() == back:
            os.unlink(os.path.join(folder, REVERSE))
