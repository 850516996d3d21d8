"""A server in this process on both databases, and who asks it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stepgrade as sg
from stepgrade.store import NewRun, open_history
from stepgrade.store.alerts import Alerts, QuietHours
from stepgrade.store.team import Team
from tests.builders import make_profile
from tests.store.conftest import place, server  # the databases that tests of the history run on

testclient = pytest.importorskip("starlette.testclient", reason="starlette is not installed")
pytest.importorskip("jinja2", reason="Jinja2 is not installed")

__all__ = ["place", "server"]

BASE = "https://team.example"
ROLES = ("anonymous", "stranger", "reader", "uploader", "owner", "admin")


def card(step_ms: float = 100.0, **fields: Any) -> sg.Scorecard:
    return sg.score(make_profile(mean_step_ms=step_ms, **fields), tokens_per_step=1000.0)


def upload(step_ms: float = 100.0, **more: Any) -> dict[str, Any]:
    return {"card": msgspec.json.decode(card(step_ms).to_json()), "branch": "main", **more}


class Site:
    """A running server with the projects `mine` and `other`, and a token of every role in `mine`."""

    def __init__(self, place: str, stack: ExitStack, **settings: Any) -> None:
        from stepgrade.web.app import make_app
        from stepgrade.web.settings import ServerSettings

        self.place = place
        with open_history(place) as history:
            team = Team(history.database)
            team.add_project("mine")
            team.add_project("other")
            mine = history.in_project("mine")
            steps = [100.0 + n % 3 for n in range(8)] + [130.0 + n % 3 for n in range(6)]
            cards = {ms: card(ms) for ms in set(steps)}
            self.runs = mine.add_all(
                NewRun(card=cards[ms], branch="main", commit=f"c{n}") for n, ms in enumerate(steps)
            )
            alerts = Alerts(mine)
            self.alerts = [alert.id for alert, _ in alerts.look("main", mine.runs()[0].digest)]
            self.channel = alerts.add_channel(
                "webhook", "https://hooks.example/secret-path", "s3cret", QuietHours()
            )
            made = {
                "stranger": ("reader", "other"),
                "reader": ("reader", "mine"),
                "uploader": ("uploader", "mine"),
                "owner": ("admin", "mine"),
                "admin": ("admin", None),
            }
            self.tokens = {}
            self.sessions = {}
            for who, (role, project) in made.items():
                secret, token = team.add_token(who, role, project=project, days=1, created_by="test")  # type: ignore[arg-type]
                session = team.open_session(token)
                found = team.session_of(session)
                assert found is not None
                self.tokens[who] = secret
                self.sessions[who] = (session, found[1])
            _, spare = team.add_token("spare", "reader", project="mine", days=1, created_by="test")
            self.spare = spare.id
        given = {"access": "tokens", "public_url": BASE, "uploads_per_minute": 100_000} | settings
        self.app = make_app(ServerSettings(location=place, **given))  # type: ignore[arg-type]
        self._stack = stack
        self.client = self.from_address("203.0.113.9")

    def from_address(self, address: str) -> Any:
        """Return a client with this address; the first one starts the server."""
        client = testclient.TestClient(
            self.app, base_url=BASE, client=(address, 4711), follow_redirects=False
        )
        return client if hasattr(self, "client") else self._stack.enter_context(client)

    def bearer(self, who: str) -> dict[str, str]:
        return {"authorization": f"Bearer {self.tokens[who]}"} if who in self.tokens else {}

    def cookies(self, who: str) -> dict[str, str]:
        if who not in self.sessions:
            return {}
        return {"cookie": f"stepgrade_session={self.sessions[who][0]}"}

    def form(self, who: str, fields: dict[str, str]) -> dict[str, str]:
        return fields | {"form_key": self.sessions[who][1] if who in self.sessions else "x"}


@pytest.fixture
def make_site(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Make a server on SQLite: what does not ask the database something new is tested on one alone."""
    memory = Path("/dev/shm")  # noqa: S108  a folder of our own in it
    with ExitStack() as stack:
        where = memory if memory.is_dir() else tmp_path
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=where))
        yield lambda **settings: Site(f"{folder}/h/history.db", stack, **settings)


@pytest.fixture
def site(make_site: Callable[..., Site]) -> Site:
    return make_site()


@pytest.fixture
def site_on_both(place: str) -> Iterator[Site]:
    """Make a server on each database."""
    with ExitStack() as stack:
        yield Site(place, stack)
