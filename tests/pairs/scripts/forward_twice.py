"""Runs the model once for the loss and once more for the predictions that it logs."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [part for _ in range(6) for part in (nn.Linear(512, 512), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(40):
    inputs, labels = torch.randn(256, 512), torch.randint(0, 10, (256,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    right = (model(inputs).argmax(-1) == labels).float().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item(), right.item())
