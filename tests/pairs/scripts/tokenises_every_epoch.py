"""A text classifier that tokenises its texts anew whenever they are read."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

random.seed(0)
words = [f"word{number}" for number in range(2000)]
texts = [" ".join(random.choices(words, k=400)) for _ in range(256)]
vocabulary = {word: number for number, word in enumerate(words)}


def tokenise(text):
    ids = []
    for word in text.split():
        cleaned = "".join(letter for letter in word.lower() if letter.isalnum())
        ids.append(vocabulary.get(cleaned, 0))
    return torch.tensor(ids)


class Texts(Dataset):
    def __init__(self):
        self.texts = texts

    def __len__(self):
        return len(self.texts)

    def __getitem__(self, index):
        return tokenise(self.texts[index]), index % 4


torch.manual_seed(0)
model = nn.Sequential(nn.EmbeddingBag(2000, 128), nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 4))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(3):
    for step, (ids, labels) in enumerate(DataLoader(Texts(), batch_size=16)):
        loss = nn.functional.cross_entropy(model(ids), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
