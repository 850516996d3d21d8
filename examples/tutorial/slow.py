"""A small language model on the CPU, trained slowly: docs/tutorial.md makes it fast."""

import argparse
from contextlib import nullcontext
from itertools import islice

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812  as everybody calls it
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset

TEXT = "the quick brown fox jumps over the lazy dog and runs on into the long night. " * 400
PAIRS = [first + second for first in "etaoinsh" for second in "etaoinshr"]
LENGTH, WIDTH, HEADS, LAYERS, VOCABULARY = 256, 64, 4, 2, 256 + len(PAIRS)


def tokenize(text: str) -> list[int]:
    """Return one number for each letter, then merge pairs, one kind of pair after the other."""
    tokens = [ord(letter) for letter in text]
    for number, pair in enumerate(PAIRS):
        merged = []
        while tokens:
            is_pair = tokens[:2] == [ord(letter) for letter in pair]
            merged.append(256 + number if is_pair else tokens[0])
            tokens = tokens[2 if is_pair else 1 :]
        tokens = merged
    return tokens


class Texts(Dataset):
    """Pieces of the text, tokenized when they are asked for."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * 7 % 20_000
        return torch.tensor(tokenize(TEXT[start : start + 2 * LENGTH])[: LENGTH + 1])


class Attention(nn.Module):
    """Attention as the formula has it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return causal self-attention over `x`."""
        batch, length, _ = x.shape
        q, k, v = self.inner(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        mixed = scores.masked_fill(~mask, float("-inf")).softmax(-1) @ v
        return self.outer(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """Attention and a small network, each with its norm."""

    def __init__(self, attention: type[Attention]) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), attention()
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the input with what both add to it."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Embedding, blocks, and a head that shares nothing."""

    def __init__(self, attention: type[Attention]) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(VOCABULARY, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.blocks = nn.Sequential(*(Block(attention) for _ in range(LAYERS)))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return a score for each token that may come next."""
        return self.head(self.blocks(self.embedding(tokens)))


def train(texts: Dataset, attention: type[Attention] = Attention) -> None:
    """Take the steps that the command line asks for; with --trace under torch.profiler."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--trace", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)  # so that the figures depend less on what else the machine does
    torch.manual_seed(0)
    model = Model(attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    profiler = profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=1, active=args.steps - 2, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(args.trace),
        record_shapes=True,
    )
    with profiler if args.trace else nullcontext():
        for tokens in islice(DataLoader(texts, batch_size=8), args.steps):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if args.trace:
                profiler.step()
    print(f"loss {loss.item():.3f} after {args.steps} steps")


if __name__ == "__main__":
    train(Texts())
