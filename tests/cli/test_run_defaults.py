"""[run] in stepgrade.toml: a flag wins over the environment, that over the file, and that over what is detected."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from stepgrade.cli.run_defaults import run_keys
from tests.conftest import ROOT, Ran

Run = Callable[..., Ran]
MODEL = ROOT / "examples" / "models" / "llama-3-8b.json"
TOML = f'[run]\ndevice = "h100-sxm5-80gb"\nmodel = "{MODEL}"\nbatch = 2\nseq = 8192\n'


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def estimated(stepgrade: Run, *flags: str) -> dict[str, object]:
    ran = stepgrade("estimate", *flags, "--format", "json")
    assert (ran.code, ran.err) == (0, "")
    found: dict[str, object] = json.loads(ran.out)
    return found


def test_a_file_says_what_flags_would(stepgrade: Run) -> None:
    flags = ["--device", "h100-sxm5-80gb", "--model", str(MODEL), "--batch", "2", "--seq", "8192"]
    typed = estimated(stepgrade, *flags)
    Path("stepgrade.toml").write_text(TOML)
    assert estimated(stepgrade) == typed


def test_a_flag_wins_over_the_environment_and_that_over_the_file(
    stepgrade: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stepgrade.toml").write_text(TOML)
    in_file = estimated(stepgrade)
    monkeypatch.setenv("STEPGRADE_RUN_BATCH", "1")
    in_environment = estimated(stepgrade)
    assert in_environment != in_file
    assert estimated(stepgrade, "--batch", "2") == in_file
    monkeypatch.delenv("STEPGRADE_RUN_BATCH")
    assert estimated(stepgrade, "--batch", "1") == in_environment


def test_the_file_wins_over_what_is_detected(stepgrade: Run) -> None:
    trace = ROOT / "examples" / "traces" / "gpt_naive.json.gz"
    detected = json.loads(stepgrade("score", trace, "--format", "json").out)
    Path("stepgrade.toml").write_text("[run]\npeak_tflops = 0.0858\ndtype = 'fp32'\n")
    ran = stepgrade("score", trace, "--format", "json")
    assert json.loads(ran.out)["grade"] != detected["grade"]


def test_another_file_is_named_and_its_paths_are_its_own(stepgrade: Run) -> None:
    Path("runs").mkdir()
    Path("runs/config.json").write_text(MODEL.read_text())
    Path("runs/h100.toml").write_text(TOML.replace(str(MODEL), "config.json"))
    assert estimated(stepgrade, "--config", "runs/h100.toml")


def test_switches_are_true_or_false_and_a_flag_turns_them_off(
    stepgrade: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("stepgrade.toml").write_text(TOML + "optimizer_in_backward = true\n")
    on = estimated(stepgrade)
    off = estimated(stepgrade, "--no-optimizer-in-backward")
    assert on != off
    monkeypatch.setenv("STEPGRADE_RUN_OPTIMIZER_IN_BACKWARD", "off")
    assert estimated(stepgrade) == off


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("bach = 4", "stepgrade.toml: run: unknown key 'bach' (did you mean batch?)"),
        ("throughput = 4", "stepgrade.toml: run: unknown key 'throughput'"),
        ('batch = "many"', "stepgrade.toml: run.batch: not a whole number: 'many'"),
        ("batch = 1.5", "stepgrade.toml: run.batch: not a whole number: '1.5'"),
        ("batch = true", "stepgrade.toml: run.batch: not a value of --batch: True"),
        ("batch = [1]", "stepgrade.toml: run.batch: not a value of --batch: [1]"),
        ('method = "loar"', "stepgrade.toml: run.method: 'loar' is not known: did you mean lora?"),
        ("lora_dropout = 3", "stepgrade.toml: run.lora_dropout: must be true or false, not 3"),
        ("batch = 0", "stepgrade.toml: run.batch: must be"),
    ],
)
def test_what_is_wrong_is_named_where_it_is(stepgrade: Run, line: str, problem: str) -> None:
    key = line.partition(" ")[0]
    kept = [text for text in TOML.splitlines() if not text.startswith(f"{key} ")]
    Path("stepgrade.toml").write_text("\n".join([*kept, line]) + "\n")
    ran = stepgrade("estimate")
    assert ran.code == 2
    assert problem in ran.err


def test_a_variable_that_is_misspelt_is_refused(stepgrade: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPGRADE_RUN_DEVCE", "gb10")
    ran = stepgrade("estimate")
    assert (ran.code, "STEPGRADE_RUN_DEVCE: unknown key 'devce' (did you mean device?)" in ran.err) == (
        2,
        True,
    )


def test_commands_that_are_not_about_a_run_do_not_look(stepgrade: Run) -> None:
    Path("stepgrade.toml").write_text("[run]\nbach = 4\n")
    assert stepgrade("devices", "gb10").code == 0
    assert stepgrade("history", "list", "--history", "none.db").err.count("bach") == 0


def test_an_option_that_another_command_has_is_ignored(stepgrade: Run) -> None:
    Path("stepgrade.toml").write_text('[run]\nkernels = "liger"\ndevice = "gb10"\n')
    assert stepgrade("score", ROOT / "examples" / "runs" / "gpt_naive.json").code == 0


def test_the_keys_are_the_options_of_a_run() -> None:
    assert {"device", "model", "batch", "seq", "world_size", "tensor_parallel", "kernels"} <= set(run_keys())
    assert not {"throughput", "help", "help_all", "format", "save"} & set(run_keys())
