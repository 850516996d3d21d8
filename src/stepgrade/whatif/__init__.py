"""How long a step would take after a change: the graph of what waited for what, replayed."""

from stepgrade.replay.replayer import AssumedChange
from stepgrade.whatif.answers import ChangedStep, StepPart, WhatIf, what_if

__all__ = ["AssumedChange", "ChangedStep", "StepPart", "WhatIf", "what_if"]
