"""The parts that decoders are put together from: attention and how far it sees, feed-forward, experts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct, structs

from stepgrade.hardware.models.fields import MOST_LAYERS, Fields
from stepgrade.hardware.models.shape import Layer, Linear, ModelShape, NormKind, Rotation

WINDOWED_TYPES = frozenset({"sliding_attention", "chunked_attention"})
FULL_TYPES = frozenset({"full_attention"})


class Sizes(Struct, frozen=True, kw_only=True):
    """The widths that every decoder's config gives, under whatever names."""

    hidden: int
    depth: int
    vocab: int
    heads: int
    kv_heads: int
    head_dim: int

    @property
    def query_width(self) -> int:
        """Return heads x head size."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Return key-value heads x head size."""
        return self.kv_heads * self.head_dim


class Attention(Struct, frozen=True, kw_only=True):
    """One attention block; `vectors` are its norms and scales, biases belong to the matrices."""

    linears: tuple[Linear, ...]
    score_width: float
    query_width: int
    kv_width: int
    heads: int
    vectors: int = 0
    qk_norms: Literal["none", "per_head", "whole"] = "none"
    rotation: Rotation = "whole"


class FeedForward(Struct, frozen=True, kw_only=True):
    """One feed-forward block; `width` counts what a token meets, over all its experts."""

    linears: tuple[Linear, ...]
    width: int
    gated: bool = True
    activation: Literal["fused", "gelu_new"] = "fused"


def sizes(fields: Fields, *, head_dim: int | None = None) -> Sizes:
    """Return the widths under the names that most configs use."""
    hidden = fields.whole("hidden_size")
    heads = fields.whole("num_attention_heads", most=hidden)
    kv_heads = fields.whole("num_key_value_heads", default=heads, most=heads)
    fields.divides(kv_heads, heads, "num_key_value_heads", "num_attention_heads")
    if not fields.has("head_dim") and head_dim is None:
        head_dim = fields.divides(heads, hidden, "num_attention_heads", "hidden_size")
    return Sizes(
        hidden=hidden,
        depth=fields.whole("num_hidden_layers", most=MOST_LAYERS),
        vocab=fields.whole("vocab_size"),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=fields.whole("head_dim", default=head_dim, most=65_536),
    )


def grouped_attention(
    sizes: Sizes, *, qkv_bias: bool = False, out_bias: bool = False, vectors: int = 0
) -> Attention:
    """Return attention with separate q, k, v and o matrices."""
    q, k, d = sizes.query_width, sizes.kv_width, sizes.hidden
    linears = (
        Linear(name="q", inputs=d, outputs=q, bias=qkv_bias),
        Linear(name="k", inputs=d, outputs=k, bias=qkv_bias),
        Linear(name="v", inputs=d, outputs=k, bias=qkv_bias),
        Linear(name="o", inputs=q, outputs=d, bias=out_bias),
    )
    return Attention(
        linears=linears, score_width=q, query_width=q, kv_width=k, heads=sizes.heads, vectors=vectors
    )


def biased_attention(fields: Fields, sizes: Sizes, *, default: bool = False, vectors: int = 0) -> Attention:
    """Return attention with separate matrices, and with biases where `attention_bias` asks for them."""
    bias = fields.flag("attention_bias", default=default)
    return grouped_attention(sizes, qkv_bias=bias, out_bias=bias, vectors=vectors)


def fused_attention(sizes: Sizes, *, bias: bool) -> Attention:
    """Return attention with one matrix for q, k and v."""
    q, k, d = sizes.query_width, sizes.kv_width, sizes.hidden
    linears = (
        Linear(name="qkv", inputs=d, outputs=q + 2 * k, bias=bias),
        Linear(name="o", inputs=q, outputs=d, bias=bias),
    )
    return Attention(linears=linears, score_width=q, query_width=q, kv_width=k, heads=sizes.heads)


def gated_ffn(hidden: int, width: int, *, bias: bool = False) -> FeedForward:
    """Return gate, up and down matrices."""
    linears = (
        Linear(name="gate", inputs=hidden, outputs=width, bias=bias),
        Linear(name="up", inputs=hidden, outputs=width, bias=bias),
        Linear(name="down", inputs=width, outputs=hidden, bias=bias),
    )
    return FeedForward(linears=linears, width=width)


def fused_gated_ffn(hidden: int, width: int) -> FeedForward:
    """Return one matrix for gate and up, and a down matrix."""
    linears = (
        Linear(name="gate_up", inputs=hidden, outputs=2 * width),
        Linear(name="down", inputs=width, outputs=hidden),
    )
    return FeedForward(linears=linears, width=width)


def plain_ffn(hidden: int, width: int, *, bias: bool) -> FeedForward:
    """Return an up and a down matrix, without a gate."""
    linears = (
        Linear(name="up", inputs=hidden, outputs=width, bias=bias),
        Linear(name="down", inputs=width, outputs=hidden, bias=bias),
    )
    return FeedForward(linears=linears, width=width, gated=False)


