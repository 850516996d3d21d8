"""A team's history on a stepgrade server, asked like one in a file; offline, runs wait here."""

from __future__ import annotations

import datetime as dt
import gzip
import http.client
import ipaddress
import os
import ssl
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from stepgrade.decoding import from_builtins, from_json
from stepgrade.errors import BadHistory, BadOption, NoSuchRun, NotLetIn, Unreachable
from stepgrade.files import MODES, write_whole
from stepgrade.memory import default_limit
from stepgrade.model import Fingerprint
from stepgrade.model.run import RunRow
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.history import History, NewRun, RunOrigin, Selection

VARIABLE = "STEPGRADE_TOKEN"  # the environment's: an argument could be seen by everyone on the machine
OUTBOX = ".stepgrade/outbox"
_TIMEOUT_S = 30.0
_MOST_ANSWER = 256 << 20
_PAGE = 500
_MOST_WAIT_S = 60.0
_TRIES = 3
_WRONG = "a server's history is named like https://stepgrade.example.org/project"


class _Entry(msgspec.Struct, frozen=True, kw_only=True):
    run: RunRow
    origin: RunOrigin
    card: dict[str, Any] | None = None


class _Page(msgspec.Struct, frozen=True, kw_only=True):
    runs: list[_Entry]
    next: str | None


