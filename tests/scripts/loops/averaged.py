"""Weights averaged over time, kept by torch's own class and by hand, and evaluated at the end of each epoch."""

import copy

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

torch.manual_seed(0)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 16))

    def forward(self, x):
        return x + self.layers(x)


model = nn.Sequential(Residual(), Residual(), Residual(), nn.Linear(16, 16))
shadow = copy.deepcopy(model).requires_grad_(False)
average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
optimizer = torch.optim.RAdam(model.parameters(), 1e-3)
data = torch.randn(10, 8, 16)
for epoch in range(3):
    for batch in data:
        noise = torch.randn_like(batch)
        loss = nn.functional.mse_loss(model(batch + noise), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update_parameters(model)
        with torch.no_grad():
            for mine, theirs in zip(shadow.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.1)
    with torch.no_grad():
        losses = [nn.functional.mse_loss(each(data[0]), data[0]).item() for each in (model, average, shadow)]
    print(f"epoch {epoch}", *(f"{loss:.4f}" for loss in losses))
torch.save({"average": average.state_dict(), "shadow": shadow}, "averaged.pt")
