"""A profiler's file of SQLite is a stranger's: nothing that its schema says is run, whatever it looks like."""

from __future__ import annotations

import gc
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from stepgrade.errors import BadInput
from stepgrade.readers.source import ByteSource
from stepgrade.readers.sqlite import SqliteFile

HUGE = "zeroblob(1000000000)"
SCHEMAS: dict[str, tuple[str, str | None]] = {
    "a virtual table": ("create virtual table a using fts5(key)", None),
    # SQLite writes "CREATE VIRTUAL" itself; whoever writes the schema by hand need not.
    "a hidden virtual table": (
        "create virtual table a using fts5(key)",
        "create/**/virtual table a using fts5(key)",
    ),
    "a view": (f"create view a as select {HUGE} as key", None),
    "a view that calls itself a table": (
        f"create view a as select {HUGE} as key",
        f"create table a as select {HUGE} as key",
    ),
    "a column that is computed": (f"create table a (other, key as ({HUGE}))", None),
}


@pytest.mark.parametrize("schema", SCHEMAS)
def test_what_a_schema_computes_is_not_read(schema: str, tmp_path: Path) -> None:
    made, changed = SCHEMAS[schema]
    path = tmp_path / "f.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("create table b (key)")
        file.execute("insert into b values (1)")
        file.execute(made)
        if schema.startswith("a column"):
            file.execute("insert into a (other) values (1)")
        if changed is not None:
            file.execute("pragma writable_schema = on")
            file.execute("update sqlite_master set sql = ?, type = 'table' where name = 'a'", (changed,))
    with ByteSource(path) as source:
        try:
            with SqliteFile.opened(source) as opened:
                assert not opened.has("a", "key")
                assert [value for value in opened.rows("a", ("key",)) if value[0] is not None] == []
                assert [*opened.rows("b", ("key",))] == [(1,)]
        except BadInput:
            assert changed is not None  # a schema that SQLite itself does not believe


@pytest.mark.parametrize(
    "beside", ["f.db-wal", "f.db-journal", "f.db-shm"], ids=lambda name: name.removeprefix("f.db-")
)
@pytest.mark.parametrize("mode", ["wal", "delete"])
def test_nothing_beside_the_file_is_read_made_or_removed(beside: str, mode: str, tmp_path: Path) -> None:
    path = tmp_path / "f.db"
    with closing(sqlite3.connect(path)) as file:
        file.execute(f"pragma journal_mode = {mode}")
        file.execute("create table b (key)")
        file.execute("insert into b values (1)")
        file.commit()
    (tmp_path / beside).write_bytes(b"\xd9\xd5\x05\xf9\x20\xa1\x63\xd7" * 100)
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    with ByteSource(path) as source, SqliteFile.opened(source) as opened:
        assert [*opened.rows("b", ("key",))] == [(1,)]
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted in /proc")
def test_a_damaged_file_does_not_stay_open(tmp_path: Path) -> None:
    """Seen in fuzzing: the schema was read before anything was there to close the file."""
    path = tmp_path / "f.db"
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("create table a (key)")
    data = bytearray(path.read_bytes())
    data[100:110] = b"\xff" * 10  # the page that holds the schema
    path.write_bytes(data)
    gc.disable()  # which would close it some time later
    try:
        with ByteSource(path) as source, pytest.raises(BadInput), SqliteFile.opened(source):
            pass
        still_open = [one for one in Path("/proc/self/fd").iterdir() if one.exists() and one.samefile(path)]
    finally:
        gc.enable()
    assert still_open == []
