"""Step profiles, bare, gzipped, on standard input and inside logs, give the same Profile."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.errors import BadInput, BadJson, UnknownFormat
from stepgrade.loading import load
from stepgrade.model import Profile
from stepgrade.model.notes import texts_of
from tests.builders import make_step_profile
from tests.samples import shared

APR_V1 = {
    "_profiler": "apr_training_profiler_v1",
    "_version": "1.0.0",
    "steps_profiled": 4,
    "wall_time_ms": 1000.0,
    "phases": {"gpu_fwd": {"total_ms": 400.0, "pct": 40.0, "avg_ms": 100.0}},
    "wall_coverage": 0.4,
    "bottleneck": "gpu_fwd",
    "alloc_stats": {"count_per_step": 0},
}


def read_text(text: str | bytes, folder: Path, name: str = "profile.json") -> Profile:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load(path)


def contents(profile: Profile) -> Profile:
    """Return the profile without where it came from."""
    source = msgspec.structs.replace(profile.source, files=())
    return msgspec.structs.replace(profile, source=source, notes=())


def test_step_profiler_v2(tmp_path: Path) -> None:
    profile = read_text(make_step_profile(), tmp_path)
    assert profile.source.format == "step_profiler_v2"
    assert (profile.steps, profile.mean_step_ms) == (10, 100.0)
    assert [(phase.name, phase.ms) for phase in profile.phases] == [("blk_bwd", 60.0), ("forward", 35.0)]
    assert [(layer.fwd_ms, layer.bwd_ms) for layer in profile.layers] == [(17.0, 30.0)] * 2
    assert {op.name: op.ms for op in profile.operations} == {"gemm": 30.0, "attention": 10.0}


def test_apr_training_profiler_v1(tmp_path: Path) -> None:
    profile = read_text(json.dumps(APR_V1), tmp_path)
    assert profile.source.format == "apr_training_profiler_v1"
    assert (profile.steps, profile.mean_step_ms) == (4, 250.0)
    assert profile.layers == profile.operations == ()


def test_what_is_missing_stays_missing(tmp_path: Path) -> None:
    profile = read_text('{"_profiler": "step_profiler_v2", "wall_coverage": null}', tmp_path)
    assert (profile.steps, profile.mean_step_ms, profile.wall_coverage) == (None, None, None)
    assert profile.is_empty


def test_the_name_does_not_matter(tmp_path: Path) -> None:
    assert contents(read_text(make_step_profile(), tmp_path, "x.log")) == contents(
        read_text(make_step_profile(), tmp_path, "y.json")
    )


def test_gzipped(tmp_path: Path) -> None:
    packed = gzip.compress(make_step_profile().encode())
    assert contents(read_text(packed, tmp_path, "no-suffix")) == contents(
        read_text(make_step_profile(), tmp_path)
    )


def test_standard_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "sys.stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(make_step_profile().encode())))
    )
    assert contents(load("-")) == contents(read_text(make_step_profile(), tmp_path))


LOGS = {
    "alone on a line": "epoch 1\n{json}\ndone\n",
    "after other text": '\x1b[32mINFO\x1b[0m {{"event": "eval"}}\nstep 3 {{not json\n[PROFILE] {json} (saved)\n',
    "between colours": "\x1b[1m{json}\x1b[0m\n",
    "windows lines": "a\r\nb\r\n{json}\r\n",
    "inside another object": '{{"level": "info", "profile": {json}}}\nmore\n',
    "after one cut off": '{{"_profiler": "step_profiler_v2", "steps": 3, "phases": {{"a\n{json}\n',
    "before one cut off": '{json}\n{{"_profiler": "step_profiler_v2", "steps": 3, "phases": {{\n',
    "among bytes that are no text": "caf\udce9 {json}\n",
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("log", LOGS.values(), ids=LOGS.keys())
def test_inside_a_log(log: str, indent: int | None, tmp_path: Path) -> None:
    text = json.dumps(json.loads(make_step_profile()), indent=indent)
    profile = read_text(log.format(json=text).encode("utf-8", "surrogateescape"), tmp_path, "train.log")
    assert contents(profile) == contents(read_text(make_step_profile(), tmp_path))
    assert profile.notes[0].text.startswith("read from a log, line ")


def test_the_last_profile_of_a_log_counts(tmp_path: Path) -> None:
    log = "\n".join(make_step_profile(step_ms=ms) for ms in (90.0, 110.0))
    profile = read_text(log, tmp_path)
    assert profile.mean_step_ms == 110.0
    assert texts_of(profile.notes) == (
        "read from a log, line 2",
        "the log contains 2 profiles; this is the last",
    )


def test_a_profile_that_is_cut_off_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(
        '{"_profiler": "step_profiler_v2", "steps": 3,\nrestarted\n' + make_step_profile(steps=7) + "\n}\n"
    )
    assert load(path).steps == 7


def test_a_log_kept_as_a_json_string(tmp_path: Path) -> None:
    """Harnesses keep what a run printed: the profile is then text inside a JSON document."""
    printed = "[PROFILE] 4 steps\n" + json.dumps(APR_V1, indent=2) + "\ndone"
    document = {"canary": "apr", "apr_output": {"stderr_summary": printed}}
    assert contents(read_text(json.dumps(document), tmp_path)) == contents(
        read_text(json.dumps(APR_V1), tmp_path)
    )


@given(before=st.binary(max_size=200), after=st.binary(max_size=200), size=st.integers(1, 64))
def test_found_wherever_it_stands_and_however_it_is_read(before: bytes, after: bytes, size: int) -> None:
    from stepgrade.readers.log import _Scanner

    text = before + make_step_profile().encode() + b"\n" + after
    chunks = [text[start : start + size] for start in range(0, len(text), size)]
    found = [found for _, found in _Scanner(chunks).objects() if found]
    assert make_step_profile().encode() in found


REFUSED = {
    "no profile": ("loss 3.1\nloss 3.0\n", UnknownFormat, "is text in an unknown format"),
    "other JSON": ('{"event": 1}', UnknownFormat, "is JSON in an unknown format"),
    "a list": ("[1, 2]", UnknownFormat, "is JSON in an unknown format"),
    "cut off": (make_step_profile()[:-20], BadJson, "too early"),
    "cut off in a log": ("x\n" + make_step_profile()[:-20], BadInput, "line 2"),
    "not a number": (make_step_profile(step_ms=float("nan")), BadJson, "byte"),
    "too large a number": (make_step_profile().replace("100.0", "1e400", 1), BadJson, "$.avg_step_ms: "),
    "a negative time": (make_step_profile(step_ms=-5.0), BadInput, "step time"),
    "a negative phase": (
        make_step_profile(phases={"h2d": {"total_ms": -1.0, "pct": 1.0, "avg_ms": 1.0}}),
        BadInput,
        "phase 'h2d'",
    ),
    "a negative op": (make_step_profile(ops={"gemm": -1.0}), BadInput, "op 'gemm'"),
    "negative steps": (make_step_profile(steps=-3), BadInput, "$.steps"),
    "a scorecard": (
        '{"grade": "A", "efficiency": 1, "bottleneck": "launch"}',
        UnknownFormat,
        "give it as baseline",
    ),
    "nested": ('{"steps": ' + "[" * 100_000, BadJson, "nested"),
}


@pytest.mark.parametrize(("text", "error", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_refused(text: str, error: type[BadInput], told: str, tmp_path: Path) -> None:
    with pytest.raises(error) as caught:
        read_text(text, tmp_path, "bad.json")
    assert told in str(caught.value)
    assert str(caught.value).count("bad.json") == 1


@pytest.mark.samples
def test_real_logs_give_the_same_as_the_bare_files() -> None:
    samples = shared("samples/step_profiles")
    for log, bare in (
        ("training_with_v2_line.log", "v2_baseline.json"),
        ("training_with_apr_v1_block.log", "apr_v1_400_steps.json"),
    ):
        assert contents(load(samples / log)) == contents(load(samples / bare))


@pytest.mark.parametrize("end", ['"steps": 3', '"steps": oops }\nstep 4 done\n'])
def test_a_log_with_a_profile_that_is_cut_off_names_its_line(end: str, tmp_path: Path) -> None:
    text = 'loading\nstep 3 done\n{"_profiler": "step_profiler_v2", ' + end
    path = tmp_path / "train.log"
    path.write_text(text)
    with pytest.raises(BadInput, match="cut off or its JSON is broken") as error:
        load(path)
    assert "line 3" in str(error.value)
