"""What a planned run could reach on a device, and why: the answer behind `stepgrade estimate`."""

from __future__ import annotations

from msgspec import Struct, structs

from stepgrade.errors import BadOption
from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.ceilings import (
    FLOPS_PER_TFLOP,
    Figures,
    lowest_achievable,
    utilisation,
    why_above_one,
)
from stepgrade.hardware.cluster import Cluster
from stepgrade.hardware.cost.model_costs import ModelCosts
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.memory.fit import Anchor, MemoryFit, memory_fit
from stepgrade.hardware.models.hf_config import read_model
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.hardware.setup import Setup, check_above_zero, costs_of, figures_of, planned_target
from stepgrade.hardware.throughput import Expected, StepModel, expected_rate
from stepgrade.model.ceiling import Ceiling
from stepgrade.model.notes import Note, Result

TRAFFIC_NOTE = (
    "bytes are a model of what must be moved, not checked against memory counters: fusion and caches "
    "can halve or double the activations"
)


class Utilisation(Struct, frozen=True, kw_only=True):
    """The utilisation at a measured throughput; None without a known peak."""

    tok_s: float
    tok_s_per_device: float
    mfu: float | None
    hfu: float | None
    mfu_palm: float | None
    efficiency: float | None
    above_one_because: tuple[str, ...] = ()


class Estimate(Result, frozen=True, kw_only=True):
    """The ceilings of a planned run, all in tok/s per device, and whether one device can hold it.

    `expected_tok_s` is what is likely, with an interval that holds for nine published runs in ten; None if
    the device's rates are unknown. `is_reachable` is False for a run that does not fit, and None if that is
    unknown.
    """

    NOTES = ("notes",)

    device: Device | None
    plan: Plan
    costs: ModelCosts
    ceilings: tuple[Ceiling, ...]
    bound_by: Ceiling | None
    achievable: Ceiling | None
    expected_tok_s: Expected | None
    bytes_per_token: float
    link_bytes_per_step: float | None
    ridge_flops_per_byte: float | None
    intensity_flops_per_byte: float
    crossing_tokens: float | None
    utilisation: Utilisation | None = None
    memory: MemoryFit | None = None
    is_reachable: bool | None = None
    notes: tuple[Note, ...] = ()


def estimate(
    setup: Setup, *, throughput_tok_s: float | None = None, anchor: Anchor | None = None
) -> Estimate:
    """Return what a run could reach on its device, whether it fits and, given its throughput, its MFU.

    `anchor` is the measured peak memory of a similar run to predict from.
    """
    check_above_zero(throughput_tok_s=throughput_tok_s)
    if setup.model is None or setup.plan is None:
        raise BadOption("an estimate needs the model", supply="{model} with {batch} and {seq}")
    figures = figures_of(setup)
    if not figures.bandwidth() and not figures.compute(setup.plan.dtype):
        raise BadOption("an estimate needs the hardware", supply="{device}, or {peak_bw_gb_s}")
    shape = read_model(setup.model)
    found = estimate_plan(figures, costs_of(setup, shape), setup.plan, throughput_tok_s)
    found = structs.replace(found, expected_tok_s=expected(shape, figures, setup.plan, found))
    memory = memory_fit(shape, setup.plan, figures.device, anchor)
    reachable = {"fits": True, "does_not_fit": False}.get(memory.verdict or "")
    return structs.replace(found, memory=memory, is_reachable=reachable)


def expected(shape: ModelShape, figures: Figures, plan: Plan, found: Estimate) -> Expected | None:
    """Return the tokens/s of each device that the run can be expected to reach; None if that is unknown."""
    cluster = Cluster(devices=plan.parallel.devices)
    model = StepModel(shape, figures, cluster.links(figures))
    limit = found.achievable or found.bound_by
    if not model.is_known or limit is None:
        return None
    devices = plan.parallel.devices
    rate = expected_rate(shape, plan, model.seconds(plan), limit.tok_s * devices)
    return rate.scaled(1 / devices)


def estimate_plan(figures: Figures, costs: ModelCosts, plan: Plan, tok_s: float | None = None) -> Estimate:
    """Return what the run could reach; with the run's measured `tok_s` also its MFU and HFU."""
    target = planned_target(figures, costs, plan)
    ridge = figures.ridge_point(plan.dtype)
    limits, bound = target.ceilings, target.roof
    # Below so many tokens per micro-batch memory is the limit, above it compute. No batch is large enough
    # if every token moves more bytes than the ridge point allows.
    room = 0.0 if ridge is None else costs.flops.hardware / ridge - costs.traffic.own
    rates, devices, used = figures.compute(plan.dtype), plan.parallel.devices, None
    if tok_s is not None:
        efficiency = None if bound is None else tok_s / devices / bound.tok_s
        flops = (costs.flops.model, costs.flops.hardware, costs.flops_palm.model)
        peak = rates[0].per_s / FLOPS_PER_TFLOP if rates else None
        mfu, hfu, mfu_palm = (peak and utilisation(tok_s, count, peak, devices) for count in flops)
        highest = max(efficiency or 0.0, hfu or 0.0)
        used = Utilisation(
            tok_s=tok_s,
            tok_s_per_device=tok_s / devices,
            mfu=mfu,
            hfu=hfu,
            mfu_palm=mfu_palm,
            efficiency=efficiency,
            above_one_because=why_above_one(
                highest, bound.kind if bound else "", seq=plan.seq, devices=devices
            ),
        )
    # What is not known about the hardware has no ceiling.
    name = figures.device.name if figures.device else "the device"
    notes = []
    if not rates:
        known = ", ".join(figures.device.peak_tflops) if figures.device else ""
        has = f" (it has {known})" if known else ""
        text = f"no {plan.dtype} peak is known for {name}{has}: no compute ceiling, no MFU"
        notes.append(Note("no_peak", text))
    if not figures.bandwidth():
        notes.append(Note("no_bandwidth", f"no memory bandwidth is known for {name}: no memory ceiling"))
    if devices > 1 and not figures.link():
        text = f"no link ceiling, because no link rate is known for {name}"
        notes.append(Note("no_link_rate", text, supply="{link_gb_s}"))
    return Estimate(
        device=figures.device,
        plan=plan,
        costs=costs,
        ceilings=limits,
        bound_by=bound,
        achievable=lowest_achievable(limits),
        expected_tok_s=None,
        bytes_per_token=costs.traffic.total,
        link_bytes_per_step=costs.link.total if costs.link else None,
        ridge_flops_per_byte=ridge,
        intensity_flops_per_byte=costs.flops.hardware / costs.traffic.total,
        crossing_tokens=costs.traffic.shared * plan.tokens / room if room > 0 else None,
        utilisation=used,
        notes=(*target.notes, *notes, Note("traffic_model", TRAFFIC_NOTE)),
    )
