"""Decoders by family: what each has that Llama has not, and how their configs become shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, TypeAlias

from msgspec import Struct, structs

from stepgrade.hardware.models.fields import Fields
from stepgrade.hardware.models.shape import Layer, Linear, ModelShape, NormKind, Rotation

# The largest published models stay a hundredfold below each of these.
MOST_LAYERS = 100_000
MOST_EXPERTS = 65_536
FFN_WIDTH = "intermediate_size"
WINDOWED_TYPES, FULL_TYPE = ("sliding_attention", "chunked_attention"), "full_attention"
# Published Gemma 3 configs leave these out of `text_config`; the architecture's own defaults.
_GEMMA3_TEXT = {
    "model_type": "gemma3_text",
    "vocab_size": 262_208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
}
Flag: TypeAlias = bool | tuple[str, bool]  # or a flag of the config: its name and default


class Family(Struct, frozen=True, kw_only=True):
    """What the decoders of a family have in common."""

    head_dim: int | None = None  # unless the config has it; None is hidden size / heads
    fuses_qkv: bool = False
    qkv_bias: Flag = False
    out_bias: Flag = False
    qk_norms: Literal["none", "per_head", "whole"] = "none"
    vectors: int = 0  # of attention, besides its norms
    score_width: float | None = None  # unless it is the query's
    rotation: Rotation = "whole"
    window: int | None = None  # unless the config has it, where 0 is no window; None never has one
    full_every: int = 0  # so many layers, one has no window
    full_first: int = 0  # or so many at first have none
    ffn: Literal["gated", "fused", "plain"] = "gated"  # fused has gate and up in one matrix
    ffn_width: int | None = None  # unless the config has it
    ffn_bias: Flag = False
    activation: Literal["fused", "gelu_new"] = "fused"
    experts: str = ""  # the field that counts them
    has_shared_expert: bool = False
    norms: int = 2  # in each layer
    norm: NormKind = "rms"
    is_parallel: Flag = False
    has_dropout: bool = False
    tied: bool = False
    positions: int = 0  # in a table
    has_head_bias: bool = False


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


class FeedForward(NamedTuple):
    """One feed-forward block; `width` counts what a token meets, over all its experts."""

    linears: tuple[Linear, ...]
    width: int


Group: TypeAlias = tuple[int, FeedForward, int | None]  # equal layers: how many, and their window


def sizes(
    fields: Fields,
    *,
    hidden: str = "hidden_size",
    depth: str = "num_hidden_layers",
    heads: str = "num_attention_heads",
    head_dim: int | None = None,
    is_grouped: bool = False,
) -> Sizes:
    """Return the widths under the names that a config uses; grouped ones have fewer keys than queries."""
    width = fields.whole(hidden)
    count = kv_heads = fields.whole(heads, most=width)
    if is_grouped:
        kv_heads = fields.whole("num_key_value_heads", default=count, most=count)
        fields.divides(kv_heads, count, "num_key_value_heads", heads)
    if is_grouped and (fields.has("head_dim") or head_dim is not None):
        head_dim = fields.whole("head_dim", default=head_dim, most=65_536)
    elif head_dim is None:
        head_dim = fields.divides(count, width, heads, hidden)
    return Sizes(
        hidden=width,
        depth=fields.whole(depth, most=MOST_LAYERS),
        vocab=fields.whole("vocab_size"),
        heads=count,
        kv_heads=kv_heads,
        head_dim=head_dim,
    )


def linears(*, bias: bool = False, **shapes: tuple[int, int]) -> tuple[Linear, ...]:
    """Return matrices by name, each with its inputs and outputs."""
    return tuple(
        Linear(name=name, inputs=inputs, outputs=outputs, bias=bias)
        for name, (inputs, outputs) in shapes.items()
    )


def feed_forward(family: Family, hidden: int, width: int, *, bias: bool = False) -> FeedForward:
    """Return one feed-forward block without experts."""
    into, out = (hidden, width), (width, hidden)
    match family.ffn:
        case "gated":
            return FeedForward(linears(gate=into, up=into, down=out, bias=bias), width)
        case "fused":
            return FeedForward(linears(gate_up=(hidden, 2 * width), down=out, bias=bias), width)
        case _:
            return FeedForward(linears(up=into, down=out, bias=bias), width)


def with_experts(
    fields: Fields, family: Family, hidden: int, expert: FeedForward, shared: FeedForward | None = None
) -> FeedForward:
    """Return a router and copies of `expert`, beside what every token meets."""
    count = fields.whole(family.experts, "num_experts", "num_local_experts", most=MOST_EXPERTS)
    active = fields.whole("num_experts_per_tok", "experts_per_token", most=count)
    copies = tuple(structs.replace(linear, copies=count, active=active) for linear in expert.linears)
    router = Linear(name="router", inputs=hidden, outputs=count, bias=expert.linears[0].bias)
    beside = shared or FeedForward((), 0)
    return FeedForward((router, *copies, *beside.linears), active * expert.width + beside.width)


def decoder(
    fields: Fields,
    family: Family,
    *,
    widths: Sizes | None = None,
    attention: tuple[Linear, ...] = (),
    groups: Sequence[Group] = (),
) -> ModelShape:
    """Return the model of a config; attention and layers are the family's unless they are given."""
    widths = widths or sizes(fields, head_dim=family.head_dim, is_grouped=True)
    d, q, k = widths.hidden, widths.query_width, widths.kv_width
    if not attention:
        inputs = {"qkv": (d, q + 2 * k)} if family.fuses_qkv else {"q": (d, q), "k": (d, k), "v": (d, k)}
        attention = linears(bias=_is_set(fields, family.qkv_bias), **inputs)
        attention += linears(bias=_is_set(fields, family.out_bias), o=(q, d))
    if not groups:
        width = family.ffn_width or fields.whole(FFN_WIDTH)
        ffn = feed_forward(family, d, width, bias=_is_set(fields, family.ffn_bias))
        if family.experts:
            ffn = with_experts(fields, family, d, ffn)
        groups = windows(fields, family, widths.depth, ffn)
    qk_norm_size = {"none": 0, "per_head": 2 * widths.head_dim, "whole": q + k}[family.qk_norms]
    norm_size = (2 if family.norm == "layer" else 1) * d
    is_parallel = _is_set(fields, family.is_parallel)
    return ModelShape(
        architecture=fields.text("model_type") or "",
        hidden=d,
        vocab=widths.vocab,
        layers=tuple(
            Layer(
                count=count,
                linears=attention + ffn.linears,
                vectors=family.vectors + qk_norm_size + family.norms * norm_size,
                score_width=family.score_width or q,
                query_width=q,
                kv_width=k,
                ffn_width=ffn.width,
                heads=widths.heads,
                gated=family.ffn != "plain",
                window=window,
                norms=family.norms,
                norm=family.norm,
                qk_norms=0 if family.qk_norms == "none" else 2,
                qk_norm_per_head=family.qk_norms == "per_head",
                rotation=family.rotation,
                is_parallel=is_parallel,
                activation=family.activation,
                has_dropout=family.has_dropout,
            )
            for count, ffn, window in groups
            if count
        ),
        tied=fields.flag("tie_word_embeddings", default=family.tied),
        positions=family.positions * d,
        vectors=norm_size + (widths.vocab if family.has_head_bias else 0),
    )


