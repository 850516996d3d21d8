"""A callback for Lightning: `Trainer(callbacks=[StepgradeCallback()])`."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from stepgrade.hardware.setup import Setup
from stepgrade.record.loggers import metrics_of
from stepgrade.record.recorder import Recorder


class StepgradeCallback(Callback):
    """Records `fit` and writes the step profile at its end; options are those of `Recorder`.

    `setup` names the hardware to grade against, as in `stepgrade.score`; the numbers also go to the
    trainer's loggers.
    """

    def __init__(self, *, setup: Setup | None = None, **options: Any) -> None:
        self.recorder: Recorder | None = None
        self._setup = setup
        self._options = options
        self._global_step = 0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start recording the module and its parts, since `training_step` may call either."""
        config = {"accumulation": trainer.accumulate_grad_batches, "precision": str(trainer.precision)}
        self._global_step = trainer.global_step
        self.recorder = Recorder(
            optimizer=list(trainer.optimizers),
            dataloader=trainer.train_dataloader,
            **({"config": config} | self._options),
        ).start()
        self.recorder.watch_model(pl_module)
        for part in pl_module.children():
            if any(parameter.requires_grad for parameter in part.parameters()):
                self.recorder.watch_calls(part)

    def on_train_batch_end(
        self, trainer: Trainer, _module: LightningModule, outputs: object, _batch: object, _batch_idx: int
    ) -> None:
        """End a step after an optimizer step, not after every accumulated batch."""
        if self.recorder is None or trainer.global_step == self._global_step:
            return
        self._global_step = trainer.global_step
        self.recorder.step(outputs.get("loss") if isinstance(outputs, dict) else None)

    def on_train_end(self, trainer: Trainer, _module: LightningModule) -> None:
        """Write the profile and log its numbers."""
        self._close()
        if self.recorder is not None and self.recorder.has_profile:
            numbers = metrics_of(self.recorder.score(setup=self._setup))
            for logger in trainer.loggers:
                logger.log_metrics(numbers, step=trainer.global_step)

    def on_exception(self, _trainer: Trainer, _module: LightningModule, _exception: BaseException) -> None:
        """Write what was recorded so far."""
        self._close()

    def _close(self) -> None:
        if self.recorder is not None:
            self.recorder.close()
