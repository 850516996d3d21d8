"""Expected throughput: near what others published, within its interval, below the ceiling, and consistent."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from typing import Any

import pytest
from msgspec import structs

from stepgrade.cli.plan import token_count
from stepgrade.hardware.catalogue import find_device
from stepgrade.hardware.ceilings import Figures
from stepgrade.hardware.cluster import Cluster, LinkRates
from stepgrade.hardware.cost.model_costs import model_costs
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.planner import PlanRequest, rank_plans
from stepgrade.hardware.throughput import (
    INTERVALS,
    Rates,
    StepModel,
    achieved_rate,
    expected_rate,
)
from stepgrade.statistics import median, quantile
from tests.hardware.published_throughput import Run, error, runs, shape_of

# Every rate at its best, nothing hidden, nothing lost.
IDEAL = Rates(
    **dict.fromkeys(Rates.__struct_fields__, 1.0)
    | dict.fromkeys(("width", "host_s", "host_experts_s", "straggler", "casts", "permutes", "adapters"), 0.0)
)
FIGURES = Figures(device=find_device("h100-sxm5-80gb"))
SHAPE = shape_of("LLAMA3_8B")
RATE = 794.5e12  # the best matmul rate measured on an H100
BASE = Plan(batch=1, seq=4096, kernels="te", loss="megatron", weights="megatron")


def step(plan: Plan = BASE, rates: Rates = IDEAL, **cluster: Any) -> Any:
    links = Cluster(devices=plan.parallel.devices, **cluster).links(FIGURES)
    return StepModel(SHAPE, FIGURES, links, rates).step(plan)


def on(devices: int, **sizes: Any) -> Plan:
    return structs.replace(BASE, parallel=Parallelism(devices=devices, **sizes))


def test_published_runs_are_near() -> None:
    """As shipped, on the runs that rates are fitted to; benchmarks/throughput.py leaves sources out."""
    off = sorted(abs(math.expm1(error(run))) for run in runs())
    assert len(off) >= 500
    assert median(off) <= 0.12
    assert quantile(off, 0.9) <= 0.32


@pytest.mark.parametrize("kind", INTERVALS)
def test_intervals_hold_nine_in_ten(kind: str) -> None:
    low, high = INTERVALS[kind]
    ratios = [math.exp(-error(run)) for run in runs() if run.kind == kind]
    assert sum(low <= ratio <= high for ratio in ratios) >= 0.89 * len(ratios)


# Printed by their projects, and more than the device can compute: 4 FLOPs a weight and token alone take 91 % of
# the A6000's peak.
ABOVE = {"torchtune, LLAMA3_8B, 1, rtx-a6000, bf16, 2048"}


def test_no_published_run_is_above_its_ceiling() -> None:
    above = set()
    for run in runs():
        flops = model_costs(run.shape, structs.replace(run.plan, checkpointing="none")).flops.model
        if run.measured * flops > run.figures.compute(run.plan.dtype)[-1].per_s:
            above.add(run.label)
    assert above <= ABOVE


def test_matrices_and_attention_take_what_their_flops_take() -> None:
    """With every rate at its best: FLOPs by the cost model over the device's measured rate."""
    found, flops = step(), model_costs(SHAPE, BASE).flops
    assert found.matrices == pytest.approx(BASE.tokens * flops.weights / RATE)
    assert found.attention == pytest.approx(BASE.tokens * flops.attention / RATE)
    again = step(structs.replace(BASE, checkpointing="full"))
    assert again.recompute == pytest.approx(
        (BASE.tokens * (flops.weights / 3 - 2 * SHAPE.head) + BASE.tokens * flops.attention / 3) / RATE
        + (found.vector - BASE.tokens * SHAPE.vocab * 16 / (3350e9)) / 3
    )


def test_a_step_is_the_sum_of_its_parts_and_none_is_negative() -> None:
    for run in runs():
        links = run.cluster.links(run.figures)
        found = StepModel(run.shape, run.figures, links).step(run.plan)
        assert found.total == pytest.approx(sum(found.parts().values()))
        assert all(value >= 0.0 for value in found.parts().values())


def test_tensor_parallelism_sends_four_all_reduces_a_layer() -> None:
    plan = on(2, tensor=2, sequence=True)
    amount = 4 * 32 * 2 * (1 / 2) * 4096 * 4096 * 2
    assert step(plan).tensor == pytest.approx(amount / 450e9)
    assert step(plan, per_node=1, network_gb_s=10).tensor == pytest.approx(amount / 10e9)


def test_a_pipeline_waits_for_its_ends() -> None:
    """Of n micro-batches and p stages, p - 1 slots are empty; v chunks a device make them v times shorter."""
    full = structs.replace(on(4, pipeline=4), micro_batches=8)
    found = step(full)
    busy = sum(found.parts()[name] for name in ("matrices", "attention", "vector"))
    assert found.bubble == pytest.approx(busy * 3 / 8)
    split = structs.replace(full, parallel=Parallelism(devices=4, pipeline=4, virtual=2))
    assert step(split).bubble == pytest.approx(found.bubble / 2)


def test_embedding_and_loss_may_stand_for_layers() -> None:
    """34 stages of a 32-layer model: the longest has one layer, and the last one only the head."""
    plan = structs.replace(on(34, pipeline=34), micro_batches=34)
    found, whole = step(plan), step()
    head = 6 * BASE.tokens * SHAPE.head / RATE
    layer = (whole.matrices - head) / 32
    assert found.matrices == pytest.approx(34 * max(layer, head), rel=0.02)