def windows(fields: Fields, family: Family, depth: int, ffn: FeedForward) -> tuple[Group, ...]:
    """Return the layers without a window and those with one; `layer_types` decides where it is there."""
    window = 0 if family.window is None else fields.whole("sliding_window", default=family.window, least=0)
    if not window or not fields.flag("use_sliding_window", default=True):
        return ((depth, ffn, None),)
    listed = fields.sequence("layer_types")
    if listed is None:
        full = depth // family.full_every if family.full_every else min(family.full_first, depth)
    else:
        if len(listed) != depth:
            raise fields.refuse("layer_types", f"lists {len(listed)} layers, num_hidden_layers says {depth}")
        unknown = [kind for kind in listed if kind not in (*WINDOWED_TYPES, FULL_TYPE)]
        if unknown:
            problem = f"has a kind of layer that is not modelled: {str(unknown[0])[:40]!r}"
            raise fields.refuse("layer_types", problem)
        full = listed.count(FULL_TYPE)
    return (full, ffn, None), (depth - full, ffn, window)


def _is_set(fields: Fields, flag: Flag) -> bool:
    return flag if isinstance(flag, bool) else fields.flag(flag[0], default=flag[1])


def gpt2(fields: Fields) -> ModelShape:
    """Read GPT-2: biases everywhere, a table of positions, tied embeddings."""
    widths = sizes(fields, hidden="n_embd", depth="n_layer", heads="n_head")
    family = Family(
        fuses_qkv=True,
        qkv_bias=True,
        out_bias=True,
        rotation="none",
        ffn="plain",
        ffn_width=fields.whole("n_inner", default=4 * widths.hidden),
        ffn_bias=True,
        activation="gelu_new",
        norm="layer",
        has_dropout=fields.number("resid_pdrop", 0.1, allows_zero=True) > 0,
        tied=True,
        positions=fields.whole("n_positions", "n_ctx"),
    )
    return decoder(fields, family, widths=widths)


