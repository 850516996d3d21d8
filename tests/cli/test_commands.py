"""Every command through its front door: exit code, standard output, standard error."""

from __future__ import annotations

import gzip
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.contract import (
    HardwareSpec,
    ParityComparison,
    StepProfilerInput,
    TrainingScorecard,
    compute_training_scorecard,
    format_training_scorecard_markdown,
)
from tests.builders import make_step_profile
from tests.conftest import ROOT, Ran

Run = Callable[..., Ran]
PARITY = {"throughput_tok_s": 20, "step_time_ms": 9, "kernel_launches_per_step": 3}


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    path.write_text(make_step_profile())
    return path


@pytest.fixture
def slower(tmp_path: Path) -> Path:
    path = tmp_path / "slower.json"
    path.write_text(make_step_profile(step_ms=115.6))
    return path


@pytest.fixture
def runtimes(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "ours.json", tmp_path / "theirs.json"]
    paths[0].write_text(json.dumps(PARITY | {"runtime": "ours", "ops": {"gemm": 3.0, "norm": 1.0}}))
    paths[1].write_text(json.dumps(PARITY | {"runtime": "theirs", "ops": {"gemm": 2.0, "loss": 1.0}}))
    return paths


def test_version_and_help(stepgrade: Run) -> None:
    assert stepgrade("--version").out == f"stepgrade {sg.__version__}\n"
    top = stepgrade("--help")
    assert top.code == 0
    for command in ("score", "parity", "convert", "inspect"):
        assert command in top.out
        assert f"stepgrade {command}" in stepgrade(command, "--help").out
    assert stepgrade().out == top.out