def expert_ffn(
    expert: FeedForward, hidden: int, *, count: int, active: int, router_bias: bool = False
) -> FeedForward:
    """Return a router and `count` copies of `expert`, of which a token meets `active`."""
    copies = tuple(structs.replace(linear, copies=count, active=active) for linear in expert.linears)
    router = Linear(name="router", inputs=hidden, outputs=count, bias=router_bias)
    return FeedForward(linears=(router, *copies), width=active * expert.width, gated=expert.gated)


def with_shared(routed: FeedForward, shared: FeedForward) -> FeedForward:
    """Return routed experts with a feed-forward beside them that every token meets."""
    linears = routed.linears + shared.linears
    return FeedForward(linears=linears, width=routed.width + shared.width, gated=routed.gated)


def layer(
    count: int, hidden: int, attention: Attention, ffn: FeedForward, frame: Frame, window: int | None = None
) -> Layer:
    """Return `count` layers of attention and feed-forward with the norms of `frame`."""
    return Layer(
        count=count,
        linears=attention.linears + ffn.linears,
        vectors=attention.vectors + frame.norms * frame.norm_vectors * hidden,
        score_width=attention.score_width,
        query_width=attention.query_width,
        kv_width=attention.kv_width,
        ffn_width=ffn.width,
        heads=attention.heads,
        gated=ffn.gated,
        window=window,
        norms=frame.norms,
        norm=frame.norm or ("layer" if frame.norm_vectors > 1 else "rms"),
        qk_norms=0 if attention.qk_norms == "none" else 2,
        qk_norm_per_head=attention.qk_norms == "per_head",
        rotation=attention.rotation,
        is_parallel=frame.is_parallel,
        activation=ffn.activation,
        has_dropout=frame.has_dropout,
    )


class AttentionSpans(Struct, frozen=True, kw_only=True):
    """How many layers attend to everything, how many to `window` tokens."""

    full: int
    windowed: int = 0
    window: int | None = None

    def groups(self) -> list[tuple[int, int | None]]:
        """Return (layers, window) for each kind there is."""
        return [
            (count, window) for count, window in ((self.full, None), (self.windowed, self.window)) if count
        ]


def same_everywhere(fields: Fields, depth: int, default: int | None = None) -> AttentionSpans:
    """Return the spans of a model whose `sliding_window` holds for all its layers."""
    return alternating(fields, depth, lambda _: True, default)


def alternating(
    fields: Fields, depth: int, is_windowed: Callable[[int], bool], default: int | None = None
) -> AttentionSpans:
    """Return the spans from `layer_types` when the config lists them, else from the family's pattern."""
    window = fields.whole("sliding_window", default=default or 0, least=0)
    if not window or not fields.flag("use_sliding_window", default=True):
        return AttentionSpans(full=depth)
    listed = fields.sequence("layer_types")
    if listed is None:
        windowed = sum(1 for index in range(depth) if is_windowed(index))
    else:
        if len(listed) != depth:
            raise fields.refuse("layer_types", f"lists {len(listed)} layers, num_hidden_layers says {depth}")
        unknown = [kind for kind in listed if kind not in WINDOWED_TYPES | FULL_TYPES]
        if unknown:
            problem = f"has a kind of layer that is not modelled: {str(unknown[0])[:40]!r}"
            raise fields.refuse("layer_types", problem)
        windowed = sum(1 for kind in listed if kind in WINDOWED_TYPES)
    return AttentionSpans(full=depth - windowed, windowed=windowed, window=window)


class Frame(Struct, frozen=True, kw_only=True):
    """What goes around attention and feed-forward; `extra_vectors` is the head's bias and the like."""

    spans: AttentionSpans | None = None
    norms: int = 2  # in each layer
    norm_vectors: int = 1  # of the hidden size in each norm
    norm: NormKind | None = None  # else a layer norm where it has two vectors
    has_dropout: bool = False
    is_parallel: bool = False
    tied: bool = False
    positions: int = 0
    extra_vectors: int = 0


def put_together(
    fields: Fields, widths: Sizes, attention: Attention, ffn: FeedForward, frame: Frame | None = None
) -> ModelShape:
    """Return the model of equal layers inside `frame`, with one more norm at the end."""
    frame = frame or Frame()
    spans = frame.spans or AttentionSpans(full=widths.depth)
    layers = [layer(n, widths.hidden, attention, ffn, frame, window) for n, window in spans.groups()]
    return ModelShape(
        architecture=fields.text("model_type") or "",
        hidden=widths.hidden,
        vocab=widths.vocab,
        layers=tuple(layers),
        tied=fields.flag("tie_word_embeddings", default=frame.tied),
        positions=frame.positions,
        vectors=frame.norm_vectors * widths.hidden + frame.extra_vectors,
    )
