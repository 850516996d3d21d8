"""DataLoader workers that are forked and spawned, classes of __main__ pickled, and an exit by text."""

import atexit
import pickle
import sys
import warnings

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

if __name__ == "__main__":  # spawned workers would write theirs into each other's lines
    warnings.warn("the script's own warning", stacklevel=1)
    atexit.register(print, "at exit")


class Rows(Dataset):
    def __len__(self):
        return 24

    def __getitem__(self, row):
        return torch.full((4,), float(row))


class Settings:
    def __init__(self):
        self.name = __name__


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
    for method in ("fork", "spawn"):
        for batch in DataLoader(Rows(), batch_size=4, num_workers=2, multiprocessing_context=method):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(pickle.loads(pickle.dumps(Settings())).name, __file__, sys.argv, sys.path[0], f"{loss.item():.4f}")
    sys.exit("the script's own last words")


if __name__ == "__main__":
    main()
