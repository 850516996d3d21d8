"""Keeps a moving average of the weights, one tensor after the other."""

import copy

import torch
from torch import nn

torch.manual_seed(0)
layers = [part for _ in range(120) for part in (nn.Linear(48, 48), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(48, 2))
average = copy.deepcopy(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)


@torch.no_grad()
def update_average():
    for kept, new in zip(average.parameters(), model.parameters(), strict=True):
        kept.data = 0.999 * kept.data + 0.001 * new.data


for step in range(40):
    inputs, labels = torch.randn(32, 48), torch.randint(0, 2, (32,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    update_average()
    if step % 10 == 0:
        print(step, loss.item())
