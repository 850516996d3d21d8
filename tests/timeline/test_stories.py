"""What is known of the real traces comes out."""

from __future__ import annotations

import numpy as np
import pytest

from stepgrade.model.events import Trace
from stepgrade.ranks.ranks import merge_ranks
from stepgrade.timeline.timeline import build_timeline
from stepgrade.trace.profile import analyse_rank
from tests.kineto_traces import read_sample, sample_names
from tests.trace_builder import analyse_trace

pytestmark = pytest.mark.samples


def sample(part: str) -> Trace:
    """Return the real trace whose name contains `part`."""
    return read_sample(next(name for name in sample_names() if part in name))


def shares(trace: Trace) -> dict[str, float]:
    ledger = analyse_trace(trace).ledger
    assert ledger is not None
    return ledger.shares()


def test_without_loader_workers_resnet_waits_for_input_and_with_four_it_does_not() -> None:
    none = shares(sample("kineto_v3_2021-06_resnet50_train_workers0"))
    four = shares(sample("kineto_v3_2021-06_resnet50_train_workers4"))
    assert none["idle_input"] > 0.3
    assert max(none, key=lambda name: none[name] * (name != "compute")) == "idle_input"
    assert four["idle_input"] < 0.01
    assert four["compute"] > none["compute"] + 0.15


def test_the_oldest_schema_tells_the_same_story() -> None:
    assert shares(sample("kineto_v1"))["idle_input"] > 0.2


def test_eight_ranks_show_their_collectives_and_who_is_late() -> None:
    ranks = [analyse_rank(sample(f"8xH100_rank{rank}")) for rank in range(8)]
    profile = merge_ranks(ranks)
    assert profile.activity is not None
    kinds = {one.name for one in profile.activity.collectives}
    assert kinds == {"_reduce_scatter_base", "_allgather_base"}
    assert any("of 36 collectives" in note.text for note in profile.notes)
    assert {len(rank.arrivals) for rank in ranks} == {56}  # each of them has its like on all ranks
    assert profile.activity.straggler is not None
    assert profile.activity.straggler.rank == 1
    waits = {one.rank: one.wait_ms or 0.0 for one in profile.ranks}
    counted = {step.number for step in ranks[0].steps if step.steady}  # not the last, which has no end
    assert counted == {10, 11, 12}
    inside = [
        sum(
            dur_ns
            for step, dur_ns in zip(
                np.frombuffer(rank.arrivals.step, "<i8").tolist(),
                np.frombuffer(rank.arrivals.dur_ns, "<i8").tolist(),
                strict=True,
            )
            if step in counted
        )
        / len(counted)
        / 1e6
        for rank in ranks
    ]
    transfers = [ms - waits[rank] for rank, ms in enumerate(inside)]
    assert max(transfers) < 1.1 * min(transfers)  # the same bytes take all of them the same time
    assert waits.pop(1) < 2
    assert min(waits.values()) > 7
    idle = {one.rank: one.ledger.shares()["idle_host"] for one in profile.ranks if one.ledger}
    assert max(idle, key=lambda rank: idle[rank]) == 1


def test_ranks_that_meet_in_collectives_have_steps_of_one_length() -> None:
    lengths = [analyse_trace(sample(f"8xH100_rank{rank}")).samples_ms for rank in (3, 5, 7)]
    for step in zip(*lengths, strict=True):
        assert max(step) - min(step) < 0.1  # the hosts' own steps differ by up to 10 ms


def test_resnet_with_checkpoints_shows_what_it_computes_twice() -> None:
    profile = analyse_trace(sample("resnet_act_checkpoint"))
    assert profile.contents["layers from"] == "modules"
    assert [layer.name for layer in profile.layers] == [f"BasicBlock_{number}" for number in range(8)]
    for layer in profile.layers:
        forward, backward, again = layer.fwd_ms, layer.bwd_ms, layer.recompute_ms
        assert forward
        assert backward
        assert again
        assert 0.6 * forward < again < 1.1 * forward
        assert forward < backward
    without = analyse_trace(sample("ddp_resnet18")).activity
    assert without is not None
    assert without.recompute_ms == 0


def test_a_host_that_runs_ahead_does_not_shorten_the_first_step() -> None:
    timeline = build_timeline(sample("hta_ns_resolution"))
    host_ns = timeline.steps.end_ns - timeline.steps.start_ns
    assert [round(ns / 1e6) for ns in host_ns.tolist()] == [35, 72, 96, 96, 96]
    assert [round(ns / 1e6) for ns in timeline.windows.dur_ns.tolist()] == [98, 96, 96, 96, 95]
    assert [str(mark) for mark in timeline.windows.mark] == ["steady"] * 4 + ["open"]


def test_an_allocator_without_cache_is_seen_as_waiting() -> None:
    profile = analyse_trace(sample("ddp_resnet18"))
    assert profile.contents["steps from"] == "optimizer"
    assert profile.ledger is not None
    assert profile.ledger.shares()["idle_sync"] > 0.9
    assert profile.activity is not None
    assert profile.activity.waits[0].call == "hipFree"


def test_removing_synchronisation_shows() -> None:
    before, after = shares(sample("ao_ref_ep")), shares(sample("ao_syncless_ep"))
    assert before["idle_sync"] > 0.03
    assert after["idle_sync"] == 0


def test_a_small_improvement_stays_small() -> None:
    before = sum(analyse_trace(sample("adamhook_before")).samples_ms)
    after = sum(analyse_trace(sample("adamhook_after")).samples_ms)
    assert 0.98 < after / before < 1


def test_symmetric_memory_reductions_are_communication() -> None:
    profile = analyse_trace(sample("tl_b200"))
    talk = sum(op.ms for op in profile.operations if op.kind == "communication")
    assert talk / sum(op.ms for op in profile.operations) > 0.18
    assert [layer.name for layer in profile.layers] == [f"TransformerBlock_{number}" for number in range(36)]


def test_attention_and_matmuls_reach_plausible_speeds() -> None:
    profile = analyse_trace(sample("tl_torch_compile_triton"))
    speed = {op.name: op.flops / op.ms / 1e9 for op in profile.operations if op.flops}
    assert 500 < speed["aten::mm"] < 1307  # TFLOP/s, the data sheet of an MI300X
    assert 250 < speed["aten::_flash_attention_forward"] < 1307


@pytest.mark.parametrize("part", ["hta_cupti", "hta_rank_not_found"])
def test_a_device_that_was_not_recorded_is_said(part: str) -> None:
    profile = analyse_trace(sample(part))
    assert profile.activity is not None
    assert profile.activity.driver == "unseen"
    assert profile.ledger is None


def test_a_cpu_run_is_its_own_device() -> None:
    profile = analyse_trace(sample("hta_cpu_only_rank34_full"))
    assert profile.activity is not None
    assert profile.activity.driver == "host"
    assert profile.ledger is not None
    assert profile.ledger.shares()["exposed_communication"] > 0.8
