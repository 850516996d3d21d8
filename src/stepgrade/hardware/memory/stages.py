"""Which part of a model one device holds: layers of its pipeline stage, and a share of their matrices."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.errors import BadOption
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.models.shape import Layer, ModelShape


class Stage(Struct, frozen=True, kw_only=True):
    """One pipeline stage: its layers with how many of each, and how many micro-batches it holds at once.

    `in_flight` counts micro-batches of all the stage's layers: interleaved schedules hold some chunks twice.
    """

    layers: tuple[tuple[Layer, int], ...]
    in_flight: float
    is_first: bool
    is_last: bool


class Held(Struct, frozen=True, kw_only=True):
    """Parameters of one device before data parallelism shards them, by who shards them and how."""

    matrices: float  # of the layers, without experts
    experts: float
    vectors: float  # norms, routers and biases, which tensor parallelism does not divide
    embedding: float  # and the table of positions
    head: float
    largest_layer: float

    @property
    def dense(self) -> float:
        """Return the parameters that all of a device's data-parallel peers hold too."""
        return self.matrices + self.vectors + self.embedding + self.head

    @property
    def total(self) -> float:
        """Return every parameter of the device."""
        return self.dense + self.experts


def stage_of(shape: ModelShape, plan: Plan, rank: int) -> Stage:
    """Return what pipeline rank `rank` holds; layers are divided evenly, with extra ones first."""
    parallel, count = plan.parallel, plan.micro_batches
    if parallel.pipeline * parallel.virtual > shape.depth:
        raise BadOption(f"more stages than the model's {shape.depth} layers", field="pipeline")
    least, more = divmod(shape.depth, parallel.pipeline)
    first = rank * least + min(rank, more)
    last = first + least + (rank < more)
    held, layer_index = [], 0
    for layer in shape.layers:
        inside = min(last, layer_index + layer.count) - max(first, layer_index)
        if inside > 0:
            held.append((layer, inside))
        layer_index += layer.count
    in_flight = float(min(count, parallel.pipeline - rank))
    if parallel.virtual > 1:
        # Interleaved 1F1B: chunks in flight, each a part of the stage.
        chunks = 2 * (parallel.pipeline - rank - 1) + (parallel.virtual - 1) * parallel.pipeline + 1
        in_flight = min(count * parallel.virtual, chunks) / parallel.virtual
    return Stage(
        layers=tuple(held),
        in_flight=in_flight,
        is_first=rank == 0,
        is_last=rank == parallel.pipeline - 1,
    )


def held_parameters(shape: ModelShape, plan: Plan, stage: Stage) -> Held:
    """Return the parameters of one device of the stage."""
    tensor = plan.parallel.tensor
    split = plan.parallel.expert * plan.expert_tensor
    matrices = experts = vectors = largest = 0.0
    for layer, count in stage.layers:
        expert_size = sum(part.copies * part.size for part in layer.linears if part.copies > 1) / split
        routers = sum(part.size for part in layer.linears if part.name == "router")
        whole = sum(part.size for part in layer.linears if part.copies == 1) - routers
        matrices += count * whole / tensor
        experts += count * expert_size
        vectors += count * (layer.vectors + routers)
        largest = max(largest, whole / tensor + expert_size + layer.vectors + routers)
    table = (shape.head + shape.positions) / tensor if stage.is_first else 0.0
    # A tied head is the embedding itself, unless they are on different stages.
    has_head = stage.is_last and not (shape.tied and stage.is_first)
    return Held(
        matrices=matrices,
        experts=experts,
        vectors=vectors + (shape.vectors if stage.is_last else 0),
        embedding=table,
        head=shape.head / tensor if has_head else 0.0,
        largest_layer=largest,
    )