def mpt(fields: Fields) -> ModelShape:
    """Read MPT: a table of positions unless it uses alibi, biases unless `no_bias`."""
    widths = sizes(fields, hidden="d_model", depth="n_layers", heads="n_heads")
    bias = not fields.flag("no_bias", default=True)
    positions, how = 0, fields.inner("attn_config")
    if how is not None and not how.flag("alibi", default=True) and not how.flag("rope", default=False):
        positions = fields.whole("max_seq_len") if fields.flag("learned_pos_emb", default=True) else 0
    family = Family(
        fuses_qkv=True,
        qkv_bias=bias,
        out_bias=bias,
        rotation="none",
        ffn="plain",
        ffn_width=round(fields.number("expansion_ratio", 4) * widths.hidden),
        ffn_bias=bias,
        norm="layer" if bias else "rms",
        tied=True,
        positions=positions,
    )
    return decoder(fields, family, widths=widths)


def mistral(fields: Fields) -> ModelShape:
    """Read Mistral: a sliding window of 4,096 unless the config has the field, be it null."""
    return decoder(fields, Family(window=0 if fields.declares("sliding_window") else 4096))


def phi(fields: Fields) -> ModelShape:
    """Read Phi-1, 1.5 and 2: one norm for attention and feed-forward, a bias on the head."""
    widths = sizes(fields, is_grouped=True)
    family = Family(
        qkv_bias=True,
        out_bias=True,
        vectors=4 * widths.head_dim if fields.flag("qk_layernorm", default=False) else 0,
        rotation="part",
        ffn="plain",
        ffn_bias=True,
        activation="gelu_new" if fields.text("hidden_act") in (None, "gelu_new") else "fused",
        norms=1,
        norm="layer",
        has_head_bias=True,
    )
    return decoder(fields, family, widths=widths)


def gpt_oss(fields: Fields) -> ModelShape:
    """Read GPT-OSS: biases everywhere, a sink per head, every other layer windowed."""
    widths = sizes(fields, head_dim=64, is_grouped=True)
    family = Family(
        qkv_bias=("attention_bias", True),
        out_bias=("attention_bias", True),
        vectors=widths.heads,
        window=128,
        full_every=2,
        ffn_bias=True,
        experts="num_local_experts",
    )
    return decoder(fields, family, widths=widths)


def gemma3(fields: Fields) -> ModelShape:
    """Read the text part of Gemma 3: five windowed layers, then a full one."""
    text = fields.inner("text_config", defaults=_GEMMA3_TEXT) or fields
    pattern = text.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    shape = decoder(text, structs.replace(_GEMMA2, qk_norms="per_head", full_every=pattern))
    if not fields.has("vision_config"):
        return shape
    return structs.replace(shape, notes=("the vision tower and its projector are not counted",))


def qwen(fields: Fields, family: Family) -> ModelShape:
    """Read Qwen: windows only where they are switched on; experts in all layers but those listed as plain."""
    if fields.flag("use_sliding_window", default=False):
        first = fields.whole("max_window_layers", default=28, least=0)
        family = structs.replace(family, window=4096, full_first=first)
    if not family.experts:
        return decoder(fields, family)
    widths = sizes(fields, is_grouped=True)
    d, shared = widths.hidden, None
    expert = feed_forward(family, d, fields.whole("moe_intermediate_size"))
    if family.has_shared_expert:
        shared = feed_forward(family, d, fields.whole("shared_expert_intermediate_size"))
        gate = Linear(name="router", inputs=d, outputs=1)
        shared = FeedForward((*shared.linears, gate), shared.width)
    experts = with_experts(fields, family, d, expert, shared)
    step = fields.whole("decoder_sparse_step", default=1)
    plain_only = fields.sequence("mlp_only_layers") or []
    sparse = [i for i in range(widths.depth) if i not in plain_only and (i + 1) % step == 0]
    if len(sparse) == widths.depth:
        groups = windows(fields, family, widths.depth, experts)
        return decoder(fields, family, widths=widths, groups=groups)
    plain = feed_forward(family, d, fields.whole(FFN_WIDTH))
    groups = ((widths.depth - len(sparse), plain, None), (len(sparse), experts, None))
    return _noted(fields, decoder(fields, family, widths=widths, groups=groups))


