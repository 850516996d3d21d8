"""What a token of a logged run costs, by what its log says of the model: by our count and by its own."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct

from stepgrade.errors import BadInput, BadOption
from stepgrade.hardware.cost.conventions import CONVENTIONS, DEFAULT_CONVENTION
from stepgrade.hardware.cost.model_costs import count, flops_per_token
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.models.known import known_model
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.model.notes import Note
from stepgrade.model.step_log import RunFacts
from stepgrade.units import show_rate, show_share

_PARAMETERS_AGREE = 0.02
_RATES_AGREE = 0.05


class TokenCost(Struct, frozen=True, kw_only=True):
    """FLOPs of a token: what the model needs, with what is computed twice, and as the framework counts."""

    model: float
    hardware: float
    convention: str
    theirs: float | None = None  # by the framework's own convention
    theirs_named: str | None = None
    outside_layers: float = 0.0  # of theirs: attention and the head


def model_of(facts: RunFacts) -> ModelShape | None:
    """Return the model whose config, arguments or name a log prints; None where that is not known."""
    config: dict[str, Any] | str | None = facts.config or config_of_arguments(facts.arguments, facts.seq)
    is_named = config is None and facts.name is not None
    if is_named:
        config = known_model(facts.name or "")
    if config is None:
        return None
    try:
        shape = model_from_config(config if isinstance(config, str) else msgspec.json.encode(config))
    except BadInput:
        return None
    if is_named and facts.parameters and abs(shape.parameters / facts.parameters - 1.0) > _PARAMETERS_AGREE:
        return None  # another model of that name
    return shape


def config_of_arguments(arguments: Mapping[str, str], seq: int | None) -> dict[str, Any] | None:
    """Return what the arguments of Megatron or GPT-NeoX describe, in the words of a config.json."""

    def whole(*names: str) -> int | None:
        texts = (arguments.get(name, "") for name in names)
        return next((int(text) for text in texts if text.isdecimal() and len(text) < 12 and int(text)), None)

    hidden, layers, heads = whole("hidden_size"), whole("num_layers"), whole("num_attention_heads")
    vocab = whole("padded_vocab_size", "vocab_size")
    if None in (hidden, layers, heads, vocab):
        return None
    ffn = whole("ffn_hidden_size") or 4 * (hidden or 0)
    experts = whole("num_experts")
    if arguments.get("swiglu") != "True" and not whole("num_query_groups", "num_experts"):
        return {
            "model_type": "gpt2",
            "n_embd": hidden,
            "n_layer": layers,
            "n_head": heads,
            "vocab_size": vocab,
            "n_positions": seq or 1024,
            "n_inner": ffn,
        }
    config: dict[str, Any] = {
        "model_type": "mixtral" if experts else "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": whole("num_query_groups") or heads,
        "vocab_size": vocab,
        "intermediate_size": (whole("moe_ffn_hidden_size") if experts else None) or ffn,
        "tie_word_embeddings": arguments.get("untie_embeddings_and_output_weights") != "True",
    }
    if channels := whole("kv_channels"):
        config["head_dim"] = channels
    if experts:
        config |= {"num_local_experts": experts, "num_experts_per_tok": whole("moe_router_topk") or 1}
    return config


def token_cost(facts: RunFacts) -> TokenCost | None:
    """Return what a token costs; None where the log does not say enough."""
    shape = model_of(facts)
    granularity = facts.arguments.get("recompute_granularity")
    is_full = granularity == "full" or facts.arguments.get("checkpoint_activations") == "True"
    checkpointing = "full" if is_full else "selective" if granularity == "selective" else "none"
    if shape is not None and facts.seq:
        with suppress(BadOption):
            plan = Plan(batch=1, seq=facts.seq, checkpointing=checkpointing)
            counts, own = count(shape, plan), CONVENTIONS.get(facts.convention or "")
            ours = flops_per_token(counts, plan, CONVENTIONS[DEFAULT_CONVENTION])
            theirs = flops_per_token(counts, plan, own) if own is not None else None
            return TokenCost(
                model=ours.model,
                hardware=ours.hardware,
                convention=ours.convention,
                theirs=None
                if theirs is None
                else theirs.hardware
                if facts.counts_recompute
                else theirs.model,
                theirs_named=f"{facts.framework}: {own.formula}" if own else None,
                outside_layers=theirs.attention + 6.0 * shape.head if theirs is not None else 0.0,
            )
    if facts.flops_per_token:
        flops, words = facts.flops_per_token, f"as {facts.framework} counts"
        return TokenCost(model=flops, hardware=flops, convention=words, theirs=flops, theirs_named=words)
    parameters = float(shape.active_parameters) if shape is not None else facts.parameters
    if not parameters:
        return None
    return TokenCost(model=6.0 * parameters, hardware=6.0 * parameters, convention="6n")


def rate_note(facts: RunFacts, tok_s: float | None) -> tuple[Note, ...]:
    """Say where the tokens and step times of a log give another rate than the one it prints."""
    printed = facts.printed.tok_s if facts.printed is not None else None
    if not printed or not tok_s or abs(tok_s / printed - 1.0) < _RATES_AGREE:
        return ()
    text = f"the log prints {show_rate(printed)}; its tokens and step times make {show_rate(tok_s)}"
    return (Note("printed_rate", text),)


def printed_note(
    facts: RunFacts,
    cost: TokenCost | None,
    rate: float | None,
    known_peak: float | None,
    fp8_peak: float | None = None,
) -> tuple[Note, ...]:
    """Say what utilisation the log prints, and what `rate`, in tokens per second and device, makes of it."""
    peak = facts.peak_flops or known_peak
    if facts.printed is not None and facts.printed.mfu:
        said = f"the log prints an MFU of {show_share(facts.printed.mfu)}"
    elif facts.tflops:
        share = f", {show_share(facts.tflops * 1e12 / peak)} of {peak / 1e12:,.0f} TFLOP/s" if peak else ""
        kind = "HFU, with what is computed twice" if facts.counts_recompute else "MFU"
        said = f"the log prints {facts.tflops:,.1f} TFLOP/s for each device{share} ({kind}, by its own count)"
    else:
        return ()
    if cost is None or cost.theirs is None or not rate or not peak:
        return (Note("printed_mfu", said),)
    reached, against = rate * cost.theirs / peak, f"{peak / 1e12:,.0f} TFLOP/s"
    if facts.mixes_fp8 and fp8_peak:
        reached = rate * ((cost.theirs - cost.outside_layers) / fp8_peak + cost.outside_layers / peak)
        against = f"layers over {fp8_peak / 1e12:,.0f} and the rest over {against}"
    how = f"counted its way ({cost.theirs_named}, {against}) the steps make {show_share(reached)}"
    return (Note("printed_mfu", f"{said}; {how}"),)
