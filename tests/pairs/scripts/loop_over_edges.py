"""A graph network that adds up its messages edge by edge."""

import torch
from torch import nn

torch.manual_seed(0)
nodes, width = 200, 32
edges = torch.randint(0, nodes, (600, 2))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.message, self.update = nn.Linear(width, width), nn.Linear(2 * width, width)

    def forward(self, states):
        messages = self.message(states)
        received = torch.zeros_like(states)
        for source, target in edges.tolist():
            received[target] = received[target] + messages[source]
        return torch.relu(self.update(torch.cat([states, received], 1)))


model = nn.Sequential(Layer(), Layer(), nn.Linear(width, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(20):
    states, labels = torch.randn(nodes, width), torch.randint(0, 4, (nodes,))
    loss = nn.functional.cross_entropy(model(states), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0:
        print(step, loss.item())
