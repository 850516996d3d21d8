"""Which part of a model an operation belongs to, and its direction, by its name."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise

from stepgrade.naming.work_class import WorkClass, classify, classify_words

# The first role that has a word of the name decides. Words are those of common model codes.
_ROLE_WORDS = {
    "qkv": ("qkv q k v wq wk wv query key value q_proj k_proj v_proj qkv_proj c_attn in_proj to_q to_k to_v"),
    "attention out": "o_proj out_proj wo attn_out to_out o dense_out",
    "mlp up": "gate up gate_proj up_proj gate_up fc1 w1 w3 c_fc wi ffn1 dense_h_to_4h",
    "mlp down": "down down_proj fc2 w2 mlp_out ffn2 dense_4h_to_h",
    "head": "lm_head head logits lmhead unembed output_layer",
    "embedding": "embed embedding wte wpe embed_tokens emb tok_embeddings",
    "rope": "rope rotary",
    "lora": "lora lora_a lora_b adapter",
    "experts": "expert experts moe router",
    "loss": "loss ce nll cross_entropy crossentropy",
    "norm": "norm rmsnorm layernorm ln ln1 ln2 rms_norm layer_norm input_layernorm",
    "attention": "attention attn sdpa softmax flash self_attn",
    "mlp": "mlp ffn feedforward feed_forward silu gelu swiglu",
}
_ROLES = {role: frozenset(words.split()) for role, words in _ROLE_WORDS.items()}
_CLASSES = {
    "qkv": WorkClass.GEMM,
    "attention out": WorkClass.GEMM,
    "mlp up": WorkClass.GEMM,
    "mlp down": WorkClass.GEMM,
    "mlp": WorkClass.GEMM,
    "head": WorkClass.GEMM,
    "lora": WorkClass.GEMM,
    "experts": WorkClass.GEMM,
    "embedding": WorkClass.EMBEDDING,
    "loss": WorkClass.SOFTMAX,
    "norm": WorkClass.NORM,
}
_UPDATES = frozenset({"adam", "adamw", "optim", "optimizer", "sgd", "muon"})
_BACKWARD = frozenset(["bwd", "backward", "grad", "dgrad", "wgrad", "bw"])
_FORWARD = frozenset(["fwd", "forward", "fw"])
_WORD = re.compile(r"[a-z0-9]+")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_LONGEST = 200


@lru_cache(maxsize=10_000)
def role_of(name: str) -> str | None:
    """Return the part of a model that an operation or module is; None if unknown."""
    words = _words(name)
    return next((role for role, known in _ROLES.items() if words & known), None)


@lru_cache(maxsize=10_000)
def class_of(name: str) -> WorkClass:
    """Return the work class of an operation, also where its name is a part of a model (`mlp_down`)."""
    words = _words(name) if "::" not in name else frozenset()
    role = role_of(name) if words else None
    if role == "norm":
        return WorkClass.NORM
    if words & _UPDATES:
        return WorkClass.OPTIMIZER
    found = classify_words(name) if words else classify(name)
    if role in ("qkv", "attention out") and found is WorkClass.ATTENTION:  # c_attn is a product
        return WorkClass.GEMM
    if found is not WorkClass.OTHER:
        return found
    return _CLASSES[role] if role in _CLASSES else classify(name)


@lru_cache(maxsize=10_000)
def direction_of(name: str) -> str | None:
    """Return forward or backward; None if unknown."""
    words = _words(name)
    if words & _BACKWARD or "Backward" in name[:_LONGEST]:
        return "backward"
    return "forward" if words & _FORWARD else None


def _words(name: str) -> frozenset[str]:
    """Return the words of a name, alone and joined with their neighbour."""
    text = name[:_LONGEST]
    if not text.islower():
        text = _CAMEL.sub("_", text)
    words = _WORD.findall(text.casefold())
    stems = [word for word in words if not word.isdecimal()]
    pairs = [f"{word}_{following}" for word, following in pairwise(stems)]
    return frozenset((*stems, *pairs))
