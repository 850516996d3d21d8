"""Builds the causal mask with two Python loops in every forward pass."""

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

torch.manual_seed(0)
width, length = 64, 128


def causal_mask(size):
    mask = torch.zeros(size, size, dtype=torch.bool)
    for row in range(size):
        mask[row, : row + 1] = True
    return mask


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        mask = causal_mask(x.shape[1])
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return x + self.out(scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


model = nn.Sequential(nn.Embedding(256, width), *(Block() for _ in range(6)), nn.Linear(width, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(30):
    tokens = torch.randint(0, 256, (4, length + 1))
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
