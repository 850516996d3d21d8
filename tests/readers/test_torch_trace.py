"""Logs of torch.compile: what is read, what may be missing, what is broken. Real ones are in tests/torch_runs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.cli import main
from stepgrade.errors import BadInput, TooLarge
from stepgrade.model.compilation import Compilation
from stepgrade.readers.torch_trace import broken_at, first_reason
from tests.kineto_text import kineto_text
from tests.trace_builder import make_trace


def line(payload: str | None = None, **record: Any) -> str:
    """Return one record as torch writes it, with the lines that follow it."""
    text = f"V1117 05:41:40.476000 9755 torch/_dynamo/utils.py:2009] {json.dumps(record)}\n"
    return text + "".join(f"\t{part}\n" for part in (payload or "").splitlines())


def metrics(frame: int, number: int = 0, seconds: float | None = 0.25, **more: Any) -> str:
    """Return the record of one compilation."""
    known = {"co_name": "f", "co_filename": "/home/me/train.py", "co_firstlineno": 3}
    known |= {"entire_frame_compile_time_s": seconds, **more}
    return line(compilation_metrics=known, frame_id=frame, frame_compile_id=number, attempt=0)


def guard(frame: int, number: int, reasons: str) -> str:
    """Return why a frame is compiled again."""
    about = {"name": "recompile_reasons", "encoding": "json"}
    return line(reasons, artifact=about, frame_id=frame, frame_compile_id=number)


def broken(payload: str, frame: int = 0) -> str:
    """Return why a graph breaks."""
    about = {"name": "dynamo_graph_break_reason", "encoding": "string"}
    return line(payload, artifact=about, frame_id=frame, frame_compile_id=0)


def load(tmp_path: Path, *records: str) -> Compilation:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    path.write_text("".join(records))
    found = sg.load(path).compilation
    assert found is not None
    return found


def test_times_and_guards_are_added_up_for_each_frame(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        metrics(0),
        guard(0, 1, "0/0: tensor 'x' size mismatch at index 0. expected 4, actual 5  # torch/guards.py:1"),
        metrics(0, 1, seconds=0.5),
        guard(0, 2, '["0/1: tensor \'x\' size mismatch at index 0. expected 5, actual 6", "0/0: other"]'),
        metrics(0, 2),
        line(bwd_compilation_metrics={"inductor_compile_time_s": 1.0}, frame_id=0, frame_compile_id=2),
        metrics(1, seconds=0.125, fail_reason="no\nstack"),
    )
    assert (found.compiles, found.recompiles) == (4, 2)
    assert found.total_ms == found.logged_ms == 2125.0
    first, second = found.frames
    assert (first.function, first.where, first.compiles, first.recompiles, first.ms) == (
        *("f", "~/train.py:3", 3, 2, 2000.0),
    )
    (why,) = first.guards
    assert (why.reason, why.count) == ("tensor 'x' size mismatch at index 0. expected 5, actual 6", 2)
    assert second.failure == "no"
    assert (found.ms_per_step, found.recorded_ms, found.graph_breaks) == (None, None, None)


EXPLAINED = """\
Graph break in user code at /w/a.py:7
Graph Break Reason: Encountered graph break when tracing:

Call to `x`
  Explanation: User-inserted.
  Hint: no

User code traceback:
  File "/w/a.py", line 2, in main
    f()
  File "/w/a.py", line 7, in f

Traceback (most recent call last):
  File "/w/b.py", line 9, in g
"""
OLDER = """\
Graph break in user code at /w/a.py:7
Reason: Unsupported: call_method
User code traceback:
  File "/w/a.py", line 7, in f
"""
SKIPPED = """\
Graph break: torch.compile cannot properly resume from this graph break, which results in a skip.
The graph break occurred in the following user code:
  File "/w/a.py", line 8, in g

