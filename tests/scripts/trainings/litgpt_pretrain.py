"""litgpt's pretraining of a model of two layers on made tokens, four batches to a step."""

import os
import sys
from pathlib import Path

os.environ["TORCHDYNAMO_DISABLE"] = "1"  # it compiles the model, which takes minutes

import torch
from litgpt import Config
from litgpt.args import EvalArgs, TrainArgs
from litgpt.data import DataModule
from litgpt.pretrain import setup
from torch.utils.data import DataLoader

SEQUENCE = 16
sys.argv[1:] = ["tiny"]  # which it writes down beside the weights


class MadeTokens(DataModule):
    def connect(self, tokenizer=None, batch_size=1, max_seq_length=None):
        self.batch_size = batch_size

    def train_dataloader(self):
        tokens = torch.randint(0, 64, (96, SEQUENCE + 1), generator=torch.Generator().manual_seed(0))
        return DataLoader(list(tokens), batch_size=self.batch_size)

    val_dataloader = train_dataloader


setup(
    model_name="tiny",
    model_config=Config(
        name="tiny", block_size=SEQUENCE, vocab_size=64, padded_vocab_size=64, n_layer=2, n_head=2, n_embd=32
    ),
    out_dir=Path("out"),
    precision="32-true",
    data=MadeTokens(),
    train=TrainArgs(
        global_batch_size=8,
        micro_batch_size=2,
        max_tokens=12 * 8 * SEQUENCE,
        lr_warmup_steps=2,
        max_norm=1.0,
        log_interval=100,
        save_interval=None,
    ),
    eval=EvalArgs(interval=1000, max_iters=1, initial_validation=False, final_validation=False),
    devices=1,
    logger_name="csv",
)
print("saved", sorted(path.name for path in Path("out", "final").iterdir()))
