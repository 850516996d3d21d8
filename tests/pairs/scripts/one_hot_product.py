"""Looks words up by multiplying one-hot vectors with the table."""

import torch
from torch import nn

torch.manual_seed(0)
vocabulary, width = 8000, 128


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(vocabulary, width) * 0.02)
        self.body = nn.Sequential(nn.Linear(width, 256), nn.ReLU(), nn.Linear(256, 10))

    def embed(self, ids):
        return nn.functional.one_hot(ids, vocabulary).float() @ self.table

    def forward(self, ids):
        return self.body(self.embed(ids).mean(1))


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(20):
    ids, labels = torch.randint(0, vocabulary, (32, 32)), torch.randint(0, 10, (32,))
    loss = nn.functional.cross_entropy(model(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
