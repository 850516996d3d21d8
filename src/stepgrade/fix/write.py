"""Write the accepted edits into the user's files: whole or not at all, and with a way back."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from stepgrade.errors import BadInput
from stepgrade.files import write_whole
from stepgrade.fix.edit import diff_of
from stepgrade.model.fix import FixReport

REVERSE = "stepgrade-fix-reverse.patch"
_GIT_S = 10.0


def check_clean(folder: str, *, allow_dirty: bool) -> None:
    """Raise BadInput when the folder has changes that are not committed, or an older patch to undo."""
    if os.path.exists(os.path.join(folder, REVERSE)):
        hint = f"undo it with `git apply {REVERSE}` or remove it"
        raise BadInput("is of an earlier run", where=REVERSE, hint=hint)
    if allow_dirty:
        return
    try:
        command = ["git", "-C", folder, "status", "--porcelain", "--untracked-files=no"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_S, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return
    if found.returncode == 0 and found.stdout.strip():
        name = found.stdout.splitlines()[0][3:]
        raise BadInput(
            f"{name} has changes that are not committed",
            where=folder,
            hint="commit them, or give {allow_dirty}",
        )


def write_edits(folder: str, found: FixReport) -> str:
    """Write what was accepted and tried as written; return what was done."""
    together = found.together
    if together is None or together.written is None or together.diff is None:
        return "nothing was written: no accepted change could be tried as an edit of the script"
    before = {name: Path(folder, name).read_bytes().decode() for name in found.edits}
    if (
        "".join(diff_of(before[name], found.edits[name], name) for name in sorted(found.edits))
        != together.diff
    ):
        raise BadInput(
            "changed while it was tried; nothing was written", where=", ".join(sorted(found.edits))
        )
    back = "".join(diff_of(found.edits[name], before[name], name) for name in sorted(found.edits))
    write_whole(os.path.join(folder, REVERSE), back.encode())
    written = list[str]()
    try:
        for name, text in sorted(found.edits.items()):
            write_whole(os.path.join(folder, name), text.encode())
            written.append(name)
    except BaseException:  # a full disk, Ctrl-C: all of it or nothing
        for name in written:
            write_whole(os.path.join(folder, name), before[name].encode())
        os.unlink(os.path.join(folder, REVERSE))
        raise
    files = ", ".join(sorted(found.edits))
    return f"{', '.join(together.written_changes)} written to {files}; `git apply {REVERSE}` undoes it"
