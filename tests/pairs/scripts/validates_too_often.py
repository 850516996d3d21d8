"""Evaluates on the whole validation set after every step."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
validation, answers = torch.randn(20_000, 256), torch.randint(0, 10, (20_000,))
every = 1


@torch.no_grad()
def validate():
    model.eval()
    right = sum(
        (model(part).argmax(-1) == want).sum()
        for part, want in zip(validation.split(500), answers.split(500))
    )
    model.train()
    return right.item() / len(answers)


for step in range(40):
    inputs, labels = torch.randn(512, 256), torch.randint(0, 10, (512,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if (step + 1) % every == 0:
        print(step, loss.item(), validate())
