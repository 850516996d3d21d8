"""Which files a run consists of, and which of them belong together."""

from __future__ import annotations

import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from stepgrade.errors import BadInput, BadOption
from stepgrade.loading import load
from stepgrade.readers.base import Kind
from stepgrade.readers.discover import discover
from stepgrade.readers.registry import BUILT_IN, built_in
from stepgrade.readers.source import ReadOptions
from tests.conftest import ROOT, Ran

TRACE = ROOT / "examples" / "traces" / "gpt_fused.json.gz"
PROFILE = ROOT / "examples" / "runs" / "gpt_fused.json"
LOG = "\n".join(f"step {step} | loss 3.1 | dt: {250 + step % 3} ms | tok/s 2,000" for step in range(1, 60))
COMPILE_LOG = 'V1117 05:41:40.476000 9755 a.py:1] {"compilation_metrics": {"co_name": "f"}, "frame_id": 0}\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    shutil.copy(TRACE, tmp_path / "rank0.json.gz")
    shutil.copy(TRACE, tmp_path / "rank1.json.gz")
    shutil.copy(PROFILE, tmp_path / "profile.json")
    (tmp_path / "train.log").write_text(LOG)
    (tmp_path / "compiled").mkdir()
    (tmp_path / "compiled" / "dedicated_log_torch_trace_rank_0_x.log").write_text(COMPILE_LOG)
    return tmp_path


def purposes(*sources: Path) -> tuple[list[str], list[str], list[str]]:
    """Return the names of the files of the run, of its log, and of the logs of torch.compile."""
    with discover(sources, None, ReadOptions()) as run:
        files, logs, compiled = (
            [Path(file.path).name for file in group] for group in (run.files, run.logs, run.compile_logs)
        )
    return files, logs, compiled


def test_files_are_distinguishable_by_their_purpose(folder: Path) -> None:
    ranks = [folder / "rank0.json.gz", folder / "rank1.json.gz"]
    names, log, compiled = ["rank0.json.gz", "rank1.json.gz"], folder / "train.log", folder / "compiled"
    logged = ["dedicated_log_torch_trace_rank_0_x.log"]
    assert purposes(*ranks) == (names, [], [])
    assert purposes(log, *ranks) == (names, ["train.log"], [])
    assert purposes(ranks[0], log) == (names[:1], ["train.log"], [])
    assert purposes(compiled, *ranks, log) == (names, ["train.log"], logged)
    assert purposes(log, compiled) == (["train.log"], [], logged)
    assert purposes(compiled) == (logged, [], [])


def test_logs_of_torch_compile_in_the_directory_of_the_traces_are_found(folder: Path) -> None:
    beside = folder / "dedicated_log_torch_trace_rank_1_y.log"
    beside.write_text(COMPILE_LOG)
    with discover([folder], None, ReadOptions()) as run:
        assert {file.kind for file in run.files} == {"traces"}
        assert [file.path for file in run.logs_beside] == [str(beside)]
    with discover([folder], "kineto", ReadOptions()) as run:
        assert run.logs_beside == ()


def test_what_does_not_belong_together_is_refused_before_it_is_read(folder: Path) -> None:
    with (
        pytest.raises(BadInput, match=r"profile\.json: is not a trace"),
        discover([folder / "rank0.json.gz", folder / "profile.json"], None, ReadOptions()),
    ):
        pass
    (folder / "other.log").write_text(LOG)
    with (
        pytest.raises(BadInput, match=r"train\.log: is not a trace"),
        discover([folder / "rank0.json.gz", folder / "train.log", folder / "other.log"], None, ReadOptions()),
    ):
        pass
    with pytest.raises(BadInput, match="no source given"), discover([], None, ReadOptions()):
        pass


def test_what_is_unpacked_is_deleted_afterwards(folder: Path) -> None:
    with tarfile.open(folder / "run.tar", "w") as archive:
        archive.add(folder / "rank0.json.gz", "rank0.json.gz")
    with discover([folder / "run.tar"], None, ReadOptions()) as run:
        (file,) = run.files
        assert Path(file.path).is_file()
        assert file.name == f"{folder / 'run.tar'}/rank0.json.gz"
    assert not Path(file.path).exists()


def test_only_traces_have_steps_to_select(folder: Path) -> None:
    for source in ("profile.json", "train.log", "compiled"):
        with pytest.raises(BadOption, match="not a trace"):
            load(folder / source, steps=(1, 2))
    assert load(folder / "rank0.json.gz", folder / "train.log", steps=(3, 4)).recorded_steps is not None


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_reader_says_what_it_reads(name: str) -> None:
    """Kinds decide what is done with a file before it is read."""
    kinds: dict[str, Kind] = {
        **dict.fromkeys(("kineto", "nsys", "rocprof", "xplane", "xla_trace"), "traces"),
        **dict.fromkeys(("journal", "parity_profile", "step_profile"), "profile"),
        **dict.fromkeys(("snapshot", "memory_timeline"), "memory"),
        **dict.fromkeys(("metrics", "log"), "log"),
        "flight_recorder": "hang",
        "torch_trace": "compile_log",
        "scorecard": "baseline",
    }
    assert built_in(name).kind == kinds[name]


def test_whatif_reads_what_score_reads(folder: Path, stepgrade: Callable[..., Ran]) -> None:
    asked = stepgrade("whatif", folder / "rank0.json.gz", "--format", "json")
    logged = stepgrade("whatif", folder / "rank0.json.gz", folder / "train.log", "--format", "json")
    assert logged.out == asked.out
    with tarfile.open(folder / "run.tar", "w") as archive:
        archive.add(folder / "rank0.json.gz", "rank0.json.gz")
    packed = stepgrade("whatif", folder / "run.tar", "--format", "json")
    assert packed.out.replace("run.tar/", "") == asked.out
    assert "train.log: is not a trace" in stepgrade("whatif", folder / "train.log").err
