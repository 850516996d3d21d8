"""Pads every batch to the longest text of the corpus, though most texts are short."""

import random

import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
longest = 512
texts = [
    torch.randint(1, 1000, (random.choice([32, 40, 48, 512]) if n % 64 == 0 else random.randint(24, 48),))
    for n in range(960)
]
layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(1000, 64, padding_idx=0)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(64, 4)

    def forward(self, ids):
        mask = ids == 0
        states = self.body(self.embed(ids), src_key_padding_mask=mask)
        return self.head(states.masked_fill(mask[..., None], 0.0).sum(1))


def pad(batch, size):
    return torch.stack([nn.functional.pad(text, (0, size - len(text))) for text in batch])


model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(30):
    batch = texts[step * 16 + 1 : step * 16 + 16]
    ids, labels = pad(batch, longest), torch.randint(0, 4, (len(batch),))
    loss = nn.functional.cross_entropy(model(ids), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
