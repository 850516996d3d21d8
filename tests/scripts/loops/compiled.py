"""A model that is compiled as a whole, evaluated in between, and saved without the wrapper."""

import torch
from torch import nn

torch.manual_seed(0)
layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 16)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 5)

    def forward(self, ids):
        return self.head(self.encoder(self.embed(ids)))


plain = Tagger()
model = torch.compile(plain, backend="aot_eager", fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
for step in range(15):
    ids, tags = torch.randint(0, 40, (4, 12)), torch.randint(0, 5, (4, 12))
    loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), tags.flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
print(f"loss {loss.item():.4f}", torch._dynamo.utils.counters["stats"]["unique_graphs"])
print(sum(torch._dynamo.utils.counters["graph_break"].values()))
torch.save(plain, "tagger.pt")
