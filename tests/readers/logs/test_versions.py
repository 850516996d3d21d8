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
    found = read_source(ByteSource(text.encode())).log
    assert isinstance(found, sg.Profile)
    return found


def megatron(rest: str) -> Callable[[int], str]:
    return lambda step: (
        f" [{clock(step)}] iteration {step:8}/     500 | consumed samples: {step * 128:12} |"
        f" elapsed time per iteration (ms): 2000.0{rest}| learning rate: 1.0E-05 |"
        f" global batch size:   128 | lm loss: 1.0E+00 |"
    )


def in_epoch(step: int, first: int = 0) -> tuple[int, int]:
    """Return the epoch and the place in it, counted from `first`, of epochs of twenty steps."""
    epoch, place = divmod(step - 1, 20)
    return epoch, place + first


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
    "PyTorch's word_language_model": (
        "",
        lambda step: (
            f"| epoch {in_epoch(step)[0] + 1:3d} | {in_epoch(step, 1)[1]:5d}/   20 batches | lr 20.00 |"
            " ms/batch 2000.00 | loss  7.62 | ppl  2039.34"
        ),
        {},
    ),
    "ESPnet": (
        "",
        lambda step: (
            f"[node1] {clock(step)},250 (trainer:762) INFO: {in_epoch(step)[0] + 1}epoch:train:"
            f"{in_epoch(step, 1)[1]}-{in_epoch(step, 1)[1]}batch: iter_time=1.5e-04, forward_time=0.150,"
            " loss_ctc=120.1, loss=1.2, backward_time=0.2, optim_step_time=0.02, train_time=2.000"
        ),
        {},
    ),
    "Marian": (
        "",
        lambda step: (
            f"[{clock(step)}] Ep. 1 : Up. {step} : Sen. {step * 64:,} : Cost 8.51 : Time 2.00s : 8192.00 words/s"
        ),
        {"tokens": 16_384},
    ),
    "Stable-Baselines3": (
        "",
        lambda step: (
            "-----------------------------------------\n| time/                   |             |\n"
            f"|    fps                  | 1024        |\n|    iterations           | {step:<11} |\n"
            f"|    time_elapsed         | {2 * step:<11} |\n|    total_timesteps      | {2048 * step:<11} |\n"
            "| train/                  |             |\n|    policy_gradient_loss | -0.0102     |"
        ),
        {"samples": 2048},
    ),
    "verl": (
        "",
        lambda step: (
            f"(TaskRunner pid=7) step:{step} - actor/pg_loss:np.float64(0.035) - perf/mfu/actor:np.float64(0.35)"
            " - perf/max_memory_allocated_gb:np.float64(40.0) - timing_s/gen:0.7 - timing_s/ref:0.6 - timing_s/update_actor:0.6"
            " - timing_s/step:2.0 - perf/total_num_tokens:16384 - perf/throughput:1024.0"
        ),
        {"world": 8, "tokens": 16_384, "mfu": 0.35, "memory": 40.0 * 2**30},
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
    "torchvision's MetricLogger": (
        "",
        lambda step: (
            "Epoch: [{}]  [{:2}/20]  eta: 0:00:10  lr: 0.000051  loss: 1.4671 (1.4644)  box_loss: 0.8 (0.9)  "
            "time: 2.0000  data: 0.0003  max mem: 1927".format(*in_epoch(step))
            + (
                "\nTest:  [ 0/28]  eta: 0:00:06  model_time: 0.0877 (0.0877)  time: 8.8170  data: 8.1  max mem: 99"
            )
            * (step == 20)
        ),
        {"steps": STEPS, "memory": 1927 * 2**20},
    ),
    "OpenMMLab by epochs": (
        "",
        lambda step: (
            clock(step, "%m/%d %H:%M:%S")
            + " - mmengine - INFO - Epoch(train)  [{}][{:2}/20]  base_lr: 1.0e-03  "
            "lr: 1.0e-03  eta: 0:18:23  time: 2.0000  data_time: 0.0077  memory: 392  loss: 5.3465"
            "  loss_cls: 1.2".format(*in_epoch(step, 1))
        ),
        {"steps": STEPS, "memory": 392 * 2**20},
    ),
    "OpenMMLab of 2021": (
        "",
        lambda step: (
            f"{clock(step * 50)},123 - mmseg - INFO - Iter [{step * 50}/80000]\tlr: 9.9e-03, eta: 17:54:00, "
            "time: 2.000, data_time: 0.021, memory: 6052, decode.loss_ce: 1.5, loss: 1.5"
        ),
        {"memory": 6052 * 2**20},
    ),
    "OpenMMLab's JSON": (
        '{"env_info": "sys.platform: linux", "seed": 0}\n',
        lambda step: json.dumps(
            {"mode": "train", "iter": step * 50, "lr": 0.01, "data_time": 0.02, "loss": 1.5, "time": 2.0}
        ),
        {},
    ),
    "YOLOX": (
        "",
        lambda step: (
            f"{clock(step)} | INFO     | yolox.core.trainer:261 - "
            "epoch: {}/300, iter: {}/20, mem: 584Mb, iter_time: 2.000s, data_time: 0.002s, total_loss: 14.6, "
            "iou_loss: 4.6, lr: 2.287e-11, size: 416, ETA: 11 days, 11:38:15".format(*in_epoch(step, 1))
        ),
        {"steps": STEPS, "memory": 584 * 2**20},
    ),
    "Detectron2": (
        "",
        lambda step: (
            f"[{clock(step * 20, '%m/%d %H:%M:%S')} d2.utils.events]:  eta: 0:01:51  iter: {step * 20 - 1}  "
            "total_loss: 1.589  loss_cls: 1.439  time: 2.1136  last_time: 2.0000  data_time: 0.0048  "
            "lr: 4.9953e-06  max_mem: 2030M"
        ),
        {"memory": 2030 * 2**20},
    ),
    "Detectron2, by its clock alone": (
        "",
        lambda step: (
            f"[{clock(step * 20, '%m/%d %H:%M:%S')} d2.utils.events]:  eta: 0:01:51  iter: {step * 20 - 1}  "
            "total_loss: 1.589  time: 2.1136  data_time: 0.0048  lr: 4.9953e-06  max_mem: 2030M"
        ),
        {"memory": 2030 * 2**20},
    ),
    "timm": (
        "",
        lambda step: (
            "Train: {} [{:4}/20 ( 50%)]  Loss: 6.97 (6.99)  Time: 2.000s,  128.00/s  (2.100s,  121.90/s)  "
            "LR: 5.000e-07  Data: 0.006 (0.033)".format(*in_epoch(step))
        ),
        {"steps": STEPS, "samples": 256},
    ),
    "PyTorch's ImageNet example": (
        "",
        lambda step: (
            "Epoch: [{}][ {:3}/20]\tTime  2.000 ( 2.350)\tData  0.010 ( 0.200)\tLoss 6.9e+00 (7.0e+00)\t"
            "Acc@1   0.00 (  0.10)".format(*in_epoch(step, 1))
        ),
        {"steps": STEPS},
    ),
    "Swin Transformer": (
        "",
        lambda step: (
            f"[{clock(step)} swin_tiny](main.py 190): INFO "
            "Train: [{}/300][{}/20]\teta 5:44:06 lr 0.000001\ttime 2.0000 (2.1000)\tloss 6.9 (6.9)\t"
            "grad_norm 1.5 (1.6)\tmem 4515MB".format(*in_epoch(step))
        ),
        {"steps": STEPS, "memory": 4515 * 2**20},
    ),
    "PaddleRec": (
        "",
        lambda step: (
            f"{clock(step * 10)},416 - INFO - epoch: {{}}, batch_id: {{}}, AUC:0.91, ACC:0.88, loss:0.127, "
            "avg_reader_cost: 0.00012 sec, avg_batch_cost: 2.00000 sec, avg_samples: 1024.0, "
            "ips: 512.0 ins/s".format(*in_epoch(step * 10 - 9, 0))
        ),
        {"samples": 1024},
    ),
    "PaddleSeg": (
        "",
        lambda step: (
            f"{clock(step * 10)} [INFO]\t[TRAIN] epoch: 1, iter: {step * 10}/80000, loss: 1.2, lr: 0.01, "
            "batch_cost: 2.0000, reader_cost: 0.01234, ips: 4.0000 samples/sec | ETA 10:00:00"
        ),
        {},
    ),
    "a loop that counts batches": (
        "",
        lambda step: "Epoch 1/3 - Batch {1}/20 - loss: 0.5 - 2.0 s/batch".format(*in_epoch(step, 1)),
        {"steps": STEPS},
    ),
    "DCGAN": (
        "",
        lambda step: (
            f"[{step:8} "
            + "Epoch:[{:2}/25] [{:4}/20] ".format(*in_epoch(step))
            + f"time: {3.5 + step * 2.0:.4f}, d_loss: 9.403, g_loss: 0.0004"
        ),
        {"steps": STEPS},
    ),
    "a loop that prints milliseconds": (
        "",
        lambda step: f"step {step}, loss: 0.0144, norm: 0.16, lr: 6e-05, time: 2000.0ms, tokens/sec: 8192.0",
        {"steps": STEPS, "tokens": 16_384},
    ),
    "a loop with thousands and a share": (
        "",
        lambda step: f"Iter {step}/500 | loss 2.30 | 2000 ms | 8.192k tok/s | mfu 33.2% | mem 12.5 GB",
        {"tokens": 16_384, "mfu": 0.332, "memory": 12.5 * 2**30},
    ),
    "a loop that counts from its start": (
        "",
        lambda step: f"[{step * 10}] global_step={step * 10} train_loss=2.30 time={step * 20.0 + 3.5:.2f}s",
        {},
    ),
    "a loop that times its interval": (
        "",
        lambda step: f"{clock(step * 100)} INFO Step {step * 100}: loss = 2.30, took 200.0 sec, lr = 1e-4",
        {},
    ),
    "a loop that times one step of many": (
        "",
        lambda step: f"{clock(step * 100)} INFO Step {step * 100}: loss = 2.30, time = 2.0, lr = 1e-4",
        {},
    ),
    "a loop with nothing but a clock": (
        "",
        lambda step: f"{clock(step * 100)} INFO Step {step * 100}: loss = 2.30",
        {},
    ),
    "a loop whose counter begins again": (
        "",
        lambda step: "epoch {} step {}: loss 2.30, 2.0 s/it, 64 images/s".format(*in_epoch(step, 1)),
        {"steps": STEPS, "samples": 128},
    ),
    "a loop whose counter goes on": (
        "",
        lambda step: f"Epoch {(step - 1) // 20} | step {step} | train loss 2.3 | step_time_ms: 2000",
        {"steps": STEPS},
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
        "mfu": facts.printed.mfu if facts and facts.printed else None,
        "tflops": facts.tflops if facts else None,
    }
    for field, value in expected.items():
        assert figures[field] == pytest.approx(value, rel=1e-3), field


@pytest.mark.parametrize(
    "bar",
    [
        "{n}/{n} [==============================] - 200s {ms}ms/step - loss: 0.0909 - val_loss: 0.1",
        "{n}/{n} ━━━━━━━━━━━━━━━━━━━━ 200s {ms}ms/step - accuracy: 0.9 - loss: 0.0909",
        "{n}/{n} - 200s - {ms}ms/step - loss: 0.0909",
        "\r 10/{n} [==>...........] - ETA: 1:00 - loss: 0.2\r{n}/{n} [=====] - 200s {ms}ms/step - loss: 0.0909",
    ],
)
def test_the_epochs_of_keras_are_read(bar: str) -> None:
    epochs = [f"Epoch {epoch}/9\n{bar.format(n=100, ms=2000)}\n" for epoch in range(1, 10)]
    profile = read("".join(epochs) + bar.format(n=7, ms=30) + "\n")
    card = sg.score(profile)
    assert card.step_time_ms == pytest.approx(2000.0)
    assert profile.recorded_steps == 900
    assert not card.findings


def test_a_time_that_may_be_of_one_step_or_of_many_is_not_guessed() -> None:
    profile = read("".join(f"step {step * 100}: loss 2.3, time {20 + step % 3}s\n" for step in range(20)))
    assert sg.score(profile).step_time_ms is None
    assert ["every 100 steps" in note.text for note in profile.warnings] == [True]


def test_a_time_without_a_unit_that_is_too_long_for_seconds_is_not_guessed() -> None:
    profile = read("".join(f"step {step}: loss 2.3, time {350 + step % 3}\n" for step in range(20)))
    assert sg.score(profile).step_time_ms is None
    assert ["without a unit" in note.text for note in profile.warnings] == [True]


def test_lines_of_a_known_framework_are_not_read_as_a_plain_loop() -> None:
    head, line, _ = LINES["nanoGPT of 2022"]
    text = head + "".join(line(step) + f"\nstep {step} time 9s\n" for step in range(1, STEPS + 1))
    assert sg.score(read(text)).step_time_ms == pytest.approx(STEP_S * 1e3, rel=1e-3)


def test_a_hole_before_a_log_is_no_part_of_it() -> None:
    head, line, _ = LINES["a loop that prints milliseconds"]
    text = head + "".join(line(step) + "\n" for step in range(1, STEPS + 1))
    assert read("\0" * 1000 + text).recorded_steps == STEPS


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
        (
            '{"user": "a", "assistant": "b"}\n{"user": "c", "assistant": null}\n',
            "JSON lines without a training step",
        ),
        ("commit\ttokens_per_sec\tmfu_percent\tcommand\nabc\t5774\t24.12\t./train.sh\n", "table of runs"),
        ("step 5: loss 2.3, step_time 2.0s\nstep 6: loss 2.3, step_time 2.0s\n", "a training log"),
    ],
)
def test_what_is_no_log_of_steps_is_named(text: str, what: str) -> None:
    with pytest.raises(UnknownFormat, match=what):
        read(text)