def deepseek(fields: Fields) -> ModelShape:
    """Read DeepSeek V2 and V3: latent attention, a few plain layers, then experts beside shared ones."""
    rope, plain = fields.whole("qk_rope_head_dim"), fields.whole("qk_nope_head_dim")
    widths = sizes(fields, head_dim=rope + plain)
    d, q, heads = widths.hidden, widths.query_width, widths.heads
    # Latent attention: keys and values come from one small vector.
    latent, value = fields.whole("kv_lora_rank"), fields.whole("v_head_dim")
    bias = fields.flag("attention_bias", default=False)
    rank = fields.whole("q_lora_rank", default=0, least=0)
    query = linears(q=(d, q))
    if rank:
        query = linears(q_down=(d, rank), bias=bias) + linears(q_up=(rank, q))
    down = linears(kv_down=(d, latent + rope), bias=bias)
    up, out = linears(kv_up=(latent, heads * (plain + value))), linears(o=(heads * value, d), bias=bias)
    family = Family(
        vectors=latent + rank,
        score_width=heads * (rope + plain + value) / 2,
        rotation="part",
        experts="n_routed_experts",
    )
    dense_count = fields.whole("first_k_dense_replace", default=0, least=0, most=widths.depth)
    dense = feed_forward(family, d, fields.whole(FFN_WIDTH))
    width, shared = (
        fields.whole("moe_intermediate_size"),
        fields.whole("n_shared_experts", default=0, least=0),
    )
    beside = feed_forward(family, d, width * shared) if shared else None
    experts = with_experts(fields, family, d, feed_forward(family, d, width), beside)
    groups = ((dense_count, dense, None), (widths.depth - dense_count, experts, None))
    attention = query + down + up + out
    return _noted(fields, decoder(fields, family, widths=widths, attention=attention, groups=groups))


def _noted(fields: Fields, shape: ModelShape) -> ModelShape:
    extra = fields.whole("num_nextn_predict_layers", default=0, least=0)
    notes = ("the layers that predict further tokens are not counted",) if extra else ()
    return structs.replace(shape, notes=notes)


_BIAS = ("attention_bias", False)
_LLAMA = Family(qkv_bias=_BIAS, out_bias=_BIAS, ffn_bias=("mlp_bias", False))
# Heads of 256 whatever the hidden size; from Gemma 2 on four norms a layer, and every other layer windowed.
_GEMMA = Family(qkv_bias=_BIAS, out_bias=_BIAS, head_dim=256, norm="gemma", tied=True)
_GEMMA2 = structs.replace(_GEMMA, norms=4, window=4096, full_every=2)
_NORMED = Family(qkv_bias=_BIAS, out_bias=_BIAS, qk_norms="per_head")
_QWEN2_MOE = Family(qkv_bias=("qkv_bias", True), experts="num_experts", has_shared_expert=True)
_OLMO2 = Family(qkv_bias=_BIAS, out_bias=_BIAS, qk_norms="whole", norm="rms_fp32")  # norms after each block
_STARCODER2 = Family(
    qkv_bias=("use_bias", True),
    out_bias=("use_bias", True),
    window=0,
    ffn="plain",
    ffn_bias=("use_bias", True),
    norm="layer",
    tied=True,
)
_GPT_NEOX = Family(
    fuses_qkv=True,
    qkv_bias=("attention_bias", True),
    out_bias=("attention_bias", True),
    rotation="part",
    ffn="plain",
    ffn_bias=True,
    norm="layer",
    is_parallel=("use_parallel_residual", True),
)
ARCHITECTURES: dict[str, Callable[[Fields], ModelShape]] = {
    "deepseek_v2": deepseek,
    "deepseek_v3": deepseek,
    "gemma": partial(decoder, family=_GEMMA),
    "gemma2": partial(decoder, family=_GEMMA2),
    "gemma3": gemma3,
    "gemma3_text": gemma3,
    "gpt2": gpt2,
    "gpt_neox": partial(decoder, family=_GPT_NEOX),
    "gpt_oss": gpt_oss,
    "granite": partial(decoder, family=_LLAMA),
    "llama": partial(decoder, family=_LLAMA),
    "mistral": mistral,
    "mixtral": partial(decoder, family=Family(window=0, experts="num_local_experts")),
    "mpt": mpt,
    "olmo2": partial(decoder, family=_OLMO2),
    "olmoe": partial(decoder, family=structs.replace(_OLMO2, norm="rms", experts="num_experts")),
    "phi": phi,
    "phi3": partial(decoder, family=Family(fuses_qkv=True, rotation="part", window=0, ffn="fused")),
    "qwen2": partial(qwen, family=Family(qkv_bias=True)),
    "qwen2_moe": partial(qwen, family=_QWEN2_MOE),
    "qwen3": partial(qwen, family=structs.replace(_NORMED, head_dim=128)),
    "qwen3_moe": partial(qwen, family=structs.replace(_NORMED, experts="num_experts")),
    "starcoder2": partial(decoder, family=_STARCODER2),
}
