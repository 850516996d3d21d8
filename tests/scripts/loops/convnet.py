"""A convnet for digits: a training epoch, a test epoch, a schedule, weights saved at the end."""

import argparse

import torch
from torch import nn, optim
from torch.nn import functional
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 8, 3, 1), nn.Conv2d(8, 16, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc1, self.fc2 = nn.Linear(16 * 12 * 12, 32), nn.Linear(32, 10)

    def forward(self, x):
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = torch.flatten(self.dropout(functional.max_pool2d(x, 2)), 1)
        return functional.log_softmax(self.fc2(functional.relu(self.fc1(x))), dim=1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=2)
    args = parser.parse_args()
    torch.manual_seed(1)
    images = TensorDataset(torch.randn(96, 1, 28, 28), torch.randint(0, 10, (96,)))
    train = DataLoader(images, batch_size=args.batch_size, shuffle=True)
    test = DataLoader(images, batch_size=32)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(args.epochs):
        model.train()
        for number, (data, target) in enumerate(train):
            optimizer.zero_grad()
            loss = functional.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
            if number % 6 == 0:
                print(f"epoch {epoch} [{number * len(data)}/{len(images)}] loss {loss.item():.4f}")
        model.eval()
        correct = 0
        with torch.no_grad():
            for data, target in test:
                correct += model(data).argmax(dim=1).eq(target).sum().item()
        print(f"correct {correct}/{len(images)}")
        scheduler.step()
    torch.save(model.state_dict(), "digits.pt")


if __name__ == "__main__":
    main()
