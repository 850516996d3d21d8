"""As slow.py, but the text is tokenized once, before the first step."""

import torch
from slow import LENGTH, TEXT, Texts, tokenize, train


class Tokenized(Texts):
    """Pieces of the tokens."""

    def __init__(self) -> None:
        parts = [tokenize(TEXT[start : start + 1000]) for start in range(0, 10_000, 1000)]
        self.tokens = torch.tensor([token for part in parts for token in part])

    def __getitem__(self, index: int) -> torch.Tensor:
        start = index * 7 % 6000
        return self.tokens[start : start + LENGTH + 1]


if __name__ == "__main__":
    train(Tokenized())
