"""A recommender with a large table of items, of which a batch touches a few."""

import torch
from torch import nn

torch.manual_seed(0)
items, width = 400_000, 64


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(items, width)
        self.head = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 1))

    def forward(self, clicked):
        return self.head(self.table(clicked).mean(1))


model = Recommender()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for step in range(30):
    clicked = torch.randint(0, items, (256, 20))
    bought = torch.rand(256, 1).round()
    loss = nn.functional.binary_cross_entropy_with_logits(model(clicked), bought)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
