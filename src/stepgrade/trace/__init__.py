"""Analysis of PyTorch traces: from the events of each rank to the Profile of a run."""

from stepgrade.trace.profile import analyse_rank, analyse_trace, profile_of_traces
from stepgrade.trace.ranks import RankProfile, merge_ranks

__all__ = ["RankProfile", "analyse_rank", "analyse_trace", "merge_ranks", "profile_of_traces"]
