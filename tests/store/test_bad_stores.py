"""A damaged, foreign, full or forbidden store: clear words, exit code 2, and nothing lost."""

from __future__ import annotations

import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import BadHistory
from stepgrade.store import NewRun, open_history
from stepgrade.store.database import locate
from stepgrade.store.pool import Pool
from tests.builders import make_profile, make_step_profile
from tests.conftest import Ran

Run = Callable[..., Ran]


@pytest.fixture
def history(tmp_path: Path, forty_runs: Path) -> Path:
    """Return a history of forty runs."""
    return Path(shutil.copy(forty_runs, tmp_path / "history.db"))


@pytest.fixture(scope="module")
def forty_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "history.db"
    with open_history(str(path)) as store:
        for _ in range(40):
            store.add(NewRun(card=sg.score(make_profile()), branch="main"))
    return path


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(make_step_profile())
    return path


def count(path: Path) -> int:
    with open_history(str(path), create=False) as store:
        return len(store.runs())


def test_no_history_yet(stepgrade: Run, tmp_path: Path) -> None:
    ran = stepgrade("history", "list", "--history", tmp_path / "none.db")
    assert ran.code == 2
    assert "no history found" in ran.err
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("text", [b"not a database at all, but long enough to be one" * 100, b"\x00" * 4096])
def test_a_file_that_is_no_database(stepgrade: Run, tmp_path: Path, profile: Path, text: bytes) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(text)
    ran = stepgrade("history", "add", profile, "--history", path)
    assert ran.code == 2
    assert "notes.db" in ran.err
    assert "Traceback" not in ran.err
    assert path.read_bytes() == text


def test_somebody_elses_database_is_not_written_into(stepgrade: Run, tmp_path: Path, profile: Path) -> None:
    path = tmp_path / "theirs.db"
    connection = sqlite3.connect(path)
    connection.execute("create table theirs (id integer)")
    connection.commit()
    connection.close()
    before = path.read_bytes()
    ran = stepgrade("history", "add", profile, "--history", path)
    assert (ran.code, "another program" in ran.err) == (2, True)
    assert path.read_bytes() == before


@pytest.mark.parametrize("place", [200, 4096, 5000, 9000, 20_000])
def test_a_damaged_file(stepgrade: Run, history: Path, profile: Path, place: int) -> None:
    content = bytearray(history.read_bytes())
    content[place : place + 3000] = b"\xa5" * 3000
    history.write_bytes(content)
    for command in (["list", "--limit", 100], ["trend"], ["export"], ["show", 20]):
        ran = stepgrade("history", *command, "--history", history)
        assert ran.code in (0, 2, 3), ran.err
        assert "Traceback" not in ran.err
    ran = stepgrade("gate", profile, "--against", "history:main", "--history", history)
    assert ran.code in (0, 2, 3), ran.err
    assert "Traceback" not in ran.err


