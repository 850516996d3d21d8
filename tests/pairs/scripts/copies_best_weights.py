"""Keeps a deep copy of the best weights, and finds better ones at nearly every step."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
layers = [part for _ in range(6) for part in (nn.Linear(1024, 1024), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(1024, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
best, best_loss, every = None, float("inf"), 1
inputs, targets = torch.randn(64, 1024), torch.randn(64, 1)
for step in range(24):
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % every == 0 and loss.item() < best_loss:
        best, best_loss = copy.deepcopy(model), loss.item()
        extra = copy.deepcopy(optimizer)
    if step % 10 == 0:
        print(step, loss.item())
