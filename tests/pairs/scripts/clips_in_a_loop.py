"""Clips gradients by a norm that a Python loop adds up, reading each tensor's share back."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [part for _ in range(120) for part in (nn.Linear(48, 48), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(48, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


def clip(most):
    total = 0.0
    for weight in model.parameters():
        total += (weight.grad**2).sum().item()
    if total**0.5 > most:
        for weight in model.parameters():
            weight.grad = weight.grad * (most / total**0.5)


for step in range(40):
    inputs, labels = torch.randn(32, 48), torch.randint(0, 2, (32,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    clip(0.01)
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
