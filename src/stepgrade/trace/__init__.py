"""Analysis of a PyTorch trace: from the timeline of each rank to the facts of a step."""

from stepgrade.trace.facts import TraceFacts, analyse_trace
from stepgrade.trace.run import RunFacts, analyse_run, join_ranks

__all__ = ["RunFacts", "TraceFacts", "analyse_run", "analyse_trace", "join_ranks"]
