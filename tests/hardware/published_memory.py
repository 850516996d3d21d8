"""Rows of published_memory.csv as models and plans: what each says was measured, and on which stage."""

from __future__ import annotations

import csv
import random
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from msgspec import Struct

from stepgrade.hardware.cost.plan import CHECKPOINTING as KNOWN_CHECKPOINTING
from stepgrade.hardware.cost.plan import LOSSES as KNOWN_LOSSES
from stepgrade.hardware.cost.plan import OFFLOAD, WEIGHTS, Parallelism, Plan
from stepgrade.hardware.memory.device import StageMemory, stage_memory
from stepgrade.hardware.memory.need import BANDS, Band, MemoryNeed, error_band, need_of
from stepgrade.hardware.memory.static import blocks_vary, context_bytes, fragment_bytes
from stepgrade.hardware.models.shape import Layer, Linear, ModelShape

HERE = Path(__file__).parent
GIB = 2**30
KERNELS = {
    "te": "te",
    "torch": "eager-unfused",
    "hf": "transformers",
    "compiled": "compiled",
    "fused": "eager",
}
LOSSES = {
    "loss_parallel": "parallel",
    "upcast_old": "upcast-copy",
    "chunk_seq": "chunked-head",
    "upcast_copy": "upcast-copy",
    "plain_old": "plain-copy",
    "plain_copy": "plain-copy",
    "megatron_native": "megatron-native",
    "liger": "fused",
}
QUANTISATION = {"0.5625": "nf4", "0.53": "gptq-4", "1.03": "gptq-8"}
CHECKPOINTING = {
    "op_all": "op-all",
    "every2": "every-second",
    "every_2": "every-second",
    "every_second": "every-second",
    "": "none",
}
TARGETS = {"q": "q", "k": "k", "v": "v", "o": "o", "g": "gate", "u": "up", "d": "down", "h": "head"}
# What drivers report, in GiB, for the devices as the rows name them.
CAPACITY_GIB = {
    "A100-80GB": 79.2,
    "H100-96GB": 95.0,
    "B200": 178.35,
    "A10G": 22.06,
    "A100-40GB": 39.4,
    "V100-32GB": 31.74,
    "MI300X": 191.98,
    "MI210": 63.98,
    "T4": 14.56,
}

Row = dict[str, str]
# Blocks of many lengths may take so much more than usual of what passes within a step.
MOST_VARYING = 1.5


class Case(Struct, frozen=True):
    """One published run: what was trained how, and what was measured; bytes are None after an OOM."""

    row: Row
    shape: ModelShape
    plan: Plan
    stage: int
    measured: float | None
    capacity: float | None

    @property
    def is_reserved(self) -> bool:
        return self.row["measured_as"] == "reserved"

    @property
    def is_oom(self) -> bool:
        return bool(self.row["oom_capacity_gib"])


class Predicted(Struct, frozen=True):
    """What the model says of a case, of what was measured: allocated or reserved, with its band."""

    bytes: float
    low: float
    high: float
    need: MemoryNeed


class Held(Struct, frozen=True):
    """What was predicted of the device that was measured, and of each moment what lasts and what passes."""

    memory: StageMemory
    moments: tuple[tuple[float, float], ...]

    @property
    def allocated(self) -> float:
        return self.memory.allocated


def held_in(case: Case) -> Held:
    ranks = [case.stage] if case.stage >= 0 else sorted({0, case.plan.parallel.pipeline - 1})
    memory = max((stage_memory(case.shape, case.plan, rank) for rank in ranks), key=lambda one: one.reserved)
    moments = []
    for part in memory.phases.values():
        kept = memory.pools + fragment_bytes(case.plan, part.lasting, part.passing)
        moments.append((part.lasting, part.passing + (kept if case.is_reserved else 0.0)))
    return Held(memory, tuple(moments))


