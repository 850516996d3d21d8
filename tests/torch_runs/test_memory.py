"""What the memory of real runs held at the peak, beside what torch's own MemoryProfile says of the same run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model.memory import Memory

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402  only with torch
from torch.profiler import ProfilerActivity, profile  # noqa: E402  as above

TORCH = (
    *("none", "parameter", "optimizer_state", "input", "temporary", "activation", "gradient"),
    *("autograd_detail", "unknown"),
)


def transformer(dropout: float = 0.0) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, dropout=dropout)
    model = nn.Sequential(nn.Embedding(1000, 64), nn.TransformerEncoder(layer, 3), nn.Linear(64, 1000))
    return model, torch.randint(0, 1000, (8, 32)), torch.randint(0, 1000, (8 * 32,))


def convolutions() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    parts: list[nn.Module] = []
    for number in range(4):
        parts += [nn.Conv2d(16 if number else 3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(16 * 32 * 32, 10))
    return model, torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))


def run(
    folder: Path, made: tuple[nn.Module, torch.Tensor, torch.Tensor], *, warm: bool, keep: list[torch.Tensor] | None = None,
    steps: int = 3,
) -> tuple[Memory, dict[str, int]]:  # fmt: skip
    """Return what we say of the memory of a run, and torch's own categories at its highest."""
    from torch.profiler._memory_profiler import MemoryProfileTimeline

    model, batch, target = made
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        out = model(batch)
        loss = nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), target)
        loss.backward()
        optimizer.step()
        if keep is not None:
            keep.append(out)

    if warm:
        step()
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True
    ) as profiler:
        for _ in range(steps):
            step()
            profiler.step()
    path = folder / "trace.json"
    profiler.export_chrome_trace(str(path))
    _, sizes = MemoryProfileTimeline(profiler._memory_profile())._coalesce_timeline("cpu")
    highest = max(sizes, key=sum)
    memory = sg.load(path).memory
    assert memory is not None
    return memory, dict(zip(TORCH, highest, strict=True))


@pytest.mark.parametrize("warm", [True, False], ids=["warm", "from the first step"])
@pytest.mark.parametrize(
    "make",
    [transformer, lambda: transformer(0.1), convolutions],
    ids=["transformer", "dropout", "convolutions"],
)
def test_categories_at_the_peak_are_torchs_own(
    tmp_path: Path, make: Callable[[], tuple[nn.Module, torch.Tensor, torch.Tensor]], *, warm: bool
) -> None:
    torch.manual_seed(0)
    ours, theirs = run(tmp_path, make(), warm=warm)
    found = ours.categories
    assert found["activations"] == pytest.approx(theirs["activation"], rel=0.01)
    assert found.get("gradients", 0.0) == pytest.approx(theirs["gradient"], rel=0.01)
    passing = theirs["temporary"] + theirs["autograd_detail"] + theirs["unknown"]
    assert found.get("temporary", 0.0) == pytest.approx(passing, rel=0.01)
    if not warm:  # of what was there before, a trace of a processor does not know
        assert found["optimizer"] == pytest.approx(theirs["optimizer_state"], rel=0.01)
    assert sum(found.values()) == pytest.approx(ours.peak_bytes)
    assert ours.peak_at is not None
    assert ours.peak_at.op is not None
    assert "backward" in ours.peak_at.op
    assert ours.growth is None


def test_memory_that_is_kept_from_every_step_is_seen_and_named(tmp_path: Path) -> None:
    kept: list[torch.Tensor] = []
    memory, _ = run(tmp_path, transformer(), warm=True, keep=kept, steps=8)
    assert memory.growth is not None
    own = kept[0].numel() * kept[0].element_size()
    assert memory.growth.bytes_per_step >= own  # and what its graph holds
    assert any(holder.where and "test_memory.py" in holder.where for holder in memory.growth.holders)
