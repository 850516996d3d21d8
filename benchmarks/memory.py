"""Print how well the memory model and other calculators predict published peaks, on the same rows.

  python benchmarks/memory.py [--rows other.csv]

The others are written out here from what their sources and papers say, each with the configuration given
generously: they know the model, the sharding and the batch, llm-analysis also the exact bytes per parameter.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

from tests.hardware.bands import Trial, bands_of, tried, without_each_source  # noqa: E402
from tests.hardware.published_memory import Case, cases, held_out, predict, unknown_words  # noqa: E402

from stepgrade.hardware.memory.need import (  # noqa: E402  what it is run from comes first
    BANDS,
    Band,
    kinds_of,
    verdict_of,
)
from stepgrade.hardware.memory.static import stored  # noqa: E402
from stepgrade.statistics import median  # noqa: E402

GROUPS: dict[str, Callable[[Case], bool]] = {
    "full, PyTorch": lambda case: case.plan.method == "full" and case.plan.kernels != "te",
    "full, Megatron": lambda case: case.plan.method == "full" and case.plan.kernels == "te",
    "full, all": lambda case: case.plan.method == "full",
    "LoRA": lambda case: case.plan.method == "lora",
    "QLoRA": lambda case: case.plan.method == "qlora",
}


def ours(case: Case) -> float:
    """Return what stepgrade predicts."""
    return predict(case).bytes


def llm_analysis(case: Case) -> float:
    """Return what stays as it is, with its activations: SwiGLU as 4f, logits as 4 bytes."""
    plan, shape, layer = case.plan, case.shape, case.shape.layers[0]
    parallel, each = plan.parallel, stored(plan)
    stage = parallel.zero_stage
    held = shape.parameters / (parallel.tensor * parallel.pipeline)
    shards = parallel.shards
    static = held * (
        each.weight / (shards if stage >= 3 else 1)
        + each.gradient / (shards if stage >= 2 else 1)
        + each.states / (shards if stage >= 1 else 1)
    )
    split = parallel.tensor if parallel.sequence else 1
    inside = (4 * layer.query_width + 4 * layer.kv_width + 4 * layer.ffn_width) / parallel.tensor
    per_token = 14 * shape.hidden / split + inside
    if plan.attention == "written-out":
        per_token += 5 * layer.heads * plan.seq / parallel.tensor
    if plan.checkpointing == "full":
        per_token = 2 * shape.hidden / split
    tokens = plan.tokens / parallel.context
    return static + tokens * (per_token * shape.depth / parallel.pipeline + 4 * shape.vocab / parallel.tensor)


def megatron_theoretical(case: Case) -> float:
    """Return Megatron-LM's theoretical_memory_usage: 18 or 6 + 12/n bytes, 18 + 4f/d values."""
    plan, shape, layer = case.plan, case.shape, case.shape.layers[0]
    parallel = plan.parallel
    held = shape.parameters / (parallel.tensor * parallel.pipeline)
    static = held * (6 + 12 / parallel.shards if parallel.zero_stage else 18)
    tokens, d = plan.tokens / parallel.context, shape.hidden
    if parallel.sequence or parallel.tensor == 1:
        per_layer = tokens * d * (18 + 4 * layer.ffn_width / d) / parallel.tensor
    else:
        per_layer = tokens * d * (10 + 24 / parallel.tensor)
    return static + per_layer * shape.depth + tokens * 4 * shape.vocab / parallel.tensor


def eleuther(case: Case) -> float:
    """Return EleutherAI's calc_transformer_mem: 34sbh per layer when checkpointed, with 5as² when not."""
    plan, shape, layer = case.plan, case.shape, case.shape.layers[0]
    parallel = plan.parallel
    model = 2 * shape.parameters / (parallel.tensor * parallel.pipeline)
    stage, world = parallel.zero_stage, parallel.devices
    states = 12 * shape.parameters / (parallel.tensor * parallel.pipeline) / (world if stage >= 1 else 1)
    gradients = 4 * shape.parameters / (parallel.tensor * parallel.pipeline) / (world if stage >= 2 else 1)
    model /= world if stage >= 3 else 1
    tokens, d = plan.tokens, shape.hidden
    per_layer = tokens * d * (10 + 24 / parallel.tensor)
    if plan.checkpointing == "none":
        per_layer += tokens * 5 * layer.heads * plan.seq / parallel.tensor
    return model + states + gradients + per_layer * shape.depth


