"""Two ranks that the script itself spawns; ranks and addresses are arguments, not environment variables."""

import copy
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(3)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def work(rank, world, port, model):
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=world)
    torch.manual_seed(rank)
    model = copy.deepcopy(model)  # what came through shared memory is one model for both
    replica = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(replica.parameters(), 0.01)
    for _ in range(10):
        replica(torch.randn(4, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0:
        print(f"{sum(p.abs().sum().item() for p in model.parameters()):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.manual_seed(0)
    mp.spawn(work, (2, int(sys.argv[1]), Net()), nprocs=2)
    print("done")
