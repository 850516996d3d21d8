"""A recording is graded: FLOPs as on paper, the samples of a step, the processor's own ceiling; and no harm."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import pytest
import torch
from msgspec import structs
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import stepgrade as sg
from stepgrade.hardware.measured import Measurement, Rate, keep_measured
from stepgrade.model.sampled import SampledSteps
from tests.record.loop import Loop, gpt

BATCH = 8


def count_mlp() -> tuple[nn.Module, Tensor, int]:
    model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 10))
    products = 512 * 1024, 1024 * 10
    # Forward, and the gradients of all weights; that of the data is asked for behind the first layer only.
    return model, torch.randn(BATCH, 512), 2 * BATCH * (2 * sum(products) + products[1])


def count_cnn() -> tuple[nn.Module, Tensor, int]:
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.Flatten(),
        nn.Linear(784, 10),
    )
    first, second, head = 8 * 16 * 16 * 3 * 9, 16 * 7 * 7 * 8 * 9, 784 * 10
    return model, torch.randn(BATCH, 3, 16, 16), 2 * BATCH * (2 * first + 3 * second + 3 * head)


class LastOfLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(16, 24, 2, batch_first=True), nn.Linear(24, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def count_lstm() -> tuple[nn.Module, Tensor, int]:
    length, gates = 12, 4 * 24
    layers = length * gates * (16 + 24) + length * gates * (24 + 24)
    # The library's backward makes the gradient of the data too, whether asked for or not.
    return LastOfLstm(), torch.randn(BATCH, length, 16), 2 * BATCH * 3 * (layers + 24 * 10)


class LastOfTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.head = gpt.Block(32, heads=2), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x)[:, -1])


def count_transformer() -> tuple[nn.Module, Tensor, int]:
    length, width = 16, 32
    first, others = length * width * 3 * width, length * width * (width + 8 * width)
    attention = length * length * width  # scores and their use, of which a causal mask leaves half
    # The norm before the first layer has weights: the gradient of its output is asked for.
    return (
        LastOfTransformer(),
        torch.randn(BATCH, length, width),
        2 * BATCH * 3 * (first + others + attention + width * 10),
    )


def train(model: nn.Module, data: Tensor, path: Path, *, steps: int = 9, **options: object) -> sg.Profile:
    labels = torch.arange(len(data)) % 10
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sg.Recorder(model, optimizer=optimizer, path=path, **options) as recorder:
        for _ in range(steps):
            functional.cross_entropy(model(data), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    return structs.replace(sg.load(path), machine=None)  # as on a quiet machine, whatever else runs here


@pytest.mark.parametrize("kind", [count_mlp, count_cnn, count_lstm, count_transformer])
def test_flops_are_those_on_paper(tmp_path: Path, kind) -> None:
    model, data, flops = kind()
    profile = train(model, data, tmp_path / "run.json")
    assert profile.matmul_flops == flops
    assert profile.matmul_dtype == "fp32"
    assert profile.samples_per_step == BATCH
    assert profile.tokens_per_step is None


@pytest.mark.parametrize("kind", [count_mlp, count_cnn, count_lstm, count_transformer])
def test_a_first_recording_says_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind) -> None:
    monkeypatch.setenv("STEPGRADE_STATE", str(tmp_path / "measured.json"))
    model, data, _ = kind()
    profile = train(model, data, tmp_path / "run.json", steps=12)
    card = sg.score(profile)
    assert card.grade == "ungraded"
    reasons = {note.code: note for note in card.ungraded_because}
    assert "measure_here" in reasons["not_measured"].supply
    assert card.samples_s == pytest.approx(BATCH / card.step_time_ms * 1000.0)
    keep_measured(measured_here(profile, tflops=100.0), str(tmp_path / "measured.json"))
    card = sg.score(profile)
    assert card.grade == "F" or card.grade_at_most == "F", card.ungraded_because
    assert card.device.basis == "against what this CPU measured"
    for to in ("terminal", "markdown", "html"):
        shown = " ".join(sg.render(card, to=to).split())
        assert "samples/s" in shown
        assert "against what this CPU measured" in shown
    assert json.loads(sg.render(card, to="json"))["samples_s"] == card.samples_s
    assert card.bottleneck_evidence  # right, or honestly unknown where other programs stop a step


def measured_here(profile: sg.Profile, *, tflops: float, cores: int | None = None) -> Measurement:
    rate = Rate(best=tflops, median=tflops, spread_share=0.0, runs=5)
    return Measurement(
        key="cpu",
        name=profile.recorded.processor,
        date="2026-01-02T03:04:05Z",
        method="by hand",
        tflops={"fp32": rate},
        cores=cores,
    )


def test_a_measured_rate_grades_as_a_given_one(tmp_path: Path) -> None:
    profile = train(*count_mlp()[:2], tmp_path / "run.json")
    state = str(tmp_path / "measured.json")
    reached = sg.score(profile).arithmetic.achieved_flops_s / 1e12
    keep_measured(measured_here(profile, tflops=3.0 * reached), state)
    given = sg.score(profile, setup=sg.Setup(peak_tflops=3.0 * reached, dtype="fp32"))
    by_name = sg.score(profile, setup=sg.Setup(device="cpu", state=state))
    by_itself = sg.score(profile, setup=sg.Setup(state=state))
    assert given.grade in "ABCDF"
    assert given.grade == by_name.grade == by_itself.grade
    assert given.efficiency == by_name.efficiency == by_itself.efficiency
    # Another processor's ceiling, or that of more cores, is not this one's.
    keep_measured(measured_here(profile, tflops=3.0 * reached, cores=4096), state)
    assert sg.score(profile, setup=sg.Setup(state=state)).grade == "ungraded"


def test_faster_than_what_was_measured_is_no_grade(tmp_path: Path) -> None:
    profile = train(*count_mlp()[:2], tmp_path / "run.json")
    state = str(tmp_path / "measured.json")
    keep_measured(measured_here(profile, tflops=1e-9), state)
    card = sg.score(profile, setup=sg.Setup(state=state))
    assert card.grade == "ungraded"
    why = {note.code: note for note in card.ungraded_because}
    assert "busy" in why["above_ceiling_why"].text
    assert "measure_here" in why["above_ceiling_why"].supply


def learn(model: nn.Module, recorder: contextlib.AbstractContextManager) -> tuple[dict[str, Tensor], Tensor]:
    torch.manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters())
    with recorder:
        for _ in range(8):
            loss = model(torch.randn(BATCH, 3, 16, 16)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if isinstance(recorder, sg.Recorder):
                recorder.step()
    return model.state_dict(), torch.get_rng_state()


def test_counting_changes_no_bit_of_the_training(tmp_path: Path) -> None:
    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten())

    plain, numbers = learn(model(), contextlib.nullcontext())
    watched = model()
    recorder = sg.Recorder(watched, path=tmp_path / "run.json")
    weights, numbers_watched = learn(watched, recorder)
    assert recorder.profile().matmul_flops
    assert torch.equal(numbers, numbers_watched)
    assert all(torch.equal(plain[name], weights[name]) for name in plain)  # running statistics too


class TestBatches:
    def test_accumulated_batches_are_one_step(self, tmp_path: Path) -> None:
        model = gpt.GPT(layers=1, width=32, sequence=16)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(torch.randint(0, 99, (96, 16))), batch_size=4)
        with sg.start_recording(model, optimizer, loader, path=tmp_path / "run.json"):
            for number, (ids,) in enumerate(loader, start=1):
                model(ids).mean().backward()
                if number % 3 == 0:
                    optimizer.step()
                    optimizer.zero_grad()
        profile = sg.load(tmp_path / "run.json")
        assert (profile.samples_per_step, profile.tokens_per_step) == (12, 12 * 16)
        one = gpt.GPT(layers=1, width=32, sequence=16)
        once = train_tokens(one, tmp_path / "one.json", torch.randint(0, 99, (12, 16)))
        assert profile.matmul_flops == once.matmul_flops

    def test_flops_go_with_the_tokens_of_a_step(self, tmp_path: Path) -> None:
        """The sampled step has half the tokens of the others."""
        model = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 32))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with sg.Recorder(model, path=tmp_path / "run.json") as recorder:
            for number in range(10):
                model(torch.zeros(4 if number == 2 else 8, 16, dtype=torch.long)).mean().backward()
                optimizer.step()
                recorder.step()
        profile = sg.load(tmp_path / "run.json")
        assert profile.tokens_per_step == 8 * 16
        assert profile.matmul_flops == 3 * 2 * 8 * 16 * 32 * 32

    def test_a_loader_knows_better_than_calls(self, tmp_path: Path) -> None:
        """A discriminator sees each batch twice; a batch is still one."""
        model = nn.Linear(6, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        loader = DataLoader(TensorDataset(torch.randn(80, 6)), batch_size=8)
        with sg.start_recording(model, optimizer, loader, path=tmp_path / "run.json"):
            for (real,) in loader:
                (model(real).mean() - model(real + 1.0).mean()).backward()
                optimizer.step()
        assert sg.load(tmp_path / "run.json").samples_per_step == 8

    @pytest.mark.parametrize(
        ("model", "data", "samples"),
        [
            (nn.LSTM(6, 4), torch.randn(12, 5, 6), 5),  # time comes first
            (nn.LSTM(6, 4, batch_first=True), torch.randn(5, 12, 6), 5),
            (nn.Conv1d(6, 4, 3), torch.randn(5, 6, 12), 5),
        ],
    )
    def test_samples_of_a_call(self, tmp_path: Path, model: nn.Module, data: Tensor, samples: int) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        with sg.Recorder(model, path=tmp_path / "run.json") as recorder:
            for _ in range(6):
                found = model(data)
                (found[0] if isinstance(found, tuple) else found).mean().backward()
                optimizer.step()
                recorder.step()
        profile = sg.load(tmp_path / "run.json")
        assert (profile.samples_per_step, profile.tokens_per_step) == (samples, None)

    def test_categories_are_no_tokens(self, tmp_path: Path) -> None:
        class OneHot(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.linear = nn.Linear(5, 1)

            def forward(self, x: Tensor) -> Tensor:
                return self.linear(functional.one_hot(x, 5).float())

        profile = train_tokens(OneHot(), tmp_path / "run.json", torch.zeros(8, 3, dtype=torch.long))
        assert (profile.samples_per_step, profile.tokens_per_step) == (8, None)


def train_tokens(model: nn.Module, path: Path, ids: Tensor) -> sg.Profile:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with sg.Recorder(model, path=path) as recorder:
        for _ in range(6):
            model(ids).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step()
    return sg.load(path)


class TestWindow:
    def test_the_sampled_step_is_no_measured_one(self, tmp_path: Path) -> None:
        loop = Loop(steps=10)
        with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
            loop.run(recorder.step)
        profile = sg.load(tmp_path / "run.json")
        assert (profile.recorded_steps, profile.steps) == (10, 7)  # it was one of the three for warm-up

    @pytest.mark.measuring
    def test_what_the_profiler_adds_is_taken_off(self, tmp_path: Path) -> None:
        loop = Loop(steps=10)
        with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
            loop.run(recorder.step)
        profile = sg.load(tmp_path / "run.json")
        shares = sum(op.ms for op in profile.operations) / profile.mean_step_ms
        assert shares < 1.05

    def test_a_users_profiler_comes_first(self, tmp_path: Path) -> None:
        loop = Loop(steps=10)
        seen, opened = [], []

        def each(loss: Tensor) -> None:
            recorder.step(loss)
            opened.append(recorder._recording.window.is_open)
            if recorder.steps == 2:  # our window is open
                with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as theirs:
                    torch.ones(3) + 1
                seen.extend(event.key for event in theirs.key_averages())

        with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
            loop.run(each)
        assert "aten::add" in seen
        # A later step is sampled instead, when ranges that are open now are over.
        assert [place for place, is_open in enumerate(opened, 1) if is_open] == [2, 5]
        profile = sg.load(tmp_path / "run.json")
        assert (profile.recorded_steps, profile.steps) == (10, 6)
        assert profile.matmul_flops is not None

    def test_none_is_taken_when_that_is_asked_for(self, tmp_path: Path) -> None:
        profile = train(*count_mlp()[:2], tmp_path / "run.json", ops_every=0)
        assert (profile.matmul_flops, profile.operations, profile.ledger) == (None, (), None)

    def test_the_ledger_adds_up(self, tmp_path: Path) -> None:
        profile = train(*count_mlp()[:2], tmp_path / "run.json")
        ledger = profile.ledger
        known = [getattr(ledger, name) for name in ledger.__struct_fields__]
        parts = [part for part in known if part is not None]  # a single rank waits for no other
        assert len(parts) == len(known) - 1
        assert sum(parts) == ledger.total
        assert all(part >= 0 for part in parts)

    @pytest.mark.parametrize("figures", [{"model_ms": -1.0}, {"matmul_flops": -1.0}, {"steps": -1}])
    def test_sampled_steps_are_checked(self, figures: dict[str, float]) -> None:
        with pytest.raises(sg.errors.BadInput):
            SampledSteps(**({"steps": 1, "model_ms": 1.0} | figures))


def test_recording_stops_and_the_training_goes_on(tmp_path: Path) -> None:
    plain = Loop(steps=14).run()
    loop = Loop(steps=14)
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, path=tmp_path / "run.json", max_steps=9
    ) as recorder:
        written = []

        def each(loss: Tensor) -> None:
            recorder.step(loss)
            written.append((tmp_path / "run.json").exists() and sg.load(tmp_path / "run.json").recorded_steps)

        assert loop.run(each) == plain
    assert written[8:] == [9] * 6  # whole from the ninth step on
    profile = sg.load(tmp_path / "run.json")
    assert (recorder.steps, profile.recorded_steps, profile.steps) == (9, 9, 6)
