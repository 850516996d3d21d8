"""A sequence classifier that calls an LSTM cell for each time step."""

import torch
from torch import nn

torch.manual_seed(0)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(32, 64)
        self.head = nn.Linear(64, 5)

    def forward(self, sequence):
        hidden = memory = sequence.new_zeros(len(sequence), 64)
        for time in range(sequence.shape[1]):
            hidden, memory = self.cell(sequence[:, time], (hidden, memory))
        return self.head(hidden)


model = Classifier()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for step in range(30):
    inputs, labels = torch.randn(32, 120, 32), torch.randint(0, 5, (32,))
    loss = nn.functional.cross_entropy(model(inputs), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 10 == 0:
        print(step, loss.item())
