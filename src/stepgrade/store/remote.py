"""A team's history on a stepgrade server, asked like one in a file; offline, runs wait here."""

from __future__ import annotations

import datetime as dt
import gzip
import http.client
import ipaddress
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec
from msgspec import Meta

from stepgrade.decoding import from_json
from stepgrade.errors import BadHistory, BadOption, NoSuchRun, NotLetIn, OddAnswer, Unreachable
from stepgrade.memory import default_limit
from stepgrade.model import Fingerprint
from stepgrade.model.run import RunRow
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.exchange import TOKEN, Connection, token_from_environment
from stepgrade.store.history import DECODED_BYTES, History, NewRun, RunOrigin, Selection, as_text
from stepgrade.store.outbox import KEY, Outbox, OutboxFile, files_in

_MOST_ANSWER = 64 << 20
_PAGE = 500
_MOST_PAGES = 2000
_MOST_WAIT_S = 60.0
_TRIES = 3
_MOST_PROBLEM = 500
_WRONG = "a server's history is named like https://stepgrade.example.org/project"
# What a server of ours answers when this run is wrong, and will be the next time.
_REFUSALS = (400, 409, 413, 415, 422)
_Number = Annotated[int, Meta(ge=1, le=2**62)]
_Kind = TypeVar("_Kind")


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    run: RunRow
    origin: RunOrigin
    card: msgspec.Raw = msgspec.Raw(b"null")


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[_Entry]
    next: str | None


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    id: _Number


class _Series(msgspec.Struct, frozen=True, kw_only=True):
    points: list[tuple[_Number, float]]


class _Problem(msgspec.Struct, frozen=True, kw_only=True):
    problem: str


class Address(NamedTuple):
    """Where a project's history is."""

    scheme: str
    host: str
    port: int
    prefix: str  # of the interface for programs
    name: str  # as it is shown


def address_of(place: str) -> Address:
    """Return the parts of a server's place; raise BadHistory for what is none, without repeating it."""
    try:
        parts = urlsplit(place)
        host, port = parts.hostname, parts.port
        (host or "").encode("idna")
        path = parts.path.strip("/")
        base, _, project = path.rpartition("/")
        prefix = f"{'/' + base if base else ''}/api/v1/projects/{quote(project, safe='')}"
    except ValueError:
        raise BadHistory("is not an address of a server", hint=_WRONG) from None
    is_odd = "@" in parts.netloc or parts.query or parts.fragment or not re.fullmatch(r"[!-~]+", base or "-")
    if not host or not path or is_odd or not place.isprintable():
        raise BadHistory("is not an address of a project on a server", hint=_WRONG)
    scheme = parts.scheme.lower()
    if scheme == "http" and not is_loopback(host):
        raise BadHistory("a token would cross the network for everybody to read", hint="write https://")
    return Address(
        scheme, host, port or (443 if scheme == "https" else 80), prefix, f"{scheme}://{parts.netloc}/{path}"
    )


