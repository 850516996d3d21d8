"""A training that Hydra configures, and whose directory it changes."""

import os
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig
from torch import nn


@hydra.main(version_base=None, config_path="config", config_name="train")
def main(config: DictConfig) -> float:
    torch.manual_seed(config.seed)
    model = nn.Sequential(nn.Linear(8, config.width), nn.Tanh(), nn.Linear(config.width, 1))
    optimizer = hydra.utils.instantiate(config.optimizer, params=model.parameters())
    for step in range(config.steps):
        optimizer.zero_grad()
        loss = model(torch.randn(config.batch, 8)).square().mean()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt")
    print(Path.cwd().relative_to(hydra.utils.get_original_cwd()), f"loss {loss.item():.4f}")
    return os.EX_OK


if __name__ == "__main__":
    main()
