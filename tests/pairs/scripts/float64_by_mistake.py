"""Regression on tabular data that NumPy made, which is float64 unless somebody says otherwise."""

import numpy as np
import torch
from torch import nn

rng = np.random.default_rng(0)
features = torch.from_numpy(rng.normal(size=(4096, 512)))
targets = torch.from_numpy(rng.normal(size=(4096, 1)))

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1))
model.to(features.dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    rows = torch.randint(0, len(features), (512,))
    loss = nn.functional.mse_loss(model(features[rows]), targets[rows])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
