"""As faster.py, but attention is one fused operation."""

import torch
from faster import Tokenized
from slow import HEADS, WIDTH, Attention, train
from torch.nn import functional as F  # noqa: N812  as everybody calls it


class Fused(Attention):
    """The same attention, without its matrix of scores."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return causal self-attention over `x`."""
        batch, length, _ = x.shape
        q, k, v = self.inner(x).view(batch, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.outer(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


if __name__ == "__main__":
    train(Tokenized(), Fused)
