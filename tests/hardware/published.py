"""Rows of published_mfu.csv as counts and plans, by the convention that each row names."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from stepgrade.hardware.cost.conventions import CONVENTIONS
from stepgrade.hardware.cost.model_costs import AttentionKind, Counts, Flops, flops_per_token
from stepgrade.hardware.cost.plan import Plan

HERE = Path(__file__).parent
# How a row's own words begin, and what we call it.
NAMED = {
    "mosaic": "mosaic",
    "6N only": "6n",
    "palm": "palm",
    "torchtitan": "torchtitan",
    "nemo: matmul": "causal-exact",
    "nemo: frozen": "causal-exact",
    "automodel-lora": "automodel-lora",
    "llmq": "llmq",
    "HARDWARE flops": "megatron-2021",
}

Row = dict[str, str]


def rows(name: str = "published_mfu.csv") -> list[Row]:
    with (HERE / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def number(row: Row, column: str) -> Any:
    return float(row[column]) if row[column] else None


def convention_of(row: Row) -> Any:
    return next((ours for theirs, ours in NAMED.items() if row["convention"].startswith(theirs)), None)


def tok_s_per_device(row: Row) -> Any:
    whole = number(row, "tok_s")
    return whole / float(row["gpus"]) if whole else number(row, "tok_s_gpu")


def counts_of(row: Row) -> Counts:
    """Return the counts of a row, which gives either every width or only the number of parameters."""
    depth, hidden = int(row["layers"]), int(row["hidden"])
    heads = number(row, "heads")
    head_dim = number(row, "head_dim") or (hidden / heads if heads else None)
    query = heads * head_dim if heads and head_dim else hidden
    key = (number(row, "kv_heads") or heads or 0) * (head_dim or 0)
    vocab, width = number(row, "vocab") or 0, number(row, "ffn")
    experts, top = number(row, "experts"), number(row, "topk")
    total = float(row["params"])
    ffn = 3 * hidden * width if width else 8 * hidden * hidden
    attention = hidden * (query + 2 * key) + query * hidden if width else 4 * hidden * hidden
    met = top * ffn + hidden * experts if experts and top else ffn
    idle = depth * (experts - top) * ffn if experts and top else 0
    return Counts(
        active=total - idle,
        matmul=depth * (attention + met) + vocab * hidden,
        head=vocab * hidden,
        lookup=0 if row["tied"] == "1" else vocab * hidden,
        positions=0,
        hidden=hidden,
        attention=(AttentionKind(layers=depth, width=query),),
        total=total,
    )


def flops_of(row: Row, convention: str) -> Flops:
    checkpointing = row["ckpt"] if row["ckpt"] in ("none", "selective", "full") else "none"
    plan = Plan(
        batch=1,
        seq=int(row["seq"]),
        method=row["method"],
        checkpointing=checkpointing,
        # LoRA rows on packed SQuAD: attention over texts of a few hundred tokens, next to nothing.
        packed_seq=1.0 if row["packed"] and row["method"] == "lora" else None,
    )
    return flops_per_token(counts_of(row), plan, CONVENTIONS[convention])
