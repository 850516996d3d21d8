"""What a step would take with something changed: the graph of what waited for what, replayed."""

from stepgrade.whatif.answers import ChangedStep, StepPart, WhatIf, what_if
from stepgrade.whatif.changes import AssumedChange

__all__ = ["AssumedChange", "ChangedStep", "StepPart", "WhatIf", "what_if"]
