"""How much of the time of real runs has FLOPs or bytes, and that nothing is faster than its device."""

from __future__ import annotations

import pytest

import stepgrade as sg
from tests.samples import shared

# The share of the time outside communication that must be known: compiled runs, ResNets.
GOALS = {
    "modded-nanogpt_20251211_8xH100_rank0.json.gz": 0.95,
    "modded-nanogpt_20251031_adamhook_before_rank0.json.gz": 0.95,
    "modded-nanogpt_20251031_adamhook_after_rank0.json.gz": 0.95,
    "tl_torch_compile_triton.json.gz": 0.95,
    "tl_mi300_resnet_act_checkpoint_train.json.gz": 0.97,
    "tl_mi300_ddp_resnet18_train.json.gz": 0.97,
    "kineto_v3_2021-06_resnet50_train_workers0_a.pt.trace.json.gz": 0.97,
}


@pytest.mark.samples
@pytest.mark.parametrize("name", GOALS)
def test_nearly_all_time_is_known_and_no_row_beats_its_roof(name: str) -> None:
    card = sg.score(sg.load(shared("samples/kineto") / name, cache=False))
    assert card.counted_share is not None
    assert card.counted_share >= GOALS[name]
    rows = [(op.name, row.shape, row.roof_share) for op in card.operations for row in op.shapes]
    assert rows
    assert [row for row in rows if row[2] is not None and row[2] > 1.0] == []
    assert all((op.roof_share or 0.0) <= 1.0 for op in card.operations)
