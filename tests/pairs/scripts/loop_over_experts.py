"""A mixture of experts that asks each of its 64 experts in turn for the tokens it was given."""

import torch
from torch import nn

torch.manual_seed(0)
experts, width = 64, 64


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * 0.05)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * 0.05)

    def forward(self, tokens):
        chosen = self.router(tokens).argmax(-1)
        out = torch.zeros_like(tokens)
        for expert in range(experts):
            mine = (chosen == expert).nonzero().squeeze(-1)
            if len(mine):
                out[mine] = (tokens[mine] @ self.up[expert]).relu() @ self.down[expert]
        return tokens + out


model = nn.Sequential(nn.Linear(32, width), Mixture(), Mixture(), nn.Linear(width, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for step in range(30):
    inputs, labels = torch.randn(512, 32), torch.randint(0, 10, (512,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
