"""Bad files and hostile names: one clear line and exit code 2, or a correct scorecard; never more."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.report.names import cells, markdown, printable, shortened
from tests.builders import make_step_profile
from tests.conftest import Ran

Run = Callable[..., Ran]

BAD = {
    "empty": b"",
    "only spaces": b"   \n\n",
    "binary": bytes(range(256)) * 10,
    "truncated JSON": make_step_profile()[:200].encode(),
    "NaN": make_step_profile(step_ms=float("nan")).encode(),
    "Infinity": make_step_profile(step_ms=float("inf")).encode(),
    "1e400": make_step_profile().replace("100.0", "1e400", 1).encode(),
    "negative time": make_step_profile(step_ms=-1.0).encode(),
    "nested lists": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "closed nested lists": b'{"steps":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "a log without a profile": b"step 1 loss 3\n" * 1000,
    "a string": b'"profile"',
    "a number": b"12",
    "steps as text": make_step_profile().replace('"steps": 10', '"steps": "ten"').encode(),
    "a huge integer": make_step_profile().replace('"steps": 10', '"steps": ' + "9" * 5000).encode(),
    "invalid UTF-8": make_step_profile().encode().replace(b"gemm", b"g\xffmm"),
    "a damaged gzip": gzip.compress(make_step_profile().encode())[:60],
    "UTF-16": make_step_profile().encode("utf-16"),
}


@pytest.mark.parametrize("command", ["score", "inspect", "convert"])
@pytest.mark.parametrize("content", BAD.values(), ids=BAD.keys())
def test_one_line_and_exit_code_two(stepgrade: Run, command: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    ran = stepgrade(command, path)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("stepgrade: ")
    assert "bad.json" in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("content", [BAD["truncated JSON"], BAD["empty"], BAD["nested lists"], b"\xff{}"])
def test_contract_v1_too(stepgrade: Run, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    ran = stepgrade("score", tmp_path / "bad.json", "--contract", "v1", "--throughput", 1, "--device", "gb10")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_a_directory_and_an_absent_file(stepgrade: Run, tmp_path: Path) -> None:
    assert "is a directory" in stepgrade("score", tmp_path).err
    assert "no such file" in stepgrade("score", tmp_path / "absent").err
    assert stepgrade("score", "").code == 2


def test_an_unknown_device_names_the_nearest(stepgrade: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(make_step_profile())
    ran = stepgrade("score", tmp_path / "p.json", "--device", "rtx-4060-lapto")
    assert ran.code == 2
    assert "rtx-4060-laptop" in ran.err
    assert "--peak-bw" in ran.err


HOSTILE = [
    "pipe|pipe",
    "new\nline\r\n",
    "\x1b[31mred\x1b[0m\x1b]0;title\x07",
    "\x9b31m",
    "[bold red]markup[/]",
    "<script>alert(1)</script>",
    "**bold** `code` [link](http://x)",
    "\u202eright to left",
    "\x00nul",
    "漢字" * 40,
    "e\u0301" * 50,
    "x" * 10_000,
    "{0} %s {name}",
    "\u2028",
    "👩‍👩‍👧‍👦",
]


@pytest.mark.parametrize("to", ["terminal", "markdown", "json"])
@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name)[:20] for name in HOSTILE])
def test_hostile_names_are_data(stepgrade: Run, name: str, to: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    layers = [{"layer": 0, "fwd_ms": 1.0, "bwd_ms": 2.0, "ops": {name: 5.0}}]
    phases = {name: {"total_ms": 500.0, "pct": 50.0, "avg_ms": 50.0}}
    path.write_text(
        make_step_profile(ops={name: 300.0, "b": 2.0}, phases=phases, per_layer=layers, bottleneck=name)
    )
    for command in ("score", "inspect"):
        ran = stepgrade(command, path, "--format", to)
        assert ran.code == 0
        assert not set(ran.out) & set("\x1b\x9b\x07\x00\r\u202e\u2028")
        if to == "terminal":
            assert max(cells(line) for line in ran.out.splitlines()) <= 80
        if to == "markdown":
            assert "<script>" not in ran.out
        if to == "json" and command == "score":
            assert json.loads(ran.out)["operations"][0]["name"] == name


def test_a_hostile_file_name_in_an_error(stepgrade: Run) -> None:
    ran = stepgrade("score", "x\x1b[31m\ny")
    assert ran.err == "stepgrade: x\\x1b[31m\\x0ay: no such file (use - to read standard input)\n"


@given(st.text(), st.integers(2, 40))
def test_shortened_text_fits(text: str, width: int) -> None:
    shown = shortened(text, width)
    assert cells(shown) <= width
    assert shown == printable(shown)


@given(st.text())
def test_markdown_keeps_tables_whole(text: str) -> None:
    import re

    shown = markdown(text)
    assert "\n" not in shown
    assert not re.search(r"(?<!\\)(\\\\)*[|<>`]", shown)
