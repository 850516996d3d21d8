"""What a planned run could reach on a device, and why: the answer behind `stepgrade estimate`."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.catalogue import Device
from stepgrade.hardware.ceilings import (
    FLOPS_PER_TFLOP,
    Costs,
    Figures,
    Rate,
    ceilings,
    lowest,
    lowest_achievable,
)
from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION, Convention
from stepgrade.hardware.cost.flops import Flops, count, flops_per_token
from stepgrade.hardware.cost.links import LinkTraffic, link_traffic
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.cost.traffic import Traffic, traffic_per_token, trained_parameters
from stepgrade.hardware.efficiency import utilisation, why_above_one
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.model.ceiling import Ceiling
from stepgrade.model.notes import Result

TRAFFIC_NOTE = (
    "bytes are a model of what must be moved, not checked against memory counters: fusion and caches "
    "can halve or double the activations"
)


class ModelCosts(Struct, frozen=True, kw_only=True):
    """What one token of a planned run costs, whatever the device."""

    architecture: str
    parameters: int
    active_parameters: int
    trained_parameters: int
    flops: Flops
    flops_palm: Flops
    traffic: Traffic
    link: LinkTraffic | None
    notes: tuple[str, ...] = ()

    @property
    def per_token(self) -> Costs:
        """Return the costs that ceilings are made of."""
        return Costs(
            flops=self.flops.hardware,
            flops_count=f"{self.flops.hardware / 1e9:.4g} GFLOP per token ({self.flops.convention})",
            bytes=self.traffic.total,
            bytes_count=f"{self.traffic.total / 1e6:.4g} MB per token (compulsory traffic)",
            link_bytes=self.link.per_token if self.link else None,
            link_count=f"{self.link.per_token / 1e6:.4g} MB sent per token" if self.link else "",
        )


class Utilisation(Struct, frozen=True, kw_only=True):
    """What a measured throughput makes of the device; None where no peak is known."""

    tok_s: float
    tok_s_per_device: float
    mfu: float | None
    hfu: float | None
    mfu_palm: float | None
    efficiency: float | None
    above_one_because: tuple[str, ...] = ()


class Estimate(Result, frozen=True, kw_only=True):
    """The ceilings of a planned run, all in tok/s per device."""

    device: Device | None
    plan: Plan
    costs: ModelCosts
    ceilings: tuple[Ceiling, ...]
    bound_by: Ceiling | None
    achievable: Ceiling | None
    bytes_per_token: float
    link_bytes_per_step: float | None
    ridge_flops_per_byte: float | None
    intensity_flops_per_byte: float
    crossing_tokens: float | None
    utilisation: Utilisation | None = None
    notes: tuple[str, ...] = ()


def model_costs(shape: ModelShape, plan: Plan, convention: Convention | None = None) -> ModelCosts:
    """Return FLOPs, bytes and link bytes of one token, by `convention` and by PaLM's."""
    counts = count(shape, plan)
    return ModelCosts(
        architecture=shape.architecture,
        parameters=shape.parameters,
        active_parameters=shape.active_parameters,
        trained_parameters=trained_parameters(shape, plan),
        flops=flops_per_token(counts, plan, convention or CONVENTIONS[DEFAULT_CONVENTION]),
        flops_palm=flops_per_token(counts, plan, CONVENTIONS["palm"]),
        traffic=traffic_per_token(shape, plan),
        link=link_traffic(shape, plan) if plan.parallel.devices > 1 else None,
        notes=shape.notes,
    )


def estimate_plan(figures: Figures, costs: ModelCosts, plan: Plan, tok_s: float | None = None) -> Estimate:
    """Return what the run could reach; with the run's measured `tok_s` also its MFU and HFU."""
    limits = ceilings(figures, costs.per_token, plan.dtype)
    bound = lowest(limits)
    return Estimate(
        device=figures.device,
        plan=plan,
        costs=costs,
        ceilings=limits,
        bound_by=bound,
        achievable=lowest_achievable(limits),
        bytes_per_token=costs.traffic.total,
        link_bytes_per_step=costs.link.total if costs.link else None,
        ridge_flops_per_byte=ridge_point(figures, plan.dtype),
        intensity_flops_per_byte=costs.flops.hardware / costs.traffic.total,
        crossing_tokens=crossing_tokens(figures, costs, plan),
        utilisation=None if tok_s is None else utilise(figures, costs, plan, tok_s, bound),
        notes=(*costs.notes, *missing_figures(figures, plan), TRAFFIC_NOTE),
    )


def utilise(
    figures: Figures, costs: ModelCosts, plan: Plan, tok_s: float, bound: Ceiling | None
) -> Utilisation:
    """Return MFU, HFU and the share of the lowest ceiling for the throughput of the whole run."""
    devices = plan.parallel.devices
    peak = _stated_peak_tflops(figures, plan.dtype)
    per_device = tok_s / devices

    def share(flops: float) -> float | None:
        return None if peak is None else utilisation(tok_s, flops, peak, devices)

    efficiency = None if bound is None else per_device / bound.tok_s
    highest = max(known for known in (efficiency, share(costs.flops.hardware), 0.0) if known is not None)
    return Utilisation(
        tok_s=tok_s,
        tok_s_per_device=per_device,
        mfu=share(costs.flops.model),
        hfu=share(costs.flops.hardware),
        mfu_palm=share(costs.flops_palm.model),
        efficiency=efficiency,
        above_one_because=why_above_one(highest, bound.kind if bound else "", seq=plan.seq, devices=devices),
    )


def ridge_point(figures: Figures, dtype: str) -> float | None:
    """Return the FLOPs per byte above which a run is limited by arithmetic; None when not known."""
    peak, bandwidth = _first(figures.compute(dtype)), _first(figures.bandwidth())
    return None if peak is None or bandwidth is None else peak / bandwidth


def crossing_tokens(figures: Figures, costs: ModelCosts, plan: Plan) -> float | None:
    """Return the tokens per micro-batch where memory and compute ceilings meet.

    Below it memory is the limit, above it arithmetic. None when a figure is missing, or when no
    batch is large enough because every token brings more bytes than the ridge allows.
    """
    ridge = ridge_point(figures, plan.dtype)
    if ridge is None:
        return None
    room = costs.flops.hardware / ridge - costs.traffic.own
    return costs.traffic.shared * plan.tokens / room if room > 0 else None


def missing_figures(figures: Figures, plan: Plan) -> tuple[str, ...]:
    """Return what is not known of the hardware, and so has no ceiling."""
    name = figures.device.name if figures.device else "the device"
    missing = []
    if not figures.compute(plan.dtype):
        known = ", ".join(figures.device.peak_tflops) if figures.device else ""
        has = f" (it has {known})" if known else ""
        missing.append(f"no {plan.dtype} peak is known for {name}{has}: no compute ceiling, no MFU")
    if not figures.bandwidth():
        missing.append(f"no memory bandwidth is known for {name}: no memory ceiling")
    if plan.parallel.devices > 1 and not figures.link():
        missing.append(f"no link rate is known for {name}: no link ceiling; give --link GB_S")
    return tuple(missing)


def _stated_peak_tflops(figures: Figures, dtype: str) -> float | None:
    peak = _first(figures.compute(dtype))
    return None if peak is None else peak / FLOPS_PER_TFLOP


def _first(rates: tuple[Rate, ...]) -> float | None:
    return rates[0].per_s if rates else None
