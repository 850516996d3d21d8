"""What a recording holds, whichever way it was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import stepgrade as sg
from stepgrade.contract import StepProfilerInput
from tests.record.loop import BATCH, SEQUENCE, Loop, gpt, make_loader, make_model

PHASES = {"input", "forward", "loss", "backward", "optimizer"}
GAPS = {"host", "gradients"}  # shown when they are worth a line


def phases_of(profile: sg.Profile) -> set[str]:
    return {phase.name for phase in profile.phases} - GAPS


def record(path: Path, loop: Loop, **options: object) -> sg.Profile:
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, dataloader=loop.loader, path=path, **options
    ) as recorder:
        loop.run(recorder.step)
    return sg.load(path)


def test_a_loop_is_recorded_whole(tmp_path: Path) -> None:
    profile = record(tmp_path / "run.json", Loop(steps=10))
    assert (profile.recorded_steps, profile.steps, len(profile.samples_ms)) == (10, 7, 7)
    assert phases_of(profile) == PHASES
    assert [layer.name for layer in profile.layers] == [f"blocks.{n}" for n in range(4)]
    assert all(layer.fwd_ms and layer.bwd_ms for layer in profile.layers)
    assert profile.tokens_per_step == BATCH * SEQUENCE
    assert profile.mean_step_ms == pytest.approx(sum(profile.samples_ms) / 7, rel=1e-3)
    assert "loss" in profile.contents


def test_what_the_recorder_returns_is_what_the_reader_reads(tmp_path: Path) -> None:
    loop = Loop()
    with sg.Recorder(loop.model, path=tmp_path / "run.json", ops_every=3) as recorder:
        loop.run(recorder.step)
    read, returned = sg.load(tmp_path / "run.json"), recorder.profile()
    assert returned == read
    assert read.peak_memory_bytes is not None
    assert read.peak_memory_bytes > 50e6
    assert read.recorded is not None
    assert "torch" in read.recorded.versions


def test_the_recorder_scores_as_the_file_does(tmp_path: Path) -> None:
    loop = Loop()
    with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
        loop.run(recorder.step)
    read = sg.load(tmp_path / "run.json")
    assert recorder.score() == sg.score(read)
    assert recorder.score().fingerprint is not None
    hardware = {"device": "h100-sxm5-80gb", "bytes_per_token": 1e6, "throughput_tok_s": 1000.0}
    assert recorder.score(**hardware) == sg.score(read, **hardware)
    setup = sg.Setup(peak_bw_gb_s=20, bytes_per_token=1e6)
    assert recorder.score(setup=setup, baseline=read) == sg.score(read, setup=setup, baseline=read)


def test_a_loss_that_is_not_finite_is_noted_and_the_training_goes_on(tmp_path: Path) -> None:
    with sg.Recorder(path=tmp_path / "run.json", warmup=0, flush_seconds=0) as recorder:
        for loss in (2.5, float("nan"), torch.tensor(float("inf")), 2.0):
            recorder.step(loss)
    profile = sg.load(tmp_path / "run.json")
    assert profile.contents["loss"] == "2.5 to 2"
    assert [note.text for note in profile.notes if note.code == "loss_not_finite"] == [
        "the loss of 2 steps was not a finite number"
    ]


def test_contract_v1_reads_it(tmp_path: Path) -> None:
    record(tmp_path / "run.json", Loop())
    profile = StepProfilerInput.from_json((tmp_path / "run.json").read_bytes())
    assert set(profile.phases) - GAPS == PHASES
    assert len(profile.per_layer) == 4


def test_watch_counts_the_optimizers_steps(tmp_path: Path) -> None:
    loop = Loop(steps=9)
    recorder = sg.start_recording(
        loop.model, loop.optimizer, loop.loader, path=tmp_path / "run.json", warmup=2
    )
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
    assert phases_of(profile) == {"input", "everything"}
    assert all(layer.fwd_ms and layer.bwd_ms for layer in profile.layers)


def test_without_a_model_phases_by_hand_are_all_there_is(tmp_path: Path) -> None:
    with sg.Recorder(path=tmp_path / "run.json", tokens_per_step=7) as recorder:
        for _ in range(5):
            with recorder.phase("work"):
                sum(range(1000))
            recorder.step(loss=1.5)
    profile = sg.load(tmp_path / "run.json")
    assert [phase.name for phase in profile.phases] == ["work"]
    assert (profile.tokens_per_step, profile.layers) == (7, ())


def test_a_loop_that_stops_early_has_the_steps_until_then(tmp_path: Path) -> None:
    loop = Loop(steps=8)
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, dataloader=loop.loader, path=tmp_path / "run.json"
    ) as recorder:
        for ids, targets in loop.loader:
            gpt.loss_of(loop.model(ids), targets).backward()
            if recorder.steps == 5:
                break  # in the middle of a step, which does not count
            recorder.step()
    profile = sg.load(tmp_path / "run.json")
    assert (profile.recorded_steps, profile.steps) == (5, 2)


def test_gradient_accumulation_is_one_step(tmp_path: Path) -> None:
    loop = Loop(steps=12)
    recorder = sg.start_recording(
        loop.model, loop.optimizer, loop.loader, path=tmp_path / "run.json", warmup=1
    )
    for at, (ids, targets) in enumerate(loop.loader):
        gpt.loss_of(loop.model(ids), targets).backward()
        if at % 3 == 2:
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    recorder.close()
    profile = sg.load(tmp_path / "run.json")
    assert (profile.recorded_steps, profile.tokens_per_step) == (4, 3 * BATCH * SEQUENCE)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_recomputation_is_distinguishable(
    tmp_path: Path, use_reentrant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = gpt.checkpoint
    monkeypatch.setattr(gpt, "checkpoint", lambda block, x, **_: again(block, x, use_reentrant=use_reentrant))
    profile = record(tmp_path / "run.json", Loop(steps=12, model=make_model(checkpointing=True)))
    plain = record(tmp_path / "plain.json", Loop(steps=12))
    for layer, other in zip(profile.layers, plain.layers, strict=True):
        assert layer.recompute_ms
        assert layer.bwd_ms
        assert other.recompute_ms is None
    backward = next(phase.ms for phase in profile.phases if phase.name == "backward")
    inside = sum(layer.bwd_ms + layer.recompute_ms for layer in profile.layers)
    assert 0.5 * backward < inside <= backward


@pytest.mark.parametrize("init_scale", [1.0, 1e38], ids=["steps", "skips steps"])
def test_mixed_precision_with_a_scaler(tmp_path: Path, init_scale: float) -> None:
    loop = Loop(steps=8)
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale)
    recorder = sg.start_recording(loop.model, loop.optimizer, loop.loader, path=tmp_path / "run.json")
    for ids, targets in loop.loader:
        with torch.autocast("cpu", torch.bfloat16):
            loss = gpt.loss_of(loop.model(ids), targets)
        scaler.scale(loss).backward()
        scaler.step(loop.optimizer)
        scaler.update()
        loop.optimizer.zero_grad()
    recorder.close()
    profile = sg.load(tmp_path / "run.json")
    assert profile.recorded.precision == "bfloat16"
    assert profile.recorded_steps in (7, 8)  # a scaler that skips from the start is known after one step
    assert phases_of(profile) == PHASES


def test_evaluation_between_steps_is_left_out(tmp_path: Path) -> None:
    loop = Loop(steps=8)

    def evaluate_sometimes(loss: torch.Tensor) -> None:
        if recorder.steps in (4, 6):
            with torch.no_grad():
                for ids, _ in make_loader(1):
                    loop.model(ids)
        recorder.step(loss)

    with sg.Recorder(loop.model, path=tmp_path / "run.json", warmup=1, ops_every=0) as recorder:
        loop.run(evaluate_sometimes)
    profile = sg.load(tmp_path / "run.json")
    assert (profile.recorded_steps, profile.steps) == (8, 5)
    assert "evaluation" not in {phase.name for phase in profile.phases}
    assert any("2 steps with an evaluation" in note.text for note in profile.notes)


def test_operations_of_sampled_steps(tmp_path: Path) -> None:
    profile = record(tmp_path / "run.json", Loop(steps=12), ops_every=4)
    operations = {operation.name: operation.ms for operation in profile.operations}
    assert operations["aten::addmm"] > 0 or operations["aten::mm"] > 0
    # Warm-up, whose last step is under the profiler, and the ninth; the fifth comes too soon after it.
    assert profile.steps == 12 - 3 - 1
    assert sum(operations.values()) < 5 * profile.mean_step_ms


def test_an_operation_window_that_the_end_cuts_off_does_not_count(tmp_path: Path) -> None:
    loop = Loop(steps=12)
    opened = []

    def each(loss: torch.Tensor) -> None:
        recorder.step(loss)
        if recorder._recording.window.is_open:
            opened.append(recorder.steps)

    with sg.Recorder(loop.model, path=tmp_path / "run.json", ops_every=4) as recorder:
        loop.run(each)
        window = recorder._recording.window
        assert window.is_open
    assert not window.is_open
    # Soon after the last warm-up step the fourth has none: a range of that one may still be open.
    assert opened == [2, 8, 12]
    assert window.sampled.steps == 2


def test_named_layers(tmp_path: Path) -> None:
    profile = record(tmp_path / "run.json", Loop(), layers=["blocks.*.mlp", "head"])
    assert [layer.name for layer in profile.layers] == [*(f"blocks.{n}.mlp" for n in range(4)), "head"]
    assert all(layer.fwd_ms and layer.bwd_ms for layer in profile.layers)


def test_a_layer_whose_input_needs_no_gradient_has_a_backward(tmp_path: Path) -> None:
    loop = Loop()
    loop.model.embed.requires_grad_(False)
    loop.model.position.requires_grad_(False)
    profile = record(tmp_path / "run.json", loop)
    assert profile.layers[0].bwd_ms > 0


def test_a_long_run_keeps_bounded_samples(tmp_path: Path) -> None:
    with sg.Recorder(path=tmp_path / "run.json", warmup=0, flush_seconds=0.05) as recorder:
        for _ in range(30_000):
            recorder.step()
    profile = sg.load(tmp_path / "run.json")
    assert profile.steps == 30_000
    assert 4096 <= len(profile.samples_ms) < 2 * 4096
    assert any("one step in 4" in note.text for note in profile.notes)
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
        assert phases_of(profile) == PHASES
        assert profile.layers == ()
        assert any("torch.compile" in note.text for note in profile.notes)

    @pytest.mark.parametrize(
        ("in_place", "backend"), [(True, "eager"), (False, "eager"), (False, "aot_eager")]
    )
    def test_blocks_compiled_one_by_one_have_layers(
        self, tmp_path: Path, in_place: bool, backend: str
    ) -> None:
        torch._dynamo.reset()
        model = make_model()
        for number, block in enumerate(model.blocks):
            if in_place:
                block.compile(backend=backend, fullgraph=True)
            else:
                model.blocks[number] = torch.compile(block, backend=backend, fullgraph=True)
        before = [block._compiled_call_impl for block in model.blocks]
        profile = record(tmp_path / "run.json", Loop(model=model))
        assert [layer.name for layer in profile.layers] == [f"blocks.{n}" for n in range(4)]
        assert all(layer.fwd_ms and layer.bwd_ms for layer in profile.layers)
        assert [block._compiled_call_impl for block in model.blocks] == before

    def test_the_model_that_is_not_called_is_told(self, tmp_path: Path) -> None:
        torch._dynamo.reset()
        loop = Loop()
        plain, loop.model = loop.model, torch.compile(loop.model, backend="eager", fullgraph=True)
        with sg.Recorder(plain, path=tmp_path / "run.json") as recorder:
            loop.run(recorder.step)
        assert any("never seen" in note.text for note in sg.load(tmp_path / "run.json").notes)


def test_the_final_file_is_one_json_object(tmp_path: Path) -> None:
    record(tmp_path / "run.json", Loop(), flush_seconds=0)
    document = json.loads((tmp_path / "run.json").read_text())
    assert document["_profiler"] == "step_profiler_v2"
    assert document["stepgrade"]["versions"]["torch"] == torch.__version__
    assert document["stepgrade"]["config"]["model"] == "GPT"
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]
