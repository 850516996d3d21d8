"""Conventions for counting FLOPs per token; an MFU is meaningless without one."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.errors import BadOption, did_you_mean

DEFAULT_CONVENTION = "causal-exact"


class Convention(Struct, frozen=True):
    """One way to count: which parameters, which attention width, half of it or all.

    `recompute` says what full checkpointing adds to the hardware's FLOPs: the forward pass of the
    layers ("layers"), or a third of everything ("third"). `frozen` says how LoRA is counted: without
    the frozen weights' gradients ("no_gradient"), or everything scaled by two thirds ("scaled").
    """

    name: str
    formula: str
    weights: Literal["matmul", "all", "without_lookup", "without_positions"]
    attention: Literal["heads", "hidden"] | None
    causal: bool = False
    recompute: Literal["layers", "third"] = "third"
    frozen: Literal["no_gradient", "scaled"] = "no_gradient"


_MEGATRON_2021 = "72*L*d^2*(1 + S/6d + V/12Ld); its published figures add the recompute (96, V/16Ld)"
_AUTOMODEL = "(2 + N_lora/N)/3 * (6*N_matmul + 6*L*q*S)"
_ALL = (
    # stepgrade's default; NeMo and Megatron-LM today, MaxText since 2025.
    Convention("causal-exact", "6*N_matmul + 6*L*q*S", "matmul", "heads", causal=True, recompute="layers"),
    Convention("palm", "6*N + 12*L*q*S", "all", "heads"),  # PaLM appendix B, MegaScale
    Convention("nanogpt", "6*(N - N_positions) + 12*L*q*S", "without_positions", "heads"),
    Convention("mosaic", "6*N + 12*L*d*S", "all", "hidden"),  # Composer, llm-foundry
    Convention("torchtitan", "6*(N - N_lookup) + 12*L*q*S", "without_lookup", "heads"),
    # MaxText before 2025.
    Convention("full-exact", "6*N_matmul + 12*L*q*S", "matmul", "heads", recompute="layers"),
    # The Megatron-LM paper of 2021, whose share of peak is an HFU.
    Convention("megatron-2021", _MEGATRON_2021, "matmul", "hidden", recompute="layers"),
    Convention("llmq", "6*N_matmul + 6*L*d*S", "matmul", "hidden", causal=True, recompute="layers"),  # llm.q
    # NeMo AutoModel for LoRA.
    Convention(
        "automodel-lora", _AUTOMODEL, "matmul", "heads", causal=True, recompute="layers", frozen="scaled"
    ),
    Convention("6n", "6*N", "all", None),  # Kaplan et al.; PaLM's figures without attention
)
CONVENTIONS = {convention.name: convention for convention in _ALL}


def find_convention(name: str) -> Convention:
    """Return the convention of that name; raise BadOption with all names."""
    convention = CONVENTIONS.get(name.casefold())
    if convention is None:
        hint = did_you_mean(name, CONVENTIONS)
        raise BadOption(f"no convention called {name!r}", field="convention", hint=hint)
    return convention
