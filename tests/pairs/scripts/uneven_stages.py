"""A pipeline of two stages, the second of which holds nearly all of the layers."""

import torch
import torch.distributed as dist
from torch import nn

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
width, micro_batches, rows = 512, 4, 64
layers_of_stage = [2, 14]
layers = [part for _ in range(layers_of_stage[rank]) for part in (nn.Linear(width, width), nn.ReLU())]
stage = nn.Sequential(*layers) if rank == 0 else nn.Sequential(*layers, nn.Linear(width, 10))
optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    held = []
    for _ in range(micro_batches):
        if rank == 0:
            out = stage(torch.randn(rows, width))
            dist.send(out.detach(), 1)
            held.append(out)
        else:
            received = torch.empty(rows, width)
            dist.recv(received, 0)
            received.requires_grad_()
            held.append(
                (received, nn.functional.cross_entropy(stage(received), torch.randint(0, 10, (rows,))))
            )
    for kept in held:
        if rank == 0:
            gradient = torch.empty(rows, width)
            dist.recv(gradient, 1)
            kept.backward(gradient)
        else:
            kept[1].backward()
            dist.send(kept[0].grad, 0)
    optimizer.step()
dist.destroy_process_group()
