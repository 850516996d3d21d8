"""Calls the garbage collector after every step, in a program with many objects."""

import gc

import torch
from torch import nn

torch.manual_seed(0)
samples = [{"id": number, "text": [str(number), str(number + 1)]} for number in range(300_000)]
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    inputs, labels = torch.randn(256, 256), torch.randint(0, 10, (256,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    gc.collect()
    if step % 10 == 0:
        print(step, loss.item(), len(samples))