def predict(case: Case, bands: Mapping[str, Band] = BANDS) -> Predicted:
    held = held_in(case)
    need = need_of(case.shape, case.plan, held.memory, bands=bands)
    low = need.low_bytes - context_bytes(case.plan)
    band = error_band(case.shape, case.plan, bands)
    varying = MOST_VARYING if case.is_reserved and blocks_vary(case.plan) else 0.0
    high = max(
        band.most(lasting, passing + varying * part.passing)
        for (lasting, passing), part in zip(held.moments, held.memory.phases.values(), strict=True)
    )
    return Predicted(held.memory.reserved if case.is_reserved else held.allocated, low, high, need)


def rows(path: Path = HERE / "published_memory.csv", usable: str = "yes") -> list[Row]:
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["usable"] == usable]


def cases(path: Path = HERE / "published_memory.csv") -> list[Case]:
    return [case_of(row) for row in rows(path)]


def held_out(found: Iterable[Case]) -> tuple[list[Case], list[Case]]:
    """Return two thirds to develop with, and a random third that was first looked at late, not never."""
    mixed = sorted(found, key=lambda case: case.row["id"])
    random.Random(18).shuffle(mixed)
    cut = len(mixed) // 3
    return mixed[cut:], mixed[:cut]


def unknown_words(row: Row) -> list[str]:
    """Return what a row says that is not understood: it is taken as the commonest, and should be named."""
    loss, checkpointing = row["loss"], row["checkpointing"]
    words = {
        "kernels": row["kernels"] in KERNELS,
        "loss": LOSSES.get(loss, loss) in KNOWN_LOSSES,
        "checkpointing": CHECKPOINTING.get(checkpointing, checkpointing) in KNOWN_CHECKPOINTING,
        "offload": row["offload"] in ("", *OFFLOAD),
    }
    return [f"{column}={row[column]}" for column, is_known in words.items() if not is_known]


def whole(row: Row, column: str, default: int = 1) -> int:
    return int(float(row[column])) if row[column] else default


