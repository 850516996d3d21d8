"""An estimate in a terminal: the most a run could reach, which limit sets it, and where the bytes go."""

from __future__ import annotations

from stepgrade.hardware.cost.model_costs import ModelCosts
from stepgrade.hardware.estimate import Estimate
from stepgrade.model.notes import texts_of
from stepgrade.report.names import printable, shortened
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.units import show_count, show_rate, show_share, show_si

_LIMITS = {"compute": "arithmetic", "memory": "memory bandwidth", "link": "the link"}
_BASES = {"data_sheet": "data sheet", "measured": "measured", "given": "given"}
_NAME_WIDTH = 16


def draw(estimate: Estimate, canvas: Canvas) -> None:
    """Draw the whole estimate."""
    _title(estimate, canvas)
    _answer(estimate, canvas)
    _ceilings(estimate, canvas)
    _costs(estimate, canvas)
    _bytes(estimate, canvas)
    _utilisation(estimate, canvas)
    _notes(estimate, canvas)


def _title(estimate: Estimate, canvas: Canvas) -> None:
    device = estimate.device.name if estimate.device else "a device described by hand"
    canvas.line(canvas.style(shortened(f"stepgrade · {device} · {_run(estimate)}", canvas.width), "dim"))
    canvas.line()


def _run(estimate: Estimate) -> str:
    plan = estimate.plan
    method = plan.method if plan.method == "full" else f"{plan.method} r{plan.rank}"
    shared = f" on {plan.parallel.devices} devices" if plan.parallel.devices > 1 else ""
    return f"{method} {plan.dtype}, {plan.batch} x {plan.seq:,} tokens{shared}"


def _answer(estimate: Estimate, canvas: Canvas) -> None:
    bound = estimate.bound_by
    if bound is None:
        canvas.line("  no ceiling: see the notes")
        return
    each = " per device" if estimate.plan.parallel.devices > 1 else ""
    reach = f"{show_rate(bound.tok_s)}{each} is the most that {_LIMITS[bound.kind]} allows"
    canvas.line(f"  {canvas.style(reach, 'title')}")
    if estimate.achievable is not None:
        rate, limit = show_rate(estimate.achievable.tok_s), _LIMITS[estimate.achievable.kind]
        canvas.line(f"  {rate}{each} at the rates that were measured ({limit})")


def _ceilings(estimate: Estimate, canvas: Canvas) -> None:
    canvas.heading("Ceilings, tok/s per device")
    canvas.bars(
        (f"{limit.kind}, {_BASES[limit.basis]}", limit.tok_s, f"{show_rate(limit.tok_s):>16}")
        for limit in estimate.ceilings
    )
    for limit in estimate.ceilings:
        canvas.paragraph(printable(f"{limit.kind}: {limit.convention}"), indent="    ", style="dim")
    for source in dict.fromkeys(limit.source for limit in estimate.ceilings):
        canvas.paragraph(printable(source), indent="    ", style="dim")


def _costs(estimate: Estimate, canvas: Canvas) -> None:
    costs = estimate.costs
    trained = "" if costs.trained_parameters == costs.parameters else _trained(costs)
    canvas.heading("The model")
    _row(canvas, costs.architecture, f"{show_count(costs.parameters)} parameters{trained}")
    canvas.heading("One token")
    flops = show_si(costs.flops.model, "FLOP")
    if costs.flops.hardware != costs.flops.model:
        flops += f", {show_si(costs.flops.hardware, 'FLOP')} with what is computed twice"
    _row(canvas, "needs", f"{flops} ({costs.flops.convention})")
    _row(canvas, "by PaLM", show_si(costs.flops_palm.model, "FLOP"))
    _row(canvas, "moves", f"{show_si(estimate.bytes_per_token, 'B')} through memory")
    if costs.link is not None:
        sent = f"{show_si(costs.link.per_token, 'B')} over the link"
        _row(canvas, "sends", f"{sent} ({show_si(costs.link.total, 'B')} per device and step)")
    _row(canvas, "regime", _regime(estimate))


def _trained(costs: ModelCosts) -> str:
    return f", {show_count(costs.trained_parameters)} of adapters trained"


def _regime(estimate: Estimate) -> str:
    intensity, ridge = estimate.intensity_flops_per_byte, estimate.ridge_flops_per_byte
    if ridge is None:
        return f"{intensity:,.0f} FLOP per byte"
    above = intensity >= ridge
    text = f"{intensity:,.0f} FLOP per byte {'above' if above else 'below'} the ridge point of {ridge:,.0f}: "
    text += "arithmetic limits it before memory" if above else "memory limits it before arithmetic"
    if estimate.crossing_tokens is None:
        return f"{text}, at any batch"
    batch = estimate.crossing_tokens / estimate.plan.seq
    where = f"{show_count(round(estimate.crossing_tokens))} tokens per micro-batch (batch {batch:,.2g})"
    return f"{text}; that changes at {where}"


def _bytes(estimate: Estimate, canvas: Canvas) -> None:
    traffic, total = estimate.costs.traffic, estimate.bytes_per_token
    parts = {
        "weights": traffic.weights,
        "gradients": traffic.gradients,
        "optimizer": traffic.optimizer,
        "activations": traffic.activations,
        "loss": traffic.loss,
    }
    canvas.heading("Where the bytes go")
    canvas.bars(
        (name, amount, f"{show_si(amount, 'B'):>9} {show_share(amount / total):>7}")
        for name, amount in parts.items()
    )


def _utilisation(estimate: Estimate, canvas: Canvas) -> None:
    found = estimate.utilisation
    if found is None:
        return
    canvas.heading(f"At {show_rate(found.tok_s)}")
    palm = f"by PaLM's count {show_share(found.mfu_palm)}"
    _row(canvas, "MFU", f"{show_share(found.mfu)} ({estimate.costs.flops.convention}), {palm}")
    _row(canvas, "HFU", show_share(found.hfu))
    _row(canvas, "of the ceiling", show_share(found.efficiency))
    if found.above_one_because:
        canvas.paragraph("more than the hardware can do; likely causes:", first="  ")
    for cause in found.above_one_because:
        canvas.paragraph(cause, indent="    ", first="  · ")


def _notes(estimate: Estimate, canvas: Canvas) -> None:
    if estimate.notes:
        canvas.heading("Notes")
    for note in texts_of(estimate.notes):
        canvas.paragraph(printable(note), indent="    ", first="  · ", style="dim")


def _row(canvas: Canvas, name: str, text: str) -> None:
    first = f"  {canvas.style(name.ljust(_NAME_WIDTH), 'title')}"
    canvas.paragraph(text, indent=" " * (_NAME_WIDTH + 2), first=first)
