"""Decoders of GPT's line: layer norms with bias, no gate: GPT-2, GPT-NeoX, MPT, Phi-1 and 2."""

from __future__ import annotations

from stepgrade.hardware.models.fields import MOST_LAYERS, Fields
from stepgrade.hardware.models.parts import (
    Sizes,
    fused_attention,
    grouped_attention,
    layer,
    plain_ffn,
    sizes,
)
from stepgrade.hardware.models.shape import ModelShape


def gpt2(fields: Fields) -> ModelShape:
    """Read GPT-2: biases everywhere, a table of positions, tied embeddings."""
    widths = _old_widths(fields, hidden="n_embd", depth="n_layer", heads="n_head")
    ffn = plain_ffn(widths.hidden, fields.whole("n_inner", default=4 * widths.hidden), bias=True)
    attention = fused_attention(widths, bias=True, out_bias=True)
    return ModelShape(
        architecture="gpt2",
        hidden=widths.hidden,
        vocab=widths.vocab,
        layers=(layer(widths.depth, attention, ffn, norms=4 * widths.hidden),),
        tied=fields.flag("tie_word_embeddings", default=True),
        positions=fields.whole("n_positions", "n_ctx") * widths.hidden,
        vectors=2 * widths.hidden,
    )


def mpt(fields: Fields) -> ModelShape:
    """Read MPT: a table of positions unless it uses alibi, biases unless `no_bias`."""
    widths = _old_widths(fields, hidden="d_model", depth="n_layers", heads="n_heads")
    bias = not fields.flag("no_bias", default=True)
    norm = (2 if bias else 1) * widths.hidden
    ffn = plain_ffn(widths.hidden, _expanded(fields, widths.hidden), bias=bias)
    attention = fused_attention(widths, bias=bias, out_bias=bias)
    return ModelShape(
        architecture="mpt",
        hidden=widths.hidden,
        vocab=widths.vocab,
        layers=(layer(widths.depth, attention, ffn, norms=2 * norm),),
        tied=fields.flag("tie_word_embeddings", default=True),
        positions=_learned_positions(fields) * widths.hidden,
        vectors=norm,
    )


def _expanded(fields: Fields, hidden: int) -> int:
    return round(fields.number("expansion_ratio", 4) * hidden)


def _learned_positions(fields: Fields) -> int:
    attention = fields.inner("attn_config")
    if attention is None or attention.flag("alibi", default=True) or attention.flag("rope", default=False):
        return 0
    return fields.whole("max_seq_len") if fields.flag("learned_pos_emb", default=True) else 0


def gpt_neox(fields: Fields) -> ModelShape:
    """Read GPT-NeoX and Pythia: q, k and v in one matrix, untied head without bias."""
    widths = sizes(fields)
    bias = fields.flag("attention_bias", default=True)
    ffn = plain_ffn(widths.hidden, fields.whole("intermediate_size"), bias=True)
    attention = fused_attention(widths, bias=bias, out_bias=bias)
    return ModelShape(
        architecture="gpt_neox",
        hidden=widths.hidden,
        vocab=widths.vocab,
        layers=(layer(widths.depth, attention, ffn, norms=4 * widths.hidden),),
        tied=fields.flag("tie_word_embeddings", default=False),
        vectors=2 * widths.hidden,
    )


def phi(fields: Fields) -> ModelShape:
    """Read Phi-1, 1.5 and 2: one norm for attention and feed-forward, a bias on the head."""
    widths = sizes(fields)
    normed = fields.flag("qk_layernorm", default=False)
    attention = grouped_attention(
        widths, qkv_bias=True, out_bias=True, vectors=4 * widths.head_dim if normed else 0
    )
    ffn = plain_ffn(widths.hidden, fields.whole("intermediate_size"), bias=True)
    return ModelShape(
        architecture="phi",
        hidden=widths.hidden,
        vocab=widths.vocab,
        layers=(layer(widths.depth, attention, ffn, norms=2 * widths.hidden),),
        tied=fields.flag("tie_word_embeddings", default=False),
        vectors=2 * widths.hidden + widths.vocab,
    )


def _old_widths(fields: Fields, *, hidden: str, depth: str, heads: str) -> Sizes:
    width = fields.whole(hidden)
    count = fields.whole(heads, most=width)
    return Sizes(
        hidden=width,
        depth=fields.whole(depth, most=MOST_LAYERS),
        vocab=fields.whole("vocab_size"),
        heads=count,
        kv_heads=count,
        head_dim=fields.divides(count, width, heads, hidden),
    )
