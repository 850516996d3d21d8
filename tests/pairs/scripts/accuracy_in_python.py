"""Counts correct answers sample by sample in Python, at every step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def accuracy(logits, labels):
    correct = 0
    for row, label in zip(logits, labels, strict=True):
        if row.argmax() == label:
            correct += 1
    return correct / len(labels)


for step in range(40):
    inputs, labels = torch.randn(1024, 128), torch.randint(0, 10, (1024,))
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    right = accuracy(logits, labels)
    if step % 10 == 0:
        print(step, loss.item(), right)
