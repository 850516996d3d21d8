"""The recorder's parts alone: adding up edges, device events, finding blocks, reading journals."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import stepgrade as sg
from stepgrade.errors import BadInput
from stepgrade.record.batches import BatchCounter
from stepgrade.record.blocks import find_blocks
from stepgrade.record.counts import StepCounts
from stepgrade.record.patches import Patches
from stepgrade.record.timeline import (
    AFTER_FORWARD,
    BACKWARD,
    BACKWARD_DONE,
    BWD_IN,
    BWD_OUT,
    ENVIRONMENT,
    FORWARD,
    FWD_IN,
    FWD_OUT,
    GRADIENTS,
    HOST,
    INPUT,
    LOSS,
    NONE,
    OPTIMIZER,
    RECOMPUTE_IN,
    RECOMPUTE_OUT,
    ROLLOUT,
    StepTimeline,
    fold_step,
    layer_code,
)
from stepgrade.record.totals import Totals


def fold(
    *edges: tuple[int, int], ends_by: dict[int, int | None] | None = None, exposed_ns: int = 0
) -> Totals:
    times, codes = zip(*edges, strict=True)
    return fold_step(list(times), list(codes), ends_by or {}, exposed_ns)


class TestCounts:
    """A generator and its judge: what the judge's pass does to the generator is dropped."""

    def test_gradients_that_nobody_uses_are_counted(self) -> None:
        made, judge = nn.Linear(4, 3), nn.Linear(3, 1)  # 15 and 4 weights
        of_made, of_judge = (torch.optim.SGD(part.parameters(), 0.1) for part in (made, judge))
        counts = StepCounts()
        counts.start(0)
        for _ in range(4):
            for optimizer in (of_judge, of_made):
                counts.before_zero_grad(optimizer)
                optimizer.zero_grad()
                judge(made(torch.ones(2, 4))).sum().backward()
                counts.after_backward()
                optimizer.step()
                counts.after_optimizer(optimizer)
        found = counts.counted(4)
        assert found is not None
        assert found.backward_passes == 2.0
        assert found.collectives == ()
        # From the second step on the judge's own are dropped too: the generator's pass goes through it.
        dropped = 3 * 15 + 3 * 4
        assert found.unused_gradients_share == pytest.approx(dropped / (dropped + 4 * 19))

    def test_a_usual_loop_uses_all_of_them(self) -> None:
        model = nn.Linear(4, 3)
        optimizer = torch.optim.AdamW(model.parameters())
        counts = StepCounts()
        assert counts.counted(3) is None
        counts.start(0)
        for _ in range(3):
            model(torch.ones(2, 4)).sum().backward()
            model(torch.ones(2, 4)).sum().backward()  # accumulated
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            counts.after_optimizer(optimizer)
            counts.before_zero_grad(optimizer)
            optimizer.zero_grad()
        found = counts.counted(3)
        assert found is not None
        assert (found.backward_passes, found.unused_gradients_share) == (0.0, 0.0)


