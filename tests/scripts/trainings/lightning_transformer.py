"""Lightning's demo transformer on made text, with two batches to a step."""

import torch
from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.transformer import LightningTransformer
from torch.utils.data import DataLoader, TensorDataset


class OnMadeText(LightningTransformer):
    def prepare_data(self):
        pass

    def train_dataloader(self):
        words = torch.randint(0, 100, (48, 36), generator=torch.Generator().manual_seed(0))
        return DataLoader(TensorDataset(words[:, :-1], words[:, 1:].contiguous()), batch_size=2)


seed_everything(1)
model = OnMadeText(vocab_size=100)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=1,
    accumulate_grad_batches=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model)
print(f"steps {trainer.global_step} loss {trainer.callback_metrics.get('loss', 'not logged')}")
