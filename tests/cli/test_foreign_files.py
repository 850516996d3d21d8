"""Whatever removes or replaces something, in folders that also hold what others have put there.

A scene runs one way that the package writes, in folders full of foreign files, some with names much like ours.
After it they are all as before: content, time and mode. A profiler shows that the scene does run the functions
it stands for, and `tests/house/test_destructive.py` that each function that removes something has a scene.
"""

from __future__ import annotations

import fcntl
import http.server
import io
import os
import resource
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

import stepgrade as sg
from stepgrade.engine.cache import OWN_FOLDER, Cache
from stepgrade.errors import BadHistory, BadInput, Unreachable
from stepgrade.files import DRAFT_NAME, write_by, write_whole
from stepgrade.fix.copies import original_in
from stepgrade.fix.trial import Bench, TrialPlan
from stepgrade.fix.write import REVERSE, write_edits
from stepgrade.record.guard import guarded_folder, main
from stepgrade.record.launch import SESSION
from stepgrade.store import NewRun, open_history
from stepgrade.store.alerts import Alerts, QuietHours
from stepgrade.store.sqlite import SqliteDatabase, copy_sqlite, leave_wal
from stepgrade.store.team import Team
from tests.builders import make_profile, make_step_profile
from tests.cluster import Planned, write_ranks
from tests.conftest import Ran
from tests.fix.reports import written_report
from tests.house.measures import PACKAGE
from tests.kineto_traces import read_file
from tests.store.conftest import place, server  # a history on either database

__all__ = ["place", "server"]

Place = tuple[str, str]
# Each scene, and the functions with a call that removes or replaces something which it runs.
SCENES: dict[str, list[Place]] = {
    "reports": [("files.py", "write_by"), ("files.py", "_move"), ("files.py", "_remove_stale_drafts")],
    "cache": [("engine/cache.py", "Cache.put")],
    "journal": [("record/journal.py", "Journal.append"), ("files.py", "write_by")],
    "script": [("record/script.py", "ScriptRecorder._name_file")],
    "trial": [
        ("fix/trial.py", "Bench.run"),
        ("fix/copies.py", "Original._copy_folder"),
        ("fix/copies.py", "Original._copy_link"),
    ],
    "written": [("fix/write.py", "write_edits"), ("fix/write.py", "_put_back")],
    "guarded": [("record/guard.py", "guarded_folder"), ("record/guard.py", "main")],
    "temporary": [("files.py", "scratch_folder"), ("readers/kineto/workers.py", "start")],
    "dask": [("engine/on_dask.py", "OnDask.close")],
    "outbox": [("store/remote.py", "RemoteHistory._send_all")],
    "copies": [("files.py", "_move")],
    "rows": [
        ("store/history.py", "History.remove"),
        ("store/team.py", "Team.remove_project"),
        ("store/team.py", "Team.revoke"),
        ("store/team.py", "Team.open_session"),
        ("store/team.py", "Team.close_session"),
        ("store/alerts.py", "Alerts.remove_channel"),
        ("store/postgres.py", "PostgresDatabase.set_version"),  # where there is a PostgreSQL
    ],
}
OLD = (10**9, 10**9)  # when foreign files were last written, and read
HEX = "0123456789abcdef"
NAMES = (
    "checkpoint.pt",
    "history.db-old",
    ".stepgrade-1.tmp",
    f".stepgrade-{HEX.upper()}.tmp",
    f".stepgrade-{HEX}.tmp.bak",
    f".stepgrade-{HEX[1:]}.tmp",
    f".stepgrade-{HEX}{HEX}.tmp",
    f"stepgrade-{HEX}.tmp",
    f"my.stepgrade-{HEX}.tmp",
    f".stepgrade-{HEX}.tmp\n",
    f"rank-{HEX * 4}.pt",
    f"rank-{HEX * 3}",
    f"{HEX * 4}",
    "run-00000000000000000001-foreign.json",
    "refused-run-00000000000000000001-foreign.json",
    "card-2.json",
)


class Seen(NamedTuple):
    """A file as it is: kind and mode, and for all but folders its time and content."""

    mode: int
    mtime_ns: int | None
    content: bytes | str | None


