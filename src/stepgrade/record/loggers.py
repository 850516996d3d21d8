"""Log a scorecard to MLflow, Weights & Biases or TensorBoard."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepgrade.errors import MissingExtra
from stepgrade.model.scorecard import Scorecard

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter
    from wandb import Run

PREFIX = "stepgrade"


def metrics_of(card: Scorecard) -> dict[str, float]:
    """Return the card's known numbers, under names that start with `stepgrade/`."""
    steps, throughput = card.steps, card.throughput
    found: dict[str, float | None] = {
        "efficiency": card.efficiency,
        "step_time_ms": card.step_time_ms,
        "step_time_median_ms": steps.median_ms if steps else None,
        "step_time_p95_ms": steps.p95_ms if steps else None,
        "throughput_tok_s": throughput.tok_s if throughput else None,
        "samples_s": card.samples_s,
        "backward_forward_ratio": card.forward_backward_ratio,
        "wall_coverage": card.wall_coverage,
        "mfu": card.mfu,
        "hfu": card.hfu,
    }
    found |= {f"phase/{name}_ms": phase.ms for name, phase in card.phases.items()}
    found |= {f"phase/{name}_share": phase.share for name, phase in card.phases.items()}
    return {f"{PREFIX}/{name}": float(value) for name, value in found.items() if value is not None}


def words_of(card: Scorecard) -> dict[str, str]:
    """Return the grade, the bottleneck and the advice as texts."""
    return {
        f"{PREFIX}/grade": card.grade,
        f"{PREFIX}/bottleneck": card.bottleneck,
        f"{PREFIX}/advice": " ".join(card.recommendations),
    }


def log_to_mlflow(card: Scorecard, *, step: int | None = None) -> None:
    """Log to the active MLflow run: numbers as metrics, words as tags, the card as `stepgrade.json`."""
    mlflow = _imported("mlflow")
    mlflow.log_metrics(metrics_of(card), step=step)
    mlflow.set_tags({name.replace("/", "."): text for name, text in words_of(card).items()})
    mlflow.log_text(card.to_json(), "stepgrade.json")


def log_to_wandb(card: Scorecard, *, run: Run | None = None, step: int | None = None) -> None:
    """Log to a W&B run, the current one by default: numbers as metrics, words in its summary."""
    run = run or _imported("wandb").run
    if run is None:
        raise RuntimeError("no active W&B run: call wandb.init() first")
    run.log(metrics_of(card), step=step)
    run.summary.update(words_of(card))


def log_to_tensorboard(card: Scorecard, writer: SummaryWriter, *, step: int = 0) -> None:
    """Write to a TensorBoard SummaryWriter: numbers as scalars, words as texts."""
    for name, value in metrics_of(card).items():
        writer.add_scalar(name, value, step)
    for name, text in words_of(card).items():
        writer.add_text(name, text, step)


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise MissingExtra(f"this needs {name}", hint=f"pip install {name}") from error
