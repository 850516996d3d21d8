"""Train a small GPT on made-up text, and record where its steps' time goes.

pip install 'stepgrade[torch]'
python examples/train_gpt.py --steps 50 --out run.json
stepgrade score run.json
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

import stepgrade as sg

VOCABULARY = 128


class Text(Dataset):
    """Rows of an invented language: syllables drawn by a seeded generator, so nothing is downloaded."""

    def __init__(self, rows: int, sequence: int) -> None:
        draw = torch.Generator().manual_seed(0)
        common = 1.0 / torch.arange(1, VOCABULARY + 1)
        self.ids = torch.multinomial(common, rows * (sequence + 1), replacement=True, generator=draw)
        self.ids = self.ids.view(rows, sequence + 1)

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        return self.ids[row, :-1], self.ids[row, 1:]


class Block(nn.Module):
    """One transformer layer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then the MLP, to the residual stream."""
        batch, length, width = x.shape
        parts = self.qkv(self.norm_attention(x)).split(width, dim=-1)
        q, k, v = (part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    """Characters in, logits of the next character out; with targets also the loss."""

    def __init__(self, *, layers: int, width: int, sequence: int, checkpointing: bool = False) -> None:
        super().__init__()
        self.checkpointing = checkpointing
        self.embed = nn.Embedding(VOCABULARY, width)
        self.position = nn.Parameter(torch.zeros(sequence, width))
        self.blocks = nn.ModuleList(Block(width, heads=max(1, width // 32)) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of shape (batch, sequence, vocabulary)."""
        x = self.embed(ids) + self.position[: ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointing else block(x)
        return self.head(self.norm(x))


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross entropy over all positions."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def main() -> None:
    """Train for some steps with a recorder around the loop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--sequence", type=int, default=128)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--checkpointing", action="store_true", help="recompute each block in backward")
    parser.add_argument("--out", default="run.json", help="where the step profile goes")
    options = parser.parse_args()
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = GPT(
        layers=options.layers,
        width=options.width,
        sequence=options.sequence,
        checkpointing=options.checkpointing,
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = DataLoader(Text(options.steps * options.batch, options.sequence), batch_size=options.batch)
    with sg.Recorder(model, optimizer=optimizer, dataloader=loader, path=options.out) as recorder:
        for ids, targets in loader:
            loss = loss_of(model(ids.to(device)), targets.to(device))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            recorder.step(loss)
    print(f"{recorder.steps} steps, loss {loss.item():.2f}: stepgrade score {recorder.path}")


if __name__ == "__main__":
    main()
