"""A word-level LSTM that saves itself whole after each epoch and loads the best one at the end."""

import math

import torch
from torch import nn

WORDS, BATCH, LENGTH = 50, 4, 10


class Recurrent(nn.Module):
    """Embedding, LSTM, decoder; the hidden state goes from batch to batch."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.1)
        self.encoder = nn.Embedding(WORDS, 16)
        self.rnn = nn.LSTM(16, 16, 2, dropout=0.1)
        self.decoder = nn.Linear(16, WORDS)

    def forward(self, words, hidden):
        output, hidden = self.rnn(self.drop(self.encoder(words)), hidden)
        return self.decoder(self.drop(output)).view(-1, WORDS), hidden

    def init_hidden(self):
        weight = next(self.parameters())
        return weight.new_zeros(2, BATCH, 16), weight.new_zeros(2, BATCH, 16)


torch.manual_seed(1)
text = torch.randint(0, WORDS, (61, BATCH))
model, criterion = Recurrent(), nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), 1.0)


def batches(source):
    for start in range(0, len(source) - 1, LENGTH):
        yield source[start : start + LENGTH], source[start + 1 : start + 1 + LENGTH].reshape(-1)


def evaluate():
    model.eval()
    total, hidden = 0.0, model.init_hidden()
    with torch.no_grad():
        for words, targets in batches(text):
            output, hidden = model(words, hidden)
            total += criterion(output, targets).item()
    return total


best = math.inf
for epoch in range(3):
    model.train()
    hidden = model.init_hidden()
    for words, targets in batches(text):
        hidden = tuple(state.detach() for state in hidden)
        optimizer.zero_grad()
        output, hidden = model(words, hidden)
        loss = criterion(output, targets)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    valid = evaluate()
    print(f"epoch {epoch} loss {loss.item():.4f} valid {valid:.4f}")
    if valid < best:
        best = valid
        with open("model.pt", "wb") as file:
            torch.save(model, file)
with open("model.pt", "rb") as file:
    model = torch.load(file, weights_only=False)
model.rnn.flatten_parameters()
print(f"best {evaluate():.4f}", type(model).__module__)
