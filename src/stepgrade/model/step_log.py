"""The wall time of a logged run, step line by step line, and the ledger that it adds up to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

PauseKind = Literal["startup", "compile", "evaluation", "checkpoint", "stall", "restart", "idle"]


class Reason(Struct, frozen=True):
    """What a log says before a row, and how long it says that it took."""

    row: int
    kind: PauseKind
    seconds: float | None = None


class StepLog(Struct, frozen=True, kw_only=True):
    """A run as its log tells it; a row is what one step line covers, from the line before on.

    `wall_s` is the clock's time of a row, pauses included; `step_s` that of one of its steps, as the log
    says it or, where it does not, as the clock does.
    """

    framework: str
    step: Sequence[float]  # that the row ends with
    count: Sequence[float]  # of steps in the row
    wall_s: Sequence[float]
    step_s: Sequence[float]
    reasons: tuple[Reason, ...] = ()
    attempts: tuple[int, ...] = (0,)  # rows with which the run began, or began again
    before_s: float = 0.0  # from the first line to the first step
    after_s: float = 0.0  # from the last step to the last line
    has_clock: bool = False  # pauses between steps can be seen
    is_mean: bool = False  # a row's step_s is a mean over its steps, pauses included
    clock_s: float = 0.0  # what the clock of the log cannot tell apart
    total_steps: float | None = None


class Printed(Struct, frozen=True, kw_only=True):
    """What a log prints of its own efficiency once the run was warm, as its author counts it."""

    source: str  # the framework that prints it
    mfu: float | None = None
    tok_s: float | None = None  # of all devices
    memory_bytes: float | None = None  # the highest


class RunFacts(Struct, frozen=True, kw_only=True):
    """What a log says of the model and of its own efficiency, as it says it."""

    framework: str
    config: str | None = None  # the text of a config.json
    arguments: Mapping[str, str] = {}  # as Megatron calls them
    name: str | None = None
    seq: int | None = None
    parameters: float | None = None
    flops_per_token: float | None = None
    convention: str | None = None  # by which it counts FLOPs, as `hardware` names it
    counts_recompute: bool = False
    mixes_fp8: bool = False  # it counts the layers' products at the peak of fp8, the rest at that of bf16
    printed: Printed | None = None
    tflops: float | None = None  # for each device
    peak_flops: float | None = None  # that the printed MFU is taken against


class Goodput(Struct, frozen=True, kw_only=True):
    """Of the wall time from the first to the last line, what went into what; the shares add up to 1."""

    wall_s: float
    productive: float
    startup: float
    compile: float
    evaluation: float
    checkpoint: float
    stall: float
    restart: float
    idle: float


# What each account is, for people.
GOODPUT_ACCOUNTS = {
    "productive": "steps that count",
    "startup": "before the first step",
    "compile": "warm-up and compilation",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "stall": "slow steps",
    "restart": "restarts, and steps done again",
    "idle": "after the last step",
}
