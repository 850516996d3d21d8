"""Runs that wait for a server: in a folder of the user's own, under one token, and nothing else is ever sent."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from stepgrade.errors import BadHistory, Unreachable
from stepgrade.store import NewRun, open_history
from stepgrade.store.remote import Outbox, RemoteHistory, files_in, outbox_folder
from stepgrade.store.team import Team
from tests.conftest import ROOT, Ran
from tests.web.conftest import card
from tests.web.live import live_server

Run = Callable[..., Ran]
NOWHERE = "http://127.0.0.1:9/default"  # nothing listens on the port that discards
SCORE = ("score", ROOT / "examples" / "runs" / "gpt_naive.json", "--device", "gb10", "--save")


class Place(NamedTuple):
    """A project on a server, and two tokens that may upload to it."""

    url: str
    store: str
    token: str
    other: str

    def commits(self) -> list[str | None]:
        """Return the commits of the runs that the server has."""
        with open_history(self.store, create=False) as history:
            return [run.commit for run in history.runs()]


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Start a server."""
    store = str(tmp_path_factory.mktemp("team") / "team.db")
    with open_history(store) as history:
        both = [
            Team(history.database).add_token(name, "uploader", project=None, days=9, created_by="test")[0]
            for name in ("ci", "other")
        ]
    with live_server(store) as server:
        yield Place(f"{server.url}/default", store, *both)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, team: Place) -> None:
    (tmp_path / "checkout").mkdir()
    monkeypatch.chdir(tmp_path / "checkout")
    monkeypatch.setenv("STEPGRADE_TOKEN", team.token)


def body_of(commit: str) -> dict[str, Any]:
    """Return a run of main as it is sent."""
    return {"card": msgspec.json.decode(card().to_json()), "labels": {}, "branch": "main", "commit": commit}


def kept(server: str, commit: str = "honest") -> Path:
    """Keep a run for a server, as if it were not there, and return its file."""
    with RemoteHistory(server) as remote:
        path = remote.outbox.keep(commit.replace(" ", "-"), msgspec.json.encode(body_of(commit)))
        assert [found.problem for found in remote.outbox.waiting() if found.path == path] == [""]
    return path


def test_a_checkout_brings_no_runs(team: Place, stepgrade: Run) -> None:
    """A pull request's `.stepgrade/outbox` is not sent with CI's token, but is there to be sent on purpose."""
    old = Path(".stepgrade/outbox")
    old.mkdir(parents=True)
    forged = {"server": team.url, "key": "forged", "body": body_of("forged")}  # as older versions wrote it
    (old / "run-1.json").write_bytes(msgspec.json.encode(forged))
    saved = stepgrade(*SCORE, "--branch", "pr", "--commit", "saved", "--history", team.url)
    assert saved.code == 0, saved.err
    assert f"--to {team.url} --outbox .stepgrade/outbox" in saved.err
    assert "0 sent" in stepgrade("history", "push", "--to", team.url).out
    assert "saved" in team.commits()
    assert "forged" not in team.commits()
    assert "forged" in stepgrade("history", "outbox", "--outbox", old).out
    sent = stepgrade("history", "push", "--to", team.url, "--outbox", old)
    assert (sent.code, sent.out[:6]) == (0, "1 sent"), sent.err
    assert "forged" in team.commits()
    assert list(old.iterdir()) == []


def test_a_history_that_came_with_a_checkout_is_sent_only_by_its_name(team: Place, stepgrade: Run) -> None:
    with open_history() as local:
        local.add(NewRun(card=card(), branch="main", commit="of the checkout"))
    pushed = stepgrade("history", "push", "--to", team.url)
    assert pushed.out.startswith("0 sent")
    assert "--history .stepgrade/history.db" in pushed.err
    assert "of the checkout" not in team.commits()
    named = stepgrade("history", "push", "--to", team.url, "--history", ".stepgrade/history.db")
    assert named.out.startswith("1 sent"), named.err