class TestFold:
    def test_an_agent_that_acts_has_an_environment(self) -> None:
        step = fold(
            *(
                (0, NONE),
                (1, ROLLOUT),
                (3, NONE),
                (10, ROLLOUT),
                (12, NONE),
                (20, FORWARD),
                (25, AFTER_FORWARD),
            ),
            *((26, BACKWARD), (30, NONE), (30, OPTIMIZER), (33, NONE)),
        )
        assert step.phases_ns == {
            HOST: 1, ROLLOUT: 4, ENVIRONMENT: 15, FORWARD: 5, LOSS: 1, BACKWARD: 4, OPTIMIZER: 3
        }  # fmt: skip

    def test_between_forward_and_backward_is_the_loss(self) -> None:
        step = fold((0, FORWARD), (5, AFTER_FORWARD), (7, BACKWARD), (20, NONE), (22, OPTIMIZER), (30, NONE))
        assert step.phases_ns == {FORWARD: 5, LOSS: 2, BACKWARD: 13, GRADIENTS: 2, OPTIMIZER: 8}
        assert step.wall_ns == 30

    def test_gradients_set_to_zero_before_backward_leave_the_loss_whole(self) -> None:
        step = fold((0, FORWARD), (5, AFTER_FORWARD), (7, OPTIMIZER), (8, NONE), (9, BACKWARD), (20, NONE))
        assert step.phases_ns == {FORWARD: 5, LOSS: 3, OPTIMIZER: 1, BACKWARD: 11}

    def test_the_loop_between_optimizer_and_forward_is_the_hosts(self) -> None:
        edges = [
            (0, NONE),
            (1, OPTIMIZER),
            (2, NONE),
            (4, INPUT),
            (5, NONE),
            (6, FORWARD),
            (7, AFTER_FORWARD),
        ]
        step = fold(*edges, (7, BACKWARD), (9, NONE), (9, OPTIMIZER), (12, NONE), (15, NONE))
        assert step.phases_ns == {HOST: 7, INPUT: 1, OPTIMIZER: 4, FORWARD: 1, BACKWARD: 2}

    def test_a_step_whose_forward_is_not_seen_tells_nothing_of_its_gaps(self) -> None:
        step = fold((0, NONE), (5, BACKWARD), (7, NONE), (9, NONE))
        assert step.phases_ns == {BACKWARD: 2}
        assert fold((0, NONE), (5, OPTIMIZER), (7, NONE), (9, NONE)).phases_ns == {OPTIMIZER: 2}

    def test_after_a_forward_without_backward_is_nothing(self) -> None:
        assert fold((0, FORWARD), (5, AFTER_FORWARD), (9, INPUT), (10, NONE)).phases_ns == {
            FORWARD: 5,
            INPUT: 1,
        }

    def test_one_gradient_ends_a_layer_and_begins_another(self) -> None:
        edges = [
            (0, BACKWARD),
            (1, layer_code(1, BWD_IN)),
            (4, layer_code(0, BWD_IN)),
            (9, layer_code(0, BWD_OUT)),
        ]
        step = fold(*edges, (10, BACKWARD_DONE), (10, NONE), ends_by={1: 0, 0: None})
        assert step.backward_ns == {1: 3, 0: 5}

    def test_the_end_of_backward_ends_what_has_no_other_end(self) -> None:
        step = fold((0, BACKWARD), (2, layer_code(0, BWD_IN)), (9, BACKWARD_DONE), (9, NONE), (50, NONE))
        assert step.backward_ns == {0: 7}

    def test_an_all_reduce_that_outlasts_backward_is_not_the_last_layers(self) -> None:
        edges = [(0, BACKWARD), (2, layer_code(0, BWD_IN)), (9, BACKWARD_DONE), (9, NONE)]
        assert fold(*edges, exposed_ns=3).backward_ns == {0: 4}
        assert fold(*edges, exposed_ns=30).backward_ns == {0: 0}

    def test_computing_again_is_not_backward(self) -> None:
        edges = [
            (0, BACKWARD),
            (1, layer_code(0, BWD_IN)),
            (2, layer_code(0, RECOMPUTE_IN)),
            (6, layer_code(0, RECOMPUTE_OUT)),
        ]
        step = fold(*edges, (9, layer_code(0, BWD_OUT)), (10, BACKWARD_DONE), (10, NONE))
        assert (step.backward_ns, step.recompute_ns) == ({0: 4}, {0: 4})

    def test_a_layer_that_is_called_twice_counts_twice(self) -> None:
        edges = [(0, FORWARD), (1, layer_code(0, FWD_IN)), (3, layer_code(0, FWD_OUT))]
        step = fold(*edges, (5, layer_code(0, FWD_IN)), (9, layer_code(0, FWD_OUT)), (10, NONE))
        assert step.forward_ns == {0: 6}


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["enter", "leave", "hand", "hand out"]))))
def test_phases_never_add_up_to_more_than_the_step(moves: list[tuple[int, str]]) -> None:
    clock = iter(range(10_000_000))
    timeline = StepTimeline(lambda: next(clock))
    timeline.start()
    held = 0
    for number, move in moves:
        if move == "enter":
            timeline.enter(INPUT + number % 9)
        elif move == "leave":
            timeline.leave()
        elif move == "hand":
            timeline.enter_user_phase(100 + number)
            held += 1
        elif held:
            timeline.leave_user_phase()
            held -= 1
    edges = timeline.end_step()
    times = edges[0::2]
    assert all(before <= after for before, after in pairwise(times))
    step = fold_step([time - times[0] for time in times], edges[1::2], {})
    assert 0 <= sum(step.phases_ns.values()) <= step.wall_ns


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


class Bottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Linear(2, 2)


class Decoder(nn.Module):
    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.attention, self.experts = nn.Linear(8, 8), nn.ModuleList(Bottleneck() for _ in range(layers))


