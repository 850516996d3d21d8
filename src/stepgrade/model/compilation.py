"""What torch.compile did in a run: how often, for how long, which guards failed, where its graphs break."""

from __future__ import annotations

from msgspec import Struct


class FailedGuard(Struct, frozen=True, kw_only=True):
    """Why compiled code could not be used again, as torch says it; the last of those that say the same."""

    reason: str
    count: int


class CompiledFrame(Struct, frozen=True, kw_only=True):
    """One function of the user's that was compiled; more than once if its guards failed."""

    frame: str  # its number in the process, as TORCH_LOGS has it
    compiles: int  # in the log of torch.compile, where one was given, else in the trace
    recompiles: int  # of these, those that were not its first
    ms: float
    where: str | None = None  # file.py:line of the function, where stacks were recorded
    function: str | None = None  # its name: only a log says
    guards: tuple[FailedGuard, ...] = ()  # the most frequent first: only a log says
    failure: str | None = None  # why it runs without being compiled


class GraphBreak(Struct, frozen=True, kw_only=True):
    """A place where a compiled graph ends and Python goes on."""

    where: str | None  # file.py:line; None where stacks were not recorded
    function: str | None
    per_step: float | None = None  # only a trace says
    compiles: int | None = None  # that broke there: only a log says
    reason: str | None = None


class StepCompilation(Struct, frozen=True, kw_only=True):
    """A step of the trace in which something was compiled."""

    step: int
    ms: float


class CompileLog(Struct, frozen=True, kw_only=True):
    """What the structured log of one process says of torch.compile."""

    file: str
    rank: int | None
    total_ms: float
    compiles: int
    recompiles: int
    cudagraph_records: int
    cudagraph_rerecords: int  # of these, those of a graph that had been recorded before
    frames: tuple[CompiledFrame, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    unread: int = 0  # records that are no such JSON


class Compilation(Struct, frozen=True, kw_only=True):
    """Compilation in the recorded steps; steps with much of it are not steady unless all have it.

    Of a log without a trace there are no steps. What both tell of is the log's, which is of the whole run.
    """

    ms_per_step: float | None = None  # in the steady steps
    total_ms: float  # in all of the trace, of a log alone in the whole run
    recorded_ms: float | None = None  # what all recorded steps took
    steps_left_out: int | None = None
    compiles: int
    recompiles: int
    graph_breaks: float | None = None  # in a steady step
    guard_ms: float | None = None  # in a steady step, to find the compiled code whose guards hold
    cudagraph_records: int
    cudagraph_rerecords: int | None = None  # of these, those of a graph that had been recorded before
    logged_ms: float | None = None  # in the whole run: only a log says
    frames: tuple[CompiledFrame, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    steps: tuple[StepCompilation, ...] = ()  # those in which something was compiled, the longest first