def test_collectives_of_a_whole_node_share_its_adapters() -> None:
    links = LinkRates(per_node=8, inside=450.0, network=50.0)
    assert links.rate(8) == 450.0
    assert links.rate(64) == 400.0  # eight adapters
    assert links.rate(8, stride=8) == 50.0  # one device of each node
    assert links.exchange_seconds(1.0, 8) == pytest.approx(7 / 8 / 450)
    assert links.exchange_seconds(1.0, 64) == pytest.approx((1 - 8 / 64) / 50)


@pytest.mark.parametrize(
    ("device", "per_node", "network"),
    [("gb200", 72, 50e9), ("gb300", 72, 100e9), ("tpu-v5p", 8960, 6.25e9), ("a100-sxm4-80gb", 8, 25e9)],
)
def test_domains_of_fast_links_are_known(device: str, per_node: int, network: float) -> None:
    links = Cluster(devices=8).links(Figures(device=find_device(device)))
    assert (links.per_node, links.network) == (per_node, network)
    own = Cluster(devices=8, per_node=4, network_gb_s=1).links(Figures(device=find_device(device)))
    assert (own.per_node, own.network) == (4, 1e9)


@pytest.mark.parametrize(
    ("device", "share", "source"),
    [
        ("h100-sxm5-80gb", 794.5 / 989.4, "measured on this kind"),
        ("gb300", 1769 / 2250, "measured on B300"),
        ("h100-sxm5-96gb-hbm2e", 794.5 / 989.4 * (500 / 700) ** 0.24, "measured on H100"),
        ("rtx-4090", 1.0, "GeForce"),
        ("tpu-v5p", None, "median share"),
    ],
)
def test_rates_are_measured_or_borrowed(device: str, share: float | None, source: str) -> None:
    found = achieved_rate(Figures(device=find_device(device)))
    assert found is not None
    assert source in found.source
    peak = find_device(device).peak_tflops["bf16"] * 1e12
    assert 0.5 < found.per_s / peak <= 1.0
    assert share is None or found.per_s / peak == pytest.approx(share, rel=1e-3)


def test_nothing_is_expected_above_the_ceiling() -> None:
    found = expected_rate(SHAPE, BASE, 1.0, 5000.0)
    assert (found.mid, found.high) == (4096.0, 5000.0)
    assert expected_rate(SHAPE, BASE, 0.1, 5000.0).low == 5000.0


@pytest.mark.parametrize("model", ["LLAMA3_8B", "QWEN3_30B"])
def test_more_devices_are_never_slower(model: str) -> None:
    """With the same batch: where more devices would be slower, fewer of them are used."""
    expected = []
    for devices in (8, 16, 32, 64, 128, 256, 512):
        request = PlanRequest(cluster=Cluster(devices=devices), global_batch=64, most=1)
        plans = rank_plans(shape_of(model), FIGURES, Plan(batch=1, seq=4096), request).plans
        fitting = [plan for plan in plans if plan.verdict == "fits"]
        expected.append(fitting[0].expected_tok_s.mid if fitting else 0.0)
    assert expected == sorted(expected)
    assert expected[0] > 0


# Their optimizer states are smaller than any that these trainers keep.
REFUSED = {("AutoModel", "KIMI_K2"), ("MaxText", "LLAMA3_405B")}


def planned(run: Run) -> bool:
    """Return whether the run's own division is among all plans that fit, or are too close to call."""
    batch = int(run.row["global_batch"] or 2 * run.plan.parallel.replicas)
    request = PlanRequest(cluster=run.cluster, global_batch=batch, most=100_000)
    base = structs.replace(
        run.plan, batch=1, micro_batches=1, checkpointing="none", offload="none", parallel=Parallelism()
    )
    own = run.plan.parallel
    wanted = (own.tensor, own.pipeline, own.context, own.expert)
    found = rank_plans(run.shape, run.figures, base, request).plans
    return wanted in {(plan.tensor, plan.pipeline, plan.context, plan.expert) for plan in found}


@pytest.mark.slow
def test_what_was_done_is_not_refused() -> None:
    several = {run.label: run for run in runs() if run.plan.parallel.devices > 8}
    some = [*several.values()][::16]  # `benchmarks/accuracy.py` plans them all, in minutes
    refused = {(run.project, run.row["model"]) for run in some if not planned(run)}
    assert refused <= REFUSED


def test_money_energy_and_time_are_consistent() -> None:
    request = PlanRequest(cluster=Cluster(devices=16), global_batch=64, most=1, tokens=1e12, price=2.5)
    found = rank_plans(SHAPE, FIGURES, Plan(batch=1, seq=4096), request)
    cost, best = found.cost, found.plans[0]
    assert cost is not None
    assert cost.money is not None
    assert cost.energy_kwh is not None
    for name, rate in (("low", "high"), ("mid", "mid"), ("high", "low")):
        days = 1e12 / getattr(best.expected_tok_s, rate) / 86_400
        assert getattr(cost.days, name) == pytest.approx(days)
        assert getattr(cost.device_hours, name) == pytest.approx(days * 24 * best.devices)
        assert getattr(cost.money, name) == pytest.approx(2.5 * getattr(cost.device_hours, name))
        assert getattr(cost.energy_kwh, name) == pytest.approx(0.7 * getattr(cost.device_hours, name))
    assert (
        rank_plans(SHAPE, FIGURES, Plan(batch=1, seq=4096), structs.replace(request, tokens=None)).cost
        is None
    )


@pytest.mark.parametrize(("text", "count"), [("15T", 15e12), ("300b", 3e11), ("2.5e9", 2.5e9), ("7k", 7e3)])
def test_tokens_may_have_a_unit(text: str, count: float) -> None:
    assert token_count(text) == count
    with pytest.raises(ArgumentTypeError, match="not a number of tokens"):
        token_count(f"{text}x")
