"""A trainer class with DDP and snapshots, for torchrun."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SEQUENCE, BATCH = 8, 4


class Characters(Dataset):
    def __init__(self):
        self.data = torch.randint(0, 30, (200,), generator=torch.Generator().manual_seed(0))

    def __len__(self):
        return 80

    def __getitem__(self, i):
        return self.data[i : i + SEQUENCE], self.data[i + 1 : i + 1 + SEQUENCE]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 30)

    def forward(self, idx, targets):
        logits = self.head(self.layers(self.embed(idx)))
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Trainer:
    def __init__(self):
        self.rank = int(os.environ["RANK"])
        data = Characters()
        self.loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data, seed=3))
        torch.manual_seed(0)
        self.model = DistributedDataParallel(Net())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)

    def train(self):
        for epoch in range(2):
            self.loader.sampler.set_epoch(epoch)
            for source, targets in self.loader:
                with torch.set_grad_enabled(True):
                    _, loss = self.model(source, targets)
                self.optimizer.zero_grad(set_to_none=True)
                loss.backward()
                nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
                self.optimizer.step()
            if self.rank == 0:
                torch.save(self.model.module, "snapshot.pt")
                print(f"epoch {epoch} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    Trainer().train()
    dist.destroy_process_group()
