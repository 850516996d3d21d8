"""MLPerf's events: benchmarks count samples, tokens or epochs under the same names."""

from __future__ import annotations

import json

import pytest

import stepgrade as sg
from tests.readers.logs.test_versions import read

BATCH, BLOCK_STEPS, STEP_S, EVALUATION_S, BLOCKS = 8, 48, 2.0, 30.0, 5


def event(at_s: float, key: str, value: object = None, **metadata: object) -> str:
    body = {"time_ms": round((1_700_000_000 + at_s) * 1e3), "key": key, "value": value, "metadata": metadata}
    return f":::MLLOG {json.dumps(body)}"


def run(counts: str, *, seq: int = 1, rates: str = "none", platform: str = "1xMI300X") -> str:
    """Return a log of blocks with an evaluation after each; its text clocks are of another time zone."""
    lines = [
        "2023-11-14 10:00:00 the job begins",
        event(0.0, "submission_platform", platform),
        event(0.0, "global_batch_size", BATCH),
        event(100.0, "run_start"),
    ]
    if seq > 1:
        lines.insert(1, event(0.0, "max_sequence_length", seq))
    now, done = 100.0, 0
    for _ in range(BLOCKS):
        started, of_block = now, BLOCK_STEPS * BATCH
        first = {"samples_count": done} if counts == "samples_count" else {"first_epoch_num": done * seq}
        lines.append(event(now, "block_start", **first, epoch_count=of_block * seq))
        now, done = now + BLOCK_STEPS * STEP_S, done + of_block
        taken = now - started + (EVALUATION_S if rates == "with evaluation" else 0.0)
        count = {counts: done * seq}
        if rates != "none":
            lines.append(event(now, "tracked_stats", {"throughput": of_block / taken}, **count))
        stop = count if counts == "samples_count" else first
        lines += [event(now, "block_stop", **stop), event(now, "eval_start", **count)]
        now += EVALUATION_S
        lines.append(event(now, "eval_stop", **count))
    return "\n".join([*lines, event(now, "run_stop", status="success")]) + "\n"


def in_one_block(text: str) -> str:
    """Return a log in which only the first block begins and only the last one ends, as those of Gaudi are."""
    lines = text.splitlines()
    starts = [place for place, line in enumerate(lines) if '"block_start"' in line]
    stops = [place for place, line in enumerate(lines) if '"block_stop"' in line]
    last = lines.pop(stops[-1]).replace(f'": {(BLOCKS - 1) * BLOCK_STEPS * BATCH}', '": 0')
    left_out = {*starts[1:], *stops[:-1]}
    kept = [line for place, line in enumerate(lines) if place not in left_out]
    return "\n".join([*kept[:-1], last, kept[-1]]) + "\n"


@pytest.mark.parametrize(
    "text",
    [
        in_one_block(run("epoch_num")),
        run("samples_count"),
        run("samples_count", rates="of steps"),
        run("epoch_num"),
        run("epoch_num", seq=2048),
    ],
    ids=["in one block", "samples", "samples and rates", "samples as epochs", "tokens as epochs"],
)
def test_evaluation_after_every_block_is_told_from_its_steps(text: str) -> None:
    profile = read(text)
    card = sg.score(profile)
    assert card.step_time_ms == pytest.approx(STEP_S * 1e3, rel=0.01)
    assert profile.samples_per_step == BATCH
    assert card.goodput is not None
    wall = 100.0 + BLOCKS * (BLOCK_STEPS * STEP_S + EVALUATION_S)
    assert card.goodput.wall_s == pytest.approx(wall, rel=0.01)
    # The last evaluation comes after the last step, and is counted as that.
    assert card.goodput.evaluation == pytest.approx((BLOCKS - 1) * EVALUATION_S / wall, rel=0.02)
    assert card.goodput.startup == pytest.approx(100.0 / wall, rel=0.03)


def test_a_benchmark_that_counts_epochs_is_refused_with_the_reason() -> None:
    lines = [event(0.0, "global_batch_size", 256), event(10.0, "run_start")]
    lines += [
        event(10.0 + 500.0 * epoch, "tracked_stats", {"throughput": 282.0}, step=epoch)
        for epoch in range(1, 5)
    ]
    card = sg.score(read("\n".join(lines) + "\n"))
    assert card.step_time_ms is None
    assert "count epochs" in str(card.ungraded_because[0])


@pytest.mark.parametrize(
    ("platform", "key"),
    [
        ("64xNVIDIA DGX H100", "h100-sxm5-80gb"),
        ("1xNVIDIA HGX B200", "b200"),
        ("1xXE9680x8H100-SXM-80GB", "h100-sxm5-80gb"),
        ("16xNVIDIA L40S", "l40s"),
        ("1xMI300X", "mi300x"),
    ],
)
def test_the_device_of_a_platform_is_found(platform: str, key: str) -> None:
    device = sg.score(read(run("samples_count", platform=platform))).device
    assert device is not None
    assert device.key == key


def test_the_description_of_the_system_tells_devices_and_how_many() -> None:
    system = {
        "number_of_nodes": "64",
        "accelerators_per_node": "8",
        "accelerator_model_name": "NVIDIA H100-SXM5-80GB",
    }
    profile = read(f":::SYSJSON {json.dumps(system)}\n" + run("samples_count", platform="64xSomething"))
    assert profile.world_size == 512
    device = sg.score(profile).device
    assert device is not None
    assert device.key == "h100-sxm5-80gb"


def in_epochs(*, devices: int, epochs: int = 20, samples: int = 168, batch: int = 56) -> str:
    """Return a log that counts epochs, more of them than a batch has samples, and prints a rate."""
    lines = [
        event(0.0, "global_batch_size", batch),
        event(0.0, "run_start"),
        event(0.0, "train_samples", samples),
    ]
    now, steps = 10.0, epochs * samples // batch
    for block in range(BLOCKS):
        first = max(1, block * epochs)
        lines.append(event(now, "block_start", first_epoch_num=first, epoch_count=epochs))
        now += steps * STEP_S
        rate = {"throughput": batch / STEP_S / devices}
        lines.append(event(now, "tracked_stats", rate, step=first))
        lines.append(event(now, "block_stop", first_epoch_num=first, epoch_count=epochs))
    return "\n".join([*lines, event(now, "run_stop", status="success")]) + "\n"


def test_epochs_are_steps_where_the_rate_says_of_how_many_samples() -> None:
    profile = read(in_epochs(devices=1))
    assert sg.score(profile).step_time_ms == pytest.approx(STEP_S * 1e3, rel=0.01)
    assert profile.recorded_steps == pytest.approx(BLOCKS * 60, abs=1)  # where it begins is a line of its own


def test_a_rate_of_one_device_makes_no_steps_of_epochs() -> None:
    assert sg.score(read(in_epochs(devices=8))).step_time_ms is None
