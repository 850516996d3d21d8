"""Data parallel training with gradient accumulation that reduces the gradients after every micro-batch."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
micro_batches = 8
layers = [part for _ in range(4) for part in (nn.Linear(1024, 1024), nn.ReLU())]
model = DistributedDataParallel(nn.Sequential(*layers, nn.Linear(1024, 10)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(20):
    optimizer.zero_grad()
    for turn in range(micro_batches):
        inputs, labels = torch.randn(32, 1024), torch.randint(0, 10, (32,))
        loss = nn.functional.cross_entropy(model(inputs), labels) / micro_batches
        loss.backward()
    optimizer.step()
    if step % 10 == 0 and dist.get_rank() == 0:
        print(step, loss.item() * micro_batches)
dist.destroy_process_group()
