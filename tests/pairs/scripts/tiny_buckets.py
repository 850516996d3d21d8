"""Data parallel training whose gradients are reduced in buckets of a few kilobytes."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [part for _ in range(60) for part in (nn.Linear(128, 128), nn.LayerNorm(128), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(128, 10)), bucket_cap_mb=0.01)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(30):
    inputs, labels = torch.randn(64, 128), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
