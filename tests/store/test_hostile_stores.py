"""A store or a place's name that somebody prepared: nothing leaks, nothing else is touched, the gate goes on."""

from __future__ import annotations

import math
import os
import shutil
import sqlite3
import stat
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import BadHistory, without_secrets
from stepgrade.store import NewRun, Selection, open_history
from stepgrade.store.database import MIGRATIONS
from stepgrade.store.sqlite import APPLICATION_ID, SqliteDatabase
from tests.builders import make_profile, make_step_profile
from tests.conftest import Ran

Run = Callable[..., Ran]
SECRET = "hunter2"  # noqa: S105


@pytest.fixture(scope="module")
def ten_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "history.db"
    with open_history(str(path)) as store:
        for number in range(10):
            card = sg.score(make_profile(samples_ms=tuple(100.0 + (n + number) % 5 for n in range(40))))
            store.add(NewRun(card=card, branch="main", commit=f"c{number}"))
    return path


@pytest.fixture
def history(tmp_path: Path, ten_runs: Path) -> Path:
    return Path(shutil.copy(ten_runs, tmp_path / "history.db"))


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(make_step_profile())
    return path


def change(path: Path, sql: str, *values: object) -> None:
    connection = sqlite3.connect(path)
    connection.execute(sql, values)
    connection.commit()
    connection.close()


WRONG_PLACES = [
    f"postgresql://me:{SECRET}%@h/db",
    f"postgresql://me:%zz{SECRET}@h/db",
    f"postgresql://me:p@{SECRET}@h/db",
    f"postgresql://me:p {SECRET}@h/db",
    f"postgresql://me:p/{SECRET}@h/db",
    f"postgresql://me:{SECRET}@@h/db",
    f"POSTGRESQL://me:{SECRET}%@h/db",
    f"postgresql+psycopg://me:p @{SECRET}@h/db",
    f"postgresql:me:{SECRET}@h/db",
    f"mysql://me:{SECRET}@h/db",
    f"https://me:{SECRET}@h/db",
    f"host=h user=me password={SECRET}",
    f"user = me password = '{SECRET} x' host = h",
    f"dbname=x password={SECRET}",
    f"postgresql:// me:{SECRET}@h/db",
    f"postgresql:/me:{SECRET}@h/db",
    f"postgresql//me:{SECRET}@h/db",
    f"postgresql://me%3A{SECRET}%@h/db",
    f"postgresql://me\uff1a{SECRET}@h/db",
    f"postgresql://me:{SECRET}\uff20h/db",
    f"postgresql://me:{SECRET}%00@h/db",
    f"'postgresql://me:{SECRET}@h/db'",
    f" postgresql://me:{SECRET}@h/db",
    f"jdbc:postgresql://h/db?user=me&password={SECRET}",
    f"//me:{SECRET}@h/db",
    f"me:{SECRET}@h/db",
    f"sqlite://me:{SECRET}@h/db",
    f"Server=h;Uid=me;Password={SECRET};",
    f"Server=h;Uid=me;Pwd={SECRET};",
    ":memory:",
    "sqlite:///:memory:",
]


@pytest.mark.parametrize("place", WRONG_PLACES)
@pytest.mark.parametrize(
    "command",
    [
        ["history", "list", "--history", "PLACE"],
        ["history", "--history", "PLACE", "list"],
        ["history", "add", "RUN", "--history", "PLACE"],
        ["gate", "RUN", "--against", "history:main", "--history", "PLACE"],
        ["gate", "RUN", "--against", "PLACE"],
        ["score", "PLACE"],
        ["score", "RUN", "--config", "PLACE"],
        ["score", "RUN", "--device", "PLACE"],
        ["history", "PLACE"],
        ["PLACE"],
    ],
)
def test_a_wrong_place_is_refused_without_its_password(
    stepgrade: Run, profile: Path, monkeypatch: pytest.MonkeyPatch, place: str, command: list[str]
) -> None:
    monkeypatch.chdir(profile.parent)
    before = sorted(Path.cwd().iterdir())
    ran = stepgrade(*({"PLACE": place, "RUN": str(profile)}.get(word, word) for word in command))
    assert ran.code == 2, ran.err
    assert SECRET not in ran.out + ran.err
    assert ran.err.count("\n") == 1
    assert sorted(Path.cwd().iterdir()) == before  # no file of that name was made


