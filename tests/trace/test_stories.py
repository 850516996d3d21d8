"""What is known of the real traces comes out."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stepgrade.model.events import Trace
from stepgrade.trace import analyse_run, analyse_trace

pytestmark = pytest.mark.samples
Read = Callable[[str], Trace]


def shares(trace: Trace) -> dict[str, float]:
    ledger = analyse_trace(trace).ledger
    assert ledger is not None
    return ledger.shares()


def test_without_loader_workers_resnet_waits_for_input_and_with_four_it_does_not(sample: Read) -> None:
    none = shares(sample("kineto_v3_2021-06_resnet50_train_workers0"))
    four = shares(sample("kineto_v3_2021-06_resnet50_train_workers4"))
    assert none["idle_input"] > 0.3
    assert max(none, key=lambda name: none[name] * (name != "compute")) == "idle_input"
    assert four["idle_input"] < 0.01
    assert four["compute"] > none["compute"] + 0.15


def test_the_oldest_schema_tells_the_same_story(sample: Read) -> None:
    assert shares(sample("kineto_v1"))["idle_input"] > 0.2


def test_eight_ranks_show_their_collectives_and_who_is_late(sample: Read) -> None:
    facts = analyse_run(sample(f"8xH100_rank{rank}") for rank in range(8))
    kinds = {one.name for trace in facts.traces for one in trace.collectives}
    assert kinds == {"_reduce_scatter_base", "_allgather_base"}
    assert facts.meetings is not None
    assert (facts.meetings.matched, facts.meetings.unmatched) == (56, 0)
    assert facts.meetings.straggler == 1
    waits = {one.rank: one.wait_ns / 4e6 for one in facts.meetings.ranks}
    assert waits.pop(1) < 2
    assert min(waits.values()) > 7
    transfers = [one.transfer_ns for one in facts.meetings.ranks]
    assert max(transfers) < 1.1 * min(transfers)  # the same bytes take all of them the same time
    idle = {one.rank: one.ledger.shares()["idle_host"] for one in facts.ranks if one.ledger}
    assert max(idle, key=lambda rank: idle[rank]) == 1


def test_ranks_that_meet_in_collectives_have_steps_of_one_length(sample: Read) -> None:
    lengths = [analyse_trace(sample(f"8xH100_rank{rank}")).steady_ns for rank in (3, 5, 7)]
    for step in zip(*lengths, strict=True):
        assert max(step) - min(step) < 100_000  # the hosts' own steps differ by up to 10 ms


def test_resnet_with_checkpoints_shows_what_it_computes_twice(sample: Read) -> None:
    layers = analyse_trace(sample("resnet_act_checkpoint")).layers
    assert layers.basis == "modules"
    assert [one.name for one in layers.layers] == [f"BasicBlock_{number}" for number in range(8)]
    for one in layers.layers:
        assert 0.6 * one.forward_ns < one.recompute_ns < 1.1 * one.forward_ns
        assert one.forward_ns < one.backward_ns
    assert analyse_trace(sample("ddp_resnet18")).layers.recompute_ns == 0


def test_a_host_that_runs_ahead_does_not_shorten_the_first_step(sample: Read) -> None:
    facts = analyse_trace(sample("hta_ns_resolution"))
    assert [round(step.host_dur_ns / 1e6) for step in facts.steps] == [35, 72, 96, 96, 96]
    assert [round(step.dur_ns / 1e6) for step in facts.steps] == [98, 96, 96, 96, 95]
    assert {step.mark for step in facts.steps} == {"steady"}


def test_an_allocator_without_cache_is_seen_as_waiting(sample: Read) -> None:
    facts = analyse_trace(sample("ddp_resnet18"))
    assert facts.basis == "optimizer"
    assert facts.ledger is not None
    assert facts.ledger.shares()["idle_sync"] > 0.9
    assert facts.waits[0].name == "hipFree"


def test_removing_synchronisation_shows(sample: Read) -> None:
    before, after = shares(sample("ao_ref_ep")), shares(sample("ao_syncless_ep"))
    assert before["idle_sync"] > 0.03
    assert after["idle_sync"] == 0


def test_a_small_improvement_stays_small(sample: Read) -> None:
    before = sum(analyse_trace(sample("adamhook_before")).steady_ns)
    after = sum(analyse_trace(sample("adamhook_after")).steady_ns)
    assert 0.98 < after / before < 1


def test_symmetric_memory_reductions_are_communication(sample: Read) -> None:
    facts = analyse_trace(sample("tl_b200"))
    talk = sum(one.total_ns for one in facts.operations if one.work_class == "communication")
    assert talk / sum(one.total_ns for one in facts.operations) > 0.18
    assert [one.name for one in facts.layers.layers] == [f"TransformerBlock_{number}" for number in range(36)]


def test_attention_and_matmuls_reach_plausible_speeds(sample: Read) -> None:
    facts = analyse_trace(sample("tl_torch_compile_triton"))
    speed = {one.name: one.costed_flops / one.costed_ns / 1e3 for one in facts.operations if one.costed_ns}
    assert 500 < speed["aten::mm"] < 1307  # TFLOP/s, the data sheet of an MI300X
    assert 250 < speed["aten::_flash_attention_forward"] < 1307


@pytest.mark.parametrize("part", ["hta_cupti", "hta_rank_not_found"])
def test_a_device_that_was_not_recorded_is_said(sample: Read, part: str) -> None:
    facts = analyse_trace(sample(part))
    assert facts.driver == "unseen"
    assert facts.ledger is None


def test_a_cpu_run_is_its_own_device(sample: Read) -> None:
    facts = analyse_trace(sample("hta_cpu_only_rank34_full"))
    assert facts.driver == "host"
    assert facts.ledger is not None
    assert facts.ledger.shares()["exposed_communication"] > 0.8
