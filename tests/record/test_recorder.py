"""What a recording holds, whichever way it was asked for."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest
import torch
from torch import nn

import stepgrade as sg
from stepgrade.contract import StepProfilerInput
from stepgrade.errors import NotMeasured
from tests.record.loop import BATCH, SEQUENCE, Loop, gpt, make_loader, make_model

PHASES = {"input", "forward", "loss", "backward", "optimizer"}


def record(path: Path, loop: Loop, **options: object) -> sg.Profile:
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, dataloader=loop.loader, path=path, **options
    ) as recorder:
        loop.run(recorder.step)
    return sg.load(path)


def test_a_loop_is_recorded_whole(tmp_path: Path) -> None:
    profile = record(tmp_path / "run.json", Loop(steps=10))
    assert (profile.recorded_steps, profile.steps, len(profile.samples_ms)) == (10, 7, 7)
    assert {phase.name for phase in profile.phases} == PHASES
    assert [layer.name for layer in profile.layers] == [f"blocks.{n}" for n in range(4)]
    assert all(layer.fwd_total_ms and layer.bwd_total_ms for layer in profile.layers)
    assert profile.tokens_per_step == BATCH * SEQUENCE
    assert profile.step_ms == pytest.approx(sum(profile.samples_ms) / 7, rel=1e-3)
    assert "loss" in profile.contents


def test_what_the_recorder_returns_is_what_the_reader_reads(tmp_path: Path) -> None:
    loop = Loop()
    with sg.Recorder(loop.model, path=tmp_path / "run.json", ops_every=3) as recorder:
        loop.run(recorder.step)
    read, returned = sg.load(tmp_path / "run.json"), recorder.profile()
    for name in sg.Profile.__struct_fields__:
        if name not in ("contents",):
            assert getattr(read, name) == getattr(returned, name), name
    assert recorder.score().step_time_ms == sg.score(read).step_time_ms
    assert read.peak_memory_bytes is not None
    assert read.peak_memory_bytes > 50e6
    assert read.recorded is not None
    assert "torch" in read.recorded.versions


def test_contract_v1_reads_it(tmp_path: Path) -> None:
    record(tmp_path / "run.json", Loop())
    profile = StepProfilerInput.from_json((tmp_path / "run.json").read_bytes())
    assert set(profile.phases) == PHASES
    assert len(profile.per_layer) == 4


def test_watch_counts_the_optimizers_steps(tmp_path: Path) -> None:
    loop = Loop(steps=9)
    recorder = sg.watch(loop.model, loop.optimizer, loop.loader, path=tmp_path / "run.json", warmup=2)
    loop.run()
    recorder.close()
    assert (recorder.steps, sg.load(tmp_path / "run.json").steps) == (9, 7)


def test_phases_by_hand_win_over_those_inside(tmp_path: Path) -> None:
    loop = Loop()
    with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
        for ids, targets in recorder.batches(loop.loader):
            with recorder.phase("everything"):
                gpt.loss_of(loop.model(ids), targets).backward()
            recorder.step()
    profile = sg.load(tmp_path / "run.json")
    assert {phase.name for phase in profile.phases} == {"input", "everything"}
    assert all(layer.fwd_total_ms and layer.bwd_total_ms for layer in profile.layers)


def test_without_a_model_phases_by_hand_are_all_there_is(tmp_path: Path) -> None:
    with sg.Recorder(path=tmp_path / "run.json", tokens_per_step=7) as recorder:
        for _ in range(5):
            with recorder.phase("work"):
                sum(range(1000))
            recorder.step(loss=1.5)
    profile = sg.load(tmp_path / "run.json")
    assert [phase.name for phase in profile.phases] == ["work"]
    assert (profile.tokens_per_step, profile.layers) == (7, ())


def test_gradient_accumulation_is_one_step(tmp_path: Path) -> None:
    loop = Loop(steps=12)
    recorder = sg.watch(loop.model, loop.optimizer, loop.loader, path=tmp_path / "run.json", warmup=1)
    for at, (ids, targets) in enumerate(loop.loader):
        gpt.loss_of(loop.model(ids), targets).backward()
        if at % 3 == 2:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    recorder.close()
    profile = sg.load(tmp_path / "run.json")
    assert (profile.recorded_steps, profile.tokens_per_step) == (4, 3 * BATCH * SEQUENCE)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_is_told_apart(
    tmp_path: Path, use_reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = gpt.checkpoint
    monkeypatch.setattr(gpt, "checkpoint", lambda block, x, **_: again(block, x, use_reentrant=use_reentrant))
    profile = record(tmp_path / "run.json", Loop(steps=12, model=make_model(checkpointing=True)))
    plain = record(tmp_path / "plain.json", Loop(steps=12))
    for layer, other in zip(profile.layers, plain.layers, strict=True):
        assert layer.recompute_total_ms
        assert layer.bwd_total_ms
        assert other.recompute_total_ms is None
    backward = next(phase.total_ms for phase in profile.phases if phase.name == "backward")
    inside = sum(layer.bwd_total_ms + layer.recompute_total_ms for layer in profile.layers)
    assert 0.5 * backward < inside <= backward


@pytest.mark.parametrize("init_scale", [1.0, 1e38], ids=["steps", "skips steps"])
def test_mixed_precision_with_a_scaler(tmp_path: Path, init_scale: float) -> None:
    loop = Loop(steps=8)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    recorder = sg.watch(loop.model, loop.optimizer, loop.loader, path=tmp_path / "run.json")
    for ids, targets in loop.loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = gpt.loss_of(loop.model(ids), targets)
        scaler.scale(loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
    recorder.close()
    profile = sg.load(tmp_path / "run.json")
    assert profile.recorded_steps in (7, 8)  # a scaler that skips from the start is known after one step
    assert {phase.name for phase in profile.phases} == PHASES


def test_evaluation_between_steps_is_left_out(tmp_path: Path) -> None:
    loop = Loop(steps=8)

    def evaluate_sometimes(loss: torch.Tensor) -> None:
        if recorder.steps in (4, 6):
            with torch.no_grad():
                for ids, _ in make_loader(1):
                    loop.model(ids)
        recorder.step(loss)

    with sg.Recorder(loop.model, path=tmp_path / "run.json", warmup=1) as recorder:
        loop.run(evaluate_sometimes)
    profile = sg.load(tmp_path / "run.json")
    assert (profile.recorded_steps, profile.steps) == (8, 5)
    assert "evaluation" not in {phase.name for phase in profile.phases}
    assert any("2 steps with an evaluation" in note for note in profile.notes)


def test_operations_of_sampled_steps(tmp_path: Path) -> None:
    profile = record(tmp_path / "run.json", Loop(steps=12), ops_every=4)
    operations = {operation.name: operation.total_ms for operation in profile.operations}
    assert operations["aten::addmm"] > 0 or operations["aten::mm"] > 0
    assert profile.steps == 12 - 3 - 2  # warm-up, and steps 5 and 9 under the profiler
    assert sum(operations.values()) < 5 * profile.steps * profile.step_ms


def test_named_layers(tmp_path: Path) -> None:
    profile = record(tmp_path / "run.json", Loop(), layers=["blocks.*.mlp", "head"])
    assert [layer.name for layer in profile.layers] == [*(f"blocks.{n}.mlp" for n in range(4)), "head"]
    assert all(layer.fwd_total_ms and layer.bwd_total_ms for layer in profile.layers)


def test_a_layer_whose_input_needs_no_gradient_has_a_backward(tmp_path: Path) -> None:
    loop = Loop()
    loop.model.embed.requires_grad_(False)
    loop.model.position.requires_grad_(False)
    profile = record(tmp_path / "run.json", loop)
    assert profile.layers[0].bwd_total_ms > 0


def test_a_long_run_keeps_bounded_samples(tmp_path: Path) -> None:
    with sg.Recorder(path=tmp_path / "run.json", warmup=0, flush_seconds=0.05) as recorder:
        for _ in range(30_000):
            recorder.step()
    profile = sg.load(tmp_path / "run.json")
    assert profile.steps == 30_000
    assert 4096 <= len(profile.samples_ms) < 2 * 4096
    assert any("4th step" in note for note in profile.notes)
    assert (tmp_path / "run.json").stat().st_size < 200_000


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor:UserWarning"
)  # torch's own, by its compiler
class TestCompiled:
    """torch.compile with a backend that compiles nothing: the graphs are what is looked at."""

    def test_a_model_compiled_whole_has_phases_and_says_why_no_layers(self, tmp_path: Path) -> None:
        torch._dynamo.reset()
        model = torch.compile(make_model(), backend="eager", fullgraph=True)
        profile = record(tmp_path / "run.json", Loop(model=model))
        assert {phase.name for phase in profile.phases} == PHASES
        assert profile.layers == ()
        assert any("torch.compile" in note for note in profile.notes)

    @pytest.mark.parametrize("in_place", [True, False])
    def test_blocks_compiled_one_by_one_have_layers(self, tmp_path: Path, in_place: bool) -> None:
        torch._dynamo.reset()
        model = make_model()
        for number, block in enumerate(model.blocks):
            if in_place:
                block.compile(backend="eager", fullgraph=True)
            else:
                model.blocks[number] = torch.compile(block, backend="eager", fullgraph=True)
        before = [block._compiled_call_impl for block in model.blocks]
        profile = record(tmp_path / "run.json", Loop(model=model))
        assert [layer.name for layer in profile.layers] == [f"blocks.{n}" for n in range(4)]
        assert all(layer.fwd_total_ms and layer.bwd_total_ms for layer in profile.layers)
        assert [block._compiled_call_impl for block in model.blocks] == before

    def test_the_model_that_is_not_called_is_told(self, tmp_path: Path) -> None:
        torch._dynamo.reset()
        loop = Loop()
        plain, loop.model = loop.model, torch.compile(loop.model, backend="eager", fullgraph=True)
        with sg.Recorder(plain, path=tmp_path / "run.json") as recorder:
            loop.run(recorder.step)
        assert any("never seen" in note for note in sg.load(tmp_path / "run.json").notes)


class TestBadUse:
    """Clear words, and the training goes on."""

    def test_two_recorders(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        loop = Loop()
        with sg.Recorder(loop.model, path=tmp_path / "one.json") as first:
            with sg.Recorder(loop.model, path=tmp_path / "two.json") as second:
                losses = loop.run(lambda loss: (first.step(loss), second.step(loss)))
        assert len(losses) == 8
        assert "another recorder is running" in caplog.text
        assert sg.load(tmp_path / "one.json").recorded_steps == 8
        assert not (tmp_path / "two.json").exists()
        with pytest.raises(NotMeasured):
            second.profile()

    def test_step_never_called(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        loop = Loop()
        with sg.Recorder(loop.model, path=tmp_path / "run.json"):
            assert len(loop.run()) == 8
        assert "no step was recorded: call `step()`" in caplog.text
        assert not list(tmp_path.iterdir())

    def test_no_repeated_blocks(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        with sg.Recorder(model, path=tmp_path / "run.json") as recorder:
            for _ in range(5):
                model(torch.ones(2, 4)).sum().backward()
                recorder.step()
        assert "no repeated blocks" in caplog.text
        profile = sg.load(tmp_path / "run.json")
        assert (profile.layers, profile.tokens_per_step) == ((), None)

    def test_layers_that_are_not_there(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        record(tmp_path / "run.json", Loop(), layers=["model.layers.*"])
        assert "no module is called ['model.layers.*']" in caplog.text

    def test_a_loader_that_cannot_be_hooked(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with sg.Recorder(dataloader=[1, 2], path=tmp_path / "run.json") as recorder:
            recorder.step()
        assert "rec.batches(loader)" in caplog.text

    def test_a_path_that_cannot_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        loop = Loop()
        with sg.Recorder(loop.model, path=tmp_path / "file" / "run.json", flush_seconds=0) as recorder:
            assert len(loop.run(recorder.step)) == 8
        assert "cannot be written" in caplog.text
        assert recorder.path == tmp_path / "run.json"
        assert sg.load(recorder.path).recorded_steps == 8
        assert (tmp_path / "file").read_text() == "in the way"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
    def test_a_device_that_is_full(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        loop = Loop()
        with sg.Recorder(loop.model, path="/dev/full", flush_seconds=0) as recorder:
            assert len(loop.run(recorder.step)) == 8
        assert "/dev/full cannot be written; the profile is in" in caplog.text
        assert Path("/dev/full").is_char_device()
        assert sg.load(tmp_path / "full").recorded_steps == 8

    def test_nowhere_to_write_at_all(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
        with sg.Recorder(path=tmp_path / "file" / "run.json") as recorder:
            recorder.step()
        assert "`profile()` has what was measured" in caplog.text
        assert recorder.profile().recorded_steps == 1

    def test_an_exception_in_the_loop_comes_through_and_the_steps_before_it_are_there(
        self, tmp_path: Path
    ) -> None:
        loop = Loop(steps=8)

        def fail_late(loss: torch.Tensor) -> None:
            recorder.step(loss)
            if recorder.steps == 5:
                raise RuntimeError("out of memory")

        with pytest.raises(RuntimeError, match="out of memory"):
            with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
                loop.run(fail_late)
        assert sg.load(tmp_path / "run.json").recorded_steps == 5

    def test_a_forward_that_fails_and_is_tried_again(self, tmp_path: Path) -> None:
        loop = Loop(steps=8)
        with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
            for ids, targets in loop.loader:
                with pytest.raises(IndexError):
                    loop.model(ids + 1000)
                gpt.loss_of(loop.model(ids), targets).backward()
                recorder.step()
        profile = sg.load(tmp_path / "run.json")
        assert profile.wall_coverage <= 1.0
        assert {phase.name for phase in profile.phases} >= {"forward", "backward"}

    def test_words_are_logged_not_warned(self) -> None:
        assert logging.getLogger("stepgrade.record").level == logging.NOTSET


class TestLeavesNoTrace:
    def test_outputs_and_gradients_are_the_same_bits(self, tmp_path: Path) -> None:
        plain, recorded = Loop(), Loop()
        losses = plain.run()
        with sg.Recorder(
            recorded.model,
            optimizer=recorded.optimizer,
            dataloader=recorded.loader,
            path=tmp_path / "run.json",
            ops_every=4,
        ) as recorder:
            assert recorded.run(recorder.step) == losses
        for ours, theirs in zip(recorded.model.parameters(), plain.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)

    def test_gradients_are_the_same_bits(self, tmp_path: Path) -> None:
        models = [make_model(), make_model()]
        ids, targets = next(iter(make_loader(1)))
        gpt.loss_of(models[0](ids), targets).backward()
        with sg.Recorder(models[1], path=tmp_path / "run.json") as recorder:
            gpt.loss_of(models[1](ids), targets).backward()
            recorder.step()
        for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
            assert torch.equal(ours.grad, theirs.grad)

    def test_nothing_is_left_on_model_optimizer_or_torch(self, tmp_path: Path) -> None:
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        from tests.record.loop import hooks_on

        owners = [
            torch.autograd,
            torch.Tensor,
            torch.amp.GradScaler,
            torch.optim.Optimizer,
            torch.distributed,
        ]
        before = [dict(vars(owner)) for owner in [*owners, _BaseDataLoaderIter, nn.Module]]
        loop = Loop()
        kept = vars(loop.optimizer).copy()
        record(tmp_path / "run.json", loop)
        assert list(hooks_on(loop.model)) == []
        assert vars(loop.optimizer).keys() == kept.keys()
        assert not loop.optimizer._optimizer_step_pre_hooks
        assert not loop.optimizer._optimizer_step_post_hooks
        after = [dict(vars(owner)) for owner in [*owners, _BaseDataLoaderIter, nn.Module]]
        assert [was.keys() for was in before] == [now.keys() for now in after]
        for was, now in zip(before, after, strict=True):
            assert all(was[name] is now[name] for name in was if callable(was[name]))

    def test_a_graph_that_outlives_the_recorder_still_works(self, tmp_path: Path) -> None:
        model = make_model()
        ids, targets = next(iter(make_loader(1)))
        with sg.Recorder(model, path=tmp_path / "run.json") as recorder:
            loss = gpt.loss_of(model(ids), targets)
            recorder.step()
        loss.backward()
        assert model.head.weight.grad is not None
        assert len(recorder._parts) == 3


def test_the_final_file_is_one_json_object(tmp_path: Path) -> None:
    record(tmp_path / "run.json", Loop(), flush_seconds=0)
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["_profiler"] == "step_profiler_v2"
    assert document["stepgrade"]["versions"]["torch"] == torch.__version__
    assert document["stepgrade"]["config"]["model"] == "GPT"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
