"""Questions to real traces; where the change was made for good, its run is the answer."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import NotMeasured
from stepgrade.readers.ranks import read_ranks
from tests.samples import shared

pytestmark = pytest.mark.samples


def sample(name: str) -> Path:
    return shared("samples/kineto") / name


def test_more_loader_workers_bring_what_their_absence_was_said_to_cost() -> None:
    """ResNet-50 with a loader without workers, and the same with four: the change that was asked about."""
    name = "kineto_v3_2021-06_resnet50_train_workers{}_a.pt.trace.json.gz"
    (answer,) = sg.what_if(sample(name.format(0)), [sg.AssumedChange(what="input")]).answers
    after = sg.what_if(sample(name.format(4))).step_ms
    assert answer.step_ms == pytest.approx(after, rel=0.1)


@pytest.mark.parametrize(
    "name",
    [
        "hta_ns_resolution_rank0.pt.trace.json.gz",
        "modded-nanogpt_20251031_adamhook_before_rank0.json.gz",
        "ao_ref_ep_moe_fwd.json",
        "tl_mi300_ddp_resnet18_train.json.gz",
        "part_cpu_only_tb.pt.trace.json",
    ],
)
def test_real_steps_are_replayed_as_they_were(name: str) -> None:
    found = sg.what_if(sample(name))
    assert found.replayed_ms == pytest.approx(found.step_ms, rel=0.01)
    for answer in found.answers:
        assert 0.0 <= answer.low_ms <= answer.step_ms <= answer.high_ms <= found.step_ms * 1.01


def test_two_ranks_without_communication_still_do_the_rest_of_their_work() -> None:
    found = sg.what_if(
        shared("samples/nsys") / "nsysai_mfu_2gpu_before.sqlite", [sg.AssumedChange(what="communication")]
    )
    assert found.answers[0].step_ms >= 258.0  # what the busier stream computes and copies


def test_eight_ranks_are_replayed_together() -> None:
    """In some of their steps the hosts run ahead of the devices; those that repeat themselves are asked."""
    ranks = sorted(shared("samples/kineto").glob("modded-nanogpt_20251211_8xH100_rank*.json.gz"))
    found = sg.what_if(read_ranks(ranks), [sg.AssumedChange(what="communication")])
    assert found.ranks == 8
    assert found.replayed_ms == pytest.approx(found.step_ms, rel=0.02)
    assert found.answers[0].gain < 0.05  # the ranks wait for one whose host launches late


def test_a_trace_that_holds_too_little_is_refused() -> None:
    with pytest.raises(NotMeasured, match="its replay"):
        sg.what_if(sample("hta_trace_compare_base.json.gz"))