def test_a_file_cut_short(stepgrade: Run, history: Path) -> None:
    content = history.read_bytes()
    history.write_bytes(content[: len(content) // 2 + 100])
    ran = stepgrade("history", "export", "--history", history)
    assert ran.code == 2
    assert "damaged" in ran.err


def test_an_export_without_any_readable_run_fails(stepgrade: Run, history: Path, tmp_path: Path) -> None:
    """A failing disk makes every run unreadable: an empty export must not replace an earlier one."""
    earlier = tmp_path / "runs.jsonl"
    earlier.write_text("earlier")
    with closing(sqlite3.connect(history)) as connection, connection:
        connection.execute("update stepgrade_card set body = x'00'")
    ran = stepgrade("history", "export", "--history", history, "-o", earlier)
    assert ran.code == 2
    assert "no run can be read: run 1" in ran.err
    assert earlier.read_text() == "earlier"


def test_a_directory_is_no_history(stepgrade: Run, tmp_path: Path, profile: Path) -> None:
    ran = stepgrade("history", "add", profile, "--history", tmp_path)
    assert ran.code == 2
    assert "cannot be opened" in ran.err


# All is imported before, for the clone may be in a folder that only its owner can read.
AS_NOBODY = """
import hashlib, importlib, os, pkgutil, sys, traceback
import stepgrade
from stepgrade.cli import main
for found in pkgutil.walk_packages(stepgrade.__path__, "stepgrade."):
    if found.name.split(".")[1] not in ("__main__", "record", "web"):
        importlib.import_module(found.name)
if os.getuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return a folder that everybody may reach: pytest's own are closed to others."""
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
    [
        (["list", "--limit", "99", "--history", "history.db"], 0, "40 runs"),
        (["add", "run.json", "--history", "history.db"], 2, "read-only"),
        (["add", "run.json"], 2, "cannot be created"),
    ],
)
def test_a_read_only_directory(
    folder: Path, profile: Path, history: Path, arguments: list[str], code: int, word: str
) -> None:
    """Root may write anywhere, so the command gives up being root when the tests are root's."""
    for name in (shutil.copy(history, folder / "history.db"), shutil.copy(profile, folder / "run.json")):
        Path(name).chmod(0o666)
    folder.chmod(0o555)
    ran = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, "history", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    folder.chmod(0o755)
    assert (ran.returncode, word in ran.stdout + ran.stderr) == (code, True), ran.stderr
    assert count(folder / "history.db") == 40


def test_a_full_disk(history: Path, profile: Path) -> None:
    """The file may not grow, as on a full disk: the run is refused, the earlier ones are all there."""

    def no_room() -> None:
        import signal

        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        size = history.stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    codes = []
    for _ in range(30):
        ran = subprocess.run(
            [sys.executable, "-m", "stepgrade", "history", "add", str(profile), "--history", str(history)],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
            preexec_fn=no_room,
        )
        codes.append(ran.returncode)
        if ran.returncode:
            break
    assert codes[-1] == 2, ran.stderr
    assert "was not saved" in ran.stderr
    assert "earlier runs are unaffected" in ran.stderr
    assert count(history) == 40 + codes.count(0)


@pytest.mark.skipif(os.getuid() != 0, reason="mounting a small file system takes root")
def test_a_full_file_system(stepgrade: Run, tmp_path: Path, profile: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this machine does not let root mount a file system")
    try:
        place, kept = disk / "history.db", 0
        for _ in range(200):
            ran = stepgrade("history", "add", profile, "--history", place)
            if ran.code:
                break
            kept += 1
        assert (ran.code, "was not saved" in ran.err) == (2, True), ran.err
        assert kept > 5
        assert count(place) == kept
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_newer_history(stepgrade: Run, history: Path, profile: Path) -> None:
    connection = sqlite3.connect(history)
    connection.execute("pragma user_version = 99")
    connection.close()
    ran = stepgrade("gate", profile, "--against", "history:main", "--history", history)
    assert ran.code == 2
    assert "pip install --upgrade stepgrade" in ran.err


def test_a_server_that_is_not_there(stepgrade: Run, profile: Path) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    ran = stepgrade("history", "add", profile, "--history", "postgresql://me:secret@127.0.0.1:1/none")
    assert ran.code == 2
    assert "no connection" in ran.err
    assert "secret" not in ran.err


def test_passwords_are_not_shown() -> None:
    shown = "postgresql://me@host/db"
    assert locate("postgresql://me:s3cr:et@host/db") == ("postgresql://me:s3cr:et@host/db", shown)
    assert locate("postgres://host/db") == ("postgresql://host/db", "postgresql://host/db")
    assert "s3cret" not in locate("postgresql://host/db?user=me&password=s3cret&sslpassword=s3cret")[1]


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret@127.0.0.1:1/none", "postgresql://127.0.0.1:1/none?password=s3cret"]
)
@pytest.mark.parametrize("command", [["history", "list"], ["gate", "RUN", "--against", "history:main"]])
def test_no_command_prints_a_password(stepgrade: Run, profile: Path, url: str, command: list[str]) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    words = [str(profile) if word == "RUN" else word for word in command]
    ran = stepgrade(*words, "--history", url)
    assert ran.code == 2
    assert "s3cret" not in ran.out + ran.err


def test_opening_makes_the_folder(tmp_path: Path) -> None:
    with open_history(f"sqlite:///{tmp_path}/a/b/history.db") as store:
        assert store.runs() == []
    with pytest.raises(BadHistory, match="cannot be created"):
        open_history(str(tmp_path / "a" / "b" / "history.db" / "c" / "x.db"))


def test_a_server_that_starts_waits_for_a_writer(tmp_path: Path) -> None:
    """Changing the journal mode fails at once while another connection writes; SQLite's timeout does not apply."""
    path = str(tmp_path / "history.db")
    with open_history(path):
        pass
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as writer:
        writer.execute("begin immediate")
        release = threading.Timer(0.3, lambda: writer.execute("commit"))
        release.start()
        pool = Pool(path)
        with pool.history() as history:
            assert history.runs() == []
        release.join()
        pool.close()


def test_a_server_without_a_store_announces_no_address(stepgrade: Run, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn", reason="the server's packages are not installed")
    path = tmp_path / "notes.db"
    path.write_text("not a database" * 100)
    ran = stepgrade("serve", "--no-browser", "--port", "0", "--open-to-localhost", "--history", path)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "notes.db" in ran.err
    assert "serving at" not in ran.err
