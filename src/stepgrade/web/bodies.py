"""JSON bodies of the HTTP API."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from stepgrade.model.comparison import RunRow
from stepgrade.model.scorecard import Fingerprint
from stepgrade.store.alerts import ChannelState, QuietHours
from stepgrade.store.runs import RunOrigin
from stepgrade.store.team import Role, Token

Word = Annotated[str, Meta(max_length=300)]


class RunUpload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An uploaded run: its scorecard and its origin."""

    card: msgspec.Raw
    commit: Word | None = None
    branch: Word | None = None
    labels: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=100)], Word], Meta(max_length=64)
    ] = {}
    added_at: Word | None = None
    device_hours: Annotated[float, Meta(ge=0)] | None = None


class RunKept(Struct, frozen=True, kw_only=True):
    """The response to an upload; the run is durable by then."""

    id: int
    is_new: bool
    alerts: tuple[int, ...] = ()


class RunEntry(Struct, frozen=True, kw_only=True):
    """A run, how it was added, and its scorecard if requested."""

    run: RunRow
    origin: RunOrigin
    fingerprint: Fingerprint
    card: dict[str, Any] | None = None


class RunEntries(Struct, frozen=True, kw_only=True):
    """A page of runs; `next` is the value of `after` for the next page."""

    runs: list[RunEntry]
    next: str | None


class MetricSeries(Struct, frozen=True, kw_only=True):
    """(run id, value) pairs, oldest first."""

    points: list[tuple[int, float]]


class ProjectName(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project to create."""

    name: str


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to create; `project` None means every project."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    role: Role
    project: str | None = None
    days: Annotated[int, Meta(ge=1, le=3650)] = 90


class MadeToken(Struct, frozen=True, kw_only=True):
    """A new token; `secret` is shown only once."""

    secret: str
    token: Token


class AlertChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A new state of an alert."""

    state: Word
    reason: Annotated[str, Meta(max_length=500)] = ""
    until: dt.date | None = None


class NewChannel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An alert channel to add: a URL or an e-mail address; `secret` signs webhooks."""

    kind: Word
    target: Annotated[str, Meta(max_length=2000)]
    secret: Annotated[str, Meta(max_length=200)] = ""
    quiet: QuietHours = QuietHours()


class ShownChannel(Struct, frozen=True, kw_only=True):
    """A channel without its secrets."""

    id: int
    kind: str
    target: str
    quiet: QuietHours
    state: ChannelState = ChannelState()
