"""A recorder leaves nothing behind, and changes no bit while it runs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import stepgrade as sg
from stepgrade.record.script import ScriptRecorder
from tests.record.loop import Loop, gpt, hooks_on, make_loader, make_model


def record(path: Path, loop: Loop, **options: object) -> sg.Profile:
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, dataloader=loop.loader, path=path, **options
    ) as recorder:
        loop.run(recorder.step)
    return sg.load(path)


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

    def test_arguments_of_any_name_reach_the_model(self, tmp_path: Path) -> None:
        class Named(nn.Linear):
            def forward(self, original, module, timeline, code):
                return super().forward(original + module + timeline + code)

        model, x = Named(2, 2), torch.ones(1, 2)
        with ScriptRecorder(path=tmp_path / "run.json"):
            assert model(original=x, module=x, timeline=x, code=x).shape == (1, 2)
            optimizer = torch.optim.SGD(model.parameters())
            torch.amp.GradScaler("cpu", enabled=False).step(optimizer=optimizer)

    def test_parameters_whose_gradients_ended_a_layer_have_no_hooks_left(self, tmp_path: Path) -> None:
        loop = Loop()
        loop.model.embed.requires_grad_(False)
        loop.model.position.requires_grad_(False)
        record(tmp_path / "run.json", loop)
        assert not any(parameter._post_accumulate_grad_hooks for parameter in loop.model.parameters())