@pytest.mark.parametrize("where", ["server", "token", "code", "body", "key", "moved"])
def test_only_what_was_kept_for_this_server_under_this_token_is_sent(
    where: str, team: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = kept(team.url, where)
    document = msgspec.json.decode(path.read_bytes())
    if where == "server":
        document["server"] = "https://elsewhere.example.org/default"
    elif where in ("token", "moved"):
        monkeypatch.setenv("STEPGRADE_TOKEN", team.other)
        if where == "moved":  # into the folder of the token's own runs
            folder = RemoteHistory(team.url).outbox.folder
            folder.mkdir(mode=0o700)
            path = Path(shutil.move(path, folder))
    else:
        changed = {"body": document["body"] | {"branch": "other"}, "key": "other", "code": "0" * 64}
        document[where] = changed[where]
    path.write_bytes(msgspec.json.encode(document))
    with RemoteHistory(team.url) as remote:
        assert remote.send_waiting() == 0
        assert where == "token" or "not written with this token" in remote.remarks[0]
    assert where not in team.commits()
    assert path.exists()


def test_what_waits_under_another_token_is_listed_and_can_be_sent_on_purpose(
    team: Place, monkeypatch: pytest.MonkeyPatch, stepgrade: Run
) -> None:
    path = kept(team.url, "under the old token")
    assert f"{path}  waits  {team.url}  main" in stepgrade("history", "outbox").out
    monkeypatch.setenv("STEPGRADE_TOKEN", team.other)
    assert "was not written with this token" in stepgrade("history", "outbox").out
    sent = stepgrade("history", "push", "--to", team.url, "--outbox", path.parent)
    assert (sent.code, sent.out[:6]) == (0, "1 sent"), sent.err
    assert "nothing waits" in stepgrade("history", "outbox").out


@pytest.mark.parametrize("how", ["in a checkout", "in CI's checkout", "others write", "a link", "a file"])
def test_an_outbox_of_others_is_refused(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stepgrade: Run, team: Place
) -> None:
    """Such as where HOME is in the checkout: nothing is kept there, nothing is sent, and why is said."""
    folder = tmp_path / "checkout" / "home" / "outbox"
    monkeypatch.setenv("STEPGRADE_OUTBOX", str(folder))
    if how == "in a checkout":
        (tmp_path / "checkout" / ".git").mkdir()
    elif how == "in CI's checkout":
        monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path / "checkout"))
    elif how == "others write":
        folder.mkdir(parents=True)
        folder.chmod(0o777)
    elif how == "a link":
        folder.parent.mkdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.parent.mkdir()
        folder.write_text("no folder")
    ran = stepgrade(*SCORE, "--history", NOWHERE)
    assert ran.code == 2
    assert ran.err.count("\n") == 1, ran.err
    assert "the run cannot be kept" in ran.err
    assert how == "a file" or "STEPGRADE_OUTBOX" in ran.err
    assert not list(tmp_path.rglob("run-*"))
    # A folder that was fine and is no more: what is in it is not sent.
    with pytest.raises(BadHistory):
        Outbox(NOWHERE, team.token).keep("key", b"{}")


def test_links_pipes_and_foreign_files_in_an_outbox_are_not_read(tmp_path: Path) -> None:
    path = kept(NOWHERE)
    secret = tmp_path / "secret.json"
    secret.write_bytes(path.read_bytes())
    (path.parent / "run-2.json").symlink_to(secret)
    os.mkfifo(path.parent / "run-3.json")
    (path.parent / "run-4.json").write_bytes(path.read_bytes())
    (path.parent / "run-4.json").chmod(0o666)
    (path.parent / "run-5.json").mkdir()
    (path.parent / "run-6.json").write_text("[" * 100_000)
    found = {one.path.name: one.problem for one in files_in(path.parent)}
    assert found.pop(path.name) == ""
    assert found == {f"run-{n}.json": "not a run" for n in range(2, 7)}


def test_the_outbox_is_in_the_users_state_folder_and_the_users_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, team: Place
) -> None:
    monkeypatch.delenv("STEPGRADE_OUTBOX")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = os.umask(0o002)
    try:
        path = kept(NOWHERE)
    finally:
        os.umask(before)
    assert path.parents[1] == tmp_path / "state" / "stepgrade" / "outbox"
    modes = [one.stat().st_mode & 0o777 for one in (path, path.parent, path.parent.parent)]
    assert modes == [0o600, 0o700, 0o700]
    assert team.token.encode() not in path.read_bytes()
    assert team.token not in str(path)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert outbox_folder() == tmp_path / "home" / ".local" / "state" / "stepgrade" / "outbox"


def test_two_processes_that_send_the_same_run(team: Place) -> None:
    """One finds the file gone: the run is kept once, and that is all."""
    path = kept(team.url, "sent twice")
    with RemoteHistory(team.url) as one, RemoteHistory(team.url) as other:
        seen = other.outbox.waiting()
        assert one.send_waiting() == 1
        assert not path.exists()
        other.outbox.waiting = lambda: seen  # type: ignore[method-assign]  # as it was when it looked
        assert other.send_waiting() == 1
    assert team.commits().count("sent twice") == 1


def test_a_run_that_a_project_refuses_stays_and_is_not_tried_again(team: Place, stepgrade: Run) -> None:
    with RemoteHistory(team.url) as remote:
        path = remote.outbox.keep("key", b'{"card": 1}')
    pushed = stepgrade("history", "push", "--to", team.url)
    assert (pushed.code, "rejected by" in pushed.err) == (2, True), pushed.err
    assert path.with_name("refused-" + path.name).exists()
    assert stepgrade("history", "push", "--to", team.url).code == 0
    assert "refused by the server" in stepgrade("history", "outbox").out


def test_a_server_that_is_gone_keeps_everything(stepgrade: Run) -> None:
    path = kept(NOWHERE)
    assert stepgrade("history", "push", "--to", NOWHERE).code == 2
    with RemoteHistory(NOWHERE) as remote, pytest.raises(Unreachable):
        remote.send_waiting()
    assert path.exists()


def test_no_run_waits_in_an_outbox_that_is_not_there() -> None:
    assert Outbox(NOWHERE, "a token").waiting() == []
