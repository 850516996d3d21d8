"""Small trainings on the processor as people write them: ten kinds that are well, and faults planted in them.

Every step is one call of a function that `kinds` or `faults` return; `record` runs it under the profiler.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
nn = torch.nn
Step = Callable[[], None]
WAIT, STEPS = 3, 8


def train(model: Any, loss_of: Callable[[], Any], **known: Any) -> Step:
    """Return one step of an ordinary loop."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-4, **known)

    def step() -> None:
        optimizer.zero_grad()
        loss_of().backward()
        optimizer.step()

    return step


def classify(model: Any, make: Callable[[], Any], classes: int = 10) -> Callable[[], Any]:
    batch = make()
    labels = torch.randint(0, classes, (len(batch),))
    return lambda: nn.functional.cross_entropy(model(batch), labels)


def mlp(batch: int = 128) -> Step:
    model = nn.Sequential(
        nn.Linear(256, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )
    return train(model, classify(model, lambda: torch.randn(batch, 256)))


def cnn() -> Step:
    def conv(width: int, out: int) -> Any:
        return nn.Sequential(
            nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2)
        )

    model = nn.Sequential(conv(3, 16), conv(16, 32), conv(32, 64), nn.Flatten(), nn.Linear(1024, 10))
    return train(model, classify(model, lambda: torch.randn(32, 3, 32, 32)))


def lstm() -> Step:
    class Tagger(nn.Module):  # type: ignore[misc, name-defined]  # torch is not always there
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.rnn, self.head = nn.Embedding(1000, 64), nn.LSTM(64, 128, 2), nn.Linear(128, 10)

        def forward(self, tokens: Any) -> Any:
            return self.head(self.rnn(self.embed(tokens.T))[0].mean(0))

    model = Tagger()
    return train(model, classify(model, lambda: torch.randint(0, 1000, (16, 64))))


class Block(nn.Module):  # type: ignore[misc, name-defined]  # as above
    """A transformer's block."""

    def __init__(self, width: int = 128, heads: int = 4, *, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):  # type: ignore[misc, name-defined]  # as above
    """A small language model."""

    def __init__(self, layers: int = 4, width: int = 128, vocabulary: int = 512) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary, bias=False)
        self.blocks = nn.ModuleList(Block(width, causal=True) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(self, tokens: Any) -> Any:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language(model: Any, vocabulary: int = 512, rows: int = 8, length: int = 64) -> Callable[[], Any]:
    tokens = torch.randint(0, vocabulary, (rows, length + 1))
    return lambda: nn.functional.cross_entropy(
        model(tokens[:, :-1]).reshape(-1, vocabulary), tokens[:, 1:].reshape(-1)
    )


def gpt() -> Step:
    model = Gpt()
    return train(model, language(model))


def moe() -> Step:
    class Experts(nn.Module):  # type: ignore[misc, name-defined]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.gate = nn.Linear(128, 4)
            self.experts = nn.ModuleList(
                nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128)) for _ in range(4)
            )

        def forward(self, x: Any) -> Any:
            weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
            out = torch.zeros_like(x)
            for place, expert in enumerate(self.experts):
                rows, which = torch.where(chosen == place)
                out = out.index_add(0, rows, weights[rows, which, None] * expert(x[rows]))
            return x + out

    model = nn.Sequential(*(Experts() for _ in range(3)), nn.Linear(128, 10))
    return train(model, classify(model, lambda: torch.randn(256, 128)))


def vit() -> Step:
    class Vit(nn.Module):  # type: ignore[misc, name-defined]  # as above
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.head = nn.Conv2d(3, 128, 8, stride=8), nn.Linear(128, 10)
            self.blocks = nn.Sequential(*(Block() for _ in range(4)))

        def forward(self, images: Any) -> Any:
            return self.head(self.blocks(self.patch(images).flatten(2).transpose(1, 2)).mean(1))

    model = Vit()
    return train(model, classify(model, lambda: torch.randn(8, 3, 64, 64)))


def gan() -> Step:
    make = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 784), nn.Tanh())
    judge = nn.Sequential(nn.Linear(784, 512), nn.LeakyReLU(0.2), nn.Linear(512, 1))
    optimizers = [torch.optim.Adam(part.parameters(), lr=1e-4) for part in (make, judge)]
    real, loss = torch.randn(64, 784), nn.BCEWithLogitsLoss()
    ones, zeros = torch.ones(64, 1), torch.zeros(64, 1)

    def step() -> None:
        made = make(torch.randn(64, 64))
        optimizers[1].zero_grad()
        (loss(judge(real), ones) + loss(judge(made.detach()), zeros)).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss(judge(made), ones).backward()
        optimizers[0].step()

    return step


