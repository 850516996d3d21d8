"""Decoders with experts: Mixtral, Qwen MoE, OLMoE, GPT-OSS, and DeepSeek with latent attention."""

from __future__ import annotations

from msgspec import structs

from stepgrade.hardware.models.dense import FFN_WIDTH, normed_attention, qwen_spans, whole_normed_attention
from stepgrade.hardware.models.fields import MOST_LAYERS, Fields
from stepgrade.hardware.models.parts import (
    Attention,
    FeedForward,
    Frame,
    Sizes,
    alternating,
    biased_attention,
    expert_ffn,
    gated_ffn,
    grouped_attention,
    layer,
    put_together,
    same_everywhere,
    sizes,
    with_shared,
)
from stepgrade.hardware.models.shape import Linear, ModelShape

MOST_EXPERTS = 65_536


def mixtral(fields: Fields) -> ModelShape:
    """Read Mixtral: every layer's feed-forward is a set of experts."""
    widths = sizes(fields)
    ffn = _experts(fields, widths.hidden, fields.whole(FFN_WIDTH), "num_local_experts")
    spans = same_everywhere(fields, widths.depth)
    return put_together(fields, widths, grouped_attention(widths), ffn, Frame(spans=spans))


def olmoe(fields: Fields) -> ModelShape:
    """Read OLMoE: experts, and norms over the whole query and key."""
    widths = sizes(fields)
    attention = whole_normed_attention(fields, widths)
    ffn = _experts(fields, widths.hidden, fields.whole(FFN_WIDTH), "num_experts")
    return put_together(fields, widths, attention, ffn)


def gpt_oss(fields: Fields) -> ModelShape:
    """Read GPT-OSS: biases everywhere, a sink per head, every other layer windowed."""
    widths = sizes(fields, head_dim=64)
    attention = biased_attention(fields, widths, default=True, vectors=widths.heads)
    expert = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH), bias=True)
    count, active = _expert_counts(fields, "num_local_experts")
    ffn = expert_ffn(expert, widths.hidden, count=count, active=active, router_bias=True)
    spans = alternating(fields, widths.depth, lambda index: index % 2 == 0, 128)
    return put_together(fields, widths, attention, ffn, Frame(spans=spans))


def qwen3_moe(fields: Fields) -> ModelShape:
    """Read Qwen3-MoE: Qwen3's attention, experts in all layers but those listed as plain."""
    widths = sizes(fields)
    experts = _experts(fields, widths.hidden, fields.whole("moe_intermediate_size"), "num_experts")
    return _mixed(fields, widths, normed_attention(fields, widths), experts)


def qwen2_moe(fields: Fields) -> ModelShape:
    """Read Qwen2-MoE: experts beside a shared one that has its own gate."""
    widths = sizes(fields)
    routed = _experts(fields, widths.hidden, fields.whole("moe_intermediate_size"), "num_experts")
    shared = gated_ffn(widths.hidden, fields.whole("shared_expert_intermediate_size"))
    gate = Linear(name="router", inputs=widths.hidden, outputs=1)
    experts = with_shared(routed, FeedForward(linears=(*shared.linears, gate), width=shared.width))
    attention = grouped_attention(widths, qkv_bias=fields.flag("qkv_bias", default=True))
    return _mixed(fields, widths, attention, experts)


def _mixed(fields: Fields, widths: Sizes, attention: Attention, experts: FeedForward) -> ModelShape:
    """Put experts into every `decoder_sparse_step`-th layer that is not listed as plain."""
    step = fields.whole("decoder_sparse_step", default=1)
    plain_only = fields.sequence("mlp_only_layers") or []
    sparse = [i for i in range(widths.depth) if i not in plain_only and (i + 1) % step == 0]
    if len(sparse) == widths.depth:
        return put_together(fields, widths, attention, experts, Frame(spans=qwen_spans(fields, widths.depth)))
    plain = gated_ffn(widths.hidden, fields.whole(FFN_WIDTH))
    groups = ((widths.depth - len(sparse), plain), (len(sparse), experts))
    return _assembled(fields, widths, attention, groups)


def deepseek(fields: Fields) -> ModelShape:
    """Read DeepSeek V2 and V3: latent attention, a few plain layers, then experts beside shared ones."""
    hidden = fields.whole("hidden_size")
    heads = fields.whole("num_attention_heads", most=hidden)
    rope, plain = fields.whole("qk_rope_head_dim"), fields.whole("qk_nope_head_dim")
    widths = Sizes(
        hidden=hidden,
        depth=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        vocab=fields.whole("vocab_size"),
        heads=heads,
        kv_heads=heads,
        head_dim=rope + plain,
    )
    dense_count = fields.whole("first_k_dense_replace", default=0, least=0, most=widths.depth)
    dense_ffn = gated_ffn(hidden, fields.whole(FFN_WIDTH))
    width = fields.whole("moe_intermediate_size")
    experts = _experts(fields, hidden, width, "n_routed_experts")
    shared = fields.whole("n_shared_experts", default=0, least=0)
    if shared:
        experts = with_shared(experts, gated_ffn(hidden, width * shared))
    groups = ((dense_count, dense_ffn), (widths.depth - dense_count, experts))
    return _assembled(fields, widths, _latent_attention(fields, widths), groups)


def _latent_attention(fields: Fields, widths: Sizes) -> Attention:
    """Return attention whose keys and values come from one small latent vector."""
    d, heads, q = widths.hidden, widths.heads, widths.query_width
    latent, rope = fields.whole("kv_lora_rank"), fields.whole("qk_rope_head_dim")
    plain, value = fields.whole("qk_nope_head_dim"), fields.whole("v_head_dim")
    bias = fields.flag("attention_bias", default=False)
    rank = fields.whole("q_lora_rank", default=0, least=0)
    query: tuple[Linear, ...] = (Linear(name="q", inputs=d, outputs=q),)
    if rank:
        down = Linear(name="q_down", inputs=d, outputs=rank, bias=bias)
        query = (down, Linear(name="q_up", inputs=rank, outputs=q))
    linears = (
        *query,
        Linear(name="kv_down", inputs=d, outputs=latent + rope, bias=bias),
        Linear(name="kv_up", inputs=latent, outputs=heads * (plain + value)),
        Linear(name="o", inputs=heads * value, outputs=d, bias=bias),
    )
    return Attention(
        linears=linears,
        score_width=heads * (rope + plain + value) / 2,
        query_width=q,
        kv_width=q,
        heads=heads,
        vectors=latent + rank,
        rotation="part",
    )


def _experts(fields: Fields, hidden: int, width: int, count_field: str) -> FeedForward:
    count, active = _expert_counts(fields, count_field)
    return expert_ffn(gated_ffn(hidden, width), hidden, count=count, active=active)


def _expert_counts(fields: Fields, count_field: str) -> tuple[int, int]:
    count = fields.whole(count_field, "num_experts", "num_local_experts", most=MOST_EXPERTS)
    return count, fields.whole("num_experts_per_tok", "experts_per_token", most=count)


def _assembled(
    fields: Fields, widths: Sizes, attention: Attention, groups: tuple[tuple[int, FeedForward], ...]
) -> ModelShape:
    """Return the model whose layers differ in their feed-forward: so many of each."""
    extra = fields.whole("num_nextn_predict_layers", default=0, least=0)
    return structs.replace(
        put_together(fields, widths, attention, groups[0][1]),
        layers=tuple(layer(n, widths.hidden, attention, ffn, Frame()) for n, ffn in groups if n),
        notes=("the layers that predict further tokens are not counted",) if extra else (),
    )
