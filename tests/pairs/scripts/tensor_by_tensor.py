"""A deep, narrow network whose optimizer updates its tensors one by one."""

import torch
from torch import nn

torch.manual_seed(0)
layers = [part for _ in range(100) for part in (nn.Linear(32, 32), nn.Tanh())]
model = nn.Sequential(*layers, nn.Linear(32, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
for step in range(40):
    inputs, labels = torch.randn(32, 32), torch.randint(0, 2, (32,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