def case_of(row: Row) -> Case:
    plan = plan_of(row)
    last = plan.parallel.pipeline - 1
    named = re.search(r"rank of stage (\w+)", row["notes"])
    stage = {"first": 0, "mid": last // 2}.get(named[1], last) if named else last
    if "last rank" not in row["notes"] and not named:
        stage = -1  # the worst
    measured = float(row["measured_gib"]) * GIB if row["measured_gib"] else None
    capacity = row["oom_capacity_gib"] or CAPACITY_GIB.get(row["device"])
    return Case(row, shape_of(row), plan, stage, measured, float(capacity) * GIB if capacity else None)


def shape_of(row: Row) -> ModelShape:
    d, depth, heads, kv_heads = (whole(row, name) for name in ("d", "L", "H", "K"))
    head_dim = whole(row, "head_dim", d // heads)
    width, q, k = whole(row, "f"), heads * head_dim, kv_heads * head_dim
    is_gated = row["gated"] == "yes"
    is_megatron = row["kernels"] == "te"
    matrices = (("qkv", q + 2 * k),) if row["source"] == "litgpt" else (("q", q), ("k", k), ("v", k))
    attention = (
        *(Linear(name=name, inputs=d, outputs=width) for name, width in matrices),
        Linear(name="o", inputs=q, outputs=d),
    )
    experts, met = whole(row, "experts", 0), whole(row, "top_k")
    width = whole(row, "expert_f", width) if experts else width
    names = ("gate", "up", "down") if is_gated else ("up", "down")
    linears = tuple(
        Linear(
            name=name,
            inputs=width if name == "down" else d,
            outputs=d if name == "down" else width,
            copies=experts or 1,
            active=met if experts else 1,
        )
        for name in names
    )
    if experts:
        linears = (Linear(name="router", inputs=d, outputs=experts), *linears)
    is_old = is_megatron or row["model"].startswith(("phi-1", "phi-2", "stablelm", "falcon"))
    layer = Layer(
        count=depth,
        linears=attention + linears,
        vectors=2 * (2 if is_old else 1) * d,
        score_width=q,
        query_width=q,
        kv_width=k,
        ffn_width=width * (met if experts else 1),
        heads=heads,
        gated=is_gated,
        norm="layer" if is_old else "rms",
        qk_norms=2 if "qwen3" in row["model"] or "qk_layernorm" in row["model"] else 0,
        has_dropout=is_megatron,
    )
    return ModelShape(
        architecture=row["model"],
        hidden=d,
        vocab=whole(row, "V"),
        layers=(layer,),
        # litgpt's fine-tunes keep head and embedding apart, also of models that tie them.
        tied=row["tied"] == "yes" and row["source"] != "litgpt",
    )


def plan_of(row: Row) -> Plan:
    kernels, method = KERNELS.get(row["kernels"], "eager"), row["method"]
    loss = LOSSES.get(row["loss"], row["loss"])
    checkpointing = CHECKPOINTING.get(row["checkpointing"], row["checkpointing"])
    zero = whole(row, "zero", 0)
    data = {0: "ddp", 1: "zero1", 2: "zero2", 3: "fsdp"}[zero]
    if row["reshard"] == "no":
        data = "fsdp-no-reshard"
    if "deepspeed" in row["notes"].casefold() and zero == 3:
        data = "zero3"
    etp = re.search(r"etp(\d+)", row["model"])
    # Megatron's instances of the distributed optimizer: each half of the devices has all of the states.
    is_halved = "multi_dist_optimizer_instances" in row["source_ref"]
    shards = whole(row, "dp") * whole(row, "cp") // 2 if is_halved else None
    parallel = Parallelism(
        devices=whole(row, "dp") * whole(row, "tp") * whole(row, "pp") * whole(row, "cp"),
        data=data,
        tensor=whole(row, "tp"),
        sequence=row["sequence_parallel"] == "yes",
        pipeline=whole(row, "pp"),
        virtual=whole(row, "vpp"),
        context=whole(row, "cp"),
        expert=whole(row, "ep"),
        expert_tensor=int(etp[1]) if etp else None,
        shard_group=shards,
        # torchtitan gathers the head alone since the middle of 2025; its chunked loss came later.
        separate_embedding=row["loss"] == "chunk_seq" or "head alone" in row["notes"],
    )
    kept = tuple(float(row[name] or 0) for name in ("weight_bytes", "grad_bytes", "master_bytes"))
    # The way of keeping weights whose bytes are nearest; the first of them where gradients are freed at once.
    weights = min(WEIGHTS, key=lambda name: sum(abs(a - b) for a, b in zip(WEIGHTS[name], kept, strict=True)))
    states = float(row["optimizer_bytes"]) if row["optimizer_bytes"] else 8.0
    sizes = {8.0: "adamw", 4.0: "adamw-bf16", 2.03: "adamw-8bit", 1.06: "adamw-4bit", 0.0: "sgd"}
    optimizer = sizes[min(sizes, key=lambda size: abs(size - states))]
    is_litgpt = row["source"] == "litgpt"
    return Plan(
        batch=whole(row, "micro_batch"),
        seq=whole(row, "seq"),
        # litgpt's recipes accumulate gradients over several micro-batches.
        micro_batches=max(whole(row, "n_micro"), 2 if is_litgpt else 1),
        method=method,
        rank=whole(row, "lora_rank", 16),
        lora_targets=",".join(TARGETS[letter] for letter in row["lora_targets"]) or "all",
        lora_dropout=row["source"] in ("litgpt", "ms-swift"),  # 0.05 by default in both
        optimizer=optimizer,
        checkpointing=checkpointing if checkpointing in KNOWN_CHECKPOINTING else "none",
        loss=loss if loss in KNOWN_LOSSES else "upcast",
        offload=row["offload"] if row["offload"] in OFFLOAD else "none",
        optimizer_in_backward=row["grad_bytes"] == "0",
        weights=weights,
        kernels=kernels,
        quantisation=QUANTISATION.get(row["weight_bytes"], "nf4-double"),
        # The tables of litgpt and ms-swift are older than bitsandbytes 0.43.2.
        dequantise="unfused-old" if row["source"] in ("litgpt", "ms-swift") else "unfused",
        attention="written-out" if row["attention"] == "eager" else "flash",
        allocator="expandable" if "titan" in row["source"] else "default",
        lengths="variable" if "variable length" in row["notes"] else "fixed",
        parallel=parallel,
    )
