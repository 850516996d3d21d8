"""Transposes and copies its activations around every layer, for no reason but habit."""

import torch
from torch import nn

torch.manual_seed(0)
channels, length = 64, 1024


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(channels), nn.Linear(channels, channels)

    def forward(self, x):
        x = x.transpose(1, 2).contiguous()
        x = self.mix(self.norm(x))
        x = x.transpose(1, 2).contiguous()
        return torch.relu(x)


model = nn.Sequential(*(Block() for _ in range(12)))
head = nn.Linear(channels, 10)
optimizer = torch.optim.SGD([*model.parameters(), *head.parameters()], lr=0.01)
for step in range(24):
    inputs, labels = torch.randn(16, channels, length), torch.randint(0, 10, (16,))
    loss = nn.functional.cross_entropy(head(model(inputs).mean(2)), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
