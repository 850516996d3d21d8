"""What is misspelt gets the name that was meant, wherever a name can be given."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepgrade.cli.dispatch import COMMANDS
from stepgrade.config import read_config
from stepgrade.config.limits import Limits
from stepgrade.diagnosis.rules import RULE_NAMES, settings_from
from stepgrade.errors import BadConfig, UnknownDevice, did_you_mean, nearest
from stepgrade.hardware.catalogue import all_devices, keys_meant, meant_device
from stepgrade.model.comparison import METRICS
from tests.conftest import ROOT, Ran

Run = Callable[..., Ran]
PROFILE = str(ROOT / "examples" / "runs" / "gpt_naive.json")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (["scroe", "x"], "did you mean score?"),
        (["hist"], "did you mean history?"),
        ([PROFILE], f"did you mean stepgrade score {PROFILE}?"),
        ([str(ROOT / "examples" / "train_gpt.py")], "did you mean stepgrade record "),
        (["record", PROFILE], f"to grade a profile: stepgrade score {PROFILE}"),
        (["score", "--devcie", "h100", PROFILE], "unknown option --devcie: did you mean --device?"),
        (["score", PROFILE, "--through-put=3"], "did you mean --throughput?"),
        (["history", "list", "--brnch", "main"], "did you mean --branch?"),
        (["history", "trned"], "did you mean trend?"),
        (["score", PROFILE, "--format", "htm"], "did you mean html?"),
        (["estimate", "--method", "qlroa"], "did you mean qlora?"),
        (["score", PROFILE, "--convention", "plam"], "did you mean palm?"),
        (["score", PROFILE, "--dtype", "bf61"], "did you mean bf16?"),
        (["score", PROFILE, "--input-format", "kinet"], "did you mean kineto?"),
        (["score", PROFILE, "--allow-different", "devcie"], "did you mean device?"),
        (["score", PROFILE, "--batch", "many"], "--batch: not a whole number: 'many'"),
        (["--verison"], "did you mean --version?"),
    ],
)
def test_a_typo_on_the_command_line(stepgrade: Run, arguments: list[str], meant: str) -> None:
    ran = stepgrade(*arguments)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert meant in ran.err


def test_what_is_like_nothing_gets_all_names(stepgrade: Run) -> None:
    assert all(name in stepgrade("xyzzy").err for name in COMMANDS)
    assert "did you mean" not in stepgrade("score", PROFILE, "--frobnicate").err


@pytest.mark.parametrize(
    ("toml", "meant"),
    [
        ("[gat]", "gate"),
        ("[gate]\nalow = 0.1", "allow"),
        ('[[budget]]\nmetirc = "mfu"', "metric"),
        ("[limits]\ninput_waring_share = 0.1", "input_warning_share"),
        ('[rules]\nignore = ["tf32-matmul"]', "tf32-matmuls"),
    ],
)
def test_a_typo_in_the_configuration(toml: str, meant: str) -> None:
    with pytest.raises(BadConfig, match=f"did you mean {meant}"):
        settings_from(read_config(toml))


def test_a_typo_in_the_metric_of_a_budget(stepgrade: Run, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('[[budget]]\nmetric = "step_time"\n')
    ran = stepgrade("gate", PROFILE, "--baseline", PROFILE, "--budgets", tmp_path / "b.toml")
    assert ran.code == 2
    assert "did you mean step_time_ms?" in ran.err


@given(st.sampled_from([*COMMANDS, *METRICS, *RULE_NAMES, *Limits.__struct_fields__]), st.data())
def test_one_wrong_letter_is_forgiven(name: str, data: st.DataObject) -> None:
    known = [*COMMANDS, *METRICS, *RULE_NAMES, *Limits.__struct_fields__]
    place = data.draw(st.integers(1, len(name) - 1))
    typo = name[:place] + name[place + 1 :]
    found = nearest(typo, known)
    assert found is not None
    if len(name) > 6:  # of short names, two may be one letter apart
        assert found == name or nearest(typo, [name]) == name


@given(st.text(max_size=200))
def test_any_text_has_a_hint(text: str) -> None:
    assert did_you_mean(text, ("score", "parity"))


def test_a_name_of_megabytes_is_answered_at_once() -> None:
    assert nearest("x" * 10_000_000, RULE_NAMES) is None


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("4090", "rtx-4090"),
        ("RTX4090", "rtx-4090"),
        ("geforce rtx 4090", "rtx-4090"),
        ("4090-laptop", "rtx-4090-laptop"),
        ("4060 laptop", "rtx-4060-laptop"),
        ("3090ti", "rtx-3090-ti"),
        ("a6000", "rtx-a6000"),
        ("v5e", "tpu-v5e"),
        ("H100 SXM 80GB", "h100-sxm5-80gb"),
        ("h100-nvl", "h100-nvl"),
        ("a100 sxm 40gb", "a100-sxm4-40gb"),
        ("7900xtx", "rx-7900-xtx"),
        ("L4", "l4"),
        ("mi300x", "mi300x"),
    ],
)
def test_the_device_that_is_meant_is_taken(name: str, key: str) -> None:
    assert meant_device(name).key == key


@pytest.mark.parametrize(
    ("name", "keys"),
    [
        ("h100", {"h100-pcie", "h100-sxm5-80gb", "h100-nvl"}),
        ("a100", {"a100-pcie-40gb", "a100-pcie-80gb", "a100-sxm4-40gb", "a100-sxm4-80gb"}),
        ("a100-80gb", {"a100-pcie-80gb", "a100-sxm4-80gb"}),
        ("mi300", {"mi300a", "mi300x"}),
        ("6000", {"rtx-6000-ada", "quadro-rtx-6000"}),
        ("v100", {"v100-sxm2-16gb", "v100-sxm2-32gb"}),
    ],
)
def test_a_name_of_several_devices_offers_them_all(name: str, keys: set[str]) -> None:
    with pytest.raises(UnknownDevice) as caught:
        meant_device(name)
    assert all(key in (caught.value.hint or "") for key in keys)


@pytest.mark.parametrize("name", ["b2", "10", "nonsense", "rtx", "", "4", "0"])
def test_a_part_of_a_number_is_no_device(name: str) -> None:
    with pytest.raises(UnknownDevice):
        meant_device(name)


def test_every_key_means_itself() -> None:
    for key in all_devices():
        assert meant_device(key).key == key
        assert key in keys_meant(key)
