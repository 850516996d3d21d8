"""A GAN whose discriminator step also backpropagates through the generator."""

import torch
from torch import nn

torch.manual_seed(0)
latent, width = 64, 512
generator = nn.Sequential(
    nn.Linear(latent, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, width)
)
discriminator = nn.Sequential(nn.Linear(width, 256), nn.LeakyReLU(0.2), nn.Linear(256, 1))
for_generator = torch.optim.Adam(generator.parameters(), lr=2e-4)
for_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-4)
judge = nn.BCEWithLogitsLoss()
ones, zeros = torch.ones(512, 1), torch.zeros(512, 1)
for step in range(40):
    real = torch.randn(512, width)
    fake = generator(torch.randn(512, latent))
    for_discriminator.zero_grad()
    loss = judge(discriminator(real), ones) + judge(discriminator(fake), zeros)
    loss.backward()
    for_discriminator.step()

    fake = generator(torch.randn(512, latent))
    for_generator.zero_grad()
    fooled = judge(discriminator(fake), ones)
    fooled.backward()
    for_generator.step()
    if step % 10 == 0:
        print(step, loss.item(), fooled.item())
