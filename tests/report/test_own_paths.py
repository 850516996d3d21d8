"""What is passed on names no folder of the machine it was written on; the terminal and the JSON name all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepgrade.report.own_paths import without_own_paths
from tests.conftest import Ran
from tests.kineto_text import kineto_text
from tests.trace_builder import Run, make_trace

Command = Callable[..., Ran]
GATE = ("markdown", "junit", "github", "sarif", "badge", "html")


def framed(folder: str) -> bytes:
    """Return a trace whose stacks have the user's own files in a folder."""
    document: dict[str, Any] = json.loads(kineto_text(make_trace(Run(steps=4, layers=2))))
    events = document["traceEvents"]
    for step in [event for event in events if "ProfilerStep" in event["name"]]:
        where = {"ph": "X", "cat": "python_function", "pid": step["pid"], "tid": step["tid"]}
        frames = (("train.py(12): main", 1.0, 1, None), ("pkg/model.py(30): forward", 2.0, 2, 1))
        for name, share, number, parent in frames:
            times = {"ts": step["ts"] + 0.1 * number, "dur": (step["dur"] - 1.0) / share}
            args = {"Python id": number, "Python parent id": parent}
            events.append({**where, **times, "name": f"{folder}/{name}", "args": args})
    return json.dumps(document).encode()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with a trace in it, in the home of one alice."""
    pytest.importorskip("jinja2")
    folder = tmp_path / "canary home" / "alice" / "my proj"
    folder.mkdir(parents=True)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("trace.json", "other.json"):
        (folder / name).write_bytes(framed("/mnt/canary-disk/alice/src"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return folder


def assert_none(text: str, home: Path) -> None:
    for word in ("canary", "alice", str(home.parents[2])):
        at = text.find(word)
        assert at < 0, text[max(0, at - 100) : at + 60]


@pytest.mark.parametrize("to", ["markdown", "html", "perfetto"])
def test_a_scorecard(to: str, home: Path, stepgrade: Command, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ran = stepgrade("score", home / "trace.json", home / "other.json", "--format", to, "-o", out)
    assert ran.code == 0, ran.err
    text = out.read_bytes().decode("utf-8", "replace")
    assert_none(text, home)
    assert "trace.json" in text
    if to == "html":
        assert "pkg/model.py:30" in text  # which line it is can still be seen


@pytest.mark.parametrize("to", ["terminal", "json"])
def test_what_is_for_the_user_names_the_file(to: str, home: Path, stepgrade: Command) -> None:
    ran = stepgrade("score", home / "trace.json", "--format", to)
    assert "trace.json" in ran.out
    assert to == "terminal" or str(home) in ran.out


@pytest.mark.parametrize("against", ["baseline", "history", "no history"])
def test_a_gate(against: str, home: Path, stepgrade: Command, tmp_path: Path) -> None:
    history = home / "runs.db"
    options: list[object] = ["--baseline", home / "other.json"]
    if against != "baseline":
        options = ["--against", "history:main", "--history", history]
    if against == "history":
        assert (
            stepgrade("history", "add", home / "other.json", "--branch", "main", "--history", history).code
            == 0
        )
    also = [word for to in GATE for word in ("--also", f"{to}={tmp_path / to}")]
    ran = stepgrade("gate", home / "trace.json", *options, *also)
    assert ran.code in (0, 1, 3), ran.err
    for to in GATE:
        assert_none((tmp_path / to).read_text(), home)


@pytest.mark.parametrize("to", ["markdown", "html"])
def test_parity(to: str, home: Path, stepgrade: Command, tmp_path: Path) -> None:
    ran = stepgrade(
        "parity", home / "trace.json", home / "other.json", "--format", to, "-o", tmp_path / "out"
    )
    assert ran.code in (0, 1, 3), ran.err
    assert_none((tmp_path / "out").read_text(), home)


@pytest.mark.parametrize("command", ["inspect", "what-if"])
def test_markdown_of_others(command: str, home: Path, stepgrade: Command) -> None:
    ran = stepgrade(command, home / "trace.json", "--format", "markdown")
    assert ran.code == 0, ran.err
    assert_none(ran.out, home)


@pytest.mark.parametrize(
    ("texts", "shown"),
    [
        (["/home/me/p/a.py:1", "/home/me/p/q/b.py"], ["a.py:1", "q/b.py"]),
        (["C:\\Users\\me\\p\\a.py", "C:\\Users\\me\\p\\q\\b.py"], ["a.py", "q\\b.py"]),
        (["cannot read /data/me/x.json: no such file"], ["cannot read x.json: no such file"]),
        (["/var/x.json", "/data/var/y.json"], ["x.json", "y.json"]),
        (["/data/my runs/a.json, /data/my runs/b.json"], ["a.json, b.json"]),
        (
            ["https://host/a/b.json", "s3://bucket/a/b.json"],
            ["https://host/a/b.json", "s3://bucket/a/b.json"],
        ),
        (
            ["/model/layers.0/MatMul", "a/b", "5/8", "</div>"],
            ["/model/layers.0/MatMul", "a/b", "5/8", "</div>"],
        ),
        (["~/p/a.py:3", "src/a.py"], ["~/p/a.py:3", "src/a.py"]),
    ],
)
def test_paths(texts: list[str], shown: list[str]) -> None:
    assert without_own_paths(texts) == shown
