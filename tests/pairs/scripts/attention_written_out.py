"""A small GPT whose attention is written out, with the whole matrix of scores."""

import math

import torch
from torch import nn

torch.manual_seed(0)
width, heads, length = 128, 4, 512


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.register_buffer("mask", torch.ones(length, length).tril().bool())

    def attend(self, q, k, v):
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        scores = scores.masked_fill(~self.mask, float("-inf"))
        return scores.softmax(-1) @ v

    def forward(self, x):
        batch = len(x)
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attend(q, k, v).transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


model = nn.Sequential(nn.Embedding(512, width), *(Block() for _ in range(4)), nn.Linear(width, 512))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
for step in range(16):
    tokens = torch.randint(0, 512, (4, length + 1))
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