class _Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the outbox."""

    server: str
    key: str
    body: dict[str, Any]


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
    except ValueError:
        raise BadHistory("is no address of a server", hint=_WRONG) from None
    path = parts.path.strip("/")
    if not host or "@" in parts.netloc or parts.query or parts.fragment or not path:
        raise BadHistory("is no address of a project on a server", hint=_WRONG)
    scheme = parts.scheme.lower()
    if scheme == "http" and not is_loopback(host):
        raise BadHistory("a token would cross the network for everybody to read", hint="write https://")
    base, _, project = path.rpartition("/")
    prefix = f"{'/' + base if base else ''}/api/v1/projects/{quote(project, safe='')}"
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

    def __init__(self, place: str, max_memory: int | None = None, outbox: str = OUTBOX) -> None:
        self._address = address_of(place)
        self._most_bytes = default_limit() if max_memory is None else max_memory
        self._outbox = Path(outbox)
        self._connection: http.client.HTTPConnection | None = None
        self.project = self._address.prefix.rsplit("/", 1)[1]
        self.damaged = {}
        self.refused: list[str] = []  # what waited in the outbox and the server would not have

    @property
    def name(self) -> str:
        """Return where the history is."""
        return self._address.name

    def __exit__(self, *_: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def add_all(self, runs: Iterable[NewRun]) -> list[int]:
        """Send runs, and those that waited before them; offline they wait in the outbox, on the disk."""
        numbers = []
        for run in runs:
            key, body = run.key or os.urandom(16).hex(), _body_of(run)
            try:
                self.send_waiting()
                numbers.append(self._send(key, body))
            except Unreachable:
                waiting = msgspec.json.encode(_Waiting(server=self.name, key=key, body=body))
                try:
                    self._outbox.mkdir(parents=True, exist_ok=True, mode=0o700)
                    name = f"run-{time.time_ns():020}-{key[:32]}.json"
                    write_whole(self._outbox / name, waiting, new_mode=MODES["owner"])
                except OSError as error:
                    why = f"the server does not answer, and the run cannot be kept: {error.strerror or error}"
                    raise BadHistory(why, where=str(self._outbox)) from error
                numbers.append(0)
        return numbers

    def send_now(self, run: NewRun) -> int:
        """Send one run, and raise Unreachable rather than keep it for later."""
        return self._send(run.key or os.urandom(16).hex(), _body_of(run))

    def waiting(self) -> list[Path]:
        """Return the files of runs that wait for this server, oldest first."""
        found = []
        for path in sorted(self._outbox.glob("run-*.json")):
            try:
                is_mine = from_json(path.read_bytes(), _Waiting).server == self.name
            except (OSError, msgspec.DecodeError):
                continue
            if is_mine:
                found.append(path)
        return found

    def send_waiting(self) -> int:
        """Send what waits and return how many runs; raise Unreachable when the server is not there."""
        sent = 0
        for path in self.waiting():
            one = from_json(path.read_bytes(), _Waiting)
            try:
                self._send(one.key, one.body)
            except (Unreachable, NotLetIn):
                raise
            except BadHistory as error:
                # It will not have this one, ever: it stays, under a name that is not tried again.
                path.rename(path.with_name("refused-" + path.name))
                self.refused.append(f"{path.name}: {error.problem}")
                continue
            path.unlink()
            sent += 1
        return sent

    def _send(self, key: str, body: dict[str, Any]) -> int:
        packed = gzip.compress(msgspec.json.encode(body), 6)
        headers = {"idempotency-key": key, "content-encoding": "gzip", "content-type": "application/json"}
        return int(self._ask("POST", "/runs", body=packed, headers=headers)["id"])

    def runs(self, which: Selection = Selection()) -> list[RunRow]:  # noqa: B008  frozen
        """Return runs, oldest first."""
        return [entry.run for entry in self.entries(which)][::-1]

    def entries(self, which: Selection = Selection()) -> Iterator[_Entry]:  # noqa: B008  frozen
        """Yield runs with how they came, newest first."""
        left, after = which.limit, None
        while left is None or left > 0:
            limit = _PAGE if left is None else min(left, _PAGE)
            fields = [*_fields(which), ("limit", limit), ("after", after)]
            page: _Page = self._converted(self._ask("GET", "/runs", fields), _Page)
            yield from page.runs
            left = None if left is None else left - len(page.runs)
            if page.next is None or not page.runs:
                return
            after = page.next

    def series(self, metric: str, which: Selection) -> list[tuple[int, float]]:
        """Return (id, value) of one metric, oldest first."""
        if which.digests == ():
            return []
        fields = [*_fields(which), ("limit", min(which.limit or 100_000, 100_000))]
        found = self._ask("GET", f"/series/{quote(metric, safe='')}", fields)
        points: list[tuple[int, float]] = self._converted(found, dict[str, list[tuple[int, float]]])["points"]
        return points

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
            card = self._entry(number).card
            if card is None:
                self._pass_over(number, "the server cannot read it")
                continue
            found[number] = Scorecard.from_json(msgspec.json.encode(card))
        return found

    def fingerprints(self) -> dict[str, Fingerprint]:
        """Return every fingerprint of the project's runs by its digest."""
        found: dict[str, Fingerprint] = self._converted(
            self._ask("GET", "/fingerprints"), dict[str, Fingerprint]
        )
        return found

    def prunable(self, *, keep: int | None = None, older_than: dt.date | None = None) -> list[int]:  # noqa: ARG002
        """Refuse: what a team keeps is a setting of its project."""
        raise BadOption(
            "a server's runs are not removed from here", hint="its project's settings say what is kept"
        )

    def remove(self, numbers: Sequence[int]) -> None:  # noqa: ARG002
        """Refuse, as `prunable`."""
        self.prunable()

    def _entry(self, number: int) -> _Entry:
        entry: _Entry = self._converted(self._ask("GET", f"/runs/{int(number)}"), _Entry)
        return entry

    def _converted(self, found: Any, kind: Any) -> Any:
        try:
            return from_builtins(found, kind, strict=False)
        except msgspec.ValidationError as error:
            raise BadHistory(f"answers in a way that is not known here: {error}", where=self.name) from None

    def _ask(
        self,
        method: str,
        path: str,
        fields: Sequence[tuple[str, object]] = (),
        *,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        """Return the server's answer; raise Unreachable when there is none, BadHistory when it says no."""
        query = urlencode([(name, value) for name, value in fields if value is not None])
        target = f"{self._address.prefix}{path}{'?' + query if query else ''}"
        given = {"accept": "application/json", "user-agent": "stepgrade", **(headers or {})}
        if token := os.environ.get(VARIABLE):
            given["authorization"] = f"Bearer {token.strip()}"
        for attempt in range(_TRIES):
            status, wait, text = self._exchange(method, target, body, given)
            if status == 429 and attempt + 1 < _TRIES:
                time.sleep(min(wait, _MOST_WAIT_S))
                continue
            break
        if status in (429, 502, 503, 504):
            raise Unreachable(f"is busy or down: it answers {status}", where=self.name)
        return self._read(status, text)

    def _read(self, status: int, text: bytes) -> Any:
        try:
            answer = msgspec.json.decode(text) if text else {}
        except (msgspec.DecodeError, UnicodeError):
            raise BadHistory(f"is no server of stepgrade: it answers {status}", where=self.name) from None
        if 200 <= status < 300:
            return answer
        problem = str(answer.get("problem", status)) if isinstance(answer, dict) else str(status)
        if status in (401, 403):
            hint = f"put a token into {VARIABLE}" if status == 401 else "the token needs another role"
            raise NotLetIn(problem, where=self.name, hint=hint)
        kind = NoSuchRun if status == 404 else BadHistory
        raise kind(problem, where=self.name)

    def _exchange(
        self, method: str, target: str, body: bytes | None, headers: dict[str, str]
    ) -> tuple[int, float, bytes]:
        """Return status, seconds to wait and text; a connection that was kept open may have ended."""
        for is_fresh in (self._connection is None, True):
            try:
                if self._connection is None:
                    host, port = self._address.host, self._address.port
                    self._connection = http.client.HTTPConnection(host, port, timeout=_TIMEOUT_S)
                    if self._address.scheme == "https":
                        safe = ssl.create_default_context()
                        self._connection = http.client.HTTPSConnection(
                            host, port, timeout=_TIMEOUT_S, context=safe
                        )
                self._connection.request(method, target, body, headers)
                answer = self._connection.getresponse()
                text = answer.read(_MOST_ANSWER + 1)
            except (OSError, http.client.HTTPException) as error:
                if self._connection is not None:
                    self._connection.close()
                    self._connection = None
                if is_fresh:
                    problem = getattr(error, "strerror", None) or type(error).__name__
                    raise Unreachable(f"does not answer: {problem}", where=self.name) from error
                continue
            if len(text) > _MOST_ANSWER:
                raise BadHistory("answers with too much", where=self.name)
            after = answer.getheader("retry-after") or "1"
            return answer.status, float(after) if after.isdecimal() else 1.0, text
        raise AssertionError  # the second connection is a fresh one


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


def _body_of(run: NewRun) -> dict[str, Any]:
    body: dict[str, Any] = {"card": msgspec.json.decode(run.card.to_json()), "labels": run.labels}
    given = {
        "commit": run.commit,
        "branch": run.branch,
        "added_at": run.added_at or dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "device_hours": run.device_hours,
    }
    return body | {name: value for name, value in given.items() if value is not None}


def key_of(number: int, run: RunRow, origin: RunOrigin | None, card: Scorecard) -> str:
    """Return the key of a kept run: its own, or for one of before there were keys, what its content makes."""
    if origin is not None and origin.key:
        return origin.key
    import hashlib  # noqa: PLC0415  only for old runs

    text = f"{number} {run.added_at} ".encode() + card.to_json().encode()
    return f"old-{hashlib.sha256(text).hexdigest()[:32]}"


def push(local: History, remote: RemoteHistory) -> tuple[int, int]:
    """Send every local run that the server has not; return how many were sent, and how many were there."""
    remote.send_waiting()
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
