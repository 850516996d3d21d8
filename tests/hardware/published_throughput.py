"""Rows of published_throughput.csv as models, plans and devices: what was run, and how fast it was."""

from __future__ import annotations

import csv
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from stepgrade.hardware.catalogue import find_device
from stepgrade.hardware.ceilings import Figures
from stepgrade.hardware.cluster import Cluster
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.models.shape import ModelShape
from stepgrade.hardware.throughput import RATES, Rates, StepModel, kind_of
from tests.hardware import model_configs as configs

HERE = Path(__file__).parent
# Texts of SQuAD packed into a sequence: attention sees a few hundred tokens.
SQUAD_TOKENS = 300.0
# Of runs whose micro-batch is not published: the largest that leaves a pipeline four times its depth.
USUAL_MICRO_BATCHES = (8, 4, 2, 1)

Row = dict[str, str]


class Run(Struct, frozen=True):
    """One published run with its tokens per second and device."""

    row: Row
    shape: ModelShape
    plan: Plan
    figures: Figures
    cluster: Cluster
    measured: float

    @property
    def project(self) -> str:
        return self.row["project"]

    @property
    def kind(self) -> str:
        return kind_of(self.shape, self.plan)

    @property
    def label(self) -> str:
        sizes = [f"{name} {self.row[name]}" for name in ("tp", "pp", "vp", "cp", "ep") if self.row[name]]
        words = (self.project, self.row["model"], self.row["gpus"], self.row["device"], self.row["dtype"])
        return ", ".join((*words, self.row["seq"], *sizes))


@cache
def runs() -> tuple[Run, ...]:
    with (HERE / "published_throughput.csv").open(encoding="utf-8", newline="") as file:
        return tuple(run_of(row) for row in csv.DictReader(file))


def run_of(row: Row) -> Run:
    shape = shape_of(row["model"])
    sizes: dict[str, Any] = {name: int(row[short] or 1) for name, short in DEGREES.items()}
    parallel = Parallelism(
        devices=int(row["gpus"]),
        data=row["data"],
        sequence=sizes["tensor"] > 1,
        expert_tensor=int(row["etp"]) if row["etp"] else None,
        **sizes,
    )
    each = micro_batch(row, parallel)
    batch = int(row["global_batch"] or each * parallel.replicas)
    plan = Plan(
        batch=each,
        seq=int(row["seq"]),
        micro_batches=max(1, batch // (parallel.replicas * each)),
        dtype=row["dtype"],
        method=row["method"] or "full",
        rank=int(row["rank"] or 16),
        checkpointing=row["ckpt"] or "none",
        kernels=row["kernels"],
        loss="megatron" if row["kernels"] == "te" else "compiled",
        weights="megatron" if row["kernels"] == "te" else "fp32",
        offload=row["offload"] or "none",
        packed_seq=SQUAD_TOKENS if row["notes"] == "packed SQuAD" else None,
        parallel=parallel,
    )
    figures = Figures(device=find_device(row["device"]))
    cluster = Cluster(devices=parallel.devices)
    return Run(row, shape, plan, figures, cluster, float(row["tok_s_gpu"]))


DEGREES = {"tensor": "tp", "pipeline": "pp", "virtual": "vp", "context": "cp", "expert": "ep"}


def micro_batch(row: Row, parallel: Parallelism) -> int:
    if row["micro_batch"]:
        return int(row["micro_batch"])
    if not row["global_batch"]:
        return 2
    each = int(row["global_batch"]) // parallel.replicas
    deep = (size for size in USUAL_MICRO_BATCHES if each % size == 0 and each >= 4 * size * parallel.pipeline)
    return next(deep, 1)


@cache
def shape_of(name: str) -> ModelShape:
    """Return a model by its name in model_configs, or "mpt/layers/width", "gpt/layers/width/heads/words"."""
    family, *sizes = name.split("/")
    config: dict[str, Any] = getattr(configs, family, {})
    if family == "mpt":
        depth, width = map(int, sizes)
        config = {**configs.MPT_7B, "d_model": width, "n_layers": depth, "vocab_size": 50368}
        config |= {"n_heads": width // 64, "no_bias": False, "attn_config": {"alibi": False}}
    elif family == "gpt":
        depth, width, heads, words = map(int, sizes)
        config = {**configs.GPT2, "n_layer": depth, "n_embd": width, "n_head": heads, "vocab_size": words}
        config["n_positions"] = 2048
    return model_from_config(json.dumps(config))


def predicted(run: Run, rates: Rates = RATES) -> float:
    """Return the tokens per second and device that the model expects."""
    step = StepModel(run.shape, run.figures, run.cluster.links(run.figures), rates).step(run.plan).total
    plan = run.plan
    return plan.tokens * plan.micro_batches * plan.parallel.replicas / step / plan.parallel.devices


def error(run: Run, rates: Rates = RATES) -> float:
    """Return the logarithm of predicted over measured."""
    return math.log(predicted(run, rates) / run.measured)
