"""Damage to a file of SQLite: its rows and its schema through SQLite itself, and its pages without it."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing, suppress

from tests.fuzz.mutators.havoc import CANARY, damaged_bytes, erased

MAGIC = b"SQLite format 3\0"
VALUES: tuple[object, ...] = (
    None, 0, 1, -1, 2**31, 2**53, 2**63 - 1, -(2**63), 1e308, -1e308, 5e-324, float("inf"), 0.5, "", "x", "12", "1e999", "nan",
    "x" * 5000, "\x1b[31m\u202e", '<b>&"]]>', "::error::x", b"", b"\xff\xfe", b"\0" * 100, "{", "[1,2", '{"a":1}', "2026-13-45",
    "0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59", "' or 1=1 --",
)  # fmt: skip
SCHEMA = (
    "create table if not exists extra (a, b, c)",
    "create trigger if not exists t1 after insert on {t} begin delete from {t}; end",
    "create view if not exists v1 as with recursive r(n) as (select 1 union all select n+1 from r) select n from r",
    "create index if not exists i1 on {t} ({c})",
    "create unique index if not exists i2 on {t} ({c})",
    "alter table {t} add column extra text default 'x'",
    "alter table {t} rename column {c} to renamed",
    "alter table {t} drop column {c}",
    "alter table {t} rename to renamed",
    "drop table {t}",
    "drop index {i}",
    "pragma user_version = {n}",
    "pragma application_id = {n}",
    "pragma page_size = 512",
    "pragma page_size = 65536",
    "pragma auto_vacuum = full",
    "reindex",
)
MASTER = (
    "update sqlite_master set sql = replace(sql, '{c}', 'x') where name = '{t}'",
    "update sqlite_master set sql = 'create table {t} as select 1'  where name = '{t}'",
    "update sqlite_master set sql = 'create virtual table {t} using fts5(a)' where name = '{t}'",
    "update sqlite_master set sql = null where name = '{t}'",
    "update sqlite_master set rootpage = {n} where name = '{t}'",
    "update sqlite_master set rootpage = (select max(rootpage) from sqlite_master) where name = '{t}'",
    "update sqlite_master set type = 'view' where name = '{t}'",
    "update sqlite_master set name = 'sqlite_stat1' where name = '{t}'",
    "insert into sqlite_master select * from sqlite_master where name = '{t}'",
    "delete from sqlite_master where name = '{t}'",
)


def mutate_rows(data: bytes, dice: random.Random) -> bytes:
    """Return the file after some statements: other values, rows or tables. Raise ValueError for no database."""
    head = bytearray(data)
    head[18:20] = b"\1\1"  # one in WAL mode cannot be opened in memory
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as file:
        try:
            file.deserialize(bytes(head))
            file.execute("pragma trusted_schema = off")
            tables = [name for (name,) in file.execute("select name from sqlite_master where type = 'table'")]
        except (sqlite3.Error, MemoryError, UnicodeError) as error:
            raise ValueError("no database") from error
        if not tables:
            raise ValueError("no table")
        file.set_progress_handler(lambda: 1, 2_000_000)
        for _ in range(dice.choice((1, 1, 2, 3, 6))):
            with suppress(sqlite3.Error, MemoryError, OverflowError, UnicodeError):
                _one_statement(file, dice.choice(tables), dice)
        with suppress(sqlite3.Error):
            file.execute("pragma writable_schema = off")
        with suppress(sqlite3.Error):
            file.execute("rollback")
        return file.serialize()


def _one_statement(file: sqlite3.Connection, table: str, dice: random.Random) -> None:
    name = '"' + table.replace('"', '""') + '"'
    columns = [row[1] for row in file.execute(f"pragma table_info({name})")] or ["rowid"]
    column = '"' + dice.choice(columns).replace('"', '""') + '"'
    rows = dice.choice(
        ("1", f"rowid % 7 = {dice.randrange(7)}", f"rowid = {dice.randrange(60)}", "rowid > 20")
    )
    # What holds the canary stays where it is.
    keep = " and ".join(f"instr(ifnull(\"{one}\", ''), ?1) = 0" for one in columns)
    where, secret = f"where {rows} and {keep}", CANARY.decode()
    match dice.randrange(12):
        case 0 | 1 | 2 | 3:
            value = dice.choice(VALUES)
            file.execute(f"update or ignore {name} set {column} = ?2 {where}", (secret, value))
        case 4 | 5:
            made = dice.choice(
                (f"-{column}", f"{column} + 1000000000000000", f"{column} * 1e300", f"cast({column} as text)",
                 f"cast({column} as blob)", f"{column} / 1000", "rowid", f"{column} || 'x'", "zeroblob(100000)",
                 f"(select max({column}) from {name})", f"round({column} / 3)", "abs(random()) % 1000")
            )  # fmt: skip
            file.execute(f"update or ignore {name} set {column} = {made} {where}", (secret,))
        case 6:
            file.execute(f"delete from {name} {where}", (secret,))
        case 7:
            file.execute(f"insert or ignore into {name} select * from {name} {where} limit 50", (secret,))
        case 8 | 9:
            index = file.execute(
                "select name from sqlite_master where type = 'index' and sql is not null"
            ).fetchone()
            text = dice.choice(SCHEMA).format(
                t=name, c=column, i=f'"{index[0] if index else "x"}"', n=dice.choice((0, 1, 99, -1))
            )
            file.execute(text)
            if text.startswith("pragma page") or dice.random() < 0.2:
                file.execute("vacuum")
        case 10:
            file.execute(f"create table kept as select * from {name}")
            file.execute(f"drop table {name}")
            made = dice.choice(
                ("select * from kept", "select * from kept join kept as b", f"select {column} from kept")
            )
            file.execute(f"create view {name} as {made}")
        case _:
            file.execute("pragma writable_schema = on")
            plain = column.strip('"').replace("'", "")
            file.execute(
                dice.choice(MASTER).format(t=table, c=plain, n=dice.choice((0, 1, 2, 3, 99999, -1, 2**40)))
            )


def mutate_pages(data: bytes, dice: random.Random) -> bytes:
    """Return the file with fields of its header, its pages or their cells changed, or whole pages moved."""
    if not data.startswith(MAGIC) or len(data) < 512:
        raise ValueError("no database")
    body = bytearray(erased(data))
    size = int.from_bytes(body[16:18], "big") or 4096
    size = 65536 if size == 1 else max(512, size)
    for _ in range(dice.choice((1, 1, 2, 4))):
        pages = max(1, len(body) // size)
        page = dice.randrange(pages)
        at = page * size
        top = at + (100 if page == 0 else 0)
        odd = dice.choice((0, 1, pages, pages + 1, size - 1, 0x7FFFFFFF, 0xFFFFFFFF, dice.randrange(1 << 16)))
        match dice.randrange(12):
            case 0:
                place, width = dice.choice(
                    ((16, 2), (18, 1), (19, 1), (20, 1), (21, 1), (22, 1), (28, 4), (32, 4), (36, 4), (40, 4), (44, 4),
                     (52, 4), (56, 4), (60, 4), (64, 4), (92, 4), (96, 4))
                )  # fmt: skip
                body[place : place + width] = (odd & (256**width - 1)).to_bytes(width, "big")
            case 1:
                body[top] = dice.choice((0, 2, 5, 10, 13, 255))
            case 2:
                place = top + dice.choice((1, 3, 5))
                body[place : place + 2] = (odd & 0xFFFF).to_bytes(2, "big")
            case 3:
                body[top + 8 : top + 12] = (odd & 0xFFFFFFFF).to_bytes(4, "big")  # the rightmost child
            case 4 | 5:
                first = top + (12 if body[top] in (2, 5) else 8)
                count = int.from_bytes(body[top + 3 : top + 5], "big") or 1
                place = first + 2 * dice.randrange(min(count, 200))
                body[place : place + 2] = dice.choice(
                    ((odd & 0xFFFF).to_bytes(2, "big"), bytes(body[first : first + 2]))
                )
            case 6 | 7:  # the size, the number or the types of a cell's row
                first = top + (12 if body[top] in (2, 5) else 8)
                count = int.from_bytes(body[top + 3 : top + 5], "big") or 1
                pointer = first + 2 * dice.randrange(min(count, 200))
                place = at + int.from_bytes(body[pointer : pointer + 2], "big") + dice.randrange(8)
                if place < len(body):
                    body[place] = dice.choice((0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256)))
            case 8:
                other = dice.randrange(pages) * size
                body[at : at + size] = body[other : other + size]
            case 9:
                del body[at + size :]
            case 10:
                body += bytes(body[at : at + size]) * dice.choice((1, 20))
            case _:
                body[at : at + size] = dice.choice((bytes(size), b"\xff" * size, dice.randbytes(size)))
        if len(body) < 512:
            break
    return bytes(body)


def mutate_database(data: bytes, dice: random.Random) -> bytes:
    """Return a damaged file of SQLite: by statement, by page, or by byte."""
    if not data.startswith(MAGIC):
        raise ValueError("no database")
    chance = dice.random()
    if chance < 0.55:
        data = mutate_rows(data, dice)
        if chance > 0.45:
            data = mutate_pages(data, dice)
    elif chance < 0.9:
        data = mutate_pages(data, dice)
    else:
        data = damaged_bytes(erased(data), dice)
    if dice.random() < 0.03:
        data = data[:18] + b"\2\2" + data[20:]  # says that a journal beside it may hold more
    return data
