"""A project's history on a stepgrade server; offline, new runs wait in the outbox."""

from __future__ import annotations

import datetime as dt
import gzip
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import quote

import msgspec
from msgspec import Meta

from stepgrade.errors import BadHistory, NoSuchRun, NotLetIn, OddAnswer, Unreachable
from stepgrade.memory import default_limit
from stepgrade.model import Fingerprint
from stepgrade.model.run import RunRow
from stepgrade.model.scorecard import Scorecard
from stepgrade.store.client import Client
from stepgrade.store.outbox import KEY, Outbox, OutboxFile, files_in
from stepgrade.store.runs import DECODED_BYTES, NewRun, RunOrigin, Runs, Selection, as_text

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
        left, after, newest = which.limit, None, 2**63
        for _ in range(_MOST_PAGES):
            limit = _PAGE if left is None else min(left, _PAGE)
            fields = [*_fields(which), ("limit", limit), ("after", after)]
            page = self._client.request(_Page, "GET", "/runs", fields)
            for entry in page.runs[:limit]:
                if not 0 < entry.run.id < newest:
                    raise OddAnswer("its runs repeat or are not in order", where=self.name)
                newest = entry.run.id
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
