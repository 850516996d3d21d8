"""Decoders with one feed-forward block per layer: Llama and its kin, Gemma, and GPT's line."""

from __future__ import annotations

from msgspec import structs

from stepgrade.hardware.models.fields import MOST_LAYERS, Fields
from stepgrade.hardware.models.parts import (
    Attention,
    AttentionSpans,
    Frame,
    Sizes,
    alternating,
    biased_attention,
    fused_attention,
    fused_gated_ffn,
    gated_ffn,
    grouped_attention,
    plain_ffn,
    put_together,
    same_everywhere,
    sizes,
)
from stepgrade.hardware.models.shape import ModelShape

FFN_WIDTH = "intermediate_size"
# Published Gemma 3 configs leave these out of `text_config`; the architecture's own defaults.
_GEMMA3_TEXT = {
    "model_type": "gemma3_text",
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}


def llama(fields: Fields) -> ModelShape:
    """Read Llama: RMS norms, gated feed-forward, biases only where the config asks."""
    widths = sizes(fields)
    attention = biased_attention(fields, widths)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH), bias=fields.flag("mlp_bias", default=False))
    return put_together(fields, widths, attention, ffn)


def mistral(fields: Fields) -> ModelShape:
    """Read Mistral: Llama with a sliding window, 4,096 unless the config says otherwise."""
    widths = sizes(fields)
    default = None if fields.declares("sliding_window") else 4096
    spans = same_everywhere(fields, widths.depth, default)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    return put_together(fields, widths, grouped_attention(widths), ffn, Frame(spans=spans))


def qwen2(fields: Fields) -> ModelShape:
    """Read Qwen2 and Qwen2.5: biases on q, k and v."""
    widths = sizes(fields)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    spans = qwen_spans(fields, widths.depth)
    return put_together(fields, widths, grouped_attention(widths, qkv_bias=True), ffn, Frame(spans=spans))


def qwen3(fields: Fields) -> ModelShape:
    """Read Qwen3: norms on the query and key heads, no biases."""
    widths = sizes(fields, head_dim=128)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    spans = qwen_spans(fields, widths.depth)
    return put_together(fields, widths, normed_attention(fields, widths), ffn, Frame(spans=spans))


def normed_attention(fields: Fields, widths: Sizes) -> Attention:
    """Return attention with a norm over each query and key head."""
    attention = biased_attention(fields, widths, vectors=2 * widths.head_dim)
    return structs.replace(attention, qk_norms="per_head")


def whole_normed_attention(fields: Fields, widths: Sizes) -> Attention:
    """Return attention with a norm over the whole query and one over the whole key."""
    attention = biased_attention(fields, widths, vectors=widths.query_width + widths.kv_width)
    return structs.replace(attention, qk_norms="whole")


def qwen_spans(fields: Fields, depth: int) -> AttentionSpans:
    """Return full attention, or windows from layer `max_window_layers` on where they are switched on."""
    if not fields.flag("use_sliding_window", default=False):
        return AttentionSpans(full=depth)
    first = fields.whole("max_window_layers", default=28, least=0)
    return alternating(fields, depth, lambda index: index >= first, 4096)


def olmo2(fields: Fields) -> ModelShape:
    """Read OLMo 2: norms over the whole query and key, after attention and feed-forward."""
    widths = sizes(fields)
    attention = whole_normed_attention(fields, widths)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    return put_together(fields, widths, attention, ffn, Frame(norm="rms_fp32"))


def starcoder2(fields: Fields) -> ModelShape:
    """Read StarCoder 2: layer norms with bias, no gate, tied embeddings."""
    widths = sizes(fields)
    bias = fields.flag("use_bias", default=True)
    attention = grouped_attention(widths, qkv_bias=bias, out_bias=bias)
    ffn = plain_ffn(widths.hidden, fields.whole(FFN_WIDTH), bias=bias)
    spans = same_everywhere(fields, widths.depth)
    return put_together(fields, widths, attention, ffn, Frame(spans=spans, norm_vectors=2, tied=True))


def phi3(fields: Fields) -> ModelShape:
    """Read Phi-3 and Phi-4: q, k and v in one matrix, gate and up in one matrix."""
    widths = sizes(fields)
    attention = structs.replace(fused_attention(widths, bias=False), rotation="part")
    ffn = fused_gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    return put_together(fields, widths, attention, ffn, Frame(spans=same_everywhere(fields, widths.depth)))


def gemma(fields: Fields) -> ModelShape:
    """Read Gemma 1: heads of 256 whatever the hidden size, tied embeddings."""
    widths = sizes(fields, head_dim=256)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    return put_together(fields, widths, biased_attention(fields, widths), ffn, Frame(norm="gemma", tied=True))


