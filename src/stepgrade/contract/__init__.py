"""Contract v1, frozen: the reference's own names, numbers and text. It never changes."""

from stepgrade.contract.markdown import format_parity_markdown, format_training_scorecard_markdown
from stepgrade.contract.parity import compute_parity_comparison
from stepgrade.contract.scorecard import compute_training_scorecard
from stepgrade.contract.types import (
    Bottleneck,
    Grade,
    HardwareSpec,
    LayerSummary,
    ParityComparison,
    ParityGap,
    ParityProfile,
    PerLayerData,
    PhaseData,
    Regression,
    StepProfilerInput,
    TrainingScorecard,
)

__all__ = [
    "Bottleneck",
    "Grade",
    "HardwareSpec",
    "LayerSummary",
    "ParityComparison",
    "ParityGap",
    "ParityProfile",
    "PerLayerData",
    "PhaseData",
    "Regression",
    "StepProfilerInput",
    "TrainingScorecard",
    "compute_parity_comparison",
    "compute_training_scorecard",
    "format_parity_markdown",
    "format_training_scorecard_markdown",
]