class TestBlocks:
    @pytest.mark.parametrize(
        ("model", "names"),
        [
            (nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1)), []),
            (nn.Linear(1, 1), []),
            (nn.Sequential(Bottleneck(), Bottleneck(), nn.Linear(1, 1)), ["0", "1"]),
            (nn.ModuleDict({"a": Decoder(), "b": Decoder()}), ["a", "b"]),
            (
                nn.Sequential(nn.Sequential(Bottleneck(), Bottleneck()), Decoder(2)),
                ["0.0", "0.1", "1.experts.0", "1.experts.1"],
            ),
        ],
        ids=["leaves", "one layer", "sequence", "outermost", "over several stages"],
    )
    def test_found_by_themselves(self, model: nn.Module, names: list[str]) -> None:
        assert [name for name, _ in find_blocks(model, None)] == names

    def test_wrappers_do_not_hide_them(self) -> None:
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

        model = nn.Module()
        model.layers = nn.ModuleList(
            [checkpoint_wrapper(Bottleneck()), torch.compile(Bottleneck(), backend="eager")]
        )
        assert [name for name, _ in find_blocks(model, None)] == ["layers.0", "layers.1"]
        found = find_blocks(model, ["layers.*"])
        assert [module for _, module in found] == list(model.layers)


class TestJournal:
    HEAD = {"_recording": 1, "layers": ["a", "b"], "tokens_per_step": None, "stepgrade": {"world_size": 2}}
    SUMS = {
        "steps": 2,
        "wall_ms": 10.0,
        "tokens": 64,
        "phases_ms": {"forward": 6.0},
        "layers_ms": [[0, 1.0, 2.0, 0.0], [1, 1.0, 2.0, 0.5]],
        "samples_ms": [5.0, 5.0],
    }

    def write(self, path: Path, *lines: object, tail: str = "") -> Path:
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines) + tail)
        return path

    def test_lines_add_up_and_a_torn_one_is_told(self, tmp_path: Path) -> None:
        line = {"warmup": None, "steady": self.SUMS, "recorded_steps": 5, "loss": {"first": 3.0, "last": 2.0}}
        path = self.write(
            tmp_path / "run.json", self.HEAD, {"warmup": self.SUMS}, line, line, tail='{"steady": {"st'
        )
        profile = sg.load(path)
        assert (profile.steps, profile.mean_step_ms, profile.tokens_per_step) == (4, 5.0, 32)
        assert (profile.recorded_steps, profile.world_size, profile.wall_coverage) == (5, 2, 0.6)
        assert [layer.recompute_ms for layer in profile.layers] == [None, 0.25]
        assert [note.text[-3:] for note in profile.notes if note.code == "torn"] == [": 1"]
        assert profile.contents["loss"] == "3 to 2"

    def test_only_warm_up(self, tmp_path: Path) -> None:
        path = self.write(tmp_path / "run.json", self.HEAD, {"warmup": self.SUMS, "recorded_steps": 2})
        assert any("only warm-up" in note.text for note in sg.load(path).notes)

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            (({"_recording": 2},), "version 2, which is newer"),
            (({"_recording": 1},), "no complete step"),
            (({"_recording": "x"},), "first line is broken"),
        ],
    )
    def test_refused_with_words(self, tmp_path: Path, lines: tuple[object, ...], words: str) -> None:
        path = tmp_path / "run.json"
        path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        with pytest.raises(BadInput, match=words):
            sg.load(path)


IMAGE, SCALAR = torch.zeros(3, 8, 8), torch.zeros(())
BATCHES = {
    "a tensor": (torch.zeros(8, 3), 8),
    "inputs and labels": ([torch.zeros(8, 3), torch.zeros(8)], 8),
    "a map": ({"name": ["a"] * 8, "pixels": torch.zeros(8, 3, 4, 4)}, 8),
    "two inputs as a pair, two labels": (([torch.zeros(8, 3)] * 2, [torch.zeros(8)] * 2), 8),
    "images of several sizes, each with its boxes": (
        ((IMAGE, torch.zeros(3, 4, 8)) * 3, tuple({"boxes": torch.zeros(number, 4)} for number in range(6))),
        6,
    ),
    "one such image": (((IMAGE,), ({"boxes": torch.zeros(2, 4)},)), 1),
    "lists of images and of labels": ([[IMAGE] * 5, [SCALAR] * 5], 5),
}


@pytest.mark.parametrize("kind", BATCHES)
def test_the_samples_of_a_batch_are_counted(kind: str) -> None:
    batch, samples = BATCHES[kind]
    counter = BatchCounter()
    counter.add_batch(batch)
    assert counter.take() == (0, samples)


def test_an_error_of_a_wrapped_c_function_comes_through() -> None:
    """Its traceback holds no frame but ours: `Tensor.to` is such a function."""
    patches, timeline = Patches(), StepTimeline(lambda: 0)
    patches.time(torch.Tensor, "copy_", timeline, HOST)
    try:
        with pytest.raises(RuntimeError, match="size of tensor"):
            torch.ones(3).copy_(torch.ones(4))
    finally:
        patches.undo()
