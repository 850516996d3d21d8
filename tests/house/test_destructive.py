"""What may remove or overwrite something: each such call of the package is listed with why it is safe."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.house.destructive import Found, destructive_calls
from tests.house.measures import PACKAGE

TEMPORARY = "a directory of Python's tempfile: a new name, only this user's, and no link in it is followed"
NAMED = "the file that the user names; whole or not at all, refused when write-protected"
OWN_ROWS = "rows of our own tables, and of one project, token or session alone"
# Why each is safe. A new one needs its line here and, if it removes something, a scene in
# tests/cli/test_foreign_files.py.
AUDITED = {
    ("cli/gate.py", "_show", "open"): "appends to the file that GitHub names for the job's summary",
    ("cli/output.py", "_write_file", "write_by"): NAMED,
    ("cli/output.py", "write_bytes.packed", "GzipFile"): "packs into the draft of write_by",
    ("cli/streams.py", "_let_go", "open"): "the null device",
    ("cli/score.py", "write_timeline", "write_bytes"): NAMED,
    ("engine/cache.py", "Cache._is_ours", "write_whole"): "our marker, in a folder of our name that is empty",
    (
        "engine/cache.py",
        "Cache.put",
        "unlink",
    ): "regular files of this user with our names, in a marked folder",
    ("engine/cache.py", "Cache.put", "write_whole"): "a name of ours in a marked folder; no link is replaced",
    ("engine/cache.py", "_read_ours", "open"): "reads only",
    ("engine/on_dask.py", "OnDask.__init__", "mkdtemp"): "a new directory",
    ("engine/on_dask.py", "OnDask.close", "rmtree"): "that directory; rmtree follows no link",
    ("engine/pool.py", "serve", "fdopen"): "a pipe to the parent process",
    ("files.py", "_remove_stale_drafts", "open"): "opens to lock, and writes nothing",
    (
        "files.py",
        "_remove_stale_drafts",
        "unlink",
    ): "our exact names, regular, this user's, old, locked by nobody",
    ("files.py", "_move", "link"): "a name that is not taken yet",
    ("files.py", "_move", "open"): "creates that name where there are no links",
    ("files.py", "_move", "replace"): NAMED,
    ("files.py", "_move", "unlink"): "the draft, which has its own name by then",
    ("files.py", "scratch_folder", "mkdtemp"): "a new directory",
    ("files.py", "scratch_folder", "rmtree"): "that directory; rmtree follows no link",
    (
        "files.py",
        "write_by",
        "open",
    ): "a device or a pipe that the user names, or a new name, never an existing one",
    ("files.py", "write_by", "unlink"): "the draft that this call has made",
    ("files.py", "write_whole", "write_by"): NAMED,
    ("fix/trial.py", "Bench.run", "open"): "a new name in our scratch folder",
    ("fix/trial.py", "Bench.run", "rmtree"): "the copy in our scratch folder; rmtree follows no link",
    ("fix/trial.py", "Bench.run", "write_text"): "a new name in our scratch folder",
    ("fix/trial.py", "Bench.run", "write_bytes"): "in that copy; files that are only linked are never edited",
    ("fix/copies.py", "Original._copy_folder", "copy2"): "to a new name in our scratch folder",
    ("fix/copies.py", "Original._copy_folder", "symlink"): "the same",
    ("fix/copies.py", "Original._copy_link", "symlink"): "the same",
    ("fix/write.py", "_put_back", "unlink"): "the way back, if it has what this call wrote, or would have",
    ("fix/write.py", "_put_back", "write_whole"): "what the user's files had before --write",
    ("fix/witness.py", "Witness.write", "write_whole"): "a new name in the session of the trial",
    ("fix/write.py", "write_edits", "write_by"): "the way back, to a name that is not taken yet",
    ("fix/write.py", "write_edits", "write_whole"): "files of the user that --write is for",
    (
        "hardware/measured.py",
        "keep_measured",
        "write_whole",
    ): "a file of measurements, or none: others are refused",
    ("readers/archives.py", "_copy", "open"): "creates a new name in a temporary directory",
    ("readers/kineto/workers.py", "start", "TemporaryFile"): "has no name",
    ("readers/kineto/workers.py", "start", "ftruncate"): "that file, or memory",
    ("readers/source.py", "ByteSource.path", "open"): "in that temporary directory",
    ("readers/sqlite.py", "SqliteFile.opened", "connect"): "mode=ro and immutable=1: reads only",
    ("record/guard.py", "main", "rmtree"): "the scratch folder of the process that started it, made by that",
    (
        "record/inject/sitecustomize.py",
        "AfterTorch.leave",
        "open",
    ): "in the temporary directory of the session",
    ("record/journal.py", "Journal.append", "open"): "the journal that this process began, by its inode",
    ("record/journal.py", "Journal.append", "truncate"): "takes back the line that failed, of that journal",
    ("record/journal.py", "Journal.check", "TemporaryFile"): "has no name",
    (
        "record/journal.py",
        "Journal.finish",
        "write_whole",
    ): "its own journal by inode, else a name that is free",
    ("record/journal.py", "Journal.write", "write_whole"): NAMED,
    ("record/launch.py", "run_recorded", "write_text"): "in that temporary directory",
    ("record/operations.py", "_analyse", "TemporaryDirectory"): TEMPORARY,
    ("record/script.py", "ScriptRecorder._after_failure", "write_text"): "in the directory of the session",
    ("record/script.py", "ScriptRecorder._name_file", "ftruncate"): "a file that it has just created there",
    ("record/script.py", "ScriptRecorder._name_file", "open"): "creates a new name there",
    ("record/script.py", "ScriptRecorder.close", "open"): "appends to that file",
    ("report/perfetto.py", "write", "TemporaryFile"): "has no name",
    ("store/alerts.py", "Alerts.remove_channel", "delete from"): OWN_ROWS,
    ("store/history.py", "History.remove", "delete from"): OWN_ROWS,
    ("store/database.py", "", "drop index"): "an index of our own table; the check before knows every name",
    ("store/postgres.py", "PostgresDatabase.set_version", "delete from"): "our own table of one row",
    ("store/remote.py", "Outbox.keep", "write_whole"): "a new name of its own in the outbox",
    (
        "store/remote.py",
        "RemoteHistory._send_all",
        "rename",
    ): "a run that waits and was decoded as one of ours",
    ("store/remote.py", "RemoteHistory._send_all", "unlink"): "such a run, when the server has it",
    (
        "store/sqlite.py",
        "SqliteDatabase.__init__",
        "connect",
    ): "nothing is written before it is known to be ours",
    ("store/sqlite.py", "_make_file", "open"): "creates a new name, and leaves an existing file alone",
    ("store/sqlite.py", "_schema_of", "connect"): "in memory",
    ("store/sqlite.py", "copy_sqlite", "write_by"): "a name that is not taken yet",
    (
        "store/sqlite.py",
        "copy_sqlite.copy",
        "connect",
    ): "from a history that was checked, to the draft of write_by",
    ("store/sqlite.py", "leave_wal", "connect"): "the history that the server has had open",
    ("store/team.py", "Team.close_session", "delete from"): OWN_ROWS,
    ("store/team.py", "Team.open_session", "delete from"): OWN_ROWS,
    ("store/team.py", "Team.remove_project", "delete from"): OWN_ROWS,
    ("store/team.py", "Team.revoke", "delete from"): OWN_ROWS,
    ("web/calls.py", "_scored", "TemporaryDirectory"): TEMPORARY,
    ("web/traces.py", "Scoring.receive", "open"): "in that temporary directory",
    ("web/traces.py", "Scoring.score", "open"): "in that temporary directory",
}
TWICE = {
    ("files.py", "write_by", "open"),  # the device or pipe, and the draft: "xb" never opens an existing name
    ("record/journal.py", "Journal.finish", "write_whole"),  # where it was asked for, else elsewhere
    ("store/sqlite.py", "copy_sqlite.copy", "connect"),  # from and to
}


def test_every_call_that_can_destroy_something_was_looked_at() -> None:
    found = Counter(tuple(one) for one in destructive_calls(PACKAGE))
    indexes = [("store/database.py", "", "drop index")] * 4  # and one in AUDITED
    expected = Counter([*AUDITED, *TWICE, *indexes])
    assert sorted((found - expected).elements()) == [], "is it safe? then say why in AUDITED"
    assert sorted((expected - found).elements()) == [], "no longer in the package: remove it from AUDITED"


DESTRUCTIVE = """
import os, shutil, gzip, sqlite3, tempfile
from pathlib import Path
def f(path, mode, flags, database):
    os.remove(path); os.unlink(path); path.unlink(); os.rmdir(path); Path(path).rmdir(); shutil.rmtree(path)
    os.rename(path, path); path.rename("b"); os.replace(path, "b"); path.replace("b"); os.truncate(path, 0)
    open(path, "w"); open(path, mode="ab"); open(path, mode); path.open("r+b"); gzip.open(path, "wt")
    os.open(path, os.O_WRONLY); os.open(path, flags); path.write_text(""); Path("b").write_bytes(b"")
    sqlite3.connect(path); tempfile.mkdtemp(); shutil.move(path, "b"); os.ftruncate(1, 0)
    database.execute("DELETE  FROM t"); database.execute(f"drop table {path}"); write_whole(path, b"")