def tiny_batch() -> Step:
    return mlp(batch=1)


def frozen_backbone() -> Step:
    backbone = nn.Sequential(*(Block(256) for _ in range(4))).requires_grad_(requires_grad=False)
    head = nn.Linear(256, 10)
    model = nn.Sequential(backbone, head)
    batch, labels = torch.randn(16, 32, 256), torch.randint(0, 10, (16,))

    def loss() -> Any:
        with torch.no_grad():
            features = backbone(batch).mean(1)
        return nn.functional.cross_entropy(head(features), labels)

    return train(model, loss)


def lora() -> Step:
    class Adapted(nn.Module):  # type: ignore[misc, name-defined]  # as above
        def __init__(self, base: Any) -> None:
            super().__init__()
            self.base = base.requires_grad_(requires_grad=False)
            self.a = nn.Parameter(torch.randn(4, base.in_features) / 100)
            self.b = nn.Parameter(torch.zeros(base.out_features, 4))

        def forward(self, x: Any) -> Any:
            return self.base(x) + x @ self.a.T @ self.b.T

    model = Gpt().requires_grad_(requires_grad=False)
    for block in model.blocks:
        block.qkv, block.up = Adapted(block.qkv), Adapted(block.up)
    return train(model, language(model))


KINDS: dict[str, Callable[[], Step]] = {
    "MLP": mlp,
    "CNN": cnn,
    "LSTM": lstm,
    "GPT": gpt,
    "MoE": moe,
    "ViT": vit,
    "GAN": gan,
    "tiny batch": tiny_batch,
    "frozen backbone": frozen_backbone,
    "LoRA": lora,
}


# --- what is wrong with a run: a function that the step calls in addition


def read_values(count: int = 902) -> Step:
    values = torch.randn(count)

    def read_one_by_one() -> None:
        total = 0.0
        for place in range(count):
            total += values[place].item()

    return read_one_by_one


def loop_over_elements(count: int = 600) -> Step:
    values = torch.randn(count)

    def scale_each() -> None:
        out = torch.empty(count)
        for place in range(count):
            out[place] = values[place] * 2.0 + 1.0

    return scale_each


def save_whole(megabytes: int = 32) -> Step:
    state = {"weights": torch.randn(megabytes * 2**18)}

    def save_model() -> None:
        torch.save(state, io.BytesIO())

    return save_model


def python_rnn(length: int = 128, width: int = 64) -> Step:
    cell, head = nn.Linear(2 * width, width), nn.Linear(width, 10)
    batch = torch.randn(length, 4, width)

    def run_over_time() -> None:
        state = torch.zeros(4, width)
        for place in range(length):
            state = torch.tanh(cell(torch.cat([batch[place], state], dim=1)))
        head(state).sum().backward()

    return run_over_time


def random_numbers(count: int = 60) -> Step:
    buffer = torch.empty(200_000)

    def draw_noise() -> None:
        for _ in range(count):
            buffer.normal_()

    return draw_noise


def random_masks(count: int = 20) -> Step:
    chances = torch.full((200_000,), 0.5)

    def draw_masks() -> None:
        for _ in range(count):
            torch.bernoulli(chances)

    return draw_masks


def python_work(count: int = 400_000) -> Step:
    def count_words() -> None:
        total = 0.0
        for place in range(count):
            total += place * 0.5

    return count_words


# The function of the fault, and the rules that may name it.
FAULTS: dict[str, tuple[Callable[[], Step], str, set[str]]] = {
    "902 .item() a step": (read_values, "read_one_by_one", {"scalar-read-loop"}),
    "element-wise Python loop": (loop_over_elements, "scale_each", {"python-loop"}),
    "torch.save in the loop": (save_whole, "save_model", {"host-stall"}),
    "Python RNN": (python_rnn, "run_over_time", {"python-loop"}),
    "random numbers": (random_numbers, "draw_noise", {"random-numbers"}),
    "random masks": (random_masks, "draw_masks", {"random-numbers"}),
    "Python between operations": (python_work, "count_words", {"host-stall"}),
}


def record(
    path: Path, step: Step, fault: Step | None = None, *, stacks: bool = False, shapes: bool = True
) -> None:
    """Run the step, and the fault after it, under the profiler and write the trace."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    schedule = torch.profiler.schedule(wait=WAIT, warmup=1, active=STEPS)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(
        activities=activities, schedule=schedule, record_shapes=shapes, with_stack=stacks
    ) as profiler:
        for _ in range(WAIT + 1 + STEPS):
            step()
            if fault is not None:
                fault()
            profiler.step()
    profiler.export_chrome_trace(str(path))
