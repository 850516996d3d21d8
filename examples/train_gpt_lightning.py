"""The same GPT trained by Lightning, recorded by one callback.

pip install 'stepgrade[integrations]'
python examples/train_gpt_lightning.py --steps 50 --out run.json
"""

from __future__ import annotations

import argparse

import torch
from lightning import pytorch as pl
from torch.utils.data import DataLoader
from train_gpt import GPT, Text, loss_of

from stepgrade.record.lightning import StepgradeCallback


class Task(pl.LightningModule):
    """The GPT and how it is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT(layers=4, width=64, sequence=64)

    def training_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        """Return the loss."""
        ids, targets = batch
        return loss_of(self.gpt(ids), targets)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return AdamW."""
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--out", default="run.json")
    options = parser.parse_args()
    callback = StepgradeCallback(path=options.out)
    trainer = pl.Trainer(
        max_steps=options.steps,
        accumulate_grad_batches=options.accumulate,
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Task(), DataLoader(Text(4 * options.steps * options.accumulate, 64), batch_size=4))
    print(f"{callback.recorder.steps} steps: stepgrade score {callback.recorder.path}")


if __name__ == "__main__":
    main()
