"""Decoders with one feed-forward block per layer: Llama and its kin, Gemma, Phi-3."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.models.fields import Fields
from stepgrade.hardware.models.parts import (
    Attention,
    FeedForward,
    Sizes,
    fused_attention,
    fused_gated_ffn,
    gated_ffn,
    grouped_attention,
    layer,
    plain_ffn,
    sizes,
)
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.hardware.models.windows import Spans, alternating, same_everywhere

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
    bias = fields.flag("attention_bias", default=False)
    attention = grouped_attention(widths, qkv_bias=bias, out_bias=bias)
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
    bias = fields.flag("attention_bias", default=False)
    return grouped_attention(widths, qkv_bias=bias, out_bias=bias, vectors=2 * widths.head_dim)


def qwen_spans(fields: Fields, depth: int) -> Spans:
    """Return full attention, or windows from layer `max_window_layers` on where they are switched on."""
    if not fields.flag("use_sliding_window", default=False):
        return Spans(full=depth)
    first = fields.whole("max_window_layers", default=28, least=0)
    return alternating(fields, depth, lambda index: index >= first, 4096)


def olmo2(fields: Fields) -> ModelShape:
    """Read OLMo 2: norms over the whole query and key, after attention and feed-forward."""
    widths = sizes(fields)
    bias = fields.flag("attention_bias", default=False)
    vectors = widths.query_width + widths.kv_width
    attention = grouped_attention(widths, qkv_bias=bias, out_bias=bias, vectors=vectors)
    return put_together(fields, widths, attention, gated_ffn(widths.hidden, fields.whole(FFN_WIDTH)))


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
    attention = fused_attention(widths, bias=False, out_bias=False)
    ffn = fused_gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    return put_together(fields, widths, attention, ffn, Frame(spans=same_everywhere(fields, widths.depth)))


def gemma(fields: Fields) -> ModelShape:
    """Read Gemma 1: heads of 256 whatever the hidden size, tied embeddings."""
    widths = sizes(fields, head_dim=256)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    return put_together(fields, widths, _gemma_attention(fields, widths), ffn, Frame(tied=True))


def gemma2(fields: Fields) -> ModelShape:
    """Read Gemma 2: four norms a layer, every other layer windowed."""
    widths = sizes(fields, head_dim=256)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    spans = alternating(fields, widths.depth, lambda index: index % 2 == 0, 4096)
    attention = _gemma_attention(fields, widths)
    return put_together(fields, widths, attention, ffn, Frame(spans=spans, norms=4, tied=True))


def gemma3(fields: Fields) -> ModelShape:
    """Read the text part of Gemma 3: five windowed layers, then a full one."""
    text = fields.inner("text_config", defaults=_GEMMA3_TEXT)
    shape = _gemma3_text(text or fields)
    if not fields.has("vision_config"):
        return shape
    note = "the vision tower and its projector are not counted"
    return ModelShape(
        architecture=shape.architecture,
        hidden=shape.hidden,
        vocab=shape.vocab,
        layers=shape.layers,
        tied=shape.tied,
        vectors=shape.vectors,
        notes=(*shape.notes, note),
    )


def _gemma3_text(fields: Fields) -> ModelShape:
    widths = sizes(fields, head_dim=256)
    ffn = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    pattern = fields.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    spans = alternating(fields, widths.depth, lambda index: (index + 1) % pattern != 0, 4096)
    attention = normed_attention(fields, widths)
    return put_together(fields, widths, attention, ffn, Frame(spans=spans, norms=4, tied=True))


def _gemma_attention(fields: Fields, widths: Sizes) -> Attention:
    bias = fields.flag("attention_bias", default=False)
    return grouped_attention(widths, qkv_bias=bias, out_bias=bias)


class Frame(Struct, frozen=True, kw_only=True):
    """What goes around attention and feed-forward: spans, norms a layer, vectors a norm, tied or not."""

    spans: Spans | None = None
    norms: int = 2
    norm_vectors: int = 1
    tied: bool = False


def put_together(
    fields: Fields, widths: Sizes, attention: Attention, ffn: FeedForward, frame: Frame | None = None
) -> ModelShape:
    """Return the model of equal layers inside `frame`, with one more norm at the end."""
    frame = frame or Frame()
    spans = frame.spans or Spans(full=widths.depth)
    norms = frame.norms * frame.norm_vectors * widths.hidden
    layers = [layer(count, attention, ffn, norms=norms, window=window) for count, window in spans.groups()]
    return ModelShape(
        architecture=fields.text("model_type") or "",
        hidden=widths.hidden,
        vocab=widths.vocab,
        layers=tuple(layers),
        tied=fields.flag("tie_word_embeddings", default=frame.tied),
        vectors=frame.norm_vectors * widths.hidden,
    )