"""
HARMLESS = """
import os
def f(path, text, names, structs, record):
    open(path); open(path, "rb"); path.open(); path.open("rb"); os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    text.replace("a", "b"); names.remove(path); structs.replace(record, a=1); replace(record, a=1); client.connect(path)
    database.execute("select * from t where deleted = 1")
"""


@pytest.mark.parametrize(
    ("code", "expected"), [(DESTRUCTIVE, 27), (HARMLESS, 0)], ids=["destructive", "harmless"]
)
def test_what_the_search_finds(tmp_path: Path, code: str, expected: int) -> None:
    (tmp_path / "one.py").write_text(code)
    found = list(destructive_calls(tmp_path))
    calls = [ast.unparse(node) for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    assert len(found) == expected, (found, calls)
    assert all(one[:2] == ("one.py", "f") for one in found)


def test_scripts_beside_the_package_remove_what_they_made() -> None:
    """`make clean` and the image remove what they have built; the demo, the action and the examples nothing."""
    scripts = [
        ROOT / "Makefile",
        *sorted((ROOT / "action").iterdir()),
        *sorted((ROOT / "deploy").iterdir()),
        *sorted((ROOT / "examples").glob("*.sh")),
    ]
    found = [
        (path.name, line.strip())
        for path in scripts
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(
            f"{word} " in f" {line}"
            for word in (" rm", "\trm", " mv", "\tmv", "unlink", "git clean", "truncate")
        )
    ]
    assert sorted({name for name, _ in found}) == ["Containerfile", "Makefile"]
    removed = {word for name, line in found if name == "Makefile" for word in line.split() if word != "rm"}
    assert removed == {
        *("-rf", "$(VENV)", "dist", "site", ".site", ".cache", ".coverage", ".pytest_cache"),
        *(".mypy_cache", ".ruff_cache", ".hypothesis", ".import_linter_cache"),
    }
    assert [one for one in destructive_calls(ROOT / "examples") if one.is_removal] == []


def test_a_removal_has_a_scene() -> None:
    from tests.cli.test_foreign_files import SCENES

    removals = {one[:2] for one in (Found(*key) for key in AUDITED) if one.is_removal and one.function}
    shown = {place for places in SCENES.values() for place in places}
    assert sorted(removals - shown) == []
