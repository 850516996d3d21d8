"""What torch.compile did while a run was recorded: how often, for how long, and where its graphs break."""

from __future__ import annotations

from msgspec import Struct


class CompiledFrame(Struct, frozen=True, kw_only=True):
    """One function of the user's that was compiled; more than once if its guards failed."""

    frame: str  # its number in the process, as TORCH_LOGS has it
    compiles: int  # in the trace
    recompiles: int  # of these, those that were not its first
    ms: float
    where: str | None = None  # file.py:line of the function, where stacks were recorded


class GraphBreak(Struct, frozen=True, kw_only=True):
    """A place where a compiled graph ends and Python goes on."""

    where: str | None  # file.py:line; None where stacks were not recorded
    function: str | None
    per_step: float


class Compilation(Struct, frozen=True, kw_only=True):
    """Compilation in the recorded steps; steps with much of it are not steady unless all have it."""

    ms_per_step: float  # in the steady steps
    total_ms: float  # in all of the trace
    recorded_ms: float  # what all recorded steps took
    steps_left_out: int
    compiles: int
    recompiles: int
    graph_breaks: float  # in a steady step
    guard_ms: float  # in a steady step, to find the compiled code whose guards hold
    cudagraph_records: int
    frames: tuple[CompiledFrame, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
