"""A project's history on a stepgrade server; offline, new runs wait in the outbox."""

from __future__ import annotations

import gzip
import hmac
import os
import re
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple
from urllib.parse import quote

import msgspec
from msgspec import Meta

from stepgrade.decoding import from_json
from stepgrade.engine.cache import is_ours
from stepgrade.errors import BadHistory, NoSuchRun, NotLetIn, OddAnswer, Unreachable
from stepgrade.files import MODES, state_folder, write_whole
from stepgrade.memory import default_limit
from stepgrade.model.comparison import RunRow
from stepgrade.model.scorecard import Fingerprint, Scorecard
from stepgrade.store.client import Client
from stepgrade.store.runs import DECODED_BYTES, NewRun, RunOrigin, Runs, Selection

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
    """The runs that wait for one project on one server, under one token; they are sent nowhere else.

    Files in a checkout are never sent automatically: a pull request could contain runs that claim to be of
    `main`. So the outbox is outside of any checkout, in a folder that only the user can write to, and each
    run is signed with the token (HMAC).
    """

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
                # Neither a link nor a pipe, and unless allowed no other user's file.
                handle = os.open(
                    path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
                )
                with os.fdopen(handle, "rb") as file:
                    status = os.fstat(handle)
                    if not stat.S_ISREG(status.st_mode) or not (is_any_owner or is_ours(status)):
                        raise PermissionError(f"{path} belongs to another user")
                    run = from_json(file.read(_MOST_BYTES), Waiting)
                problem = "" if re.fullmatch(KEY, run.key) else "its key is invalid"
            except FileNotFoundError:
                raise
            except (OSError, msgspec.DecodeError, UnicodeError, RecursionError):
                run, problem = None, "not a run"
            yield OutboxFile(path, run, problem)


_MOST_ANSWER = 64 << 20
_PAGE = 500
_MOST_PAGES = 2000
_Id = Annotated[int, Meta(ge=1, le=2**62)]


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    run: RunRow
    origin: RunOrigin
    card: msgspec.Raw = msgspec.Raw(b"null")


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[_Entry]
    next: str | None


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    id: _Id


class _Series(msgspec.Struct, frozen=True, kw_only=True):
    points: list[tuple[_Id, float]]


