"""A callback for Hugging Face's Trainer: `Trainer(…, callbacks=[StepgradeCallback()])`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from stepgrade.hardware.setup import Setup
from stepgrade.record.loggers import metrics_of
from stepgrade.record.recorder import Recorder

if TYPE_CHECKING:
    from transformers import TrainerControl, TrainerState, TrainingArguments


class StepgradeCallback(TrainerCallback):
    """Records the training and writes the step profile at its end; options are those of `Recorder`.

    `setup` names the hardware to grade against, as in `stepgrade.score`; the numbers go into the
    trainer's log history too, and so to whatever it reports to.
    """

    def __init__(self, *, setup: Setup | None = None, **options: Any) -> None:
        self.recorder: Recorder | None = None
        self._setup = setup
        self._options = options

    def on_train_begin(
        self, args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **parts: Any
    ) -> None:
        """Start recording the trainer's model, optimizer and loader."""
        config = {
            "accumulation": args.gradient_accumulation_steps,
            "batch_size": args.per_device_train_batch_size,
            "bf16": args.bf16,
            "fp16": args.fp16,
        }
        self.recorder = Recorder(
            parts["model"],
            optimizer=parts.get("optimizer"),
            dataloader=parts.get("train_dataloader"),
            **({"config": config} | self._options),
        ).start()

    def on_step_end(
        self, _args: TrainingArguments, _state: TrainerState, _control: TrainerControl, **_parts: object
    ) -> None:
        """End an optimizer step, independent of gradient accumulation."""
        if self.recorder is not None:
            self.recorder.step()

    def on_log(
        self,
        _args: TrainingArguments,
        _state: TrainerState,
        _control: TrainerControl,
        logs: dict[str, object] | None = None,
        **_parts: object,
    ) -> None:
        """Record the trainer's averaged loss."""
        loss = (logs or {}).get("loss")
        if self.recorder is not None and isinstance(loss, int | float):
            self.recorder.add_loss(loss)

    def on_train_end(
        self, _args: TrainingArguments, state: TrainerState, _control: TrainerControl, **_parts: object
    ) -> None:
        """Write the profile."""
        if self.recorder is None:
            return
        self.recorder.close()
        if self.recorder.has_profile:
            numbers = metrics_of(self.recorder.score(setup=self._setup))
            state.log_history.append(numbers | {"step": state.global_step})
