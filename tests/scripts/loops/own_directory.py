"""A run that moves into a folder of its own before it trains, as Hydra does, and logs there."""

import logging
import os
from pathlib import Path

import torch
from torch import nn

folder = Path("outputs", "2026-11-16", "12-00-00")
folder.mkdir(parents=True)
os.chdir(folder)
logging.basicConfig(filename="train.log", level=logging.INFO)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
for step in range(12):
    optimizer.zero_grad()
    loss = model(torch.randn(16, 8)).square().mean()
    loss.backward()
    optimizer.step()
    logging.info("step %d loss %.4f", step, loss.item())
os.chdir("..")
print(
    sorted(str(path) for path in Path("..").rglob("*")),
    len(Path("12-00-00", "train.log").read_text().splitlines()),
)
