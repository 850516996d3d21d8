"""Models that logs refer to by name: the essentials of their config.json."""

from __future__ import annotations

import re
from typing import Any

_QWEN3 = {"model_type": "qwen3", "vocab_size": 151_936, "head_dim": 128}
_QWEN2 = {"model_type": "qwen2", "vocab_size": 151_936}
_LLAMA3 = {"model_type": "llama", "vocab_size": 128_256, "num_key_value_heads": 8}
_LLAMA2 = {"model_type": "llama", "vocab_size": 32_000}
_GPT2 = {"model_type": "gpt2", "vocab_size": 50_257, "n_positions": 1024}


def _row(base: dict[str, Any], *sizes: int, tied: bool = False) -> dict[str, Any]:
    layers, hidden, heads, kv, ffn = sizes
    return base | {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": ffn,
        "tie_word_embeddings": tied,
    }


# By family and size, in lower case without punctuation.
_MODELS: dict[str, dict[str, Any]] = {
    "qwen306b": _row(_QWEN3, 28, 1024, 16, 8, 3072, tied=True),
    "qwen317b": _row(_QWEN3, 28, 2048, 16, 8, 6144, tied=True),
    "qwen34b": _row(_QWEN3, 36, 2560, 32, 8, 9728, tied=True),
    "qwen38b": _row(_QWEN3, 36, 4096, 32, 8, 12_288),
    "qwen314b": _row(_QWEN3, 40, 5120, 40, 8, 17_408),
    "qwen332b": _row(_QWEN3, 64, 5120, 64, 8, 25_600),
    "qwen2505b": _row(_QWEN2, 24, 896, 14, 2, 4864, tied=True),
    "qwen2515b": _row(_QWEN2, 28, 1536, 12, 2, 8960, tied=True),
    "qwen253b": _row(_QWEN2, 36, 2048, 16, 2, 11_008, tied=True),
    "qwen257b": _row(_QWEN2, 28, 3584, 28, 4, 18_944) | {"vocab_size": 152_064},
    "qwen2514b": _row(_QWEN2, 48, 5120, 40, 8, 13_824) | {"vocab_size": 152_064},
    "qwen2532b": _row(_QWEN2, 64, 5120, 40, 8, 27_648) | {"vocab_size": 152_064},
    "qwen2572b": _row(_QWEN2, 80, 8192, 64, 8, 29_568) | {"vocab_size": 152_064},
    "llama38b": _row(_LLAMA3, 32, 4096, 32, 8, 14_336),
    "llama370b": _row(_LLAMA3, 80, 8192, 64, 8, 28_672),
    "llama3405b": _row(_LLAMA3, 126, 16_384, 128, 8, 53_248),
    "llama321b": _row(_LLAMA3, 16, 2048, 32, 8, 8192, tied=True),
    "llama323b": _row(_LLAMA3, 28, 3072, 24, 8, 8192, tied=True),
    "llama27b": _row(_LLAMA2, 32, 4096, 32, 32, 11_008),
    "llama213b": _row(_LLAMA2, 40, 5120, 40, 40, 13_824),
    "llama270b": _row(_LLAMA2, 80, 8192, 64, 8, 28_672),
    "gpt2": _GPT2 | {"n_layer": 12, "n_embd": 768, "n_head": 12},
    "gpt2medium": _GPT2 | {"n_layer": 24, "n_embd": 1024, "n_head": 16},
    "gpt2large": _GPT2 | {"n_layer": 36, "n_embd": 1280, "n_head": 20},
    "gpt2xl": _GPT2 | {"n_layer": 48, "n_embd": 1600, "n_head": 25},
}
_SAME = (("llama31", "llama3"), ("llama33", "llama3"))
_NOT_ITS_SHAPE = re.compile(r"(?:instruct|base|chat|hf|it|meta|bnb4bit|unsloth|openai)")


def known_model(name: str) -> dict[str, Any] | None:
    """Return the config of a model by a name like `qwen3 14B` or `Qwen/Qwen2.5-0.5B`; None if unknown."""
    short = name.rsplit("/", 1)[-1].lower()
    short = re.sub(r"[^a-z0-9]", "", _NOT_ITS_SHAPE.sub("", short))
    for variant, family in _SAME:
        if short.startswith(variant):
            short = family + short.removeprefix(variant)
    return _MODELS.get(short)