def gemma2(fields: Fields) -> ModelShape:
    """Read Gemma 2: four norms a layer, every other layer windowed."""
    widths = sizes(fields, head_dim=256)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    spans = alternating(fields, widths.depth, lambda index: index % 2 == 0, 4096)
    attention = biased_attention(fields, widths)
    return put_together(fields, widths, attention, ffn, Frame(spans=spans, norms=4, norm="gemma", tied=True))


def gemma3(fields: Fields) -> ModelShape:
    """Read the text part of Gemma 3: five windowed layers, then a full one."""
    text = fields.inner("text_config", defaults=_GEMMA3_TEXT) or fields
    widths = sizes(text, head_dim=256)
    ffn = gated_ffn(widths.hidden, text.whole(FFN_WIDTH))
    pattern = text.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    spans = alternating(text, widths.depth, lambda index: (index + 1) % pattern != 0, 4096)
    frame = Frame(spans=spans, norms=4, norm="gemma", tied=True)
    shape = put_together(text, widths, normed_attention(text, widths), ffn, frame)
    if not fields.has("vision_config"):
        return shape
    return structs.replace(shape, notes=("the vision tower and its projector are not counted",))


def gpt2(fields: Fields) -> ModelShape:
    """Read GPT-2: biases everywhere, a table of positions, tied embeddings."""
    widths = _old_sizes(fields, hidden="n_embd", depth="n_layer", heads="n_head")
    ffn = plain_ffn(widths.hidden, fields.whole("n_inner", default=4 * widths.hidden), bias=True)
    attention = structs.replace(fused_attention(widths, bias=True), rotation="none")
    positions = fields.whole("n_positions", "n_ctx") * widths.hidden
    dropout = fields.number("resid_pdrop", 0.1, allows_zero=True) > 0
    ffn = structs.replace(ffn, activation="gelu_new")
    frame = Frame(norm_vectors=2, has_dropout=dropout, tied=True, positions=positions)
    return put_together(fields, widths, attention, ffn, frame)


def mpt(fields: Fields) -> ModelShape:
    """Read MPT: a table of positions unless it uses alibi, biases unless `no_bias`."""
    widths = _old_sizes(fields, hidden="d_model", depth="n_layers", heads="n_heads")
    bias = not fields.flag("no_bias", default=True)
    ffn = plain_ffn(widths.hidden, round(fields.number("expansion_ratio", 4) * widths.hidden), bias=bias)
    attention = structs.replace(fused_attention(widths, bias=bias), rotation="none")
    positions, how = 0, fields.inner("attn_config")
    if how is not None and not how.flag("alibi", default=True) and not how.flag("rope", default=False):
        positions = fields.whole("max_seq_len") if fields.flag("learned_pos_emb", default=True) else 0
    frame = Frame(norm_vectors=2 if bias else 1, tied=True, positions=positions * widths.hidden)
    return put_together(fields, widths, attention, ffn, frame)


def gpt_neox(fields: Fields) -> ModelShape:
    """Read GPT-NeoX and Pythia: q, k and v in one matrix, untied head without bias."""
    widths = sizes(fields)
    bias = fields.flag("attention_bias", default=True)
    ffn = plain_ffn(widths.hidden, fields.whole(FFN_WIDTH), bias=True)
    attention = structs.replace(fused_attention(widths, bias=bias), rotation="part")
    is_parallel = fields.flag("use_parallel_residual", default=True)
    return put_together(fields, widths, attention, ffn, Frame(norm_vectors=2, is_parallel=is_parallel))


def phi(fields: Fields) -> ModelShape:
    """Read Phi-1, 1.5 and 2: one norm for attention and feed-forward, a bias on the head."""
    widths = sizes(fields)
    vectors = 4 * widths.head_dim if fields.flag("qk_layernorm", default=False) else 0
    attention = grouped_attention(widths, qkv_bias=True, out_bias=True, vectors=vectors)
    attention = structs.replace(attention, rotation="part")
    ffn = plain_ffn(widths.hidden, fields.whole(FFN_WIDTH), bias=True)
    if fields.text("hidden_act") in (None, "gelu_new"):
        ffn = structs.replace(ffn, activation="gelu_new")
    frame = Frame(norms=1, norm_vectors=2, extra_vectors=widths.vocab)
    return put_together(fields, widths, attention, ffn, frame)


def _old_sizes(fields: Fields, *, hidden: str, depth: str, heads: str) -> Sizes:
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