def look(root: Path) -> dict[Path, Seen]:
    """Return everything under a folder."""
    found = {}
    for path in (root, *root.rglob("*")):
        status = path.lstat()
        content: bytes | str | None = None
        if path.is_symlink():
            content = str(path.readlink())
        elif stat.S_ISREG(status.st_mode):
            content = path.read_bytes()
        # What we add to a folder changes its time, and reading a file the one of access.
        mtime_ns = None if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
        found[path] = Seen(status.st_mode, mtime_ns, content)
    return found


class Folder:
    """A folder with foreign files in it and in every folder that a scene writes to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.outside = root / "outside"
        self.outside.mkdir()
        (self.outside / "target").write_bytes(b"theirs")
        self._held: list[int] = []

    def fill(self, *inside: str) -> Path:
        """Put foreign files into a folder, and return it."""
        folder = self.root.joinpath(*inside)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number, name in enumerate(NAMES):
            (folder / name).write_bytes(f"theirs {number}".encode())
            (folder / name).chmod(0o400 if number % 2 else 0o664)
        # Exactly our names, but not what we write.
        (folder / f".stepgrade-{'a' * 16}.tmp").symlink_to(self.outside / "target")
        (folder / f".stepgrade-{'b' * 16}.tmp").mkdir()
        (folder / f".stepgrade-{'b' * 16}.tmp" / "data").write_bytes(b"theirs")
        os.mkfifo(folder / f".stepgrade-{'c' * 16}.tmp")
        suspended = folder / f".stepgrade-{'d' * 16}.tmp"  # the draft of a writer that was stopped for a day
        suspended.write_bytes(b"half of")
        self._held.append(os.open(suspended, os.O_RDONLY))
        fcntl.flock(self._held[-1], fcntl.LOCK_EX)
        if os.geteuid() == 0:
            (folder / f".stepgrade-{'e' * 16}.tmp").write_bytes(b"of another user")
            os.chown(folder / f".stepgrade-{'e' * 16}.tmp", 65534, 65534)
        for path in folder.rglob("*"):
            os.utime(path, OLD, follow_symlinks=False)
        return folder

    def close(self) -> None:
        for handle in self._held:
            os.close(handle)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    (tmp_path / "all").mkdir()
    made = Folder(tmp_path / "all")
    monkeypatch.chdir(made.fill("work"))
    monkeypatch.setenv("HOME", str(made.fill("home")))
    monkeypatch.setenv("TMPDIR", str(made.fill("tmp")))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("STEPGRADE_CACHE", str(made.fill("cache")))
    for name in ("XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(made.fill("home", name)))
    monkeypatch.delenv("STEPGRADE_STATE")
    yield made
    made.close()


@contextmanager
def nothing_foreign_is_touched(folder: Folder, scene: str) -> Iterator[None]:
    """Compare all that was there before with what is there after, and see that the scene ran what it stands for."""
    before = look(folder.root)
    ran: set[Place] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(f"{PACKAGE}{os.sep}"):
            ran.add((os.path.relpath(frame.f_code.co_filename, PACKAGE), frame.f_code.co_qualname))

    earlier = sys.getprofile()
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(earlier)
    after = look(folder.root)
    assert {path: after.get(path) for path in before} == before
    assert [path for path in after if path not in before and DRAFT_NAME.fullmatch(path.name)] == []
    expected = {one for one in SCENES[scene] if one[0] != "store/postgres.py"}
    assert expected <= ran


def run_file(folder: Folder) -> Path:
    path = folder.root / "work" / "run.json"
    path.write_text(make_step_profile())
    return path


def test_reports(folder: Folder, stepgrade: Callable[..., Ran]) -> None:
    run = run_file(folder)
    stale = folder.root / "work" / f".stepgrade-{HEX}.tmp"
    protected = folder.root / "work" / "protected.json"
    protected.write_bytes(b"theirs")
    protected.chmod(0o444)
    with nothing_foreign_is_touched(folder, "reports"):
        stale.write_bytes(b"left by a process that was killed")
        os.utime(stale, OLD)
        for to in ("json", "markdown", "html"):
            assert stepgrade("score", run, "--format", to, "-o", f"card.{to}").code == 0
        assert stepgrade("score", run, "-o", "tmp").code == 0
        assert stepgrade("score", run, "-o", folder.root / "tmp").code == 2, "a folder"
        if os.geteuid() != 0:
            assert stepgrade("score", run, "-o", protected).code == 2
        with pytest.raises(OSError, match="directory"):
            write_whole(folder.root / "work" / f".stepgrade-{'b' * 16}.tmp", b"new")
        with pytest.raises(ZeroDivisionError):
            write_by("card.json", lambda _: 1 / 0)
    assert not stale.exists(), "what is ours is removed"


def test_cache(folder: Folder) -> None:
    cache = Cache(str(folder.root / "cache" / OWN_FOLDER), most_bytes=1500)
    cache.put(HEX * 4, bytes(1000))
    folder.fill("cache", OWN_FOLDER)
    ours = folder.root / "cache" / OWN_FOLDER / f"rank-{HEX * 4}"
    kept = ours.rename(folder.outside / "ours")
    with nothing_foreign_is_touched(folder, "cache"):
        ours.write_bytes(kept.read_bytes())
        os.utime(ours, OLD)
        for number in range(4):
            cache.put(f"{number:064x}", bytes(1000))
    assert not ours.exists()
    assert len([one for one in ours.parent.iterdir() if len(one.name) == 69 and one.is_file()]) == 1


def test_journal(folder: Folder) -> None:
    from stepgrade.record.journal import Journal

    (folder.root / "locked").mkdir()
    foreign = folder.root / "tmp" / "rec.json"
    foreign.write_bytes(b"theirs")
    with nothing_foreign_is_touched(folder, "journal"):
        path = folder.root / "work" / "rec.json"
        journal = Journal(path)
        journal.check()
        journal.write({"head": 1}, {"line": 1})
        size = path.stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, hard))
        try:
            with pytest.raises(OSError, match="large"):
                journal.append({"line": "x" * 1000})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert path.stat().st_size == size
        # Another run has put its own file there, which got the same number, and a folder is gone at the end.
        number = path.stat().st_ino
        path.write_bytes(b"of another run")
        assert path.stat().st_ino == number
        with pytest.raises(FileExistsError):
            journal.append({"line": 2})
        assert journal.finish(b"{}").name == "rec-2.json"
        assert path.read_bytes() == b"of another run"
        gone = Journal(folder.root / "gone" / "rec.json")
        assert gone.finish(b"{}") == folder.root / "tmp" / "rec-2.json"
    assert foreign.read_bytes() == b"theirs"


def test_script(folder: Folder) -> None:
    pytest.importorskip("torch")
    from stepgrade.record.script import ScriptRecorder

    session = folder.fill("session")
    (session / "run.json").write_bytes(b"of another process")
    with nothing_foreign_is_touched(folder, "script"):
        recorder = ScriptRecorder(str(session), path="run.json")
        recorder._name_file()
        assert recorder.path.name == "run-2.json"


def test_trial(folder: Folder) -> None:
    """A trial writes, removes and links in its copy; the folder keeps what it has, also behind links."""
    work, scratch = folder.root / "work", folder.root / "scratch"
    scratch.mkdir()
    (work / "inside").mkdir()
    (work / "inside" / "link").symlink_to(folder.outside)
    (work / "large").mkdir()
    with (work / "large" / "data.bin").open("wb") as large:
        large.truncate(257 * 2**20)
    remove = "import os; [os.remove(n) for n in os.listdir() if os.path.isfile(n) and not os.path.islink(n)]; open('new', 'w')"
    words = (sys.executable, "-c", remove)
    with nothing_foreign_is_touched(folder, "trial"):
        bench = Bench(words=words, original=original_in(str(work)), scratch=str(scratch), most_s=100.0)
        trial = bench.run(TrialPlan(steps=5))
    assert (trial.code, trial.ranks, trial.files) == (0, (), frozenset({"new"}))
    assert not (scratch / "trial-0" / "work").exists()


def test_written(folder: Folder) -> None:
    work = folder.root / "work"
    with nothing_foreign_is_touched(folder, "written"):
        (work / "train.py").write_text("a = DataLoader(data)\n")
        found = written_report("a = DataLoader(data)\n", "a = DataLoader(data, num_workers=2)\n")
        assert "undoes it" in write_edits(str(work), found)
        with pytest.raises(BadInput, match="changed while it was tried"):
            write_edits(str(work), found)
        (work / REVERSE).unlink()
        (work / "train.py").write_text("a = DataLoader(data)\n")
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, hard))
        try:
            with pytest.raises(BadInput, match="all files are as before"):
                write_edits(str(work), found)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert not (work / REVERSE).exists()
    assert (work / "train.py").read_text() == "a = DataLoader(data)\n"


def test_guarded(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a killed process leaves is removed, and its sessions are ended; sessions of others go on."""
    scratch = folder.root / "tmp" / "stepgrade-1"
    folder.fill("tmp", "stepgrade-10")
    names = [str(scratch / "session"), f"{scratch}0", str(folder.root)]
    sleepers = [subprocess.Popen(["sleep", "600"], env={SESSION: name}) for name in names]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    try:
        with nothing_foreign_is_touched(folder, "guarded"):
            with guarded_folder() as made:
                Path(made, "file").write_bytes(b"ours")
            (scratch / "trial-0").mkdir(parents=True)
            (scratch / "trial-0" / "link").symlink_to(folder.outside)
            main(str(scratch))
        assert not scratch.exists()
        if sys.platform == "linux":
            assert [sleepers[0].wait(), sleepers[1].poll(), sleepers[2].poll()] == [
                -signal.SIGKILL,
                None,
                None,
            ]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_temporary(folder: Folder) -> None:
    """Temporary directories end with what made them, and take nothing along that is beside or behind a link."""
    write_ranks(folder.root / "ranks", Planned(world=2, tensor=1, pipeline=1, steps=3))
    import zipfile

    with zipfile.ZipFile(folder.root / "ranks.zip", "w") as archive:
        for path in (folder.root / "ranks").iterdir():
            archive.write(path, path.name)
    with nothing_foreign_is_touched(folder, "temporary"):
        sg.load(folder.root / "ranks.zip")
        sg.load(folder.root / "ranks", engine="pool", workers=2)
        trace = b'{"traceEvents": [%s]}' % b",".join([b'{"ph":"X","ts":1,"dur":1,"name":"a"}'] * 200_000)
        with suppress(BadInput):
            read_file(trace, processes=2)
    assert not list((folder.root / "tmp").glob("stepgrade-????????"))


