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
    "refused, then no UTF-8": b'{"phases": {"a": 1}, "per_layer": [], "\xff": 1}',
    "a damaged gzip": gzip.compress(make_step_profile().encode())[:60],
    "more steps than a count can hold": make_step_profile()
    .replace('"steps": 10', '"steps": 1' + "0" * 400)
    .encode(),
    "a layer beyond every model": make_step_profile(per_layer=[{"layer": 2**64}]).encode(),
    "a layer below zero": make_step_profile(per_layer=[{"layer": -1}]).encode(),
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


@pytest.mark.parametrize(
    "content",
    [BAD["truncated JSON"], BAD["empty"], BAD["nested lists"], b"\xff{}", BAD["refused, then no UTF-8"]],
)
def test_contract_v1_too(stepgrade: Run, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    ran = stepgrade("score", tmp_path / "bad.json", "--contract", "v1", "--throughput", 1, "--device", "gb10")
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)


def test_a_directory_and_an_absent_file(stepgrade: Run, tmp_path: Path) -> None:
    assert "contains no trace files" in stepgrade("score", tmp_path).err
    assert "no such file" in stepgrade("score", tmp_path / "absent").err
    assert stepgrade("score", "").code == 2


def test_an_unknown_device_names_the_nearest(stepgrade: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(make_step_profile())
    ran = stepgrade("score", tmp_path / "p.json", "--device", "rtx-4060-lpatop")
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
    "\u061c\u00ad\ufff9\U000e0041",
    "👩‍👩‍👧‍👦",
]


@pytest.mark.parametrize("to", ["terminal", "markdown", "json"])
@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name)[:20] for name in HOSTILE])
def test_hostile_names_are_data(stepgrade: Run, name: str, to: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    layers = [{"layer": 0, "fwd_ms": 1.0, "bwd_ms": 2.0, "ops": {name: 5.0}}]
    phases = {name: {"total_ms": 500.0, "pct": 50.0, "avg_ms": 50.0}}
    path.write_text(
        make_step_profile(
            ops={name: 300.0, "b": 2.0}, phases=phases, per_layer=layers, bottleneck=name, _profiler=name
        )
    )
    (tmp_path / "q.json").write_text(make_step_profile(_profiler=name, bottleneck="compute"))
    assert_harmless(stepgrade("score", tmp_path / "q.json", "--format", to).out)
    for command in ("score", "inspect"):
        ran = stepgrade(command, path, "--format", to)
        assert ran.code == 0
        assert_harmless(ran.out)
        if to == "terminal":
            assert max(cells(line) for line in ran.out.splitlines()) <= 80
        if to == "markdown":
            assert "<script>" not in ran.out
        if to == "json" and command == "score":
            assert json.loads(ran.out)["operations"][0]["name"] == name


def assert_harmless(text: str) -> None:
    assert not set(text) & set("\x1b\x9b\x07\x00\r\u202e\u2028\u061c\u00ad\ufff9\U000e0041")


@pytest.mark.parametrize("to", ["terminal", "markdown", "json"])
@pytest.mark.parametrize("name", HOSTILE, ids=[ascii(name)[:20] for name in HOSTILE])
def test_hostile_runtimes_are_data(stepgrade: Run, name: str, to: str, tmp_path: Path) -> None:
    figures = {"throughput_tok_s": 20, "step_time_ms": 9, "kernel_launches_per_step": 3}
    for file, op in (("ours.json", name), ("theirs.json", name + "2")):
        (tmp_path / file).write_text(json.dumps(figures | {"runtime": name, "ops": {op: 3.0, "gemm": 9.0}}))
    ran = stepgrade("parity", tmp_path / "ours.json", tmp_path / "theirs.json", "--format", to)
    assert ran.code == 0
    assert_harmless(ran.out)


def test_figures_at_the_edge_of_what_a_float_holds(stepgrade: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    least = 5e-324
    path.write_text(make_step_profile(step_ms=..., avg_step_ms=..., wall_time_ms=least, ops={"a": least}))
    assert stepgrade("score", path, "--throughput", 1e308, "--device", "gb10").code == 0
    assert stepgrade("parity", path, path).code == 3
    ran = stepgrade("score", path, "--throughput", 1, "--peak-bw", 1e-320, "--bytes-per-token", 1e300)
    assert (ran.code, ran.err.count("\n")) == (2, 1)


def test_a_file_named_like_a_place_in_it(
    stepgrade: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "$").write_text(make_step_profile(avg_step_ms="slow"))
    assert stepgrade("score", "$").err.startswith("stepgrade: $: $.avg_step_ms: ")


def test_a_baseline_below_zero_is_refused(stepgrade: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(make_step_profile())
    card = {"grade": "A", "efficiency": 1, "bottleneck": "compute", "step_time_ms": -5}
    (tmp_path / "card.json").write_text(json.dumps(card))
    ran = stepgrade("score", tmp_path / "p.json", "--baseline", tmp_path / "card.json")
    assert (ran.code, "card.json: step time: must be" in ran.err) == (2, True)


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
