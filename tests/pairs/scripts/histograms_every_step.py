"""Logs a histogram of every weight and gradient at every step."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [part for _ in range(8) for part in (nn.Linear(256, 256), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
logged = {}
every = 1


def log(step):
    for name, weight in model.named_parameters():
        for kind, values in (("weight", weight), ("gradient", weight.grad)):
            values = values.detach().float().flatten()
            logged[name, kind] = (step, torch.histc(values, 64).tolist(), values.quantile(0.5).item())


for step in range(30):
    inputs, labels = torch.randn(128, 256), torch.randint(0, 10, (128,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    if step % every == 0:
        log(step)
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
