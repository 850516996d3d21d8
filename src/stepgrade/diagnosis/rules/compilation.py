"""Rules about torch.compile: time that goes to compiling again, and graphs that break."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Remedy, Rule, Worth
from stepgrade.units import show_ms, show_share

_FEW_SIZES = (
    "Pad inputs to few sizes, or compile with dynamic=True or torch._dynamo.mark_dynamic; keep Python "
    "numbers that change out of the function."
)
_WHOLE_GRAPHS = (
    "Take prints, .item() and data-dependent branches out of the compiled function, or compile the parts "
    "between them."
)


def has_log(context: RuleContext) -> bool:
    """Return whether a log of torch.compile names the guards and the reasons already."""
    found = context.profile.compilation
    return found is not None and found.logged_ms is not None


def recompiling(context: RuleContext) -> Found | None:
    found, limits = context.profile.compilation, context.limits
    again = [frame for frame in found.frames if frame.recompiles] if found is not None else []
    if found is None or not again:
        return None
    worst = max(again, key=lambda frame: frame.ms)
    at = f" at {worst.where}" if worst.where else ""
    claim = (
        f"torch.compile compiles again: {found.recompiles} of {found.compiles} compilations, most of the "
        f"time in frame {worst.frame}{at}."
    )
    evidence: Evidence = {
        "recompiles": float(found.recompiles),
        "compile_ms": found.total_ms,
        "frame": worst.frame,
    }
    if worst.where:
        evidence["where"] = worst.where
    if worst.guards:
        claim += f" Its guard: {worst.guards[0].reason.rstrip('.')}."
        evidence["guard"] = worst.guards[0].reason
    if found.recorded_ms is None:  # a log alone: how long the run took is not known
        return Found("info", f"{claim} Compiling takes {show_ms(found.total_ms)}.", evidence, 0.0)
    # In the steady steps where all of them compile; else in those that were left out for it.
    share = max(
        context.step_share((found.ms_per_step or 0.0) * context.times.scale),
        found.total_ms / found.recorded_ms if found.recorded_ms else 0.0,
    )
    share = evidence["share"] = min(1.0, share)
    claim += f" Compiling takes {show_ms(found.total_ms)}, {show_share(share)} of what was recorded."
    levels = Levels(limits.compile_info_share, limits.compile_warning_share, limits.compile_critical_share)
    return levels.found(share, claim, evidence)


def breaking_graphs(context: RuleContext) -> Found | None:
    found = context.profile.compilation
    if found is None or not (found.breaks or found.graph_breaks):
        return None
    if found.graph_breaks is not None and found.graph_breaks < context.limits.graph_breaks:
        return None
    places = [one for one in found.breaks if one.where]
    at = f", most at {places[0].where} in {places[0].function}" if places else ""
    why = next((f" Why: {one.reason.rstrip('.')}." for one in places[:1] if one.reason), "")
    share = context.account("idle_host") if context.activity.driver == "device" else 0.0
    evidence: Evidence = {"places": float(len(found.breaks))}
    often = f"at {len(found.breaks)} {'place' if len(found.breaks) == 1 else 'places'}"
    if found.graph_breaks is not None:
        evidence["graph_breaks"] = found.graph_breaks
        often = f"{found.graph_breaks:.3g} times a step"
    if places and places[0].where:
        evidence["where"] = places[0].where
    if places and places[0].reason:
        evidence["reason"] = places[0].reason
    return Found("info", f"Compiled graphs break {often}{at}.{why}", evidence, share)


def recording_graphs_again(context: RuleContext) -> Found | None:
    found = context.profile.compilation
    if found is None or not found.cudagraph_rerecords:
        return None
    graphs = max(found.cudagraph_records - found.cudagraph_rerecords, 1)
    if found.cudagraph_rerecords / graphs < context.limits.cudagraph_rerecords:
        return None
    claim = (
        f"CUDA graphs are recorded again: {found.cudagraph_rerecords} of "
        f"{found.cudagraph_records} recordings are of a graph that had been recorded before."
    )
    evidence: Evidence = {
        "rerecords": float(found.cudagraph_rerecords),
        "records": float(found.cudagraph_records),
    }
    share = context.account("idle_host") if context.activity.driver == "device" else 0.0
    return Found("info", claim, evidence, share)


RULES = (
    Rule(
        name="compiles-again",
        find=recompiling,
        sees="torch.compile recompiles functions during the recording.",
        evidence="compilations, recompilations, time, line; with a torch.compile log the failed guard",
        fix=f"TORCH_TRACE=directory logs the guard that fails; pass it with the trace. {_FEW_SIZES}",
        fix_where=(Remedy("the log of torch.compile was given", has_log, _FEW_SIZES),),
        wrong_when="the recording has the first steps, and later ones compile nothing",
        check="The trace has no entire_frame_compile after the first steps.",
        worth=Worth("idle_host+unattributed+compute", 0.9, "nothing is compiled once all sizes are known"),
        explains=("host-stall", "python-overhead", "launch-gaps", "fast-backward", "one-hot-operation"),
        sources="ours: pytorch 149096, 97783; tlparse",
    ),
    Rule(
        name="graph-breaks",
        find=breaking_graphs,
        sees="Compiled graphs end early, with Python between their parts.",
        evidence="breaks per step, the most frequent line; with a torch.compile log the reason",
        fix=f"TORCH_TRACE=directory logs why: pass it with the trace. {_WHOLE_GRAPHS}",
        fix_where=(Remedy("the log of torch.compile was given", has_log, _WHOLE_GRAPHS),),
        wrong_when="one compiled function calls another on purpose",
        check="The step has as many compiled regions as compiled functions.",
        worth=Worth("idle_host", 0.5, "some of the waits for the host are at the breaks"),
        sources="ours: pytorch 108971; tlparse",
    ),
    Rule(
        name="graphs-recorded-again",
        find=recording_graphs_again,
        sees="CUDA graphs of compiled code are recorded repeatedly (from torch.compile logs).",
        evidence="CUDA graph recordings, and how many were repeats",
        fix="Call compiled functions in the same order in every step, with inputs of few sizes and at fixed "
        "addresses; for sizes that change, torch._inductor.config.triton.cudagraph_skip_dynamic_graphs.",
        wrong_when="the log covers only the first steps, in which every path is recorded once",
        check="The log has no CUDAGraphNode.record after the first steps.",
        worth=Worth("idle_host", 0.5, "some of the waits for the host are while graphs are recorded"),
        sources="torch warns from 8 sizes of one graph on (triton.cudagraph_dynamic_shape_warn_limit)",
    ),
)
