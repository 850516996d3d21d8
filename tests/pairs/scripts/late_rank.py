"""Data parallel training in which one rank prepares its batches more slowly than the other."""

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [part for _ in range(4) for part in (nn.Linear(512, 512), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(512, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def batch():
    if dist.get_rank() == 1:
        time.sleep(0.04)  # its disk is slower
    return torch.randn(128, 512), torch.randint(0, 10, (128,))


for step in range(30):
    inputs, labels = batch()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
