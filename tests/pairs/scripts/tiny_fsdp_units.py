"""Sharded training in which every small layer is gathered and freed by itself."""

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
torch.manual_seed(0)
mesh = init_device_mesh("cpu", (dist.get_world_size(),))
blocks = [
    nn.Sequential(*(part for _ in range(8) for part in (nn.Linear(128, 128), nn.ReLU()))) for _ in range(6)
]
model = nn.Sequential(*blocks, nn.Linear(128, 10))
for block in blocks:
    for layer in block:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(20):
    inputs, labels = torch.randn(64, 128), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
