"""PyTorch traces through the front door: the bundled real ones, alone, as ranks, cut, on standard input."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.contract import StepProfilerInput
from stepgrade.model.events import Trace
from stepgrade.readers.ranks import read_ranks
from stepgrade.trace.profile import profile_of_traces
from tests.conftest import ROOT, Ran
from tests.samples import shared

Run = Callable[..., Ran]
FUSED = ROOT / "examples" / "traces" / "gpt_fused.json.gz"
NAIVE = ROOT / "examples" / "traces" / "gpt_naive.json.gz"
TOKENS = 1024
# examples/README.md: six times the weights in matrix products, and attention (causal where it is fused).
MATMUL_WEIGHTS = 4_751_360
CAUSAL_ATTENTION = 3 * 6 * 2 * 256 * 256


def card_of(ran: Ran) -> dict:
    assert ran.code == 0, ran.err
    return json.loads(ran.out)


def test_a_real_trace_gives_a_whole_card(stepgrade: Run) -> None:
    card = card_of(stepgrade("score", FUSED, "--peak-tflops", 0.0858, "--format", "json"))
    assert card["source"]["format"] == "kineto"
    assert card["grade"] in "ABCDF"
    assert card["throughput"]["tokens_per_step"] == TOKENS
    assert sum(share for share in card["ledger"].values()) == pytest.approx(1.0)
    assert {phase for phase, row in card["phases"].items() if row["share"] > 0.1} == {"forward", "backward"}
    assert len(card["layers"]) == 6
    assert all(
        layer["name"].startswith("Block") and layer["bwd_ms"] > layer["fwd_ms"] * 0.5
        for layer in card["layers"]
    )
    assert {row["class"] for row in card["operations"]} >= {"gemm", "attention", "norm", "optimizer"}


@pytest.mark.parametrize(("trace", "attention"), [(FUSED, CAUSAL_ATTENTION), (NAIVE, 2 * CAUSAL_ATTENTION)])
def test_recorded_flops_are_those_of_the_model(trace: Path, attention: int, stepgrade: Run) -> None:
    """What shapes say agrees with the count on paper: nothing is missed, nothing counted twice."""
    profile = sg.load(trace)
    assert profile.matmul_flops is not None
    assert profile.steps is not None
    per_token = profile.matmul_flops / TOKENS
    assert per_token == pytest.approx(6 * MATMUL_WEIGHTS + attention, rel=1e-3)
    assert profile.matmul_dtype == "fp32"


def test_naive_attention_shows_where_it_costs(stepgrade: Run) -> None:
    ran = stepgrade("parity", NAIVE, FUSED)
    assert ran.code in (0, 3)
    assert "aten::bmm" in ran.out


def test_inspect_in_less_than_a_page(stepgrade: Run) -> None:
    ran = stepgrade("inspect", FUSED)
    assert ran.code == 0
    assert ran.out.count("\n") < 50
    for words in ("kineto", "shapes, stacks", "profiler_step", "1,024 tokens per step"):
        assert words in ran.out


def test_convert_for_contract_v1(stepgrade: Run, tmp_path: Path) -> None:
    stepgrade("convert", FUSED, "-o", tmp_path / "profile.json")
    converted = StepProfilerInput.from_json((tmp_path / "profile.json").read_bytes())
    profile = sg.load(FUSED)
    assert converted.steps == profile.steps
    assert converted.avg_step_ms == profile.mean_step_ms
    assert [layer.layer for layer in converted.per_layer] == list(range(6))
    assert converted.per_layer[0].ops
    ran = stepgrade(
        "score", tmp_path / "profile.json", "--contract", "v1", "--throughput", 100, "--device", "gb10"
    )
    assert ran.out.startswith("## Training Scorecard")


def test_only_some_steps(stepgrade: Run) -> None:
    card = card_of(stepgrade("score", FUSED, "--steps", "5-6", "--format", "json"))
    assert card["steps"]["count"] == 2
    assert stepgrade("score", FUSED, "--steps", "7-3").code == 2
    assert stepgrade("score", FUSED, "--steps", "900").code in (2, 3)
    assert stepgrade("score", ROOT / "examples" / "runs" / "gpt_fused.json", "--steps", "1-2").code == 2


def test_files_of_one_run_are_its_ranks(stepgrade: Run, tmp_path: Path) -> None:
    for rank in range(2):
        shutil.copy(FUSED, tmp_path / f"trace_rank{rank}.json.gz")
    listed = card_of(stepgrade("score", *sorted(tmp_path.iterdir()), "--format", "json"))
    folder = card_of(stepgrade("score", tmp_path, "--format", "json"))
    assert [rank["rank"] for rank in listed["ranks"]] == [0, 1]
    assert listed == folder


def test_standard_input_and_plain_json_give_the_same(stepgrade: Run, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(gzip.decompress(FUSED.read_bytes()))
    command = [sys.executable, "-m", "stepgrade", "score", "-", "--format", "json"]
    piped = subprocess.run(command, input=FUSED.read_bytes(), capture_output=True, check=True)
    cards = [json.loads(piped.stdout)] + [
        card_of(stepgrade("score", path, "--format", "json")) for path in (FUSED, tmp_path / "trace.json")
    ]
    for card in cards:
        card["source"]["files"] = None
    assert cards[0] == cards[1] == cards[2]


def test_a_pipe_with_a_name_can_be_read_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-m", "stepgrade", "inspect", str(tmp_path / "pipe")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as reading:
        (tmp_path / "pipe").write_bytes(FUSED.read_bytes())
        out, _ = reading.communicate(timeout=60)
    assert reading.returncode == 0
    assert "profiler_step" in out


def test_the_limit_of_the_command_line_holds_for_traces(stepgrade: Run, tmp_path: Path) -> None:
    for rank in range(2):
        shutil.copy(FUSED, tmp_path / f"trace_rank{rank}.json.gz")
    for source in (FUSED, tmp_path):
        ran = stepgrade("score", source, "--max-bytes", "1M")
        assert ran.code == 2
        assert re.search("give a larger (max_bytes|--max-bytes)", ran.err)


def test_ranks_are_let_go_before_the_next_is_read(tmp_path: Path) -> None:
    for rank in range(3):
        shutil.copy(FUSED, tmp_path / f"trace_rank{rank}.json.gz")
    columns: list[weakref.ref[Any]] = []

    def watched(traces: Iterator[Trace]) -> Iterator[Trace]:
        for _ in range(3):
            assert [column() for column in columns] == [None] * len(columns)
            waiting = [next(traces)]
            columns.append(weakref.ref(waiting[0].ops.start_ns))
            yield waiting.pop()

    profile_of_traces(watched(read_ranks([tmp_path])))
    assert len(columns) == 3


def test_a_cut_trace_gives_what_is_intact(stepgrade: Run, tmp_path: Path) -> None:
    (tmp_path / "cut.json.gz").write_bytes(FUSED.read_bytes()[:-60_000])
    ran = stepgrade("score", tmp_path / "cut.json.gz")
    assert ran.code == 0
    assert "lost in reading" in ran.out


def test_sources_that_are_not_ranks(stepgrade: Run) -> None:
    run = ROOT / "examples" / "runs" / "gpt_fused.json"
    ran = stepgrade("score", FUSED, run)
    assert ran.code == 2
    assert "not a trace" in ran.err
    assert stepgrade("score", FUSED, NAIVE, "--contract", "v1").code == 2


def test_a_trace_as_baseline(stepgrade: Run) -> None:
    card = card_of(stepgrade("score", FUSED, "--baseline", NAIVE, "--format", "json"))
    assert card["regressions"] == []
    assert "step_time_ms" in card["compared"]


@pytest.mark.samples
def test_every_real_trace_gives_a_card_or_one_line(stepgrade: Run) -> None:
    for trace in sorted(shared("samples/kineto").iterdir()):
        for command in ("score", "inspect", "convert"):
            ran = stepgrade(command, trace)
            assert ran.code in (0, 2, 3), trace.name
            assert ran.out or ran.err.count("\n") == 1
            assert "\x1b" not in ran.out
