"""What programs send and get, as JSON."""

from __future__ import annotations

import datetime as dt
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from stepgrade.model import Fingerprint
from stepgrade.model.run import RunRow
from stepgrade.store.alerts import ChannelState, QuietHours
from stepgrade.store.runs import RunOrigin
from stepgrade.store.team import Role, Token

Word = Annotated[str, Meta(max_length=300)]


class RunUpload(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A run that is sent: its scorecard as JSON, and where it is from."""

    card: msgspec.Raw
    commit: Word | None = None
    branch: Word | None = None
    labels: Annotated[
        dict[Annotated[str, Meta(min_length=1, max_length=100)], Word], Meta(max_length=64)
    ] = {}
    added_at: Word | None = None
    device_hours: Annotated[float, Meta(ge=0)] | None = None


class RunKept(Struct, frozen=True, kw_only=True):
    """The answer to a run that was sent: it is on the disk when this is read."""

    id: int
    is_new: bool
    alerts: tuple[int, ...] = ()


class RunEntry(Struct, frozen=True, kw_only=True):
    """A run of the table, how it came, and its scorecard when asked for."""

    run: RunRow
    origin: RunOrigin
    fingerprint: Fingerprint
    card: dict[str, Any] | None = None


class RunEntries(Struct, frozen=True, kw_only=True):
    """A page of runs; `next` is what `after` takes to go on."""

    runs: list[RunEntry]
    next: str | None


class MetricSeries(Struct, frozen=True, kw_only=True):
    """Numbers of runs with a figure each, oldest first."""

    points: list[tuple[int, float]]


class ProjectName(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A project to make."""

    name: str


class NewToken(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A token to make; `project` None is every project."""

    name: Annotated[str, Meta(min_length=1, max_length=200)]
    role: Role
    project: str | None = None
    days: Annotated[int, Meta(ge=1, le=3650)] = 90


class MadeToken(Struct, frozen=True, kw_only=True):
    """A new token: `secret` is shown this once."""

    secret: str
    token: Token


class AlertChange(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What somebody says of an alert."""

    state: Word
    reason: Annotated[str, Meta(max_length=500)] = ""
    until: dt.date | None = None


class NewChannel(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whom to tell: a URL, or an address for e-mail; `secret` signs webhooks."""

    kind: Word
    target: Annotated[str, Meta(max_length=2000)]
    secret: Annotated[str, Meta(max_length=200)] = ""
    quiet: QuietHours = QuietHours()


class ShownChannel(Struct, frozen=True, kw_only=True):
    """A channel without what only it and we may know."""

    id: int
    kind: str
    target: str
    quiet: QuietHours
    state: ChannelState = ChannelState()
