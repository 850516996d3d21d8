"""Real logs: what was read from each by hand, beside what we read."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.loading import load
from tests.samples import shared

LOGS = "samples/step_logs"
pytestmark = pytest.mark.samples

# By hand: what the lines say. `step_ms` is the median of the steady steps, or what the totals make.
BY_HAND: dict[str, dict[str, Any]] = {
    "nanochat_speedrun_d24_8xH100.log.gz": {
        "step_ms": 644.69,
        "steps": 16_704,
        "tokens": 524_288,
        "world": 8,
        "device": "h100-sxm5-80gb",
        "printed": 0.5083,
        "mfu": 0.5083,
        "memory": 62_389.67 * 2**20,
    },
    "maxtext_v5p-8_deepseek2-16b.log": {
        "step_ms": 5668.0,
        "tokens": 196_608,
        "world": 4,
        "device": "tpu-v5p",
        "mfu": 0.2939,
    },
    "neox_70M_8gpu_512step.out.gz": {"step_ms": 598.9, "steps": 512, "tokens": 1_048_576, "world": 8},
    "megatron_deepspeed_8gpu_tokendrop.log.gz": {
        "step_ms": 600.0,
        "steps": 2130,
        "tokens": 524_288,
        "world": 8,
    },
    "bigscience_megatron_v100_n4_tp4_pp4.out": {
        "step_ms": 1380.0,
        "tokens": 4096,
        "world": 16,
        "device": "v100-sxm2-32gb",
    },
    "bigscience_meg_ds_zero_n16.out.gz": {"step_ms": 128_204.0, "steps": 4, "world": 64},
    "gptlab_stepavg_train.log.gz": {"step_ms": 4337.0, "steps": 7152},
    "tf_resnet50_2n8g_timehistory.log": {
        "step_ms": 423.3,
        "steps": 600,
        "samples": 2048,
        "device": "v100-sxm2-16gb",
    },
    "dschat_step1_opt1.3b.log": {"step_ms": 746.6, "samples": 128, "memory": 22.95 * 2**30},
    "llama_recipes_tqdm_llama2_7b.log": {"step_ms": 1656.3, "steps": 9330},
    "hf_deepspeed_gpt2_n16.out.gz": {"step_ms": 218_000.0, "steps": 4, "samples": 256, "world": 64},
    "hf_trainer_state_llava13b_2181steps.json": {"step_ms": 8469.8, "steps": 2181, "samples": 255.907},
    "mlperf_v0.5_gnmt_16ranks.txt.gz": {"step_ms": 58.0, "world": 16},
    "mlperf_v5.0/nvidia_nyx_n1_llama2_70b_lora_result_0.txt": {"step_ms": 1541.5, "samples": 8},
    "mlperf_v5.0/amd_mi300x_llama2_70b_lora_result_0.txt": {
        "step_ms": 3946.0,
        "samples": 8,
        "device": "mi300x",
    },
    "peft_benchmark_llama3.2-3B_L40S.json": {"step_ms": 159.5, "steps": 5000, "device": "l40s", "samples": 4},
    "albor_entrenar_rtx4090_distill.log": {"tokens": 32_768, "device": "rtx-4090", "printed": 0.145},
    "levanter_nohup.out.gz": {"step_ms": 100.0},
}
_CLOSE = 0.011


@pytest.mark.parametrize("name", BY_HAND)
def test_a_real_log_is_read_as_it_is_by_hand(name: str) -> None:
    expected = BY_HAND[name]
    profile = load(shared(LOGS) / name)
    card = sg.score(profile)
    assert card.steps is not None or card.step_time_ms is not None
    figures = {
        "step_ms": card.step_time_ms,
        "steps": profile.recorded_steps or profile.steps,
        "tokens": profile.tokens_per_step,
        "samples": profile.samples_per_step,
        "world": profile.world_size,
        "mfu": card.mfu,
        "printed": profile.facts.printed.mfu if profile.facts and profile.facts.printed else None,
        "memory": profile.peak_memory_bytes,
    }
    for field, value in expected.items():
        if field == "device":
            assert card.device is not None
            assert card.device.key == value
        else:
            assert figures[field] == pytest.approx(value, rel=_CLOSE), field


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llmc_main_no_times.log.gz", "without times"),
        ("olmo_wandb_export_no_times.csv", "without times"),
        ("hf_trainer_state_mt5_7000steps.json", "without times"),
    ],
)
def test_steps_without_times_are_ungraded_with_the_reason(name: str, words: str) -> None:
    card = sg.score(load(shared(LOGS) / name))
    assert card.grade == "ungraded"
    assert any(words in note.text for note in card.ungraded_because)


@pytest.mark.parametrize("name", ["plain_batch_time_ntokens.log", "timm_benchmark_train_rtx3090.csv"])
def test_what_has_no_units_or_is_many_runs_is_refused_with_a_word(name: str) -> None:
    with pytest.raises(sg.StepgradeError) as caught:
        load(shared(LOGS) / name)
    assert "stepgrade.toml" in str(caught.value) or "each row is a separate run" in str(caught.value)


def _unpacked(archive: Path, to: Path) -> list[Path]:
    with tarfile.open(archive) as packed:
        packed.extractall(to, filter="data")
    return sorted(path for path in to.rglob("*") if path.is_file())


def _says_why_there_are_no_steps(path: Path) -> None:
    """A run that crashed before its first step is refused, or explained where it ran out of memory."""
    if b"out of memory" not in path.read_bytes():
        with pytest.raises(sg.StepgradeError):
            load(path)
        return
    card = sg.score(load(path))
    assert card.grade == "ungraded"
    assert card.memory is not None
    assert card.memory.out_of_memory is not None


def test_the_printed_mfu_of_torchtitan_is_reproduced_in_every_run(tmp_path: Path) -> None:
    seen = 0
    for path in _unpacked(shared(LOGS) / "torchtitan" / "qwen3_14b_8xB200_run_logs.tar.xz", tmp_path)[::12]:
        if b"tps: " not in path.read_bytes():
            _says_why_there_are_no_steps(path)
            continue
        profile = load(path)
        card = sg.score(profile)
        assert profile.world_size == 8
        assert card.device is not None
        assert card.device.key == "b200"
        (note,) = (note.text for note in card.notes if note.code == "printed_mfu")
        printed = profile.facts.printed if profile.facts is not None else None
        if printed is not None and printed.mfu and "make" in note:
            shown = [
                float(word) for word in note.replace("%", " ").split() if word.replace(".", "", 1).isdigit()
            ]
            assert shown[-1] == pytest.approx(shown[0], rel=0.011), note
            seen += 1
    assert seen >= 10


def test_repeated_runs_of_one_record_have_their_own_steps(tmp_path: Path) -> None:
    for path in _unpacked(shared(LOGS) / "modded-nanogpt" / "20260717_fp8down_baseline.tar.xz", tmp_path)[:4]:
        lines = [
            line for line in path.read_text().splitlines() if line.startswith("step:") and "val" not in line
        ]
        last = lines[-1]
        total_ms = float(last.split("train_time:")[1].split("ms")[0])
        profile = load(path)
        assert profile.log is not None
        assert sum(profile.log.wall_s) * 1e3 == pytest.approx(total_ms, rel=0.01)
        assert profile.device is not None
        assert profile.device.name == "NVIDIA H100 80GB HBM3"


METRICS_BY_HAND: dict[str, dict[str, float]] = {
    "hf5_trainer_state_tokens.json": {"tokens": 512, "steps": 40},
    "hf5_events.out.tfevents.1794811501.vm": {"tokens": 512, "steps": 40},
    "lightning_csvlogger_throughputmonitor.csv": {"tokens": 64, "samples": 4},
    "megatron_gpt3-357m_events.out.tfevents.1623896925": {
        "tokens": 524_288,
        "world": 16,
        "steps": 100,
        "flops": 2.423e9,
    },
    "torch_summarywriter_events.out.tfevents.1794811520.vm": {"steps": 30, "step_ms": 20.0},
    "wandb_offline_run.wandb": {"steps": 30},
}


@pytest.mark.parametrize("name", METRICS_BY_HAND)
def test_a_metric_file_is_read_as_it_is_by_hand(name: str) -> None:
    profile = load(shared("samples/metrics") / name)
    card = sg.score(profile)
    figures = {
        "step_ms": card.step_time_ms,
        "steps": profile.recorded_steps,
        "tokens": profile.tokens_per_step,
        "samples": profile.samples_per_step,
        "world": profile.world_size,
        "flops": card.flops_per_token,
    }
    for field, value in METRICS_BY_HAND[name].items():
        assert figures[field] == pytest.approx(value, rel=_CLOSE), field
    assert card.step_time_ms