def accelerate(case: Case) -> float:
    """Return Accelerate's estimate-memory for training with Adam: four times the weights, here divided."""
    parallel = case.plan.parallel
    shared = parallel.tensor * parallel.pipeline * (parallel.shards if parallel.zero_stage == 3 else 1)
    return 4 * max(stored(case.plan).weight, 2.0) * case.shape.parameters / shared


def deepspeed(case: Case) -> float:
    """Return DeepSpeed's estimators: states only, 2N + 18N/n, or 18N/n and the largest layer."""
    plan, shape = case.plan, case.shape
    shards, layer = plan.parallel.shards, shape.layers[0]
    if plan.parallel.zero_stage == 3:
        return 18 * shape.parameters / shards + 4 * layer.size
    return 2 * shape.parameters + 18 * shape.parameters / shards


CALCULATORS: dict[str, Callable[[Case], float]] = {
    "stepgrade": ours,
    "llm-analysis": llm_analysis,
    "Megatron theoretical": megatron_theoretical,
    "EleutherAI": eleuther,
    "Accelerate": accelerate,
    "DeepSpeed": deepspeed,
}


def errors(found: list[Case], calculate: Callable[[Case], float]) -> list[float]:
    """Return the relative errors, smallest first."""
    return sorted(abs(calculate(case) / case.measured - 1) for case in found if case.measured)


def show(found: list[Case], title: str) -> None:
    """Print one table: median error and the error that 90 of 100 rows stay below."""
    print(f"\n{title}: median error / 90 of 100 below, in percent")
    print(f"{'':<22}" + "".join(f"{name:>20}" for name in GROUPS))
    rows = {
        name: [case for case in found if belongs(case) and case.measured] for name, belongs in GROUPS.items()
    }
    print(f"{'rows':<22}" + "".join(f"{len(some):>20}" for some in rows.values()))
    for calculator, calculate in CALCULATORS.items():
        cells = []
        for name, some in rows.items():
            is_for_full = name.startswith("full")
            off = errors(some, calculate) if some and (is_for_full or calculate is ours) else []
            p90 = off[int(0.9 * (len(off) - 1))] if off else 0.0
            cells.append(f"{100 * median(off):.1f} / {100 * p90:.1f}" if off else "-")
        print(f"{calculator:<22}" + "".join(f"{cell:>20}" for cell in cells))


def main() -> None:
    """Print the errors, how often the bands hold, and the verdicts."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = ROOT / "tests" / "hardware" / "published_memory.csv"
    parser.add_argument("--rows", type=Path, default=default, help="a table with the same columns")
    path = parser.parse_args().rows
    found = cases(path)
    show(found, f"{path.name}, {len(found)} rows")
    unknown = Counter(word for case in found for word in unknown_words(case.row))
    for word, count in unknown.items():
        print(f"not understood, and taken as the commonest: {word} in {count} rows")
    if path == default:
        show(
            held_out(found)[1],
            "a random third, which was looked at before the last rules and the bands were settled",
        )
    show_bands(found, BANDS, "bands of every row")
    if path == default:
        others = cases(ROOT / "tests" / "hardware" / "other_memory.csv")
        show_bands(others, bands_of(found), "other_memory.csv with the bands of these rows alone")
        print("\nboth tables, each source with the bands that the others give")
        show_trial(without_each_source([*found, *others]))


def show_bands(found: list[Case], bands: Mapping[str, Band], title: str) -> None:
    """Print how often bands hold, what they say of runs that did or did not fit, and what is too close."""
    print(f"\n{title}")
    show_trial(tried(found, bands))
    for case in found:
        need = predict(case, bands).need
        if case.capacity is not None and verdict_of(need, case.capacity) == "too_close":
            took = f"took {case.measured / case.capacity:.0%}" if case.measured else "ran out of memory"
            kinds = "+".join(kinds_of(case.shape, case.plan))
            least, most = need.need_bytes / case.capacity, need.high_bytes / case.capacity
            said = f"needs {least:.0%} of it, at most {most:.0%}"
            print(f"  too close: row {case.row['id']}, {kinds}, {case.plan.lengths} length: {said}; {took}")


def show_trial(trial: Trial) -> None:
    """Print what came of one set of bands."""
    share = 100 * trial.inside / trial.rows if trial.rows else 0.0
    print(f"bands hold for {trial.inside} of {trial.rows} rows ({share:.1f} %)")
    for (what, verdict), count in sorted(trial.said.items()):
        print(f"{what:<18} {verdict:<13} {count:>4}")


if __name__ == "__main__":
    main()