class RemoteHistory(Runs):
    """The runs of one project on a server; `add` returns 0 for a run that waits in the outbox."""

    is_remote: ClassVar[bool] = True

    def __init__(self, url: str, max_memory: int | None = None) -> None:
        most_bytes = (default_limit() if max_memory is None else max_memory) // DECODED_BYTES
        self._client = Client(url, min(_MOST_ANSWER, most_bytes))
        super().__init__(self._client.address.name, self._client.address.project, max_memory)
        self.outbox = Outbox(self.name, self._client.token)
        self.refused = 0  # runs of the outbox that the server rejected

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def add_all(self, runs: Iterable[NewRun]) -> list[int]:
        """Send the outbox, then these runs; a run that cannot be sent now goes to the outbox.

        Raise OddAnswer, after storing the run there, if the URL is not that of a stepgrade server.
        """
        numbers = []
        for run in runs:
            key, body = run.key or os.urandom(16).hex(), _body(run)
            try:
                self.send_waiting()
                numbers.append(self._send(key, body))
            except (Unreachable, OddAnswer) as error:
                try:
                    self.outbox.keep(key, body)
                except BadHistory as unkept:
                    problem = f"{error.problem}, and the run cannot be kept: {unkept.where} {unkept.problem}"
                    raise BadHistory(problem, where=self.name, hint=unkept.hint) from error
                if isinstance(error, OddAnswer):
                    hint = f"{error.hint or 'check the URL'}; the run waits in the outbox"
                    raise OddAnswer(error.problem, where=self.name, hint=hint) from error
                self.remarks.append(
                    f"{self.name} {error.problem}: the run waits in the outbox, history push sends it"
                )
                numbers.append(0)
        return numbers

    def send_now(self, run: NewRun) -> int:
        """Send one run; raise Unreachable instead of putting it into the outbox."""
        return self._send(run.key or os.urandom(16).hex(), _body(run))

    def send_waiting(self) -> int:
        """Send the runs in the outbox and return how many; raise Unreachable if the server is down."""
        try:
            return self._send_all(self.outbox.waiting())
        except (Unreachable, OddAnswer, NotLetIn, NoSuchRun):
            raise
        except BadHistory as unsafe:
            self.remarks.append(str(unsafe))
            return 0

    def send_folder(self, folder: str) -> int:
        """Send the runs for this server from any folder, whoever wrote them, and return how many."""
        found = []
        for file in files_in(Path(folder), is_any_owner=True):
            is_elsewhere = file.run is not None and file.run.server != self.name
            found.append(file._replace(problem="waits for another server" if is_elsewhere else file.problem))
        return self._send_all(found)

    def _send_all(self, found: Iterable[OutboxFile]) -> int:
        sent = 0
        for path, run, problem in found:
            if run is None or problem:
                self.remarks.append(f"{path} was not sent: {problem}")
                continue
            try:
                self._send(run.key, bytes(run.body))
            except (Unreachable, OddAnswer, NotLetIn, NoSuchRun):
                raise
            except BadHistory as error:
                # A retry would be rejected again: keep the file under a name that is not retried.
                self.refused += 1
                self.remarks.append(f"rejected by {self.name}, and kept here: {path}: {error.problem}")
                with suppress(FileNotFoundError):
                    path.rename(path.with_name("refused-" + path.name))
                continue
            path.unlink(missing_ok=True)
            sent += 1
        return sent

    def _send(self, key: str, body: bytes) -> int:
        if not re.fullmatch(KEY, key):
            raise BadHistory("the run's key contains characters that are not allowed")
        headers = {"idempotency-key": key, "content-encoding": "gzip", "content-type": "application/json"}
        packed = gzip.compress(body, 6)
        return self._client.request(_Kept, "POST", "/runs", body=packed, headers=headers).id

    def runs(self, which: Selection | None = None) -> list[RunRow]:
        """Return runs without their scorecards, oldest first."""
        return [entry.run for entry in self.entries(which)][::-1]

    def batches(self, which: Selection) -> Iterator[list[RunRow]]:
        """Yield runs one at a time, oldest first."""
        return ([run] for run in self.runs(which))

    def entries(self, which: Selection | None = None) -> Iterator[_Entry]:
        """Yield runs with their origin, newest first; raise OddAnswer for pages that repeat."""
        which = which or Selection()
        left, after, newest = which.limit, None, ("~", 0)  # after any time
        for _ in range(_MOST_PAGES):
            limit = _PAGE if left is None else min(left, _PAGE)
            fields = [*_fields(which), ("limit", limit), ("after", after)]
            page = self._client.request(_Page, "GET", "/runs", fields)
            for entry in page.runs[:limit]:
                here = entry.run.added_at, entry.run.id
                if not (0 < entry.run.id < 2**63 and here < newest):
                    raise OddAnswer("its runs repeat or are not in order", where=self.name)
                newest = here
                yield entry
            left = None if left is None else left - len(page.runs)
            if page.next is None or page.next == after or (left is not None and left <= 0):
                return
            after = page.next
        raise OddAnswer("too many pages", where=self.name, hint="select fewer runs")

    def series(self, metric: str, which: Selection) -> list[tuple[int, float]]:
        """Return (id, value) pairs of one metric, oldest first."""
        if which.digests == ():
            return []
        fields = [*_fields(which), ("limit", min(which.limit or 100_000, 100_000))]
        return self._client.request(_Series, "GET", f"/series/{quote(metric, safe='')}", fields).points

    def commits(self, ids: Sequence[int]) -> dict[int, str | None]:
        """Return the commits of runs by id."""
        return {number: self._entry(number).run.commit for number in ids}

    def origins(self, ids: Sequence[int]) -> dict[int, RunOrigin]:
        """Return how runs were added, by id."""
        return {number: self._entry(number).origin for number in ids}

    def cards(self, ids: Sequence[int]) -> dict[int, Scorecard]:
        """Return scorecards by run id; those that cannot be read are recorded in `damaged` instead."""
        found = {}
        for number in dict.fromkeys(ids):
            text = bytes(self._entry(number).card)
            try:
                if text == b"null":
                    self._skip(number, "the server cannot read it")
                else:
                    found[number] = Scorecard.from_json(text)
            except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError) as error:
                self._skip(number, f"its scorecard is damaged: {error}")
        return found

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return the fingerprints of all runs by digest."""
        return self._client.request(dict[str, Fingerprint], "GET", "/fingerprints")

    def _entry(self, number: int) -> _Entry:
        entry = self._client.request(_Entry, "GET", f"/runs/{int(number)}")
        if entry.run.id != number:
            raise OddAnswer(f"returned run {entry.run.id} for run {number}", where=self.name)
        return entry


def _fields(which: Selection) -> list[tuple[str, object]]:
    """Return a selection as query parameters."""
    fields: list[tuple[str, object]] = [
        ("branch", which.branch),
        ("grade", which.grade),
        ("commit", which.commit),
        ("by", which.added_by),
        ("since", which.since),
        ("until", which.until),
    ]
    fields += [("fingerprint", digest) for digest in which.digests or ()]
    return fields + [("label", f"{name}={value}") for name, value in sorted(which.labels.items())]


def _body(run: NewRun) -> bytes:
    new = run.storable()
    names = ("commit", "branch", "added_at", "device_hours")
    known = {name: value for name in names if (value := getattr(new, name)) is not None}
    card = msgspec.Raw(run.card.to_json().encode())
    return msgspec.json.encode({"card": card, "labels": new.labels, **known})
