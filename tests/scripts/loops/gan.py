"""A generator against a discriminator, each with its optimizer."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
BATCH = 8


def weights_init(module):
    if isinstance(module, nn.Linear):
        nn.init.normal_(module.weight, 0.0, 0.02)


generator = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32), nn.Tanh())
discriminator = nn.Sequential(nn.Linear(32, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1), nn.Sigmoid())
generator.apply(weights_init)
discriminator.apply(weights_init)
criterion = nn.BCELoss()
fixed = torch.randn(BATCH, 16)
optimizer_d = torch.optim.Adam(discriminator.parameters(), 2e-4, betas=(0.5, 0.999))
optimizer_g = torch.optim.Adam(generator.parameters(), 2e-4, betas=(0.5, 0.999))
loader = DataLoader(TensorDataset(torch.randn(160, 32)), batch_size=BATCH)
for epoch in range(2):
    for (real,) in loader:
        discriminator.zero_grad()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        loss_real = criterion(discriminator(real), ones)
        loss_real.backward()
        fake = generator(torch.randn(len(real), 16))
        loss_fake = criterion(discriminator(fake.detach()), zeros)
        loss_fake.backward()
        optimizer_d.step()
        generator.zero_grad()
        loss_g = criterion(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()
    with torch.no_grad():
        shown = generator(fixed)
    print(
        f"epoch {epoch} D {(loss_real + loss_fake).item():.4f} G {loss_g.item():.4f} {shown.std().item():.4f}"
    )
    torch.save(generator, f"generator_{epoch}.pt")
