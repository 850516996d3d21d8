"""Saves model and optimizer after every step."""

import os

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(1024, 2048), nn.ReLU(), nn.Linear(2048, 1024))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
os.makedirs("checkpoints", exist_ok=True)
for step in range(24):
    inputs = torch.randn(64, 1024)
    loss = nn.functional.mse_loss(model(inputs), inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 1 == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "checkpoints/last.pt")
    if step % 10 == 0:
        print(step, loss.item())
