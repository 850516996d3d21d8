"""Turns nested Python lists into tensors at every step."""

import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
rows = [[random.random() for _ in range(256)] for _ in range(4096)]
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    chosen = random.sample(range(len(rows)), 512)
    inputs = torch.tensor([rows[index] for index in chosen])
    loss = nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
