"""Data parallel training by hand: one all-reduce for each tensor, after the backward pass."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
torch.manual_seed(0)
layers = [part for _ in range(60) for part in (nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())]
model = nn.Sequential(*layers, nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def reduce_gradients():
    for weight in model.parameters():
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()


for step in range(30):
    inputs, labels = torch.randn(64, 64), torch.randint(0, 10, (64,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    reduce_gradients()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(step, loss.item())
dist.destroy_process_group()
