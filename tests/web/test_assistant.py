"""Answers for assistants: short, the same as the command line's, and from named folders alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

import stepgrade as sg
from stepgrade.errors import BadInput, BadOption
from stepgrade.store import NewRun, open_history
from tests.conftest import ROOT
from tests.web.conftest import Site, card

pytest.importorskip("mcp", reason="the SDK of the protocol is not installed")
from mcp import Client, StdioServerParameters

from stepgrade.web.assistant import MOST_CHARACTERS, Roots, brief_card, make_assistant

TRACE = "examples/traces/gpt_naive.json.gz"
READS = {"history", "findings", "compare", "score", "inspect", "what_if", "estimate", "plan"}


def asked(server: Any, *calls: tuple[str, dict[str, Any]]) -> list[tuple[bool, str]]:
    """Return whether each call failed, and its text."""

    async def ask() -> list[tuple[bool, str]]:
        found = []
        async with Client(server) as client:
            for name, fields in calls:
                answer = await client.call_tool(name, fields)
                found.append(
                    (bool(answer.is_error), "".join(getattr(part, "text", "") for part in answer.content))
                )
        return found

    return anyio.run(ask)


def names_of(server: Any) -> set[str]:
    async def ask() -> set[str]:
        async with Client(server) as client:
            return {tool.name for tool in (await client.list_tools()).tools}

    return anyio.run(ask)


def assistant(tmp_path: Path, **options: Any) -> Any:
    place = str(tmp_path / "history.db")
    with open_history(place) as history:
        history.add_all(
            NewRun(card=card(100.0 + 30.0 * (n > 7)), branch="main", commit=f"c{n}") for n in range(16)
        )
    return make_assistant(Roots([str(ROOT)]), lambda project: open_history(place, project=project), **options)


def test_every_tool_answers(tmp_path: Path) -> None:
    model, device = "examples/models/llama-3-8b.json", "h100-sxm5-80gb"
    calls = [
        ("score", {"path": TRACE}),
        ("inspect", {"path": TRACE}),
        ("what_if", {"path": TRACE, "faster": {"gemm": 2}, "without": ["aten::copy_"]}),
        ("what_if", {"path": TRACE}),
        (
            "compare",
            {"before": "examples/traces/gpt_naive.json.gz", "now": "examples/traces/gpt_fused.json.gz"},
        ),
        ("compare", {"before": "1", "now": "16"}),
        ("estimate", {"model": model, "device": device, "batch": 1, "seq": 4096}),
        ("plan", {"model": model, "device": device, "devices": 8, "global_batch": 64, "seq": 4096}),
        ("history", {"branch": "main"}),
        ("findings", {}),
    ]
    server = assistant(tmp_path)
    assert names_of(server) == READS
    for (name, _), (failed, text) in zip(calls, asked(server, *calls), strict=True):
        assert not failed, (name, text)
        assert len(text) <= MOST_CHARACTERS * 1.6, name  # with the blanks that the protocol's SDK writes


def test_a_card_is_short_and_the_same_as_the_command_line(stepgrade: Callable[..., Any]) -> None:
    found = brief_card(sg.score(str(ROOT / TRACE)))
    assert len(json.dumps(found)) / 4 < 1_500
    full = json.loads(stepgrade("score", ROOT / TRACE, "--format", "json").out)
    for name in ("grade", "bottleneck", "step_time_ms"):
        assert (
            found[name] == pytest.approx(full[name], rel=1e-4)
            if isinstance(full[name], float)
            else full[name]
        )
    assert found["findings"][0]["rule"] == full["findings"][0]["rule"]


def test_a_what_if_is_the_same_as_the_command_line(tmp_path: Path, stepgrade: Callable[..., Any]) -> None:
    calls = [("what_if", {"path": TRACE, "faster": {"gemm": 2}}), ("what_if", {"path": TRACE, "link": 2})]
    (failed, text), (refused, why) = asked(assistant(tmp_path), *calls)
    full = json.loads(stepgrade("what-if", ROOT / TRACE, "--faster", "gemm=2x", "--format", "json").out)
    found = json.loads(text)
    assert not failed
    assert len(text) / 4 < 1_500
    assert found["answers"][0]["step_ms"] == pytest.approx(full["answers"][0]["step_ms"], rel=1e-4)
    assert found["answers"][0]["changes"] == ["gemm 2x as fast"]
    assert refused
    assert "nothing in the step is 'link'" in why


def test_the_roots_cannot_be_left(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "in-secret"
    inside.mkdir()
    outside.mkdir()
    (outside / "secret.json").write_text("{}")
    (inside / "link.json").symlink_to(outside / "secret.json")
    (inside / "folder").mkdir()
    (inside / "folder" / "link").symlink_to(outside)
    (inside / "good.json").write_text("{}")
    roots = Roots([str(inside)])
    assert roots.path("good.json") == os.path.realpath(inside / "good.json")
    for escape in (
        "../in-secret/secret.json",
        str(outside / "secret.json"),
        "link.json",
        "folder",
        "folder/link/secret.json",
        "/etc/passwd",
        "good.json/../../in-secret/secret.json",
        "file:///etc/passwd",
        "x\0y",
        "nothing.json",
        "~/secret",
    ):
        with pytest.raises(BadInput):
            roots.path(escape)
    with pytest.raises(BadOption):
        Roots([]).path("good.json")
    server = make_assistant(roots, None)
    calls = [(name, {"path": "/etc/passwd"}) for name in ("score", "inspect", "what_if")]
    calls.append(("compare", {"before": "/etc/passwd", "now": "/etc/passwd"}))
    model = {"model": "/etc/passwd", "device": "h100-sxm5-80gb", "seq": 1}
    calls += [("estimate", model | {"batch": 1}), ("plan", model | {"devices": 8, "global_batch": 8})]
    for failed, text in asked(server, *calls):
        assert failed
        assert "no such file in the allowed folders" in text
        assert "root:" not in text


def test_nothing_is_written_unless_it_may(tmp_path: Path) -> None:
    assert "save" not in names_of(assistant(tmp_path))
    server = assistant(tmp_path, may_save=True)
    ((failed, text),) = asked(server, ("save", {"path": TRACE, "branch": "main"}))
    assert not failed, text
    with open_history(str(tmp_path / "history.db")) as history:
        assert history.origins([json.loads(text)["id"]])[json.loads(text)["id"]].added_by == "assistant"


def test_over_a_pipe(tmp_path: Path) -> None:
    command = StdioServerParameters(
        command=sys.executable,
        args=[
            "-m",
            "stepgrade",
            "mcp",
            "--root",
            str(ROOT / "examples"),
            "--history",
            str(tmp_path / "none.db"),
        ],
    )
    calls = [
        ("score", {"path": "traces/gpt_naive.json.gz"}),
        ("score", {"path": "../pyproject.toml"}),
        ("history", {}),
    ]
    good, outside, none = asked(command, *calls)
    assert not good[0]
    assert json.loads(good[1])["grade"] == "ungraded"
    assert outside[0]
    assert none[0]
    assert "no history found" in none[1]


def test_in_the_server_a_token_asks_about_its_projects(site: Site) -> None:
    def ask(who: str, name: str, fields: dict[str, Any]) -> Any:
        body = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": {"name": name, "arguments": fields},
        }
        headers = site.bearer(who) | {"accept": "application/json, text/event-stream"}
        return site.client.post("/mcp", json=body, headers=headers)

    assert ask("nobody", "history", {"project": "mine"}).status_code == 401
    good = ask("reader", "history", {"project": "mine"})
    assert good.status_code == 200, good.text
    assert "step_time_ms" in good.text
    assert not good.json()["result"].get("isError")
    for who, project in (("stranger", "mine"), ("reader", "other")):
        other = ask(who, "history", {"project": project})
        assert other.json()["result"]["isError"]
        assert "project not found" in other.text
    assert (
        ask("reader", "score", {"path": "/etc/passwd"}).json().get("error")
        or "isError" in ask("reader", "score", {"path": "/etc/passwd"}).text
    )
    evil = site.bearer("reader") | {"origin": "https://evil.example"}
    assert site.client.post("/mcp", json={}, headers=evil).status_code == 403
