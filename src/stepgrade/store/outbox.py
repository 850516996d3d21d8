"""Runs that wait for their server, in a folder that only the user can write to.

Files in a checkout are never sent automatically: a pull request could contain runs that claim to be
of `main`. So the outbox is outside of any checkout, and each run is signed with the token (HMAC). A run waits
for one project on one server under one token, and is sent nowhere else.
"""

from __future__ import annotations

import hmac
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from stepgrade.decoding import from_json
from stepgrade.engine.cache import is_ours
from stepgrade.errors import BadHistory
from stepgrade.files import MODES, state_folder, write_whole

FOLDER = "STEPGRADE_OUTBOX"  # environment variable that overrides the folder
_CHECKOUTS = (
    "GITHUB_WORKSPACE",
    "CI_PROJECT_DIR",
    "BUILDKITE_BUILD_CHECKOUT_PATH",
    "BUILD_SOURCESDIRECTORY",
)
_MOST_BYTES = 256 << 20
KEY = r"[A-Za-z0-9._:-]{1,128}"  # what servers accept


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a file in the outbox."""

    server: str
    key: str
    body: msgspec.Raw
    code: str = ""


class OutboxFile(NamedTuple):
    """A file in an outbox, and why it is not sent automatically; empty if it is."""

    path: Path
    run: Waiting | None
    problem: str = ""


class Outbox:
    """The runs that wait for one project on one server, under one token."""

    def __init__(self, server: str, token: str | None) -> None:
        self._server = server
        self._secret = (token or "").encode()
        self.folder = outbox_folder() / self._code(b"folder")[:32]

    def keep(self, key: str, body: bytes) -> Path:
        """Write a run to the outbox; raise BadHistory if that is impossible or unsafe."""
        try:
            for folder in (self.folder.parent, self.folder):
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            check_folder(self.folder)
            run = Waiting(
                server=self._server, key=key, body=msgspec.Raw(body), code=self._code(b"run", key, body)
            )
            path = self.folder / f"run-{time.time_ns():020}-{os.urandom(4).hex()}.json"
            write_whole(path, msgspec.json.encode(run), new_mode=MODES["owner"])
        except OSError as error:
            raise BadHistory(error.strerror or str(error), where=str(self.folder)) from error
        return path

    def waiting(self) -> list[OutboxFile]:
        """Return the waiting runs, oldest first; raise BadHistory if others can write to the folder."""
        if not os.path.lexists(self.folder):
            return []
        check_folder(self.folder)
        return [self.checked(file) for file in files_in(self.folder)]

    def checked(self, found: OutboxFile) -> OutboxFile:
        """Return a file with the reason why it must not be sent to this server under this token, if any."""
        path, run, problem = found
        if run is None or problem:
            return found
        is_here = run.server == self._server and path.parent == self.folder
        is_signed = hmac.compare_digest(
            self._code(b"run", run.key, bytes(run.body)).encode(), run.code.encode()
        )
        return OutboxFile(path, run, "" if is_here and is_signed else "was not written with this token")

    def _code(self, *parts: str | bytes) -> str:
        """Return the HMAC of the parts under the token."""
        text = b"".join(
            len(raw).to_bytes(8, "big") + raw
            for part in ("stepgrade outbox 1", self._server, *parts)
            for raw in (part.encode() if isinstance(part, str) else part,)
        )
        return hmac.new(self._secret, text, "sha256").hexdigest()


def outbox_folder() -> Path:
    """Return the folder of all outboxes: STEPGRADE_OUTBOX, else in the user's state folder."""
    return Path(os.environ.get(FOLDER) or Path(state_folder(), "outbox"))


def check_folder(folder: Path) -> None:
    """Raise BadHistory for a folder that someone else can write to."""
    hint = f"set {FOLDER} to a folder of your own, outside of any checkout"
    for path in (folder.parent, folder):
        try:
            is_safe = is_ours(path.lstat())
        except OSError as error:
            raise BadHistory(f"cannot be read: {error.strerror}", where=str(path)) from error
        if not is_safe:
            problem = "others can write to this folder: no runs are kept there, and none are sent"
            raise BadHistory(problem, where=str(path), hint=hint)
    real = folder.resolve()
    here = Path.cwd().resolve()
    tops = [path for path in (here, *here.parents) if (path / ".git").exists()][:1]
    tops += [Path(named).resolve() for name in _CHECKOUTS if (named := os.environ.get(name))]
    for top in tops:
        if real.is_relative_to(top):
            problem = f"is inside the checkout {top}, where others can add files"
            raise BadHistory(problem, where=str(folder), hint=hint)


def everything(token: str | None) -> Iterator[OutboxFile]:
    """Yield the runs that wait for any server, and those that servers rejected."""
    for folder in sorted(outbox_folder().glob("*")):
        for file in files_in(folder, "*run-*.json"):
            yield Outbox(file.run.server, token).checked(file) if file.run else file


def files_in(folder: Path, names: str = "run-*.json", *, is_any_owner: bool = False) -> Iterator[OutboxFile]:
    """Yield the runs that wait in a folder, oldest first; links are not followed."""
    for path in sorted(folder.glob(names)):
        with suppress(FileNotFoundError):  # another process has sent it
            try:
                run = from_json(_read(path, is_any_owner=is_any_owner), Waiting)
                problem = "" if re.fullmatch(KEY, run.key) else "its key is invalid"
            except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
                if isinstance(error, FileNotFoundError):
                    raise
                run, problem = None, "not a run"
            yield OutboxFile(path, run, problem)


def _read(path: Path, *, is_any_owner: bool) -> bytes:
    """Return a file's content; raise OSError for a link, a pipe or, unless allowed, another user's file."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not (is_any_owner or is_ours(status)):
            raise PermissionError(f"{path} belongs to another user")
        return file.read(_MOST_BYTES)
