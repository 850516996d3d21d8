"""Cross-validation: a new model and a new optimizer for each fold, the best kept as a deep copy."""

import copy

import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(60, 12), torch.randint(0, 3, (60,)))
best, kept = 1e9, None
for fold in range(5):
    model = nn.Sequential(nn.Linear(12, 32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 3))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    held = set(range(fold * 12, fold * 12 + 12))
    train = DataLoader(Subset(data, [i for i in range(60) if i not in held]), batch_size=12)
    valid = DataLoader(Subset(data, sorted(held)), batch_size=12)
    for _ in range(2):
        model.train()
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()
    model.eval()
    with torch.inference_mode():
        loss = sum(nn.functional.cross_entropy(model(x), y).item() for x, y in valid)
    if loss < best:
        best, kept = loss, copy.deepcopy(model)
    print(f"fold {fold} loss {loss:.4f}")
print(f"best {best:.4f}", sum(p.numel() for p in kept.parameters()))
