"""A script that closes what it writes to, and ends with a code of its own."""

import os
import sys

import torch
from torch import nn

print("before", flush=True)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
sys.stdout = None
sys.stderr.close()
os.closerange(3, 256)
for _ in range(8):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
sys.exit(5)
