"""The same line in other versions of a framework: each is read as it is by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime, timedelta

import pytest

import stepgrade as sg
from stepgrade.errors import UnknownFormat
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource

STEPS, STEP_S = 40, 2.0
_BEGAN = datetime(2025, 3, 4, 10, 0, 0)  # noqa: DTZ001  as logs write it, without a zone


def clock(step: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    return (_BEGAN + timedelta(seconds=STEP_S * step)).strftime(form)


def bar(step: int) -> str:
    minutes, seconds = divmod(int(step * STEP_S), 60)
    return f"\r  {step}%|#    | {step}/100 [{minutes:02}:{seconds:02}<03:00,  2.00s/it]"


def read(text: str) -> sg.Profile:
    found = read_source(ByteSource(text.encode()))
    assert isinstance(found, sg.Profile)
    return found


def megatron(rest: str) -> Callable[[int], str]:
    return lambda step: (
        f" [{clock(step)}] iteration {step:8}/     500 | consumed samples: {step * 128:12} |"
        f" elapsed time per iteration (ms): 2000.0{rest}| learning rate: 1.0E-05 |"
        f" global batch size:   128 | lm loss: 1.0E+00 |"
    )


def dicts(more: Callable[[int], str]) -> Callable[[int], str]:
    return lambda step: f"{{'loss': 1.8, 'grad_norm': 0.3{more(step)}, 'epoch': {step / 1000}}}" + bar(step)


# What is before the steps, the line of a step, and what must come out besides 2 s a step.
LINES: dict[str, tuple[str, Callable[[int], str], dict[str, float]]] = {
    "torchtitan of early 2025": (
        "[titan] Building 2-D device mesh with ['pp', 'dp_shard'], [2, 4]\n",
        lambda step: (
            f"[rank0]:\x1b[32m[titan]\x1b[0m {clock(step)},000 - root - INFO - \x1b[31mstep: {step:2}  "
            "loss:  7.4  memory: 40.10GiB(50.69%)  tps: 8,192  tflops: 400.00  mfu: 40.44%\x1b[39m"
        ),
        {"world": 8, "mfu": 0.4044, "tokens": 8 * 16_384},
    ),
    "torchtitan that validates": (
        "",
        lambda step: (
            f"[titan] {clock(step)},250 - root - INFO - step: {step}  loss:  7.4  memory: 40.10GiB(50.69%)"
            "  tps: 8,192  tflops: 400.00  mfu: N/A\n"
            f"[titan] {clock(step)},750 - root - INFO - validate step: {step + 1000}  loss:  7.5"
            "  memory: 41.00GiB(51.69%)  tps: 30,000"
        ),
        {"memory": 40.1 * 2**30, "steps": STEPS},
    ),
    "Megatron-DeepSpeed with tgs": (
        "",
        lambda step: (
            f" iteration {step:8}/  500 | consumed samples: {step * 128:12} | consumed tokens:"
            f" {step * 262_144:12} | elapsed time per iteration (ms): 2000.0 | lm loss: 1.0E+00 |"
            " samples per second: 64.000 | tokens per gpu per second (tgs): 16384.000 | TFLOPs: 150.11 |"
        ),
        {"world": 8, "tokens": 262_144},
    ),
    "Primus, with the mean beside": (
        "",
        megatron(
            "/2001.2 | hip mem usage/free/total/usage_ratio: 158.82GB/97.17GB/255.98GB/62.04% |"
            " throughput per GPU (TFLOP/s/GPU): 496.3/496.1 "
        ),
        {"memory": 158.82 * 2**30, "tflops": 496.3},
    ),
    "Megatron-Bridge": (
        "",
        lambda step: "Step Time : 2.00s GPU utilization: 494.6MODEL_TFLOP/s/GPU\n" + megatron(" ")(step),
        {"tflops": 494.6, "samples": 128},
    ),
    "NeMo 2": (
        "",
        lambda step: (
            f"Training epoch 0, iteration {step}/99 | global_batch_size: 128 | global_step: {step} |"
            " max_memory_allocated: 65000000000 | reduced_train_loss: 11.9 | train_step_timing in s: 2.0"
        ),
        {"memory": 65e9, "samples": 128},
    ),
    # Its label tokens are those that the loss counts, not those of the batch.
    "NeMo Automodel": (
        "",
        lambda step: (
            f"{clock(step)} | INFO | root | step {step} | epoch 0 | loss 1.2 | grad_norm 2.0 | lr 1.00e-05 |"
            " mem 24.53 GiB | tps 32768.00(4096.00/gpu) | num_label_tokens 4213"
        ),
        {"world": 8, "tokens": 65_536},
    ),
    "NeMo Automodel's JSON": (
        "",
        lambda step: json.dumps(
            {
                "step": step,
                "timestamp": clock(step, "%Y-%m-%dT%H:%M:%S.250Z"),
                "loss": 1.2,
                "tps": 8192.0,
                "tps_per_gpu": 2048.0,
                "mfu": 0.4 if step < 3 else 11.0,
                "num_tokens_per_step": 16_384,
                "num_label_tokens": 4213,
            }
        ),
        {"world": 4, "tokens": 16_384, "mfu": 0.11},
    ),
    "axolotl": (
        "",
        dicts(lambda _: ", 'memory/max_allocated (GiB)': 17.2, 'tokens_per_second_per_gpu': 4096.0"),
        {"memory": 17.2 * 2**30, "tokens": 8192},
    ),
    "TRL": ("", dicts(lambda step: f", 'num_tokens': {step * 16_384}.0"), {"tokens": 16_384}),
    "LLaMA-Factory, every tenth step": (
        "",
        lambda step: (
            (f"{{'loss': 1.8, 'num_input_tokens_seen': {step * 16_384}}}" if step % 10 == 0 else "")
            + bar(step)
        ),
        {"tokens": 16_384},
    ),
    "Unsloth of 2025": (
        "   \\\\   /|    Tesla T4. Num GPUs = 1. Max memory: 14.741 GB. Platform: Linux.\n",
        dicts(lambda _: ""),
        {"world": 1},
    ),
    "Lightning with rich": (
        "",
        lambda step: (
            f"\rEpoch 0/9 ━╺━━ {step}/100 0:{int(step * 2) // 60:02}:{int(step * 2) % 60:02} • 0:03:00 0.50it/s"
        ),
        {},
    ),
    "LitGPT of 2023": (
        "",
        lambda step: f"iter {step} step {step}: loss 4.1234, iter time: 2000.00ms (optimizer.step)",
        {},
    ),
    "nanoGPT of 2022": ("", lambda step: f"iter {step}: loss 4.5000, time 2000.11ms", {}),
    "OLMo": (
        "",
        lambda step: (
            f"{clock(step)}.123 host:0 olmo_core.train INFO [step={step}/5000,epoch=1]\n"
            "    throughput/device/BPS=0.5000\n    throughput/device/TPS=16,384\n"
            f"    throughput/total tokens={step * 4_194_304:,}\n    train/CE loss=2.500"
        ),
        {"world": 128, "tokens": 4_194_304},
    ),
    "llm.q with thousands": (
        "",
        lambda step: f"[T] step {step:5d} [ 19.9%] | time:  2000 ms | loss   3.28 | tps 262.1 k | sol 42.9%",
        {"tokens": 524_200},
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_a_version_of_a_line_is_read_as_it_is_by_hand(name: str) -> None:
    head, line, expected = LINES[name]
    profile = read(head + "".join(line(step) + "\n" for step in range(1, STEPS + 1)))
    card = sg.score(profile)
    assert card.step_time_ms == pytest.approx(STEP_S * 1e3, rel=1e-3)
    assert card.goodput is not None
    assert card.goodput.productive > 0.95
    assert not card.findings
    facts = profile.facts
    figures = {
        "world": profile.world_size,
        "tokens": profile.tokens_per_step,
        "samples": profile.samples_per_step,
        "memory": profile.peak_memory_bytes,
        "steps": profile.recorded_steps,
        "mfu": facts.mfu if facts else None,
        "tflops": facts.tflops if facts else None,
    }
    for field, value in expected.items():
        assert figures[field] == pytest.approx(value, rel=1e-3), field


def test_the_name_of_unsloths_device_is_found() -> None:
    head, line, _ = LINES["Unsloth of 2025"]
    device = read(head + "".join(line(step) + "\n" for step in range(1, STEPS + 1))).device
    assert device is not None
    assert device.name == "Tesla T4"


def test_what_python_writes_for_no_number_is_a_loss_that_is_none() -> None:
    def line(step: int) -> str:
        return json.dumps({"step": step, "loss": float("nan") if step > 20 else 1.0, "step_time": STEP_S})

    profile = read("\n".join(line(step) for step in range(STEPS)))
    assert profile.recorded_steps == STEPS
    assert [note.code for note in profile.warnings] == ["diverged"]


def test_the_state_of_a_run_that_diverged_is_read_though_it_is_no_json() -> None:
    history = [
        {"step": step, "epoch": 0.1, "loss": float("nan"), "train_runtime": step * STEP_S, "text": 'NaN, "x"'}
        for step in range(1, STEPS)
    ]
    text = json.dumps({"global_step": STEPS, "log_history": history}, indent=2)
    assert ": NaN" in text
    profile = read(text)
    assert sg.score(profile).step_time_ms == pytest.approx(STEP_S * 1e3)
    assert [note.code for note in profile.warnings] == ["diverged"]


def test_the_last_lines_of_a_log_with_whole_seconds_are_steps_and_no_idle_time() -> None:
    text = "".join(
        f"[titan] {clock(step)} - step: {step}  loss: 7.4  memory: 40.10GiB  tps: 8,192  mfu: 1.0%\n"
        for step in range(1, STEPS)
    )
    goodput = sg.score(read(text)).goodput
    assert goodput is not None
    assert goodput.idle == 0.0
    assert goodput.wall_s == pytest.approx((STEPS - 1) * STEP_S)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"user": "a", "assistant": "b"}\n{"user": "c", "assistant": null}\n', "an object to a line"),
        ("commit\ttokens_per_sec\tmfu_percent\tcommand\nabc\t5774\t24.12\t./train.sh\n", "table of runs"),
        ("step 5: loss 2.3, step_time 2.0s\nstep 6: loss 2.3, step_time 2.0s\n", "a training log"),
    ],
)
def test_what_is_no_log_of_steps_is_named(text: str, what: str) -> None:
    with pytest.raises(UnknownFormat, match=what):
        read(text)
