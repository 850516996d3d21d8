"""Writes its metrics to disk and waits for the disk at every step."""

import json
import os

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
every, metrics = 1, []
for step in range(60):
    inputs, labels = torch.randn(256, 128), torch.randint(0, 10, (256,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    metrics.append(
        {"step": step, "loss": loss.item(), "norms": [weight.norm().item() for weight in model.parameters()]}
    )
    if step % every == 0:
        for copy in range(4):
            with open(f"metrics{copy}.json", "w") as file:
                json.dump(metrics * 50, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