@pytest.mark.filterwarnings("ignore")  # of Dask: its sockets, and another cluster on this machine
def test_dask(folder: Folder) -> None:
    pytest.importorskip("distributed", reason="Dask is not installed")
    write_ranks(folder.root / "ranks", Planned(world=2, tensor=1, pipeline=1, steps=3))
    folder.fill("tmp", "stepgrade-dask-foreign")
    with nothing_foreign_is_touched(folder, "dask"):
        sg.load(folder.root / "ranks", engine="dask", workers=1)
    assert [one.name for one in (folder.root / "tmp").glob("stepgrade-dask-*")] == ["stepgrade-dask-foreign"]


class Answers(http.server.BaseHTTPRequestHandler):
    """A server that takes the first run, and no other ever."""

    taken = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        type(self).taken += 1
        body = b'{"id": 1}' if type(self).taken == 1 else b'{"problem": "never"}'
        self.send_response(201 if type(self).taken == 1 else 422)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def test_outbox(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    from stepgrade.store.remote import RemoteHistory

    class Fresh(Answers):
        taken = 0

    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        port = reserved.getsockname()[1]
    where = f"http://127.0.0.1:{port}/default"
    monkeypatch.setenv("STEPGRADE_OUTBOX", str(folder.root / "outbox"))
    runs = [NewRun(card=sg.score(make_profile(mean_step_ms=ms)), branch="main") for ms in (100.0, 101.0)]
    with RemoteHistory(where) as remote, suppress(Unreachable):
        assert remote.add_all(runs) == [0, 0]
        waiting = [found.path for found in remote.outbox.waiting()]
    assert len(waiting) == 2
    kept = {path: path.read_bytes() for path in waiting}
    for path in waiting:
        path.unlink()
    folder.fill(*waiting[0].absolute().parent.relative_to(folder.root).parts)
    with nothing_foreign_is_touched(folder, "outbox"):
        for path, content in kept.items():
            path.write_bytes(content)
            path.chmod(0o600)
        answering = http.server.HTTPServer(("127.0.0.1", port), Fresh)
        thread = threading.Thread(target=answering.serve_forever)
        thread.start()
        try:
            with RemoteHistory(where) as remote:
                assert (remote.send_waiting(), remote.refused) == (1, 1)
        finally:
            answering.shutdown()
            thread.join()
            answering.server_close()
    assert all(found.problem for found in remote.outbox.waiting())


def test_copies(folder: Folder) -> None:
    work = folder.root / "work"
    foreign = work / "foreign.db"
    with closing(sqlite3.connect(foreign)) as connection:
        connection.executescript("create table theirs (a); insert into theirs values (1)")
    stamped = work / "stamped.db"
    with closing(sqlite3.connect(stamped)) as connection:
        connection.executescript("pragma application_id = 42; vacuum")
    with open_history(str(work / "history.db")) as history:
        history.add(NewRun(card=sg.score(make_profile())))
    with nothing_foreign_is_touched(folder, "copies"):
        for path in (foreign, stamped):
            for is_pooled in (False, True):
                with pytest.raises(BadHistory, match="another program"):
                    SqliteDatabase(str(path), create=True, is_pooled=is_pooled)
        with pytest.raises(BadHistory, match="already exists"):
            copy_sqlite(str(work / "history.db"), str(work / "checkpoint.pt"))
        copy_sqlite(str(work / "history.db"), str(work / "copy.db"))
        leave_wal(str(work / "copy.db"))
        damaged = work / "damaged.db"
        damaged.write_bytes((work / "history.db").read_bytes()[:-4096])
        with pytest.raises(BadHistory):
            copy_sqlite(str(damaged), str(work / "second.db"))
    assert not (work / "second.db").exists()


def rows_of(history: Any, project: str) -> dict[str, list[Any]]:
    """Return all rows of a project."""
    of_project = "select * from stepgrade_{} where project = ? order by id"
    of_runs = "select * from stepgrade_{} where run_id in (select id from stepgrade_run where project = ?)"
    tables = ("run", "alert", "channel", "token")
    found = {table: history.database.execute(of_project.format(table), (project,)) for table in tables}
    found |= {
        table: history.database.execute(of_runs.format(table), (project,)) for table in ("card", "finding")
    }
    return found


def test_rows(place: str, folder: Folder) -> None:
    with open_history(place) as history:
        team = Team(history.database)
        sessions = {}
        for project in ("mine", "theirs"):
            team.add_project(project)
            own = history.in_project(project)
            pinned = NewRun(card=sg.score(make_profile()), branch="main", labels={"pinned": "yes"})
            own.add(pinned)
            own.add_all(NewRun(card=sg.score(make_profile()), branch="main") for _ in range(4))
            Alerts(own).add_channel("webhook", "https://hooks.example/x", "", QuietHours())
            _, token = team.add_token(f"of {project}", "reader", project=project, days=9, created_by="test")
            sessions[project] = (token, team.open_session(token))
        theirs = rows_of(history, "theirs")
        mine = history.in_project("mine")
        with nothing_foreign_is_touched(folder, "rows"):
            prunable = mine.prunable(keep=1)
            assert len(prunable) == 3, "neither the newest one nor the pinned one"
            mine.remove(prunable)
            mine.remove([row[0] for row in theirs["run"]])
            Alerts(mine).remove_channel(theirs["channel"][0][0])
            Alerts(mine).remove_channel(Alerts(mine).channels()[0].id)
            team.close_session(team.open_session(sessions["mine"][0]))
            team.revoke(sessions["mine"][0].id)
            team.remove_project("mine")
            history.database.set_version(history.database.version())
        assert rows_of(history, "theirs") == theirs
        assert all(rows == [] for rows in rows_of(history, "mine").values())
        assert team.session_of(sessions["theirs"][1]) is not None
