"""Rules about torch.compile: time that goes to compiling again, and graphs that break."""

from __future__ import annotations

from stepgrade.diagnosis.context import RuleContext
from stepgrade.diagnosis.rules.base import Evidence, Found, Levels, Rule, Worth
from stepgrade.units import show_ms, show_share


def recompiling(context: RuleContext) -> Found | None:
    found, limits = context.profile.compilation, context.limits
    if found is None or not found.recompiles:
        return None
    # In the steady steps where all of them compile; else in those that were left out for it.
    share = max(
        context.step_share(found.ms_per_step * context.times.scale),
        found.total_ms / found.recorded_ms if found.recorded_ms else 0.0,
    )
    share = min(1.0, share)
    again = [frame for frame in found.frames if frame.recompiles]
    worst = max(again, key=lambda frame: frame.ms)
    at = f" at {worst.where}" if worst.where else ""
    claim = (
        f"torch.compile compiles again: {found.recompiles} of {found.compiles} compilations, most of the "
        f"time in frame {worst.frame}{at}. Compiling takes {show_ms(found.total_ms)}, {show_share(share)} of "
        "what was recorded."
    )
    evidence: Evidence = {
        "recompiles": float(found.recompiles),
        "compile_ms": found.total_ms,
        "share": share,
        "frame": worst.frame,
    }
    if worst.where:
        evidence["where"] = worst.where
    levels = Levels(limits.compile_info_share, limits.compile_warning_share, limits.compile_critical_share)
    return levels.found(share, claim, evidence)


def breaking_graphs(context: RuleContext) -> Found | None:
    found = context.profile.compilation
    if found is None or found.graph_breaks < context.limits.graph_breaks:
        return None
    places = [one for one in found.breaks if one.where]
    at = f", most at {places[0].where} in {places[0].function}" if places else ""
    share = context.account("idle_host") if context.activity.driver == "device" else 0.0
    claim = f"Compiled graphs break {found.graph_breaks:.3g} times a step{at}."
    evidence: Evidence = {"graph_breaks": found.graph_breaks}
    if places and places[0].where:
        evidence["where"] = places[0].where
    return Found("info", claim, evidence, share)


RULES = (
    Rule(
        name="compiles-again",
        find=recompiling,
        sees="torch.compile compiles functions again while the run is recorded.",
        evidence="compilations, how many were not a function's first, their time, the function's line",
        fix="TORCH_LOGS=recompiles names the guard that fails. Pad inputs to few sizes, or compile with "
        "dynamic=True or torch._dynamo.mark_dynamic; keep Python numbers that change out of the function.",
        wrong_when="recording began with the first steps, and later ones compile nothing",
        check="The trace has no entire_frame_compile after the first steps.",
        worth=Worth("idle_host+unattributed+compute", 0.9, "nothing is compiled once all sizes are known"),
        explains=("host-stall", "python-overhead", "launch-gaps", "fast-backward", "one-hot-operation"),
        sources="ours: pytorch 149096, 97783; tlparse",
    ),
    Rule(
        name="graph-breaks",
        find=breaking_graphs,
        sees="Compiled graphs end early and Python goes on between their parts.",
        evidence="breaks in a step, the line after the most frequent one",
        fix="TORCH_LOGS=graph_breaks says why. Take prints, .item() and data-dependent branches out of the "
        "compiled function, or compile the parts between them.",
        wrong_when="one compiled function calls another on purpose",
        check="The step has as many compiled regions as compiled functions.",
        worth=Worth("idle_host", 0.5, "some of the waits for the host are at the breaks"),
        sources="ours: pytorch 108971; tlparse",
    ),
)
