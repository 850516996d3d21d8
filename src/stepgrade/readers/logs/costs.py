"""What a token of a logged run costs, from what the log says of its model; by our count and by the log's own."""

from __future__ import annotations

from contextlib import suppress
from math import isfinite
from typing import Any

import msgspec
from msgspec import Struct

from stepgrade.errors import BadInput, BadOption
from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION
from stepgrade.hardware.cost.flops import count, flops_per_token
from stepgrade.hardware.cost.plan import DTYPES, Plan, short_dtype
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.models.known import known_model
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.readers.logs.dialect import Dialect
from stepgrade.readers.logs.facts import Header

_PARAMETERS_AGREE = 0.02


class TokenCost(Struct, frozen=True, kw_only=True):
    """FLOPs of a token: what the model needs, with what is computed twice, and as the framework counts."""

    model: float
    hardware: float
    convention: str
    theirs: float | None = None  # by the framework's own convention
    theirs_named: str | None = None
    words: str | None = None  # the model, for people


def whole(header: Header, *names: str) -> int | None:
    """Return the first of the arguments or numbers that the log tells, as a whole number above 0."""
    for name in names:
        text = header.arguments.get(name)
        value = header.numbers.get(name)
        with suppress(ValueError):
            value = float(text) if text is not None else value
        if value is not None and isfinite(value) and 1.0 <= value < 1e15 and value == int(value):
            return int(value)
    return None


def precision_of(header: Header) -> str | None:
    """Return the precision that matrices are multiplied in, by its short name; None if the log is silent."""
    arguments = header.arguments
    for name in ("bf16", "fp16"):
        if arguments.get(name) == "True":
            return name
    for text in (arguments.get("precision"), header.texts.get("precision"), arguments.get("params_dtype")):
        if text and short_dtype(text) in DTYPES:
            return short_dtype(text)
    return None


def model_of(header: Header) -> ModelShape | None:
    """Return the model of the config, the arguments or the name that a log prints; None where none is known."""
    if header.config is not None:
        with suppress(BadInput):
            return model_from_config(header.config)
    config = _config_of_arguments(header)
    if config is None and (name := header.texts.get("model")) is not None:
        config = known_model(name)
    if config is None:
        return None
    try:
        shape = model_from_config(msgspec.json.encode(config))
    except BadInput:
        return None
    said = header.numbers.get("parameters")
    if said and abs(shape.parameters / said - 1.0) > _PARAMETERS_AGREE:
        return None  # another model of that name
    return shape


def _config_of_arguments(header: Header) -> dict[str, Any] | None:
    """Return what the arguments of Megatron or GPT-NeoX describe, in the words of a config.json."""
    hidden, layers = whole(header, "hidden_size"), whole(header, "num_layers")
    heads = whole(header, "num_attention_heads")
    vocab = whole(header, "padded_vocab_size", "vocab_size")
    if None in (hidden, layers, heads, vocab):
        return None
    arguments = header.arguments
    ffn = whole(header, "ffn_hidden_size") or 4 * (hidden or 0)
    untied = (
        arguments.get("untie_embeddings_and_output_weights") == "True"
        or arguments.get("no_weight_tying") == "True"
    )
    if arguments.get("swiglu") == "True" or whole(header, "num_query_groups", "num_experts"):
        experts = whole(header, "num_experts") if (whole(header, "num_experts") or 0) > 1 else None
        groups = (
            whole(header, "num_query_groups") if arguments.get("group_query_attention") != "False" else None
        )
        config: dict[str, Any] = {
            "model_type": "mixtral" if experts else "llama",
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": groups or heads,
            "vocab_size": vocab,
            "intermediate_size": (whole(header, "moe_ffn_hidden_size") if experts else None) or ffn,
            "tie_word_embeddings": not untied,
        }
        if whole(header, "kv_channels"):
            config["head_dim"] = whole(header, "kv_channels")
        if experts:
            config |= {
                "num_local_experts": experts,
                "num_experts_per_tok": whole(header, "moe_router_topk") or 1,
            }
        return config
    return {
        "model_type": "gpt2",
        "n_embd": hidden,
        "n_layer": layers,
        "n_head": heads,
        "vocab_size": vocab,
        "n_positions": whole(header, "seq_length") or 1024,
        "n_inner": ffn,
    }


def token_cost(header: Header, dialect: Dialect, seq: int | None, printed: float | None) -> TokenCost | None:
    """Return what a token costs; `printed` are the FLOPs that the log's own rate and throughput make of it."""
    shape = model_of(header)
    if shape is not None and seq:
        checkpointing = "none"
        if header.arguments.get("checkpoint_activations") == "True" or (
            header.arguments.get("recompute_granularity") == "full"
        ):
            checkpointing = "full"
        elif header.arguments.get("recompute_granularity") == "selective":
            checkpointing = "selective"
        with suppress(BadOption):
            plan = Plan(batch=1, seq=seq, checkpointing=checkpointing)
            counts = count(shape, plan)
            ours = flops_per_token(counts, plan, CONVENTIONS[DEFAULT_CONVENTION])
            own = CONVENTIONS.get(dialect.convention or "")
            theirs = flops_per_token(counts, plan, own) if own else None
            return TokenCost(
                model=ours.model,
                hardware=ours.hardware,
                convention=ours.convention,
                theirs=None
                if theirs is None
                else theirs.hardware
                if dialect.printed_is == "hfu"
                else theirs.model,
                theirs_named=f"{dialect.framework}: {own.formula}" if own else None,
                words=f"{shape.architecture}, {shape.parameters:,} parameters",
            )
    own_count = f"as {dialect.framework} counts"
    said = header.numbers.get("flops_per_token")
    if said is None and printed is not None and not _counts_recompute(header, dialect):
        said = printed
    if said:
        return TokenCost(model=said, hardware=said, convention=own_count, theirs=said, theirs_named=own_count)
    parameters = header.numbers.get("parameters") or _all_shards(header)
    if parameters and isfinite(parameters):
        cost = 6.0 * parameters
        return TokenCost(model=cost, hardware=cost, convention="6n", words=f"{parameters:,.0f} parameters")
    return None


def _counts_recompute(header: Header, dialect: Dialect) -> bool:
    return dialect.printed_is == "hfu" or header.arguments.get("checkpoint_activations") == "True"


def _all_shards(header: Header) -> float | None:
    """Return the parameters of all model-parallel ranks; a log prints those of one."""
    shard = header.numbers.get("shard_parameters")
    if shard is None:
        return None
    tensor = whole(header, "tensor_model_parallel_size", "model_parallel_size") or 1
    pipeline = whole(header, "pipeline_model_parallel_size", "pipe_parallel_size") or 1
    is_old = (
        "model_parallel_size" in header.arguments and "tensor_model_parallel_size" not in header.arguments
    )
    return shard if is_old and shard > 2e10 else shard * tensor * max(pipeline, 1)