@pytest.mark.parametrize(
    "arguments", [["scores"], ["score"], ["score", "x", "--bogus"], ["--bogus"], ["parity", "x"]]
)
def test_usage_errors_are_one_line(stepgrade: Run, arguments: list[str]) -> None:
    ran = stepgrade(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("stepgrade: ")
    assert ran.err.count("\n") == 1
    assert "--help" in ran.err


def test_score_says_the_grade_and_of_what(stepgrade: Run, profile: Path) -> None:
    ran = stepgrade("score", profile, "--throughput", 194, "--device", "rtx-4060-laptop")
    assert ran.code == 0
    for words in (
        " D ",
        "12.0 % of what memory bandwidth allows",
        "194 tok/s of 1,620 tok/s",
        "Bottleneck",
        "gemm",
        "█",
    ):
        assert words in ran.out
    assert "\x1b" not in ran.out
    assert max(map(len, ran.out.splitlines())) <= 80


def test_score_without_figures_is_ungraded(stepgrade: Run, profile: Path) -> None:
    ran = stepgrade("score", profile, "--format", "json")
    card = json.loads(ran.out)
    assert ran.code == 0
    assert (card["grade"], card["efficiency"], card["throughput_tok_s"]) == ("ungraded", None, None)
    assert len(card["ungraded_because"]) == 2


def test_score_reads_standard_input_gzipped(profile: Path) -> None:
    command = [sys.executable, "-m", "stepgrade", "score", "-", "--format", "json"]
    ran = subprocess.run(command, input=gzip.compress(profile.read_bytes()), capture_output=True, check=True)
    assert json.loads(ran.stdout)["source"]["files"] == ["standard input"]


def test_contract_v1_is_the_references_own_text(stepgrade: Run, profile: Path) -> None:
    text = profile.read_text()
    card = compute_training_scorecard(StepProfilerInput.from_json(text), 194.0, HardwareSpec.rtx_4060l())
    flags = ("--contract", "v1", "--throughput", 194, "--device", "rtx_4060l")
    assert stepgrade(
        "score", profile, *flags, "--format", "markdown"
    ).out == format_training_scorecard_markdown(card)
    assert stepgrade("score", profile, *flags).out == format_training_scorecard_markdown(card)
    assert stepgrade("score", profile, *flags, "--format", "json").out == card.to_json() + "\n"


def test_contract_v1_on_a_terminal_hides_what_that_would_obey(
    stepgrade: Run, profile: Path, tmp_path: Path
) -> None:
    document = json.loads(profile.read_text())
    document["per_layer"][0]["ops"] = {"\x1b[2Jop": 300.0}
    (tmp_path / "odd.json").write_text(json.dumps(document))
    flags = ("--contract", "v1", "--throughput", 194, "--device", "rtx_4060l")
    assert "\x1b" not in stepgrade("score", tmp_path / "odd.json", *flags).out
    markdown = stepgrade("score", tmp_path / "odd.json", *flags, "--format", "markdown").out
    assert "| \x1b[2Jop |" in markdown, "the reference's own text"


def test_contract_v1_with_a_baseline(stepgrade: Run, profile: Path, tmp_path: Path) -> None:
    flags = ("--contract", "v1", "--device", "gb10")
    stepgrade("score", profile, *flags, "--throughput", 400, "--format", "json", "-o", tmp_path / "old.json")
    ran = stepgrade(
        "score",
        profile,
        *flags,
        "--throughput",
        300,
        "--baseline",
        tmp_path / "old.json",
        "--fail-on",
        "critical",
    )
    assert ran.code == 1
    assert "- **throughput_tok_s**: -25.0% (critical) \n" in ran.out
    assert "throughput_tok_s -25.0 % (critical)" in ran.err


@pytest.mark.parametrize(
    "flags", [(), ("--throughput", 5), ("--throughput", 5, "--device", "h100-sxm5-80gb")]
)
def test_contract_v1_needs_its_figures(stepgrade: Run, profile: Path, flags: tuple[object, ...]) -> None:
    ran = stepgrade("score", profile, "--contract", "v1", *flags)
    assert ran.code == 2
    assert "contract v1 needs" in ran.err


def test_baseline_and_fail_on(stepgrade: Run, profile: Path, slower: Path, tmp_path: Path) -> None:
    ran = stepgrade("score", slower, "--baseline", profile, "--fail-on", "warning")
    assert ran.code == 1
    assert "step time +15.6 %" in ran.out
    assert "gate: step_time_ms +15.6 % (warning)" in ran.err
    assert stepgrade("score", slower, "--baseline", profile, "--fail-on", "critical").code == 0
    assert stepgrade("score", slower, "--baseline", slower, "--fail-on", "warning").code == 0
    assert stepgrade("score", slower, "--fail-on", "warning").code == 2
    assert stepgrade("score", slower, "--fail-on", "grade:C").code == 3
    grade = ("--throughput", 194, "--device", "gb10", "--fail-on")
    assert stepgrade("score", slower, *grade, "grade:C").code == 1
    assert stepgrade("score", slower, *grade, "grade:F").code == 0
    stepgrade("score", profile, "--tokens-per-step", 40, "--format", "json", "-o", tmp_path / "card.json")
    ran = stepgrade(
        "score", slower, "--tokens-per-step", 40, "--baseline", tmp_path / "card.json", "--format", "json"
    )
    assert {found["metric"] for found in json.loads(ran.out)["regressions"]} == {
        "throughput_tok_s",
        "step_time_ms",
    }


def test_parity(stepgrade: Run, runtimes: list[Path]) -> None:
    ran = stepgrade("parity", *runtimes)
    assert ran.code == 0
    assert "NO PARITY" in ran.out
    assert "75.0 % of ours, 66.7 % of theirs" in ran.out
    v1 = stepgrade("parity", *runtimes, "--contract", "v1", "--format", "markdown").out
    assert v1.startswith("## Parity: ours vs theirs\n")
    assert ParityComparison.from_json(
        stepgrade("parity", *runtimes, "--contract", "v1", "--format", "json").out
    )


def test_parity_of_nothing_in_common(stepgrade: Run, runtimes: list[Path], profile: Path) -> None:
    runtimes[1].write_text(json.dumps(PARITY | {"runtime": "theirs", "ops": {"other": 2.0}}))
    ran = stepgrade("parity", *runtimes)
    assert ran.code == 3
    assert "CANNOT TELL" in ran.out
    runtimes[1].write_text(json.dumps(PARITY | {"runtime": "theirs", "ops": {}}))
    assert stepgrade("parity", *runtimes).code == 3
    assert stepgrade("parity", profile, profile).code == 0


def test_convert_gives_what_contract_v1_reads(stepgrade: Run, tmp_path: Path) -> None:
    apr = {
        "_profiler": "apr_training_profiler_v1",
        "steps_profiled": 4,
        "wall_time_ms": 1000.0,
        "phases": {"gpu_fwd": {"total_ms": 400.0, "pct": 40.0, "avg_ms": 100.0}},
    }
    log = tmp_path / "train.log"
    log.write_text("start\n" + json.dumps(apr, indent=1) + "\nend\n")
    converted = stepgrade("convert", log).out
    profile = StepProfilerInput.from_json(converted)
    assert (profile.steps, profile.avg_step_ms, profile.phases["gpu_fwd"].pct) == (4, 250.0, 40.0)
    (tmp_path / "again.json").write_text(converted)
    assert stepgrade("convert", tmp_path / "again.json").out == converted


def test_converting_changes_no_scorecard(stepgrade: Run, profile: Path, tmp_path: Path) -> None:
    stepgrade("convert", profile, "-o", tmp_path / "converted.json")
    before, after = (
        json.loads(stepgrade("score", path, "--format", "json").out) | {"source": None}
        for path in (profile, tmp_path / "converted.json")
    )
    assert before == after


def test_inspect(stepgrade: Run, profile: Path, tmp_path: Path) -> None:
    ran = stepgrade("inspect", profile)
    assert ran.code == 0
    assert "step_profiler_v2" in ran.out
    assert "--throughput" in ran.out
    assert json.loads(stepgrade("inspect", profile, "--format", "json").out)["holds"]["steps"] == "10"
    assert stepgrade("inspect", profile, "--format", "markdown").out.startswith("## ")
    (tmp_path / "empty.json").write_text('{"_profiler": "step_profiler_v2"}')
    assert stepgrade("inspect", tmp_path / "empty.json").code == 3
    assert stepgrade("score", tmp_path / "empty.json").code == 3


def test_output_is_whole_or_not_at_all(stepgrade: Run, profile: Path, tmp_path: Path) -> None:
    target = tmp_path / "card.md"
    target.write_text("old")
    target.chmod(0o640)
    assert stepgrade("score", tmp_path / "absent.json", "-o", target).code == 2
    assert target.read_text() == "old"
    ran = stepgrade("score", profile, "--format", "markdown", "-o", target)
    assert (ran.code, ran.out) == (0, "")
    assert target.read_text().startswith("## Training Scorecard")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.md", "profile.json"]


def test_output_through_a_link_and_into_a_device(stepgrade: Run, profile: Path, tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    assert stepgrade("convert", profile, "-o", tmp_path / "link.json").code == 0
    assert (tmp_path / "link.json").is_symlink()
    assert "step_profiler_v2" in (tmp_path / "real.json").read_text()
    assert stepgrade("convert", profile, "-o", "/dev/null").code == 0
    assert not Path("/dev/null").is_file()


def test_output_that_cannot_be_written(stepgrade: Run, profile: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "no" / "dir.json", tmp_path, Path("/dev/full")):
        ran = stepgrade("convert", profile, "-o", target)
        assert ran.code == 2
        assert "cannot be written" in ran.err


def test_colour_and_width_follow_the_terminal(profile: Path) -> None:
    """A real terminal of 100 columns, made with the standard library's pty."""
    import fcntl
    import pty
    import struct
    import termios

    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {
        "TERM": "xterm"
    }
    command = [sys.executable, "-m", "stepgrade", "score", str(profile)]
    with subprocess.Popen(command, stdout=child, env=environment) as running:
        os.close(child)
        shown = b""
        while True:
            try:
                piece = os.read(parent, 65536)
            except OSError:
                break
            if not piece:
                break
            shown += piece
        assert running.wait() == 0
    os.close(parent)
    text = shown.decode()
    assert "\x1b[36m" in text
    assert max(len(strip_styles(line)) for line in text.splitlines()) > 80


def strip_styles(line: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()


def test_no_color_wins(profile: Path, stepgrade: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[" in stepgrade("score", profile).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in stepgrade("score", profile).out
    assert "\x1b[" in stepgrade("score", profile, "--color", "always").out


def test_a_reader_that_leaves_early(profile: Path) -> None:
    ran = subprocess.run(
        f"{sys.executable} -m stepgrade score {profile} | head -1",
        shell=True,
        capture_output=True,
        check=True,
    )
    assert ran.stderr == b""


def test_an_ascii_terminal_gets_question_marks_not_a_traceback(profile: Path) -> None:
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    ran = subprocess.run(
        [sys.executable, "-m", "stepgrade", "score", str(profile)],
        capture_output=True,
        env=environment,
        check=True,
    )
    assert ran.stderr == b""


def test_a_bug_says_so(stepgrade: Run, profile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepgrade.loading.load", lambda *_, **__: 1 / 0)
    ran = stepgrade("score", profile)
    assert ran.code == 70
    assert "ZeroDivisionError" in ran.err
    assert "bug in stepgrade" in ran.err


def test_a_v2_card_is_a_baseline_for_v1(stepgrade: Run, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(make_step_profile(bottleneck="memory_bw"))
    figures = ("--throughput", 400, "--device", "gb10")
    stepgrade("score", tmp_path / "p.json", *figures, "--format", "json", "-o", tmp_path / "card.json")
    ran = stepgrade(
        "score", tmp_path / "p.json", *figures, "--contract", "v1", "--baseline", tmp_path / "card.json"
    )
    assert ran.code == 0
    assert TrainingScorecard.from_json((tmp_path / "card.json").read_bytes()).throughput_tok_s == 400.0


# --- stepgrade.toml


def test_limits_come_from_a_file_given_or_found(
    stepgrade: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ROOT / "examples" / "runs" / "gpt_naive.json"
    monkeypatch.chdir(tmp_path)
    assert "unsteady-steps" in stepgrade("score", run, "--format", "json").out
    (tmp_path / "mine.toml").write_text('[rules]\nignore = ["unsteady-steps"]\n')
    assert "unsteady-steps" not in stepgrade("score", run, "--format", "json", "--config", "mine.toml").out
    (tmp_path / "stepgrade.toml").write_text("[limits]\nspread_info_share = 0.5\n")
    assert "unsteady-steps" not in stepgrade("score", run, "--format", "json").out
    (tmp_path / "stepgrade.toml").write_text("[limits]\nspread_inf_share = 0.5\n")
    ran = stepgrade("score", run)
    assert ran.code == 2
    assert "spread_info_share" in ran.err
    assert stepgrade("score", run, "--config", "absent.toml").code == 2