Traceback (most recent call last):
"""


@pytest.mark.parametrize(
    ("payload", "where", "function", "reason"),
    [
        (EXPLAINED, "/w/a.py:7", "f", "Call to `x`: User-inserted."),
        (OLDER, "/w/a.py:7", "f", "Unsupported: call_method"),
        (SKIPPED, "/w/a.py:8", "g", SKIPPED.splitlines()[0]),
        ("something else", None, None, "something else"),
    ],
)
def test_breaks_of_every_kind(
    tmp_path: Path, payload: str, where: str | None, function: str | None, reason: str
) -> None:
    found = load(tmp_path, metrics(0), broken(payload), broken(payload))
    (one,) = found.breaks
    assert (one.where, one.function, one.reason, one.compiles) == (where, function, reason, 2)


def test_graphs_recorded_again(tmp_path: Path) -> None:
    def recorded(compile_id: str, ph: str = "B", is_backward: bool = False) -> str:
        args = {"compile_id": compile_id, "is_backward": is_backward}
        event = {"name": "CUDAGraphNode.record", "ph": ph, "args": args}
        return line(json.dumps(event, indent=0), chromium_event={})

    events = [recorded("0/0"), recorded("0/0", "E"), recorded("0/0"), recorded("0/1")]
    found = load(tmp_path, metrics(0), *events, recorded("0/0", is_backward=True))
    assert (found.cudagraph_records, found.cudagraph_rerecords) == (4, 1)


def test_running_compiled_code_is_no_compilation(tmp_path: Path) -> None:
    found = load(tmp_path, metrics(0), metrics(5, seconds=9.0, is_runtime=True))
    assert (found.compiles, found.total_ms) == (1, 250.0)


def test_a_compilation_that_never_ended_is_counted(tmp_path: Path) -> None:
    found = load(tmp_path, line(dynamo_start={"stack": []}, frame_id=4, frame_compile_id=0))
    (frame,) = found.frames
    assert (frame.frame, frame.compiles, frame.ms, frame.where) == ("4", 1, 0.0, None)


def test_ranks_are_told_by_the_one_that_compiles_longest(tmp_path: Path) -> None:
    for rank, seconds in ((0, 1.0), (1, 3.0)):
        path = tmp_path / f"dedicated_log_torch_trace_rank_{rank}_abc.log"
        path.write_text(metrics(0, seconds=seconds))
    card = sg.score(sg.load(tmp_path))
    assert card.compile is not None
    assert card.compile.total_ms == 3000.0
    assert "rank 1" in next(note.text for note in card.notes if note.code == "compile_log_of_rank")


def test_the_command_tells_what_was_compiled(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    path.write_text(metrics(0) + guard(0, 1, "0/0: factor == 3") + metrics(0, 1))
    assert main(["score", str(path)]) == 0
    said = capsys.readouterr().out
    assert "factor == 3" in said
    assert "nothing is graded" in said
    assert main(["score", str(path), "--steps", "1-2"]) == 2


def test_the_page_of_a_log_has_no_sections_about_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    path.write_text(metrics(0) + guard(0, 1, "0/0: factor == 3") + metrics(0, 1))
    assert main(["score", str(path), "--format", "html"]) == 0
    page = capsys.readouterr().out
    assert set(re.findall(r'<section id="(\w+)"', page)) == {
        *("verdict", "compilation", "findings", "provenance", "json"),
    }
    assert "Nothing to show here" not in page
    assert "factor == 3" in page


def test_what_is_broken_is_left_out(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        metrics(0),
        'V1117 05:41:40.476000 9755 a.py:1] {"compilation_metrics": {"co_name": 5}, "frame_id": 1}\n',
        'V1117 05:41:40.476000 9755 a.py:1] {"compilation_metrics": {"co_name"\n',
        'V1117 05:41:40.476000 9755 a.py:1] {"artifact": ' + "[" * 100_000 + "\n",
        line(compilation_metrics={}, frame_id=-1, frame_compile_id=0),
        line(compilation_metrics={"entire_frame_compile_time_s": 1e308}, frame_id=2, frame_compile_id=2**70),
        "\t" + "x" * 9_000_000 + "\n",
        metrics(3),
    )
    assert [frame.frame for frame in found.frames] == ["0", "3", "2"]
    assert found.total_ms == 500.0


def test_nothing_compiled_is_said(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text('V1117 05:41:40.476000 9755 a.py:1] {"str": ["a.py", 0]}\n')
    with pytest.raises(BadInput, match="without any compilation"):
        sg.load(path)


def test_more_frames_than_memory_holds_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    path.write_text("".join(metrics(frame) for frame in range(2000)))
    with pytest.raises(TooLarge):
        sg.load(path, max_memory=1 << 20)
    assert sg.load(path).compilation is not None


def test_a_torn_line_does_not_show_the_record_that_it_runs_into() -> None:
    torn = 'Graph break in user code0.47 97 torch/_dynamo/utils.py:2009] {"note": "hf_secret"}'
    assert broken_at(torn)[2].startswith("Graph break in user code")
    assert "hf_secret" not in broken_at(torn)[2] + first_reason(torn)


def test_a_reason_that_is_empty_is_none() -> None:
    assert broken_at("Graph Break Reason: \n")[2] == ""


def test_logs_in_the_folder_of_the_traces_are_read_with_them(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(kineto_text(make_trace()))
    alone = sg.load(tmp_path)
    log = tmp_path / "dedicated_log_torch_trace_x.log"
    log.write_text(metrics(0) + guard(0, 1, "0/0: factor == 3") + metrics(0, 1))
    both = sg.load(tmp_path)
    assert both.compilation is not None
    assert (both.compilation.compiles, both.compilation.recompiles) == (2, 1)
    assert [Path(file).name for file in both.source.files] == ["rank0.json", log.name]
    assert both.samples_ms == alone.samples_ms
    assert both.compilation == sg.load(tmp_path / "rank0.json", log).compilation


def test_a_log_that_is_none_does_not_keep_the_traces_from_being_read(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(kineto_text(make_trace()))
    alone = sg.load(tmp_path)
    (tmp_path / "dedicated_log_torch_trace_x.log").write_bytes(b"\x1f\x8bnothing")
    (tmp_path / "dedicated_log_torch_trace_folder").mkdir()
    found = sg.load(tmp_path)
    assert found.samples_ms == alone.samples_ms
    assert [note.code for note in found.notes if note not in alone.notes] == ["compile_log_unread"]


def test_generated_code_is_not_shown(tmp_path: Path) -> None:
    code = line("def forward(self, hf_secret): ...", inductor_output_code={}, frame_id=0)
    path = tmp_path / "dedicated_log_torch_trace_rank_0.log"
    path.write_text(code + metrics(0) + broken(EXPLAINED) + code)
    assert "hf_secret" not in sg.score(sg.load(path)).to_json()


@pytest.mark.parametrize("rank", [0, 1, 7])
def test_a_log_belongs_to_the_rank_that_its_records_name(rank: int, tmp_path: Path) -> None:
    """The file's name may say another rank, or none."""
    for name, seconds, number in (("a_rank_9", 2.0, rank), ("b", 1.0, 3)):
        record = metrics(0, seconds=seconds).replace('"frame_id"', f'"rank": {number}, "frame_id"')
        (tmp_path / f"dedicated_log_torch_trace_{name}.log").write_text(record)
    (note,) = [note.text for note in sg.load(tmp_path).notes if note.code == "compile_log_of_rank"]
    assert f"rank {rank}" in note
