"""A classifier that accumulates gradients over 32 micro-batches of four, where one batch would fit."""

import torch
from torch import nn

torch.manual_seed(0)
micro_batches, micro_batch = 32, 4
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 100))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(40):
    inputs = torch.randn(micro_batches * micro_batch, 256)
    labels = torch.randint(0, 100, (micro_batches * micro_batch,))
    optimizer.zero_grad()
    for part, wanted in zip(inputs.chunk(micro_batches), labels.chunk(micro_batches), strict=True):
        loss = nn.functional.cross_entropy(model(part), wanted) / micro_batches
        loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item() * micro_batches)
