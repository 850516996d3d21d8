"""What stepgrade does not understand of a trace is in none of its outputs: traces carry tokens and environments."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Ran
from tests.kineto_text import kineto_text
from tests.trace_builder import Run, make_trace

Command = Callable[..., Ran]
CANARY = "hf_canaryTOKEN0123456789"
COMMANDS = [
    *(("score", "--format", to) for to in ("terminal", "markdown", "json", "html")),
    *(("inspect", "--format", to) for to in ("terminal", "markdown", "json")),
    ("convert",),
]


def secretive(document: dict[str, Any]) -> dict[str, Any]:
    """Return the trace with the canary wherever a stranger's key can stand, before and after the events."""
    before = {"env": {"HF_TOKEN": CANARY}, CANARY: 1, "torch_profiler_kwargs": [CANARY]}
    after = {"Trace Viewer Data": CANARY, "user_metadata": {"wandb_key": CANARY}, f"k{CANARY}": None}
    for device in document["deviceProperties"]:
        device["serial"] = CANARY
    for event in document["traceEvents"]:
        event["args"]["Call stack"] = event["cname"] = CANARY
        event["args"][CANARY] = CANARY
    document["distributedInfo"] = {"rank": 0, "world_size": 1, "pg_config": [{"secret": CANARY}]}
    unknown = {"ph": "X", "cat": CANARY, "name": "x", "pid": 1, "tid": 1, "ts": 1, "dur": 1, "args": {}}
    document["traceEvents"] += [unknown] * 500
    return before | document | after


@pytest.fixture(scope="module")
def text() -> bytes:
    """Return the JSON of a trace with secrets."""
    document = json.loads(kineto_text(make_trace(Run(steps=4, layers=2))))
    return json.dumps(secretive(document), indent=1).encode()


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_unknown_keys_are_in_no_output(
    command: tuple[str, ...], text: bytes, stepgrade: Command, tmp_path: Path
) -> None:
    if "html" in command:
        pytest.importorskip("jinja2")
    (tmp_path / "trace.json.gz").write_bytes(gzip.compress(text))
    ran = stepgrade(command[0], tmp_path / "trace.json.gz", *command[1:])
    assert ran.code == 0, ran.err
    assert len(ran.out) > 200
    assert CANARY not in ran.out + ran.err


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[: len(text) // 3],
        lambda text: text[: text.index(b"traceEvents")],
        lambda text: text.replace(b'"ts":', b'"ts": "' + CANARY.encode() + b'", "old":'),
        lambda text: text.replace(b'"schemaVersion": 1', b'"schemaVersion": ' + CANARY.encode()),
        lambda text: text + CANARY.encode(),
        lambda text: text.replace(b'"dur":', CANARY.encode(), 9),
    ],
    ids=["cut", "no events", "times", "header", "tail", "broken events"],
)
def test_damaged_traces_tell_no_secrets_either(
    damage: Callable[[bytes], bytes], text: bytes, stepgrade: Command, tmp_path: Path
) -> None:
    (tmp_path / "trace.json").write_bytes(damage(text))
    for command in ("score", "inspect", "convert"):
        ran = stepgrade(command, tmp_path / "trace.json")
        assert ran.code in (0, 2, 3)
        assert CANARY not in ran.out + ran.err