@pytest.mark.parametrize(
    "scheme", ["postgresql", "postgres", "POSTGRESQL", "postgresql+psycopg", "postgresql+asyncpg"]
)
def test_every_spelling_of_a_url_reaches_the_server(stepgrade: Run, profile: Path, scheme: str) -> None:
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    url = f"{scheme}://me:{SECRET}%40x@127.0.0.1:1/none"
    ran = stepgrade("history", "add", profile, "--history", url)
    assert (ran.code, "no connection" in ran.err) == (2, True), ran.err
    assert "postgresql://me@127.0.0.1:1/none" in ran.err
    assert SECRET not in ran.err


@pytest.mark.parametrize("name", ["./10:30@node.db", "a@b.db", "a:b.db", "10:30/a@b.db"])
def test_a_file_may_have_such_a_name_where_it_is_plainly_one(
    stepgrade: Run, profile: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(profile.parent)
    ran = stepgrade("history", "add", profile, "--history", name)
    assert ran.code == 0, ran.err
    assert Path(name).exists()


def test_messages_keep_what_is_no_password() -> None:
    for text in (
        "run.json: line 3: 'a@b' is no number",
        "postgresql://me@127.0.0.1:1/none: no connection",
        "https://example.org:8080/x is no file",
        "C:\\runs\\x.json: no such file (write to a@b.org)",
        "aten::mm took 3 ms",
    ):
        assert without_secrets(text) == text


def test_the_place_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPGRADE_HISTORY", str(tmp_path / "named.db"))
    with open_history() as store:
        assert store.name == str(tmp_path / "named.db")
    assert (tmp_path / "named.db").exists()


def test_the_password_from_a_file(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real server lets everybody in, so what is shown is that libpq reads the file without complaint."""
    passwords = tmp_path / "pgpass"
    passwords.write_text("*:*:*:*:anything\n")
    passwords.chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(passwords))
    with open_history(server) as store:
        assert "anything" not in store.name


def test_a_link_that_leads_nowhere_is_not_followed(stepgrade: Run, tmp_path: Path, profile: Path) -> None:
    (tmp_path / "history.db").symlink_to(tmp_path / "elsewhere.db")
    ran = stepgrade("history", "add", profile, "--history", tmp_path / "history.db")
    assert (ran.code, "link" in ran.err) == (2, True)
    assert not (tmp_path / "elsewhere.db").exists()


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o600), (0o022, 0o600), (0o277, 0o400)])
def test_a_new_history_is_its_owners_alone(tmp_path: Path, umask: int, mode: int) -> None:
    path = tmp_path / "history.db"
    before = os.umask(umask)
    try:
        if mode & stat.S_IWUSR:
            open_history(str(path)).__exit__(None, None, None)
        else:
            from stepgrade.store.sqlite import _make_file

            _make_file(str(path), 0o600)
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize(
    ("readable_by", "umask", "mode"),
    [
        ("owner", 0o002, 0o600),
        ("group", 0o002, 0o660),
        ("group", 0o022, 0o640),
        ("group", 0o077, 0o600),
        ("all", 0o002, 0o664),
        ("all", 0o000, 0o666),
        ("all", 0o027, 0o640),
    ],
)
def test_a_project_shares_its_histories(
    stepgrade: Run,
    profile: Path,
    monkeypatch: pytest.MonkeyPatch,
    readable_by: str,
    umask: int,
    mode: int,
) -> None:
    monkeypatch.chdir(profile.parent)
    Path("stepgrade.toml").write_text(f'[files]\nreadable_by = "{readable_by}"\n')
    before = os.umask(umask)
    try:
        for words in (["score", profile, "--save"], ["history", "add", profile]):
            assert stepgrade(*words, "--history", f"{words[0]}.db").code == 0
    finally:
        os.umask(before)
    for path in (Path("score.db"), Path("history.db")):
        assert stat.S_IMODE(path.stat().st_mode) == mode


@pytest.mark.parametrize("wrong", ["readable_by = 'everybody'", "readable_by = 5", "readable = 'group'"])
def test_nobody_else_is_let_in_by_a_misspelling(stepgrade: Run, profile: Path, wrong: str) -> None:
    place = profile.parent / "new.db"
    (profile.parent / "s.toml").write_text(f"[files]\n{wrong}\n")
    ran = stepgrade("history", "add", profile, "--history", place, "--config", profile.parent / "s.toml")
    assert ran.code == 2, ran.err
    assert not place.exists()
    with pytest.raises(ValueError, match="must be one of owner, group, all"):
        open_history(str(place), readable_by="everybody")


def test_an_existing_history_keeps_its_permissions(history: Path) -> None:
    history.chmod(0o664)
    with open_history(str(history)) as store:
        store.add(NewRun(card=sg.score(make_profile())))
    assert stat.S_IMODE(history.stat().st_mode) == 0o664


DAMAGE = {
    "no zlib": ("update stepgrade_card set body = ? where run_id = 4", b"\x00\x01junk"),
    "no JSON": ("update stepgrade_card set body = ? where run_id = 4", zlib.compress(b"\xff\xfe{")),
    "not a card": ("update stepgrade_card set body = ? where run_id = 4", zlib.compress(b'{"steps": "all"}')),
    "a number": ("update stepgrade_card set body = ? where run_id = 4", 12.5),
    "a bomb": ("update stepgrade_card set body = ? where run_id = 4", zlib.compress(b" " * (200 << 20))),
    "labels": ("update stepgrade_run set labels = ? where id = 4", "{"),
    "labels of bytes": ("update stepgrade_run set labels = ? where id = 4", b"\xff\xff"),
    "branch of bytes": ("update stepgrade_run set source = ? where id = 4", b"\xff\xff"),
    "a text for a time": ("update stepgrade_run set step_time_ms = ? where id = 4", "soon"),
    "infinity": ("update stepgrade_run set step_time_ms = ? where id = 4", math.inf),
    "grade": ("update stepgrade_run set grade = ? where id = 4", b"\x00"),
    "fingerprint": ("update stepgrade_fingerprint set body = ?", "[[["),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_run_is_passed_over_and_named(
    stepgrade: Run, history: Path, profile: Path, damage: str
) -> None:
    change(history, *DAMAGE[damage])
    for command in (["list"], ["trend"], ["export"], ["show", 3]):
        ran = stepgrade("history", *command, "--history", history)
        assert ran.code == 0, (command, ran.err)
        assert "Traceback" not in ran.err
    ran = stepgrade("gate", profile, "--against", "history:main", "--history", history)
    assert ran.code in (0, 1, 3), ran.err
    with open_history(str(history)) as store:
        rows = store.runs(Selection(branch="main"))
        list(store.export())
        store.series("step_time_ms", Selection())
        named = store.damage()
    assert len(rows) >= 9
    assert damage == "fingerprint" or "run 4" in named


def test_the_gate_goes_on_after_a_run_with_absurd_figures(
    stepgrade: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen in life: tokens of 1e308 became an infinite throughput, kept as null, and no gate ran any more."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.json").write_text(make_step_profile())
    stepgrade("history", "add", "run.json", "--branch", "main")
    for absurd in ("1e308", "1e300", "5e-324"):
        ran = stepgrade("history", "add", "run.json", "--branch", "main", "--tokens-per-step", absurd)
        assert ran.code in (0, 2), ran.err
    assert stepgrade("gate", "run.json", "--against", "history:main").code in (0, 1, 3)
    exported = stepgrade("history", "export")
    assert (exported.code, exported.err) == (0, "")


@pytest.mark.parametrize(
    "sql",
    [
        "create trigger t after insert on stepgrade_run begin delete from stepgrade_run; end",
        "create view v as select 1",
        "create table more (x)",
        "create index i on stepgrade_run (grade)",
        "alter table stepgrade_run add column x generated always as (zeroblob(1000000000)) virtual",
        "drop table stepgrade_card",
    ],
)
def test_a_store_with_other_tables_than_ours_is_left_alone(
    stepgrade: Run, history: Path, profile: Path, sql: str
) -> None:
    change(history, sql)
    before = history.read_bytes()
    ran = stepgrade("history", "add", profile, "--history", history)
    assert (ran.code, "changed by another program" in ran.err) == (2, True), ran.err
    assert history.read_bytes() == before


def test_a_view_in_place_of_a_table_is_never_asked(stepgrade: Run, tmp_path: Path) -> None:
    """A recursive view would be counted for ever."""
    path = tmp_path / "history.db"
    connection = sqlite3.connect(path)
    connection.execute("pragma application_id = 0x73677264")
    connection.execute("pragma user_version = 1")
    connection.execute(
        "create view stepgrade_run as with recursive n(i) as (select 1 union all select i + 1 from n) "
        "select i as id from n"
    )
    connection.close()
    ran = stepgrade("history", "list", "--history", path)
    assert (ran.code, "changed by another program" in ran.err) == (2, True), ran.err


def test_a_query_without_end_is_ended(history: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepgrade.store.sqlite.WAIT_S", 0.0)
    monkeypatch.setattr("stepgrade.store.sqlite._QUERY_S", 0.2)
    endless = "with recursive n(i) as (select 1 union all select i + 1 from n) select count(*) from n"
    with open_history(str(history)) as store, pytest.raises(BadHistory, match="a query took more than"):
        store.database.execute(endless)


@pytest.mark.parametrize(
    "arguments",
    [
        ["prune", "--keep", "-1", "--yes"],
        ["prune", "--keep", "0", "--yes"],
        ["prune", "--keep", "99999999999999999999", "--yes"],
        ["prune", "--older-than", "9999-99-99", "--yes"],
        ["prune", "--older-than", "9999-12-31", "--yes"],
        ["prune", "--keep", "1"],
        ["list", "--limit", "-1"],
        ["list", "--limit", "99999999999999999999"],
        ["trend", "--limit", "0"],
        ["show", "99999999999999999999"],
        ["show", "-1"],
    ],
)
def test_ranges_are_checked_before_anything_is_removed(
    stepgrade: Run, history: Path, arguments: list[str]
) -> None:
    ran = stepgrade("history", *arguments, "--history", history)
    assert ran.code == 2, ran.err
    with open_history(str(history)) as store:
        assert len(store.runs()) == 10


@pytest.mark.parametrize(("answer", "left"), [("y\n", 1), ("n\n", 10), ("\n", 10), ("\x04", 10)])
def test_a_person_is_asked(history: Path, answer: str, left: int) -> None:
    """On a real terminal: a pseudo-terminal is the command's standard input and error."""
    ours, theirs = os.openpty()
    command = [
        sys.executable,
        "-m",
        "stepgrade",
        "history",
        "prune",
        "--keep",
        "1",
        "--history",
        str(history),
    ]
    with subprocess.Popen(command, stdin=theirs, stdout=subprocess.PIPE, stderr=theirs) as process:
        os.close(theirs)
        asked = b""
        while b"[y/N]" not in asked:
            asked += os.read(ours, 1000)
        assert b"Remove 9 of 10 runs" in asked
        os.write(ours, answer.encode())
        process.communicate(timeout=60)
    os.close(ours)
    assert process.returncode == 0
    with open_history(str(history)) as store:
        assert len(store.runs()) == left


@pytest.mark.parametrize("name", ["main\udcff", "a\x00b", "x" * 5000, "\x1b[2J"])
@pytest.mark.parametrize("option", ["--branch", "--commit"])
def test_odd_names_of_branches_and_commits(
    stepgrade: Run, tmp_path: Path, profile: Path, option: str, name: str
) -> None:
    place = tmp_path / "odd.db"
    ran = stepgrade("history", "add", profile, "--history", place, option, name)
    assert ran.code in (0, 2), ran.err
    if ran.code == 0:
        ran = stepgrade("history", "list", "--history", place)
        assert ran.code == 0
        assert "\x1b" not in ran.out


def test_what_sqlite_calls_a_lack_of_memory_is_damage(tmp_path: Path) -> None:
    """Seen in fuzzing: an absurd size of a row in the schema makes SQLite raise MemoryError with 39 MB in use."""
    history = tmp_path / "history.db"
    with closing(sqlite3.connect(history)) as raw:  # of an older version: its schema is on the first page
        for statements in MIGRATIONS[:2]:
            for statement in statements:
                raw.execute(statement.format(**SqliteDatabase.words))
        raw.execute(f"pragma application_id = {APPLICATION_ID}")
        raw.execute("pragma user_version = 2")
    sound = history.read_bytes()
    rows = [int.from_bytes(sound[at : at + 2]) for at in range(108, 108 + 2 * sound[104], 2)]
    memory_errors = 0
    for end in (row + beyond for row in rows for beyond in range(24)):
        history.write_bytes(sound[: end - 300] + b"\xff" * 300 + sound[end:])
        with closing(sqlite3.connect(history)) as raw:
            try:
                raw.execute("select name from sqlite_master").fetchall()
            except MemoryError:
                memory_errors += 1
            except (sqlite3.Error, UnicodeError):
                pass
        with suppress(BadHistory), open_history(str(history), create=False) as store:
            store.runs()
    if sqlite3.sqlite_version_info < (3, 41):  # what a later one says of it is not ours
        assert memory_errors


def test_a_journal_beside_the_file_deletes_nothing(stepgrade: Run, history: Path, profile: Path) -> None:
    """SQLite deletes the file that the journal of an unfinished transaction names: `history list` would do."""
    victim = history.parent / "victim.txt"
    magic, name = bytes.fromhex("d9d505f920a163d7"), str(victim).encode()
    head = magic + struct.pack(">5I", 0, 1234, history.stat().st_size // 4096, 512, 4096)
    lock_page = struct.pack(">I", 0x40000000 // 4096 + 1)
    tail = lock_page + name + struct.pack(">2I", len(name), sum(name)) + magic
    journal = history.with_name("history.db-journal")
    link = history.with_name("linked.db")
    link.symlink_to(history)

    def plant() -> None:
        victim.write_text("important")
        journal.write_bytes(head.ljust(512, b"\0") + tail)

    plant()
    with closing(sqlite3.connect(history)) as raw:
        raw.execute("select name from sqlite_master").fetchall()
    assert not victim.exists(), "this SQLite deletes nothing any more"
    for place in (history, link):
        for words in (["list"], ["trend"], ["export"], ["add", profile]):
            plant()
            ran = stepgrade("history", *words, "--history", place)
            assert (ran.code, "names another file" in ran.err) == (2, True), ran.err
            assert victim.exists()
            assert journal.exists()  # what else it may hold is the user's to judge


@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
def test_links_beside_the_file_are_not_written_through(
    stepgrade: Run, history: Path, profile: Path, suffix: str
) -> None:
    victim = history.parent / "victim.txt"
    victim.write_text("important")
    history.with_name(f"history.db{suffix}").symlink_to(victim)
    ran = stepgrade("history", "add", profile, "--history", history)
    assert ran.code in (0, 2), ran.err
    assert victim.read_text() == "important"
