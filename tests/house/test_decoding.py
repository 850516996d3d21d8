"""The one module that decodes into types: nobody else does, and no thread or child meets a type half built."""

from __future__ import annotations

import ast
import subprocess
import sys
import textwrap
from collections.abc import Iterator

import msgspec
import pytest

from stepgrade.decoding import from_builtins, from_json, from_msgpack, json_decoder
from tests.conftest import ROOT
from tests.house.measures import sources

OWNER = ROOT / "src" / "stepgrade" / "decoding.py"
_DECODE = {f"msgspec.{form}.decode" for form in ("json", "msgpack", "yaml", "toml")}
_NEVER = {"msgspec.convert", "msgspec.json.Decoder", "msgspec.msgpack.Decoder"}


def typed_decodings(text: str) -> Iterator[str]:
    """Yield where a module has msgspec decode into a type by itself."""
    tree = ast.parse(text)
    meant: dict[str, str] = {}  # what a name of this module stands for
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                top = name.name.partition(".")[0]
                meant[name.asname or top] = name.name if name.asname else top
        elif isinstance(node, ast.ImportFrom) and node.module:
            meant |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name) and _full_name(node, meant) in _NEVER:
            yield f"{node.lineno}: {_full_name(node, meant)}"
        elif isinstance(node, ast.Call) and _full_name(node.func, meant) in _DECODE and _has_type(node):
            yield f"{node.lineno}: {_full_name(node.func, meant)}"


def _full_name(node: ast.expr, meant: dict[str, str]) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, meant)}.{node.attr}"
    return meant.get(node.id, "") if isinstance(node, ast.Name) else ""


def _has_type(call: ast.Call) -> bool:
    return len(call.args) > 1 or any(keyword.arg in ("type", None) for keyword in call.keywords)


def test_nobody_else_decodes_into_types() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{place}"
        for path, text in sources().items()
        if path != OWNER
        for place in typed_decodings(text)
    ]
    assert found == [], "use from_json, from_msgpack or from_builtins of stepgrade.decoding"


@pytest.mark.parametrize(
    "text",
    [
        "import msgspec\nmsgspec.convert({}, Card)",
        "import msgspec as m\nm.json.decode(text, type=Card)",
        "import msgspec.json\nmsgspec.json.decode(text, **options)",
        "from msgspec import convert as made\nmade({}, Card)",
        "from msgspec import json\nread = json.Decoder(Card).decode",
        "from msgspec.msgpack import Decoder\nDecoder(Card)",
        "def read(text):\n    from msgspec.toml import decode\n    return decode(text, type=Card)",
    ],
)
def test_every_way_to_decode_into_a_type_is_seen(text: str) -> None:
    assert list(typed_decodings(text))


def test_other_uses_are_let_pass() -> None:
    text = "import json, msgspec\nmsgspec.json.decode(text)\nmsgspec.json.encode(1)\njson.JSONDecoder()\nconvert(1)"
    assert not list(typed_decodings(text))


class Inner(msgspec.Struct):
    name: str


def test_the_three_forms() -> None:
    value, kind = [{"name": "a"}], list[Inner]
    assert from_json(b'[{"name": "a"}]', kind) == [Inner("a")]
    assert from_json('[{"name": "a"}]', kind) == [Inner("a")]
    assert from_msgpack(msgspec.msgpack.encode(value), kind) == [Inner("a")]
    assert from_builtins(value, kind) == [Inner("a")]
    assert from_builtins({1: "2"}, dict[int, float], strict=False) == {1: 2.0}
    assert json_decoder(kind) is json_decoder(list[Inner])
    for wrong in (lambda: from_json(b"{}", kind), lambda: from_builtins({}, kind)):
        with pytest.raises(msgspec.ValidationError):
            wrong()


# A type that is built until `go` is set: msgspec asks for the annotations of Inner while it builds Outer.
_SLOW = """
import os, sys, threading
import msgspec
from stepgrade import decoding

building, go = threading.Event(), threading.Event()

def pause():
    building.set()
    assert go.wait(60)
    return int

class Inner(msgspec.Struct):
    number: "pause()"

class Outer(msgspec.Struct):
    inner: Inner

def decode():
    assert {call}.inner.number == 1

first = threading.Thread(target=decode)
first.start()
assert building.wait(60)
"""
_THREAD = """
second = threading.Thread(target=decode)
second.start()
second.join(0.3)  # by then it has crashed, or waits for the first
go.set()
first.join()
second.join()
"""
_FORK = """
threading.Timer(0.3, go.set).start()
child = os.fork()
if not child:
    go.set()  # if the child had to build, nobody else would
    decode()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
_BODY = b'{"inner":{"number":1}}'
_OURS = {
    "json": f"decoding.from_json({_BODY!r}, Outer)",
    "msgpack": f"decoding.from_msgpack({msgspec.msgpack.encode({'inner': {'number': 1}})!r}, Outer)",
    "builtins": "decoding.from_builtins({'inner': {'number': 1}}, Outer)",
}


def exit_code(script: str, call: str) -> int:
    text = textwrap.dedent(_SLOW).replace("{call}", call) + script
    return subprocess.run(
        [sys.executable, "-c", text], capture_output=True, timeout=120, check=False
    ).returncode


@pytest.mark.parametrize("form", _OURS)
def test_a_thread_waits_for_a_type_that_another_builds(form: str) -> None:
    assert exit_code(_THREAD, _OURS[form]) == 0


def test_a_child_is_forked_when_no_type_is_half_built() -> None:
    assert exit_code(_FORK, _OURS["json"]) == 0


@pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="msgspec waits where there is no GIL"
)
@pytest.mark.parametrize(
    "call",
    [f"msgspec.json.decode({_BODY!r}, type=Outer)", "msgspec.convert({'inner': {'number': 1}}, Outer)"],
)
def test_msgspec_still_needs_this(call: str) -> None:
    """When this fails with 0, msgspec has cured it: see docs/decisions.md."""
    assert exit_code(_THREAD, call) == -11
