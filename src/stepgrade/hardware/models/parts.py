"""The parts that decoders are put together from: attention, feed-forward, experts."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.hardware.models.fields import MOST_LAYERS, Fields
from stepgrade.hardware.models.shape import Layer, Linear


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
    vectors: int = 0


class FeedForward(Struct, frozen=True, kw_only=True):
    """One feed-forward block; `width` counts what a token meets, over all its experts."""

    linears: tuple[Linear, ...]
    width: int
    gated: bool = True
    vectors: int = 0


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
    return Attention(linears=linears, score_width=q, query_width=q, kv_width=k, vectors=vectors)


def fused_attention(sizes: Sizes, *, bias: bool, out_bias: bool, vectors: int = 0) -> Attention:
    """Return attention with one matrix for q, k and v."""
    q, k, d = sizes.query_width, sizes.kv_width, sizes.hidden
    linears = (
        Linear(name="qkv", inputs=d, outputs=q + 2 * k, bias=bias),
        Linear(name="o", inputs=q, outputs=d, bias=out_bias),
    )
    return Attention(linears=linears, score_width=q, query_width=q, kv_width=k, vectors=vectors)


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
    copies = tuple(
        Linear(
            name=linear.name,
            inputs=linear.inputs,
            outputs=linear.outputs,
            copies=count,
            active=active,
            bias=linear.bias,
        )
        for linear in expert.linears
    )
    router = Linear(name="router", inputs=hidden, outputs=count, bias=router_bias)
    return FeedForward(linears=(router, *copies), width=active * expert.width, gated=expert.gated)


def with_shared(routed: FeedForward, shared: FeedForward, *, vectors: int = 0) -> FeedForward:
    """Return routed experts with a feed-forward beside them that every token meets."""
    return FeedForward(
        linears=routed.linears + shared.linears,
        width=routed.width + shared.width,
        gated=routed.gated,
        vectors=routed.vectors + vectors,
    )


def layer(
    count: int, attention: Attention, ffn: FeedForward, *, norms: int, window: int | None = None
) -> Layer:
    """Return `count` layers of attention and feed-forward with `norms` norm parameters each."""
    return Layer(
        count=count,
        linears=attention.linears + ffn.linears,
        vectors=attention.vectors + ffn.vectors + norms,
        score_width=attention.score_width,
        query_width=attention.query_width,
        kv_width=attention.kv_width,
        ffn_width=ffn.width,
        gated=ffn.gated,
        window=window,
    )
