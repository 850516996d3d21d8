"""The ways in which people count a token's FLOPs; an MFU means nothing without its convention."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from stepgrade.errors import BadOption

DEFAULT_CONVENTION = "causal-exact"


class Convention(Struct, frozen=True, kw_only=True):
    """One way to count: which parameters, which attention width, half of it or all.

    `recompute` says what full checkpointing adds to the hardware's FLOPs: the forward pass of the
    layers ("layers"), or a third of everything ("third"). `frozen` says how LoRA is counted: without
    the frozen weights' gradients ("no_gradient"), or everything scaled by two thirds ("scaled").
    """

    name: str
    formula: str
    used_by: str
    weights: Literal["matmul", "all", "without_lookup", "without_positions"]
    attention: Literal["heads", "hidden"] | None
    causal: bool
    recompute: Literal["layers", "third"] = "third"
    frozen: Literal["no_gradient", "scaled"] = "no_gradient"


_ALL = (
    Convention(
        name="causal-exact",
        formula="6*N_matmul + 6*L*q*S",
        used_by="stepgrade's default; NeMo and Megatron-LM today, MaxText since 2025",
        weights="matmul",
        attention="heads",
        causal=True,
        recompute="layers",
    ),
    Convention(
        name="palm",
        formula="6*N + 12*L*q*S",
        used_by="PaLM appendix B, MegaScale",
        weights="all",
        attention="heads",
        causal=False,
    ),
    Convention(
        name="nanogpt",
        formula="6*(N - N_positions) + 12*L*q*S",
        used_by="nanoGPT",
        weights="without_positions",
        attention="heads",
        causal=False,
    ),
    Convention(
        name="mosaic",
        formula="6*N + 12*L*d*S",
        used_by="Composer, llm-foundry",
        weights="all",
        attention="hidden",
        causal=False,
    ),
    Convention(
        name="torchtitan",
        formula="6*(N - N_lookup) + 12*L*q*S",
        used_by="torchtitan",
        weights="without_lookup",
        attention="heads",
        causal=False,
    ),
    Convention(
        name="full-exact",
        formula="6*N_matmul + 12*L*q*S",
        used_by="MaxText before 2025",
        weights="matmul",
        attention="heads",
        causal=False,
        recompute="layers",
    ),
    Convention(
        name="megatron-2021",
        formula="72*L*d^2*(1 + S/6d + V/12Ld); its published figures add the recompute (96, V/16Ld)",
        used_by="the Megatron-LM paper of 2021, whose share of peak is an HFU",
        weights="matmul",
        attention="hidden",
        causal=False,
        recompute="layers",
    ),
    Convention(
        name="llmq",
        formula="6*N_matmul + 6*L*d*S",
        used_by="llm.q",
        weights="matmul",
        attention="hidden",
        causal=True,
        recompute="layers",
    ),
    Convention(
        name="automodel-lora",
        formula="(2 + N_lora/N)/3 * (6*N_matmul + 6*L*q*S)",
        used_by="NeMo AutoModel for LoRA",
        weights="matmul",
        attention="heads",
        causal=True,
        recompute="layers",
        frozen="scaled",
    ),
    Convention(
        name="6n",
        formula="6*N",
        used_by="Kaplan et al.; PaLM's figures without attention",
        weights="all",
        attention=None,
        causal=False,
    ),
)
CONVENTIONS = {convention.name: convention for convention in _ALL}


def find_convention(name: str) -> Convention:
    """Return the convention of that name; raise BadOption with all names."""
    convention = CONVENTIONS.get(name.casefold())
    if convention is None:
        known = f"known: {', '.join(CONVENTIONS)}"
        raise BadOption(f"no convention called {name!r}", field="convention", hint=known)
    return convention
