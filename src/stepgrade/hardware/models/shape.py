"""A decoder as the cost model sees it: matrices, tables and vectors, layer by layer."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

# "rms_fp32" multiplies by its weight in fp32 (OLMo 2), "gemma" by one plus its weight.
NormKind = Literal["rms", "rms_fp32", "gemma", "layer"]
# What positions do to query and key: "part" rotates a part of each head and joins it with the rest again.
Rotation = Literal["none", "whole", "part"]

# What LoRA adapts; routers and latent down-projections are left alone, as the common presets do.
_ATTENTION = frozenset({"q", "k", "v", "o", "qkv"})
_FUSED = {"qkv": frozenset({"q", "k", "v"}), "gate_up": frozenset({"gate", "up"})}


class Linear(Struct, frozen=True, kw_only=True):
    """One weight matrix; an expert's has `copies`, of which a token meets `active`."""

    name: str
    inputs: int
    outputs: int
    copies: int = 1
    active: int = 1
    bias: bool = False

    @property
    def weights(self) -> int:
        """Return the weights of one copy, without its bias."""
        return self.inputs * self.outputs

    @property
    def size(self) -> int:
        """Return the parameters of one copy, with its bias."""
        return self.weights + (self.outputs if self.bias else 0)


class Layer(Struct, frozen=True, kw_only=True):
    """`count` equal layers; `score_width` makes the forward scores cost 4 x width x span FLOPs a token."""

    count: int
    linears: tuple[Linear, ...]
    vectors: int
    score_width: float
    query_width: int
    kv_width: int
    ffn_width: int
    heads: int
    gated: bool = True
    window: int | None = None
    norms: int = 2  # over the hidden size
    norm: NormKind = "rms"
    qk_norms: int = 0  # norms of the query and the key: 0, or 2
    qk_norm_per_head: bool = True
    rotation: Rotation = "whole"
    is_parallel: bool = False  # attention and feed-forward have norms of the same input
    activation: Literal["fused", "gelu_new"] = "fused"  # gelu_new is written out, operation by operation
    has_dropout: bool = False  # after attention and feed-forward

    @property
    def expert_width(self) -> int:
        """Return the width of one expert; 0 without experts."""
        return max(
            (linear.inputs for linear in self.linears if linear.copies > 1 and linear.name == "down"),
            default=0,
        )

    @property
    def expert_count(self) -> int:
        """Return how many experts there are; 0 without any."""
        return max((linear.copies for linear in self.linears if linear.copies > 1), default=0)

    @property
    def experts_met(self) -> int:
        """Return how many experts a token meets; 0 without any."""
        return max((linear.active for linear in self.linears if linear.copies > 1), default=0)

    @property
    def weights(self) -> int:
        """Return the matrix weights of one layer, all experts counted."""
        return sum(linear.copies * linear.weights for linear in self.linears)

    @property
    def active_weights(self) -> int:
        """Return the matrix weights of one layer that a token is multiplied with."""
        return sum(linear.active * linear.weights for linear in self.linears)

    @property
    def size(self) -> int:
        """Return all parameters of one layer."""
        return self.vectors + sum(linear.copies * linear.size for linear in self.linears)

    @property
    def active_size(self) -> int:
        """Return the parameters of one layer that a token meets."""
        return self.vectors + sum(linear.active * linear.size for linear in self.linears)

    @property
    def expert_weights(self) -> int:
        """Return the weights of one layer that expert parallelism divides."""
        return sum(linear.copies * linear.weights for linear in self.linears if linear.copies > 1)

    def adapter_size(self, rank: int, targets: str, *, active: bool = False) -> int:
        """Return the LoRA parameters of one layer: two thin matrices beside each target."""
        copies = ((linear.active if active else linear.copies, linear) for linear in self.adapted(targets))
        return sum(count * rank * (linear.inputs + linear.outputs) for count, linear in copies)

    def adapted(self, targets: str) -> list[Linear]:
        """Return the matrices that LoRA adapts: "all", those of "attention", or some by name ("q,v")."""
        if targets == "all":
            return [linear for linear in self.linears if linear.name != "router"]
        names = set(targets.split(","))
        if "attention" in names:
            names |= _ATTENTION
        # A matrix that holds several is adapted when one of them is.
        names |= {whole for whole, parts in _FUSED.items() if names & parts}
        return [linear for linear in self.linears if linear.name in names]


class ModelShape(Struct, frozen=True, kw_only=True):
    """A decoder: its layers between a table of embeddings and a head (the same matrix when tied)."""

    architecture: str
    hidden: int
    vocab: int
    layers: tuple[Layer, ...]
    tied: bool
    positions: int = 0
    vectors: int = 0
    notes: tuple[str, ...] = ()

    @property
    def head(self) -> int:
        """Return the weights of the output head."""
        return self.vocab * self.hidden

    @property
    def depth(self) -> int:
        """Return how many layers the model has."""
        return sum(layer.count for layer in self.layers)

    @property
    def outside_layers(self) -> int:
        """Return the parameters that belong to no layer: tables, head, last norm."""
        return self.head * (1 if self.tied else 2) + self.positions + self.vectors

    @property
    def parameters(self) -> int:
        """Return every parameter, as the framework would count them."""
        return sum(layer.count * layer.size for layer in self.layers) + self.outside_layers

    @property
    def active_parameters(self) -> int:
        """Return the parameters that one token meets; fewer than all only with experts."""
        return sum(layer.count * layer.active_size for layer in self.layers) + self.outside_layers

    @property
    def layer_weights(self) -> int:
        """Return the matrix weights of all layers, all experts counted."""
        return sum(layer.count * layer.weights for layer in self.layers)

    @property
    def matmul_weights(self) -> int:
        """Return the weights one token is multiplied with: active matrices and the head, no lookup."""
        return sum(layer.count * layer.active_weights for layer in self.layers) + self.head

    def adapters(self, rank: int, targets: str, *, active: bool = False) -> int:
        """Return the LoRA parameters of that rank on `targets`: "all", "attention" or names ("q,v,head")."""
        head = rank * (self.hidden + self.vocab) if "head" in targets.split(",") else 0
        return head + sum(
            layer.count * layer.adapter_size(rank, targets, active=active) for layer in self.layers
        )
