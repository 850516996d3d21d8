"""An LSTM cell over waves, trained with LBFGS: forward and backward run inside the optimizer's step."""

import torch
from torch import nn


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm1, self.lstm2 = nn.LSTMCell(1, 12), nn.LSTMCell(12, 12)
        self.linear = nn.Linear(12, 1)

    def forward(self, waves):
        first = second = (torch.zeros(waves.size(0), 12), torch.zeros(waves.size(0), 12))
        outputs = []
        for wave in waves.split(1, dim=1):
            first = self.lstm1(wave, first)
            second = self.lstm2(first[0], second)
            outputs.append(self.linear(second[0]))
        return torch.cat(outputs, dim=1)


torch.manual_seed(0)
waves = torch.sin(torch.arange(40).float() / 5 + torch.rand(6, 1) * 6)
model, criterion = Sequence(), nn.MSELoss()
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
for step in range(8):

    def closure():
        optimizer.zero_grad()
        loss = criterion(model(waves[:, :-1]), waves[:, 1:])
        loss.backward()
        return loss

    print(f"step {step} loss {optimizer.step(closure).item():.4f}")
