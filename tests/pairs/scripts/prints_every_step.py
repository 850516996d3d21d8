"""A classifier that prints its predictions at every step."""

import torch
from torch import nn

torch.manual_seed(0)
torch.set_printoptions(threshold=20_000)
model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 16))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(40):
    inputs, labels = torch.randn(256, 512), torch.randint(0, 16, (256,))
    logits = model(inputs)
    loss = nn.functional.cross_entropy(logits, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(f"step {step} loss {loss.item():.4f} probabilities {logits.softmax(-1)}")
