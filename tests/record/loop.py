"""A training loop on the CPU, small enough for a test and plain enough to plant things in."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from tests.record.conftest import load_example

gpt = load_example("train_gpt")
SEQUENCE, BATCH = 32, 2


def make_model(layers: int = 4, width: int = 64, **options: object) -> nn.Module:
    torch.manual_seed(0)
    return gpt.GPT(layers=layers, width=width, sequence=SEQUENCE, **options)


def make_loader(steps: int, **options: object) -> DataLoader:
    return DataLoader(gpt.Text(steps * BATCH, SEQUENCE), batch_size=BATCH, **options)


class Loop:
    """Model, optimizer, loader; `run` trains and calls `each(loss)` after every step."""

    def __init__(self, steps: int = 8, model: nn.Module | None = None) -> None:
        self.model = make_model() if model is None else model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.loader = make_loader(steps)

    def run(self, each: Callable[[Tensor], object] = lambda _loss: None) -> list[float]:
        losses = []
        for ids, targets in self.loader:
            loss = gpt.loss_of(self.model(ids), targets)
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            losses.append(loss.item())
            each(loss)
        return losses


class SleepInBackward(torch.autograd.Function):
    """The identity; its gradient takes its time."""

    @staticmethod
    def forward(ctx, x: Tensor, seconds: float) -> Tensor:
        ctx.seconds = seconds
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        time.sleep(ctx.seconds)
        return gradient, None


class Slow(nn.Module):
    """A block that sleeps on its way forward or back."""

    def __init__(self, block: nn.Module, *, forward: float = 0.0, backward: float = 0.0) -> None:
        super().__init__()
        self.__dict__.update(vars(block))
        self._forward, self._seconds, self._back = type(block).forward, forward, backward

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(self._seconds)
        if self._back:
            x = SleepInBackward.apply(x, self._back)
        return self._forward(self, x)


class SlowText(gpt.Text):
    """Rows that take their time to come."""

    def __init__(self, rows: int, seconds: float) -> None:
        super().__init__(rows, SEQUENCE)
        self.seconds = seconds

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.seconds)
        return super().__getitem__(row)


def hooks_on(model: nn.Module) -> Iterator[str]:
    """Yield every hook that is left on a model."""
    for name, module in model.named_modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            if getattr(module, kind):
                yield f"{name}.{kind}"
