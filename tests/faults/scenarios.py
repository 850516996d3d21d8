"""Everything that writes files, as scenarios whose system calls fail one after the other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from msgspec import structs

import stepgrade as sg
from stepgrade.cli import main
from stepgrade.cli.streams import complain
from stepgrade.engine.cache import OWN_FOLDER, Cache
from stepgrade.errors import StepgradeError
from stepgrade.fix.edit import diff_of
from stepgrade.fix.write import REVERSE, write_edits
from stepgrade.hardware.measured import Measurement, Rate, keep_measured, load_measured
from stepgrade.store import NewRun, open_history
from stepgrade.store.database import MIGRATIONS
from stepgrade.store.sqlite import APPLICATION_ID, SqliteDatabase
from tests.builders import make_profile, make_step_profile
from tests.cluster import Planned, write_ranks
from tests.faults.harness import Place, Scenario
from tests.fix.reports import written_report
from tests.kineto_text import kineto_text
from tests.trace_builder import Run, make_trace

Act = Callable[[Place], int]
FORMATS = {"terminal": "txt", "markdown": "md", "json": "json", "html": "html"}
STORE = ("h", "h/history.db", "h/history.db-journal")
_OLD = b"what was here before\n"
_EDITED, _BEFORE, _AFTER = ("a.py", "b.py"), "print(1)\n", "print(2)\n"
_TIDYING_S = 10.0


def command(*words: str, **variables: str) -> Act:
    """Return what runs a command line as a process of its own does, to its very end."""

    def act(place: Place) -> int:
        known = {"given": place.given, "here": place.here, **place.facts}
        os.environ.update({name: value.format(**known) for name, value in variables.items()})
        sys.argv = ["stepgrade", *(word.format(**known) for word in words)]
        return main()

    return act


def called(function: Callable[[Place], int]) -> Act:
    """Return what calls our Python as the commands do: our errors are one line, others are bugs."""

    def act(place: Place) -> int:
        try:
            return function(place)
        except StepgradeError as error:
            complain(str(error))
            return error.exit_code

    return act


def give_profiles(place: Place) -> None:
    """Write the files that the scenarios read."""
    (place.given / "p.json").write_text(make_step_profile())
    (place.given / "slow.json").write_text(make_step_profile(step_ms=150.0))
    (place.given / "trace.json").write_bytes(kineto_text(make_trace(Run(steps=3, layers=2))))


def content(*names: str) -> Callable[[Place], Any]:
    """Return what reads some files."""

    def state(place: Place) -> list[str | None]:
        paths = [place.here / name for name in names]
        return [path.read_bytes().hex() if path.exists() else None for path in paths]

    return state


def nothing(_: Place) -> None:
    """Read nothing: there is only the output."""


def output(name: str, file: str, *words: str, is_there: bool = False, **more: Any) -> Scenario:
    """Return a scenario in which a command writes one file."""

    def prepare(place: Place) -> None:
        give_profiles(place)
        if is_there:
            (place.here / file).write_bytes(_OLD)

    return Scenario(name, prepare, command(*words), content(file), (file,), says=(file,), **more)


def _through_link(place: Place) -> None:
    give_profiles(place)
    (place.here / "real.json").write_bytes(_OLD)
    (place.here / "link.json").symlink_to("real.json")


def _printed(name: str, *words: str, streams: int = 2) -> Scenario:
    return Scenario(
        name, give_profiles, command(*words), nothing, (), says=("standard output", "gate"), streams=streams
    )


def outputs() -> list[Scenario]:
    """Return what writes results into files and to standard output."""
    found = []
    for to, suffix in FORMATS.items():
        file = f"card.{suffix}"
        words = ("score", "{given}/p.json", "-o", file, "--format", to)
        found.append(output(f"score -o, {to}, a new file", file, *words))
        found.append(output(f"score -o, {to}, over another", file, *words, is_there=True))
    timeline = ("score", "{given}/trace.json", "--format", "perfetto", "-o")
    found += [
        output(f"score -o {file}", file, *timeline, file, is_there=True)
        for file in ("run.pftrace", "run.pftrace.gz")
    ]
    link = command("score", "{given}/p.json", "-o", "link.json", "--format", "json")
    found += [
        Scenario(
            "score -o through a link",
            _through_link,
            link,
            content("real.json"),
            ("real.json",),
            says=("link.json",),
        ),
        output("convert -o", "steps.json", "convert", "{given}/trace.json", "-o", "steps.json"),
        output("completion -o", "bash", "completion", "bash", "-o", "bash", is_there=True),
        _printed("score to standard output", "score", "{given}/p.json"),
        _printed("score --format json to standard output", "score", "{given}/p.json", "--format", "json"),
        _printed(
            "score --format perfetto to standard output",
            "score",
            "{given}/trace.json",
            "--format",
            "perfetto",
        ),
        _printed(
            "gate to both streams",
            "gate",
            "{given}/slow.json",
            "--baseline",
            "{given}/p.json",
            "--run-noise",
            "1%",
            "--format",
            "json",
            streams=6,
        ),
        _printed("--help", "--help"),
        _printed("--version", "--version"),
    ]
    return found


def reading() -> list[Scenario]:
    """Return what reads in the directory where calls fail, and writes nothing there."""
    names = ("p.json", "trace.json")
    return [
        Scenario(
            f"reading {name}", _inside, command("score", name, "--format", "json"), nothing, (), says=(name,)
        )
        for name in names
    ]


def _inside(place: Place) -> None:
    give_profiles(Place(place.here, place.here, {}))


def _card(step_ms: float) -> sg.Scorecard:
    return sg.score(make_profile(mean_step_ms=step_ms), tokens_per_step=1000.0)


def some_runs(count: int = 5, key: str = "k") -> list[NewRun]:
    """Return runs to be kept."""
    return [
        NewRun(
            card=_card(100.0 + n),
            branch="main",
            commit=f"c{n}",
            key=f"{key}{n}",
            added_at=f"2026-01-0{n + 1}T00:00:00+00:00",
        )
        for n in range(count)
    ]


def with_history(place: Place) -> None:
    """Make a history of five runs."""
    give_profiles(place)
    with open_history(str(place.here / "h" / "history.db")) as history:
        history.add_all(some_runs())


def runs_of(place: str, project: str = "default") -> list[Any]:
    """Return what is kept of every run, but when it came; raise when anything is damaged."""
    with open_history(place, create=False) as history:
        mine = history.in_project(project)
        rows = mine.runs()
        cards = mine.cards([row.id for row in rows])
        assert not mine.damaged, mine.damaged
        return [[row.commit, row.branch, json.loads(cards[row.id].to_json())["step_time_ms"]] for row in rows]


def file_runs(name: str = "h/history.db") -> Callable[[Place], Any]:
    """Return what reads a history in a file."""

    def state(place: Place) -> list[Any]:
        path = place.here / name
        if not path.exists() or not path.stat().st_size:
            return []  # a file without a byte is a history without a run
        import sqlite3

        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("pragma integrity_check").fetchall() == [("ok",)]
        return runs_of(str(path))

    return state


def _older(version: int) -> Callable[[Place], None]:
    """Return what makes a history as an older stepgrade left it, with two runs."""

    def prepare(place: Place) -> None:
        import sqlite3

        with_history(place)
        path = place.here / "h" / "history.db"
        with closing(sqlite3.connect(path)) as new:
            digests = new.execute("select digest, body from stepgrade_fingerprint").fetchall()
            cards = new.execute("select run_id, body from stepgrade_card").fetchall()
            names = "id, added_at, digest, git_commit, branch, labels, source, grade, step_time_ms"
            runs = new.execute(f"select {names} from stepgrade_run").fetchall()  # noqa: S608  our own names
        path.unlink()
        with closing(sqlite3.connect(path)) as old:
            for statements in MIGRATIONS[:version]:
                for statement in statements:
                    old.execute(statement.format(**SqliteDatabase.words))
            old.executemany("insert into stepgrade_fingerprint values (?, ?)", digests)
            marks = ", ".join("?" * 9)
            old.executemany(f"insert into stepgrade_run ({names}) values ({marks})", runs)  # noqa: S608  as above
            old.executemany("insert into stepgrade_card values (?, ?)", cards)
            old.execute(f"pragma application_id = {APPLICATION_ID}")
            old.execute(f"pragma user_version = {version}")
            old.commit()

    return prepare


def _is_part(before: list[Any], after: list[Any], now: Any) -> bool:
    """Tell whether some of what was to be done one by one is done."""
    return (
        isinstance(now, list)
        and all(row in after or row in before for row in now)
        and all(row in now for row in before if row in after)
    )


def histories() -> list[Scenario]:
    """Return what writes into a history in a file of SQLite."""
    where = ("history.db", "h: ")
    origin = ("--branch", "main", "--commit", "new", "--history", "h/history.db")
    add = command("history", "add", "{given}/p.json", *origin)
    gate = ("gate", "{given}/p.json", "--against", "history:main", "--run-noise", "1%", "--save", *origin)
    also = ("--format", "github", "--also", "junit=gate.xml", "--also", "badge=grade.svg", "-o", "gate.txt")
    gated = command(*gate, *also, GITHUB_STEP_SUMMARY="{here}/summary.md")
    export = command("history", "export", "-o", "runs.jsonl", "--history", "h/history.db")
    prune = command("history", "prune", "--keep", "2", "--yes", "--history", "h/history.db")

    def state_of_gate(place: Place) -> list[Any]:
        return [*file_runs()(place), *content("gate.txt", "gate.xml", "grade.svg", "summary.md")(place)]

    files = ("gate.txt", "gate.xml", "grade.svg", "summary.md")
    found = [
        Scenario("history add, the first run", give_profiles, add, file_runs(), STORE, says=where),
        Scenario("history add, one more", with_history, add, file_runs(), STORE, says=where),
        Scenario("history prune", with_history, prune, file_runs(), STORE, says=where, between=_is_part),
        Scenario(
            "history export -o",
            with_history,
            export,
            content("runs.jsonl"),
            (*STORE, "runs.jsonl"),
            says=(*where, "runs.jsonl"),
        ),
        Scenario(
            "gate --save --also",
            with_history,
            gated,
            state_of_gate,
            (*STORE, *files),
            says=(*where, *files, "GITHUB_STEP_SUMMARY"),
            between=lambda *_: True,
        ),
        Scenario(
            "admin project",
            with_history,
            command("admin", "project", "llm", "--history", "h/history.db"),
            file_runs(),
            STORE,
            says=where,
        ),
        Scenario(
            "admin backup",
            with_history,
            command("admin", "backup", "copy.db", "--history", "h/history.db"),
            file_runs("copy.db"),
            (*STORE, "copy.db", "copy.db-journal"),
            says=(*where, "copy.db"),
        ),
    ]
    found += [
        Scenario(f"migration from version {version}", _older(version), add, file_runs(), STORE, says=where)
        for version in range(1, len(MIGRATIONS))
    ]
    return found


def _measured(place: Place) -> int:
    rate = Rate(best=2.0, median=1.5, spread_share=0.01, runs=5)
    path = str(place.here / "s" / "measured.json")
    keep_measured(
        Measurement(key="cpu", name="new", date="2026-01-02", method="m", bandwidth_gb_s=rate), path
    )
    return 0


def _measured_before(place: Place) -> None:
    keep_measured(
        Measurement(key="gpu", name="old", date="2026-01-01", method="m"),
        str(place.here / "s" / "measured.json"),
    )


def _measurements(place: Place) -> list[str]:
    return [one.name for one in load_measured(str(place.here / "s" / "measured.json"))]


def _give_ranks(place: Place) -> None:
    write_ranks(place.given, Planned(world=2, tensor=1, pipeline=1, steps=3))
    cache = place.here / "c"
    cache.mkdir(mode=0o700)
    (cache / "model.bin").write_bytes(b"not ours" * 1000)
    os.utime(cache / "model.bin", (1_700_000_000, 1_700_000_000))


def _trim(place: Place) -> int:
    """Keep more than fits; what comes back is what was put there, or nothing."""
    cache = Cache(str(place.here / "c" / OWN_FOLDER), most_bytes=2500)
    for number in range(4):
        cache.put(f"{number:064x}", bytes([number]) * 1000)
    came = [cache.get(f"{number:064x}") for number in range(4)]
    return int(any(one is not None and one != bytes([number]) * 1000 for number, one in enumerate(came)))


def others() -> list[Scenario]:
    """Return what keeps measurements and results."""
    cached = command(
        "score", "{given}/rank0.json", "{given}/rank1.json", "--format", "json", STEPGRADE_CACHE="{here}/c"
    )
    pooled = command(
        "score",
        "{given}/rank0.json",
        "{given}/rank1.json",
        "--engine",
        "pool",
        "--workers",
        "2",
        "--no-cache",
        "--format",
        "json",
    )
    ours = ("c", f"c/{OWN_FOLDER}*", "tmp/*")

    def cache_is_sound(_: Place) -> None:
        """The second try reads it."""

    return [
        Scenario(
            "devices --measure",
            nothing,
            called(_measured),
            _measurements,
            ("s", "s/measured.json"),
            says=("measured.json", "s: "),
        ),
        Scenario(
            "devices --measure, once more",
            _measured_before,
            called(_measured),
            _measurements,
            ("s", "s/measured.json"),
            says=("measured.json", "s: "),
        ),
        Scenario("the cache of two ranks", _give_ranks, cached, cache_is_sound, ours, is_optional=True),
        Scenario("the cache, trimmed", _give_ranks, called(_trim), cache_is_sound, ours, is_optional=True),
        Scenario(
            "a pool of processes", _give_ranks, pooled, nothing, (), says=("rank", "process", "thread", "tmp")
        ),
    ]


def _scripts(place: Place) -> None:
    for name in _EDITED:
        (place.here / name).write_text(_BEFORE)
    (place.here / "pkg").mkdir()
    (place.here / "pkg" / "link.py").symlink_to("../a.py")


def _checkout(place: Place) -> None:
    _scripts(place)
    names = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for words in (["init", "-q"], ["add", "a.py", "pkg"], ["commit", "-qm", "all"]):
        environment = {**os.environ, **names, "GIT_CONFIG_GLOBAL": os.devnull}
        subprocess.run(["git", *words], cwd=place.here, env=environment, check=True)


def _write_edits(place: Place) -> int:
    """Write both scripts; where there is a way back already, take it first, as users are told to."""
    if os.path.lexists(place.here / REVERSE):  # False where it cannot be looked at
        for name in _EDITED:
            (place.here / name).write_text(_BEFORE)
        (place.here / REVERSE).unlink()
    diffs = "".join(diff_of(_BEFORE, _AFTER, name) for name in _EDITED)
    found = written_report(_BEFORE, _AFTER, _EDITED[0])
    assert found.together is not None
    together = structs.replace(found.together, diff=diffs)
    edited = structs.replace(found, edits=dict.fromkeys(_EDITED, _AFTER), together=together)
    write_edits(str(place.here), edited)
    return 0


def _is_reversible(_: Any, __: Any, now: Any) -> bool:
    """Tell whether each script is one of both, and there is a way back if one is edited."""
    *texts, back = now
    known = (_BEFORE.encode().hex(), _AFTER.encode().hex())
    return all(text in known for text in texts) and (back is not None or known[1] not in texts)


def _tidied_up(place: Place) -> None:
    """Wait for the process that tidies up when the one that wrote was killed, if there is one."""
    until = time.monotonic() + _TIDYING_S
    while list((place.here / "tmp").glob("stepgrade-*")) and time.monotonic() < until:
        time.sleep(0.05)


def trials() -> list[Scenario]:
    """Return what runs a training of the user in folders of ours, and what edits it."""
    run = ("gate", "--run", f"{sys.executable} a.py", "--base", "HEAD", "--pairs", "2")
    return [
        Scenario(
            "fix --write, the edits",
            _scripts,
            called(_write_edits),
            content(*_EDITED, REVERSE),
            (*_EDITED, REVERSE),
            says=(*_EDITED, REVERSE, "here"),
            between=_is_reversible,
        ),
        Scenario(
            "fix, a script that does not train", _scripts, command("fix", "a.py"), _tidied_up, (), exits=(3,)
        ),
        Scenario(
            "gate --run, a script that does not train", _checkout, command(*run), _tidied_up, (), exits=(3,)
        ),
    ]


def local() -> list[Scenario]:
    """Return all of them."""
    return [*outputs(), *reading(), *histories(), *others(), *trials()]
