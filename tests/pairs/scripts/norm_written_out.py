"""A network whose normalisation and activation are chains of elementwise operations."""

import math

import torch
from torch import nn

torch.manual_seed(0)
width = 256


class Norm(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(-1, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-5) * self.scale + self.shift


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = Norm(), nn.Linear(width, width)

    def forward(self, x):
        return x + gelu(self.mix(self.norm(x)))


model = nn.Sequential(*(Block() for _ in range(8)), nn.Linear(width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(24):
    inputs, labels = torch.randn(2048, width), torch.randint(0, 10, (2048,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
