"""Augments images pixel by pixel in the collate function."""

import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

random.seed(0)
torch.manual_seed(0)
data = TensorDataset(torch.rand(480, 1, 28, 28), torch.randint(0, 10, (480,)))


def brighten(image):
    factor = random.uniform(0.8, 1.2)
    return torch.tensor([[min(1.0, pixel * factor) for pixel in row] for row in image[0].tolist()])[None]


def collate(samples):
    return torch.stack([brighten(image) for image, _ in samples]), torch.stack(
        [label for _, label in samples]
    )


model = nn.Sequential(
    nn.Conv2d(1, 16, 3),
    nn.ReLU(),
    nn.MaxPool2d(2),
    nn.Flatten(),
    nn.Linear(16 * 13 * 13, 64),
    nn.ReLU(),
    nn.Linear(64, 10),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for epoch in range(2):
    for images, labels in DataLoader(data, batch_size=24, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
