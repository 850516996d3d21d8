"""Logs of made-up runs in several dialects, with pauses, restarts and drift whose cost is known."""

from __future__ import annotations

import datetime as dt
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

START = dt.datetime(2026, 3, 1, 8, 0, 0, tzinfo=dt.UTC)


@dataclass
class Truth:
    """Seconds that went into what, as planted."""

    wall_s: float = 0.0
    spent: dict[str, float] = field(default_factory=dict)

    def add(self, kind: str, seconds: float) -> None:
        self.wall_s += seconds
        self.spent[kind] = self.spent.get(kind, 0.0) + seconds


@dataclass(frozen=True)
class Plan:
    """A run: its steps, how often a line is written, and what interrupts it."""

    steps: int = 2000
    every: int = 10
    step_s: float = 0.5
    noise: float = 0.01
    checkpoint_every: int | None = None
    checkpoint_s: float = 12.0
    evaluate_every: int | None = None
    evaluate_s: float = 8.0
    slow_every: int | None = None
    slow_s: float = 3.0
    drift: float = 0.0
    breaks_at: int | None = None
    resumes_at: int = 0
    down_s: float = 600.0
    startup_s: float = 0.0
    first_s: float = 0.0
    tail_s: float = 0.0
    seed: int = 7


Line = Callable[[dt.datetime, int, "Plan", float, float], str]


def torchtitan(now: dt.datetime, step: int, plan: Plan, step_s: float, loss: float) -> str:
    del plan
    return (
        f"[rank0]:[titan] {now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d} - root - INFO - "
        f"\x1b[31mstep: {step:2}  \x1b[32mloss: {loss:8.5f}  \x1b[33mmemory: 60.00GiB(75.00%)  "
        f"\x1b[34mtps: {round(65536 / step_s):,}  \x1b[36mtflops: 400.00  \x1b[35mmfu: 40.45%\x1b[39m"
    )


def megatron(now: dt.datetime, step: int, plan: Plan, step_s: float, loss: float) -> str:
    return (
        f" [{now:%Y-%m-%d %H:%M:%S.%f}] iteration {step:8}/{plan.steps:8} | consumed samples: {step * 256:12} | "
        f"elapsed time per iteration (ms): {step_s * 1e3:.1f} | learning rate: 1.0E-04 | global batch size:   256 | "
        f"lm loss: {loss:.6E} | loss scale: 1.0 | number of skipped iterations:   0 | number of nan iterations:   0 |"
    )


def jsonl(now: dt.datetime, step: int, plan: Plan, step_s: float, loss: float) -> str:
    del plan, step_s
    return f'{{"step": {step}, "loss": {loss:.4f}, "timestamp": {now.timestamp():.3f}}}'


def deepspeed(now: dt.datetime, step: int, plan: Plan, step_s: float, loss: float) -> str:
    del plan, loss
    return (
        f"[{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}] [INFO] [timer.py:199:stop] epoch=0/micro_step={step}/"
        f"global_step={step}, RunningAvgSamplesPerSec={128 / step_s:.3f}, CurrSamplesPerSec={128 / step_s:.3f}, "
        "MemAllocated=3.96GB, MaxMemAllocated=22.95GB"
    )


DIALECTS: dict[str, Line] = {
    "torchtitan": torchtitan,
    "megatron": megatron,
    "jsonl": jsonl,
    "deepspeed": deepspeed,
}


def generate(plan: Plan, dialect: str) -> tuple[bytes, Truth]:
    """Return the log and what was planted in it."""
    truth = Truth()
    return "\n".join(_lines(plan, dialect, truth)).encode() + b"\n", truth


def _lines(plan: Plan, dialect: str, truth: Truth) -> Iterator[str]:  # noqa: C901  one story, told in order
    dice = random.Random(plan.seed)
    line = DIALECTS[dialect]
    now = START
    broke = False

    def pass_by(kind: str, seconds: float) -> None:
        nonlocal now
        truth.add(kind, seconds)
        now += dt.timedelta(seconds=seconds)

    def stamp(text: str) -> str:
        return f"[{now:%Y-%m-%d %H:%M:%S},{now.microsecond // 1000:03d}] INFO {text}"

    yield stamp("starting up")
    if plan.startup_s:
        pass_by("startup", plan.startup_s)
    step, since, waited = 0, 0.0, 0.0
    done: list[tuple[int, float]] = []
    while step < plan.steps:
        step += 1
        seconds = plan.step_s * (1.0 + plan.drift * step / plan.steps) * (1.0 + dice.gauss(0.0, plan.noise))
        pass_by("productive", seconds)
        done.append((step, seconds))
        since += seconds
        if step == 1 and plan.first_s:
            pass_by("compile", plan.first_s)
            since += plan.first_s
        if plan.slow_every and step % plan.slow_every == 0:
            pass_by("stall", plan.slow_s)
            since += plan.slow_s
        if step % plan.every == 0 or step == 1:
            count = 1 if step == 1 else plan.every if step > plan.every else plan.every - 1
            yield line(now, step, plan, (since + waited) / count, 8.0 / step**0.2)
            since = waited = 0.0
        if plan.checkpoint_every and step % plan.checkpoint_every == 0 and step < plan.steps:
            pass_by("checkpoint", plan.checkpoint_s)
            waited += plan.checkpoint_s
            yield stamp(f"saved checkpoint at iteration {step} to /ckpt/iter_{step:07d}")
        if plan.evaluate_every and step % plan.evaluate_every == 0 and step < plan.steps:
            pass_by("evaluation", plan.evaluate_s)
            waited += plan.evaluate_s
            yield stamp(f"validation loss at iteration {step}: 2.345678E+00")
        if plan.breaks_at == step and not broke:
            broke = True
            yield stamp("Traceback (most recent call last): RuntimeError: NCCL timeout")
            pass_by("restart", plan.down_s)
            for number, lost in done:
                if number > plan.resumes_at:
                    truth.spent["productive"] -= lost
                    truth.spent["restart"] += lost
            yield stamp(f"resuming from /ckpt/iter_{plan.resumes_at:07d}")
            step, since, waited = plan.resumes_at, 0.0, 0.0
    if plan.tail_s:
        pass_by("idle", plan.tail_s)
        yield stamp("done")


def event(step: int, wall: float, tag: str, value: float) -> bytes:
    """Return one record of an event file, written by hand."""
    name = tag.encode()
    item = b"\x0a" + bytes([len(name)]) + name + b"\x15" + struct.pack("<f", value)
    summary = b"\x0a" + bytes([len(item)]) + item
    data = (
        b"\x09"
        + struct.pack("<d", wall)
        + b"\x10"
        + bytes([step])
        + b"\x2a"
        + bytes([len(summary)])
        + summary
    )
    return struct.pack("<Q", len(data)) + bytes(4) + data + bytes(4)


def version() -> bytes:
    data = b"\x09" + struct.pack("<d", 1e9) + b"\x1a\x0dbrain.Event:2"
    return struct.pack("<Q", len(data)) + bytes(4) + data + bytes(4)


EVENTS = version() + b"".join(
    event(step, 1e9 + 2.0 * step, tag, value)
    for step in range(1, 60)
    for tag, value in (("train/loss", 2.0), ("perf/tokens_per_sec", 4096.0))
)
