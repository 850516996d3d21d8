"""Lightning's own demo model and data, under its Trainer, with a validation after each epoch."""

from lightning.pytorch import Trainer, seed_everything
from lightning.pytorch.demos.boring_classes import BoringDataModule, BoringModel

seed_everything(1)
trainer = Trainer(
    accelerator="cpu",
    max_epochs=2,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = BoringModel()
trainer.fit(model, BoringDataModule())
print(f"steps {trainer.global_step} weight {model.layer.weight.sum().item():.4f}")
