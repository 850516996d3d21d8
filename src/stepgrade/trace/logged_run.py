"""A trace and the log of the same run: the trace explains a step, the log tells how long steps take."""

from __future__ import annotations

from msgspec import structs

from stepgrade.errors import BadInput
from stepgrade.model import Note, Profile, Source
from stepgrade.statistics import median
from stepgrade.units import show_ms, show_share

# Closer than this, the two agree.
_AGREE = 0.05
# Beyond this factor they are not of the same run, or not of the same steps.
_TOO_FAR = 5.0


def with_log(trace: Profile, log: Profile) -> Profile:
    """Return the trace's profile with the step times, tokens and wall time of the log.

    What a step is made of are shares of the trace's steps, shown for a step as long as the log's.
    """
    if not log.samples_ms or not trace.mean_step_ms:
        hint = "score them one by one"
        raise BadInput("one of trace and log has no step times", where=log.source.shown, hint=hint)
    in_log_ms, in_trace_ms = median(log.samples_ms), median(trace.samples_ms or (trace.mean_step_ms,))
    factor = max(in_trace_ms, in_log_ms) / min(in_trace_ms, in_log_ms)
    doubts: tuple[Note, ...] = ()
    if factor >= _TOO_FAR:
        text = f"the steps of log and trace differ by {factor:.0f} times: are they of the same run?"
        doubts = (Note("log_of_another_run", text, fatal=True),)
    tokens, ranks = log.tokens_per_step, log.counted_ranks
    if tokens is None:
        tokens, ranks = trace.tokens_per_step, trace.counted_ranks
    return structs.replace(
        trace,
        source=Source(
            format=trace.source.format,
            files=(*trace.source.files, *log.source.files),
            producer=trace.source.producer,
        ),
        work="training",
        samples_ms=log.samples_ms,
        recorded_steps=log.recorded_steps or log.steps,
        tokens_per_step=tokens,
        samples_per_step=log.samples_per_step or trace.samples_per_step,
        counted_ranks=ranks,
        world_size=log.world_size or trace.world_size,
        device=trace.device or log.device,
        facts=log.facts,
        log=log.log,
        peak_memory_bytes=max(filter(None, (trace.peak_memory_bytes, log.peak_memory_bytes)), default=None),
        notes=(*trace.notes, *log.notes, _compared(in_trace_ms, in_log_ms)),
        warnings=(*trace.warnings, *log.warnings, *doubts),
    )


def _compared(in_trace_ms: float, in_log_ms: float) -> Note:
    """Say how the two agree, and why not."""
    more = in_trace_ms / in_log_ms - 1.0
    both = f"a step takes {show_ms(in_log_ms)} in the log and {show_ms(in_trace_ms)} in the trace"
    if abs(more) <= _AGREE:
        return Note("log_and_trace", f"{both}: they agree, and the log's counts")
    if more > 0.0:
        why = f"profiling makes it {show_share(more)} longer, and the log's counts"
        return Note("log_and_trace", f"{both}: {why}")
    why = f"what a run does between steps, or on other ranks, makes it {show_share(-more)} longer than traced"
    return Note("log_and_trace", f"{both}: {why}")
