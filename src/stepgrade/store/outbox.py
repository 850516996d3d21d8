"""Runs that wait for their server, in a folder of the user's own.

Files of a checkout are never sent by themselves: a pull request could bring runs of `main`. So the outbox is
outside of it, nobody else may write to it, and each run carries a code that takes the token to make. A run
waits for one project on one server under one token, and is sent to nobody else.
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

FOLDER = "STEPGRADE_OUTBOX"  # the environment's word for another place
_CHECKOUTS = (
    "GITHUB_WORKSPACE",
    "CI_PROJECT_DIR",
    "BUILDKITE_BUILD_CHECKOUT_PATH",
    "BUILD_SOURCESDIRECTORY",
)
_MOST_BYTES = 256 << 20
KEY = r"[A-Za-z0-9._:-]{1,128}"  # what servers take


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the outbox, as its file has it."""

    server: str
    key: str
    body: msgspec.Raw
    code: str = ""


class OutboxFile(NamedTuple):
    """A file of an outbox, and why it is not sent by itself, if so."""

    path: Path
    run: Waiting | None
    problem: str = ""


class Outbox:
    """What waits for one project on one server, under one token."""

    def __init__(self, server: str, token: str | None) -> None:
        self._server = server
        self._secret = (token or "").encode()
        self.folder = outbox_folder() / self._code(b"folder")[:32]

    def keep(self, key: str, body: bytes) -> Path:
        """Keep a run until its server answers; raise BadHistory where that is not possible, or not safe."""
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
        """Return what waits, oldest first; raise BadHistory for a folder that is not the user's own."""
        if not os.path.lexists(self.folder):
            return []
        check_folder(self.folder)
        return [self.judged(one) for one in files_in(self.folder)]

    def judged(self, found: OutboxFile) -> OutboxFile:
        """Return a file of the outbox with what keeps it from being sent to this server, under this token."""
        path, run, problem = found
        if run is None or problem:
            return found
        is_here = run.server == self._server and path.parent == self.folder
        is_made_here = hmac.compare_digest(
            self._code(b"run", run.key, bytes(run.body)).encode(), run.code.encode()
        )
        return OutboxFile(path, run, "" if is_here and is_made_here else "was not kept under this token")

    def _code(self, *parts: str | bytes) -> str:
        """Return what only who knows the token can make of the parts."""
        text = b"".join(
            len(raw).to_bytes(8, "big") + raw
            for part in ("stepgrade outbox 1", self._server, *parts)
            for raw in (part.encode() if isinstance(part, str) else part,)
        )
        return hmac.new(self._secret, text, "sha256").hexdigest()


def outbox_folder() -> Path:
    """Return where outboxes are: what STEPGRADE_OUTBOX says, else in the user's state folder."""
    return Path(os.environ.get(FOLDER) or Path(state_folder(), "outbox"))


def check_folder(folder: Path) -> None:
    """Raise BadHistory for a folder that somebody else can put runs into."""
    hint = f"name a folder of your own, outside of any checkout, in {FOLDER}"
    for one in (folder.parent, folder):
        try:
            is_safe = is_ours(one.lstat())
        except OSError as error:
            raise BadHistory(f"cannot be read: {error.strerror}", where=str(one)) from error
        if not is_safe:
            problem = "is not a folder that you alone can write to: nothing is kept there, and nothing sent"
            raise BadHistory(problem, where=str(one), hint=hint)
    real = folder.resolve()
    here = Path.cwd().resolve()
    tops = [one for one in (here, *here.parents) if (one / ".git").exists()][:1]
    tops += [Path(named).resolve() for name in _CHECKOUTS if (named := os.environ.get(name))]
    for top in tops:
        if real.is_relative_to(top):
            problem = f"is in the checkout {top}, whose files are not yours alone"
            raise BadHistory(problem, where=str(folder), hint=hint)


def everything(token: str | None) -> Iterator[OutboxFile]:
    """Yield what waits for any server, and what servers have refused."""
    for folder in sorted(outbox_folder().glob("*")):
        for one in files_in(folder, "*run-*.json"):
            yield Outbox(one.run.server, token).judged(one) if one.run else one


def files_in(folder: Path, names: str = "run-*.json", *, anybodys: bool = False) -> Iterator[OutboxFile]:
    """Yield the runs that wait in a folder, oldest first; links are not followed."""
    for path in sorted(folder.glob(names)):
        with suppress(FileNotFoundError):  # another process has sent it
            try:
                run = from_json(_read(path, anybodys=anybodys), Waiting)
                problem = "" if re.fullmatch(KEY, run.key) else "its key is not valid"
            except (OSError, msgspec.DecodeError, UnicodeError, RecursionError) as error:
                if isinstance(error, FileNotFoundError):
                    raise
                run, problem = None, "is not a run of an outbox"
            yield OutboxFile(path, run, problem)


def _read(path: Path, *, anybodys: bool) -> bytes:
    """Return what is in a file; raise OSError for a link, a pipe and, unless allowed, a foreign file."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or not (anybodys or is_ours(status)):
            raise PermissionError(f"{path} is not a file of the user's own")
        return file.read(_MOST_BYTES)
