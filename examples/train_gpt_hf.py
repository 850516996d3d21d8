"""The same GPT trained by Hugging Face's Trainer, recorded by one callback.

pip install 'stepgrade[integrations]'
python examples/train_gpt_hf.py --steps 50 --out run.json
"""

from __future__ import annotations

import argparse
import tempfile

import torch
from train_gpt import GPT, Text, loss_of
from transformers import Trainer, TrainingArguments

from stepgrade.record.huggingface import StepgradeCallback


class Model(GPT):
    """The GPT with the call that Trainer makes: ids and labels in, the loss out."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and logits."""
        logits = super().forward(input_ids)
        return {"loss": loss_of(logits, labels), "logits": logits}


class Rows(Text):
    """The rows with the names that Trainer wants."""

    def __getitem__(self, row: int) -> dict[str, torch.Tensor]:
        ids, targets = super().__getitem__(row)
        return {"input_ids": ids, "labels": targets}


def main() -> None:
    """Train for some steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--out", default="run.json")
    options = parser.parse_args()
    callback = StepgradeCallback(path=options.out)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder,
            max_steps=options.steps,
            gradient_accumulation_steps=options.accumulate,
            per_device_train_batch_size=4,
            logging_steps=5,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
        )
        model, rows = Model(layers=4, width=64, sequence=64), Rows(4 * options.steps * options.accumulate, 64)
        Trainer(model=model, args=arguments, train_dataset=rows, callbacks=[callback]).train()
    print(f"{callback.recorder.steps} steps: stepgrade score {callback.recorder.path}")


if __name__ == "__main__":
    main()
