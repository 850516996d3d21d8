"""TRL's SFTTrainer on a GPT-2 of two layers, a tokenizer of whole words and made sentences of 15 of them."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from datasets import Dataset
from datasets.utils.logging import disable_progress_bar
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

disable_progress_bar()
WORDS = [f"w{number}" for number in range(60)]
vocabulary = {word: number for number, word in enumerate(["<pad>", "<eos>", *WORDS])}
words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
words.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")

torch.manual_seed(0)
drawn = torch.randint(0, len(WORDS), (128, 15), generator=torch.Generator().manual_seed(0)).tolist()
texts = Dataset.from_dict({"text": [" ".join(WORDS[number] for number in row) for row in drawn]})
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=len(vocabulary), n_positions=32, n_embd=32, n_layer=2, n_head=2)
)
trainer = SFTTrainer(
    model=model,
    processing_class=tokenizer,
    train_dataset=texts,
    args=SFTConfig(
        output_dir="tuned",
        max_steps=14,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_length=16,
        use_cpu=True,
        bf16=False,
        report_to=[],
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        seed=1,
    ),
)
trained = trainer.train()
print(f"steps {trained.global_step} loss {trained.training_loss:.4f}")