def is_loopback(host: str) -> bool:
    """Return whether a name or address is this machine's own."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class RemoteHistory(History):
    """The runs of one project on a server; `add` returns 0 for a run that waits in the outbox."""

    def __init__(self, place: str, max_memory: int | None = None) -> None:
        address = address_of(place)
        self._address = address
        self._token = token_from_environment()
        self._most_bytes = default_limit() if max_memory is None else max_memory
        self._connection = Connection(address.scheme, address.host, address.port)
        self.outbox = Outbox(address.name, self._token)
        self.project = address.prefix.rsplit("/", 1)[1]
        self.damaged = {}
        self.remarks: list[str] = []  # on what waits in the outbox and was not sent, or why a run waits
        self.refused = 0  # how many of those the server would not have

    @property
    def name(self) -> str:
        """Return where the history is."""
        return self._address.name

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def add_all(self, runs: Iterable[NewRun]) -> list[int]:
        """Send runs, and those that waited before them; what cannot be sent now waits in the outbox.

        Raise OddAnswer, after keeping the run, where what answers is not a stepgrade server.
        """
        numbers = []
        for run in runs:
            key, body = run.key or os.urandom(16).hex(), _body_of(run)
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
                    hint = f"{error.hint or 'check the address'}; the run waits in the outbox"
                    raise OddAnswer(error.problem, where=self.name, hint=hint) from error
                self.remarks.append(
                    f"{self.name} {error.problem}: the run waits in the outbox, history push sends it"
                )
                numbers.append(0)
        return numbers

    def send_now(self, run: NewRun) -> int:
        """Send one run, and raise Unreachable rather than keep it for later."""
        return self._send(run.key or os.urandom(16).hex(), _body_of(run))

    def send_waiting(self) -> int:
        """Send what waits and return how many runs; raise Unreachable when the server is not there."""
        try:
            return self._send_all(self.outbox.waiting())
        except (Unreachable, OddAnswer, NotLetIn, NoSuchRun):
            raise
        except BadHistory as unsafe:
            self.remarks.append(str(unsafe))
            return 0

    def send_folder(self, folder: str) -> int:
        """Send the runs for this server in any folder, whoever put them there, and return how many."""
        found = []
        for one in files_in(Path(folder), anybodys=True):
            is_elsewhere = one.run is not None and one.run.server != self.name
            found.append(one._replace(problem="waits for another server" if is_elsewhere else one.problem))
        return self._send_all(found)

    def _send_all(self, found: Iterable[OutboxFile]) -> int:
        sent = 0
        for path, run, problem in found:
            if run is None or problem:
                self.remarks.append(f"{path} is not sent: {problem}")
                continue
            try:
                self._send(run.key, bytes(run.body))
            except (Unreachable, OddAnswer, NotLetIn, NoSuchRun):
                raise
            except BadHistory as error:
                # It will not have this one, ever: it stays, under a name that is not tried again.
                self.refused += 1
                self.remarks.append(f"not taken by {self.name}, and kept here: {path}: {error.problem}")
                with suppress(FileNotFoundError):
                    path.rename(path.with_name("refused-" + path.name))
                continue
            path.unlink(missing_ok=True)
            sent += 1
        return sent

    def _send(self, key: str, body: bytes) -> int:
        if not re.fullmatch(KEY, key):
            raise BadHistory("the run's key has characters that cannot be sent")
        headers = {"idempotency-key": key, "content-encoding": "gzip", "content-type": "application/json"}
        return self._ask(_Kept, "POST", "/runs", body=gzip.compress(body, 6), headers=headers).id

    def runs(self, which: Selection = Selection()) -> list[RunRow]:  # noqa: B008  frozen
        """Return runs, oldest first."""
        return [entry.run for entry in self.entries(which)][::-1]

    def batches(self, which: Selection) -> Iterator[list[RunRow]]:
        """Yield runs one at a time, oldest first; the server lists them newest first."""
        return ([run] for run in self.runs(which))

    def entries(self, which: Selection = Selection()) -> Iterator[_Entry]:  # noqa: B008  frozen
        """Yield runs with how they came, newest first; raise OddAnswer for pages that come again."""
        left, after, newest = which.limit, None, 2**63
        for _ in range(_MOST_PAGES):
            limit = _PAGE if left is None else min(left, _PAGE)
            page = self._ask(_Page, "GET", "/runs", [*_fields(which), ("limit", limit), ("after", after)])
            for entry in page.runs[:limit]:
                if not 0 < entry.run.id < newest:
                    raise OddAnswer("its runs come twice, or in no order", where=self.name)
                newest = entry.run.id
                yield entry
            left = None if left is None else left - len(page.runs)
            if page.next is None or page.next == after or (left is not None and left <= 0):
                return
            after = page.next
        raise OddAnswer("its pages do not end", where=self.name, hint="choose fewer runs")

    def series(self, metric: str, which: Selection) -> list[tuple[int, float]]:
        """Return (id, value) of one metric, oldest first."""
        if which.digests == ():
            return []
        fields = [*_fields(which), ("limit", min(which.limit or 100_000, 100_000))]
        return self._ask(_Series, "GET", f"/series/{quote(metric, safe='')}", fields).points

    def commits(self, numbers: Sequence[int]) -> dict[int, str | None]:
        """Return the commits of some runs."""
        return {number: self._entry(number).run.commit for number in numbers}

    def origins(self, numbers: Sequence[int]) -> dict[int, RunOrigin]:
        """Return how some runs came there."""
        return {number: self._entry(number).origin for number in numbers}

    def cards(self, numbers: Sequence[int]) -> dict[int, Scorecard]:
        """Return the scorecards of several runs by number."""
        found = {}
        for number in dict.fromkeys(numbers):
            text = bytes(self._entry(number).card)
            try:
                if text == b"null":
                    self._pass_over(number, "the server cannot read it")
                else:
                    found[number] = Scorecard.from_json(text)
            except (msgspec.DecodeError, TypeError, UnicodeError, RecursionError) as error:
                self._pass_over(number, f"its scorecard is damaged: {error}")
        return found

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return every fingerprint of the project's runs by its digest."""
        return self._ask(dict[str, Fingerprint], "GET", "/fingerprints")

    def prunable(self, *, keep: int | None = None, older_than: dt.date | None = None) -> list[int]:  # noqa: ARG002
        """Refuse: what a team keeps is a setting of its project."""
        raise BadOption(
            "a server's runs are not removed from here", hint="its project's settings say what is kept"
        )

    def remove(self, numbers: Sequence[int]) -> None:  # noqa: ARG002
        """Refuse, as `prunable`."""
        self.prunable()

    def _entry(self, number: int) -> _Entry:
        entry = self._ask(_Entry, "GET", f"/runs/{int(number)}")
        if entry.run.id != number:
            raise OddAnswer(f"answers with run {entry.run.id} for run {number}", where=self.name)
        return entry

    def _ask(
        self,
        kind: type[_Kind],
        method: str,
        path: str,
        fields: Sequence[tuple[str, object]] = (),
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> _Kind:
        """Return the server's answer; raise Unreachable, OddAnswer, NotLetIn, NoSuchRun or BadHistory."""
        given = [(name, value) for name, value in fields if value is not None]
        query = urlencode(given, errors="backslashreplace")
        target = f"{self._address.prefix}{path}{'?' + query if query else ''}"
        sent = {"accept": "application/json", "user-agent": "stepgrade", **(headers or {})}
        if self._token:
            sent["authorization"] = f"Bearer {self._token}"
        most_bytes = min(_MOST_ANSWER, self._most_bytes // DECODED_BYTES)
        for attempt in range(_TRIES):
            try:
                status, wait, text = self._connection.ask(method, target, body, sent, most_bytes)
            except (OSError, http.client.HTTPException) as error:
                said = str(error) if isinstance(error, TimeoutError) else getattr(error, "strerror", None)
                raise Unreachable(
                    f"does not answer: {said or type(error).__name__}", where=self.name
                ) from error
            if status != 429 or attempt + 1 == _TRIES:
                break
            time.sleep(min(float(wait), _MOST_WAIT_S) if re.fullmatch(r"[0-9]{1,9}", wait) else 1.0)
        if status in (408, 425, 429) or status >= 500:
            raise Unreachable(f"is busy or down: it answers {status}", where=self.name)
        if len(text) > most_bytes:
            raise OddAnswer("answers with too much", where=self.name, hint="choose fewer runs")
        if self._token:  # a proxy that shows what it was asked
            text = text.replace(self._token.encode(), b"...")
        return self._read(kind, status, text)

    def _read(self, kind: type[_Kind], status: int, text: bytes) -> _Kind:
        """Return the answer of a server of ours; raise what its status says."""
        wrong = (msgspec.DecodeError, UnicodeError, RecursionError)
        if status in (200, 201):
            try:
                return from_json(text, kind)
            except wrong as error:
                is_json = isinstance(error, msgspec.ValidationError)
                how = (
                    f"in a way that is not known here: {error}" if is_json else f"{status} without valid JSON"
                )
                raise OddAnswer(
                    f"is not a stepgrade server of this version: it answers {how}", where=self.name
                ) from None
        try:
            problem = from_json(text, _Problem).problem[:_MOST_PROBLEM]
        except wrong:
            problem = ""
        if status in (401, 403):
            hint = f"put a token into {TOKEN}" if status == 401 else "the token needs another role"
            raise NotLetIn(problem or f"answers {status}", where=self.name, hint=hint)
        if problem and status == 404:
            raise NoSuchRun(problem, where=self.name)
        if problem and status in _REFUSALS:
            raise BadHistory(problem, where=self.name)
        leads = "name the address that it leads to" if 300 <= status < 400 else None
        raise OddAnswer(f"is not a stepgrade server: it answers {status}", where=self.name, hint=leads)


def _fields(which: Selection) -> list[tuple[str, object]]:
    """Return a selection as the server reads it."""
    given = {
        "branch": which.branch,
        "grade": which.grade,
        "commit": which.commit,
        "by": which.added_by,
        "since": which.since,
        "until": which.until,
    }
    fields: list[tuple[str, object]] = [(name, value) for name, value in given.items() if value is not None]
    fields += [("fingerprint", digest) for digest in which.digests or ()]
    return fields + [("label", f"{name}={value}") for name, value in sorted(which.labels.items())]


def _body_of(run: NewRun) -> bytes:
    labels = {as_text(name): as_text(label) for name, label in run.labels.items()}
    given = {
        "commit": run.commit and as_text(run.commit),
        "branch": run.branch and as_text(run.branch),
        "added_at": run.added_at or dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "device_hours": run.device_hours,
    }
    known = {name: value for name, value in given.items() if value is not None}
    card = msgspec.Raw(run.card.to_json().encode())
    return msgspec.json.encode({"card": card, "labels": labels, **known})


def key_of(number: int, run: RunRow, origin: RunOrigin | None, card: Scorecard) -> str:
    """Return the key of a kept run: its own, or for one of before there were keys, what its content makes."""
    if origin is not None and origin.key:
        return origin.key
    import hashlib  # only for old runs

    text = f"{number} {run.added_at} ".encode() + card.to_json().encode()
    return f"old-{hashlib.sha256(text).hexdigest()[:32]}"


def push(local: History, remote: RemoteHistory) -> tuple[int, int]:
    """Send every local run that the server has not; return how many were sent, and how many were there."""
    known = {entry.origin.key for entry in remote.entries()}
    sent = there = 0
    rows = local.runs()
    for start in range(0, len(rows), 50):
        some = rows[start : start + 50]
        numbers = [row.id for row in some]
        cards, origins = local.cards(numbers), local.origins(numbers)
        for row in some:
            if row.id not in cards:
                continue
            key = key_of(row.id, row, origins.get(row.id), cards[row.id])
            if key in known:
                there += 1
                continue
            new = _as_new(row, origins.get(row.id), cards[row.id], key)
            remote.send_now(new)
            local.set_key(row.id, key)
            sent += 1
    return sent, there


def pull(local: History, remote: RemoteHistory, which: Selection) -> tuple[int, int]:
    """Keep the server's runs that are not here, oldest first; return how many were new, and were here."""
    missing, here = [], 0
    for entry in remote.entries(which):
        key = entry.origin.key
        if key is not None and local.run_with_key(key) is not None:
            here += 1
        else:
            missing.append(entry)
    for entry in reversed(missing):
        card = remote.card(entry.run.id)
        key = key_of(entry.run.id, entry.run, entry.origin, card)
        if local.run_with_key(key) is not None:
            here += 1
            continue
        local.add(_as_new(entry.run, entry.origin, card, key))
    return len(missing), here


def _as_new(row: RunRow, origin: RunOrigin | None, card: Scorecard, key: str) -> NewRun:
    return NewRun(
        card=card,
        commit=row.commit,
        branch=row.branch,
        labels=row.labels,
        added_at=row.added_at,
        key=key,
        device_hours=origin.device_hours if origin else None,
    )
