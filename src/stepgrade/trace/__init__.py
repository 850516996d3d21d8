"""Traces to a Profile: from the events of each rank, whatever profiler wrote them, to one run."""

from stepgrade.trace.compile_logs import profile_of_compile_logs, with_compile_logs
from stepgrade.trace.hang import profile_of_flight_records
from stepgrade.trace.logged_run import with_log
from stepgrade.trace.memory import profile_of_memory
from stepgrade.trace.profile import analyse_rank, analyse_trace, profile_of_traces
from stepgrade.trace.ranks import PackedRank, RankProfile, merge_ranks
from stepgrade.trace.recorded_ranks import merge_recordings
from stepgrade.trace.recordings import join_recordings

__all__ = [
    "PackedRank",
    "RankProfile",
    "analyse_rank",
    "analyse_trace",
    "join_recordings",
    "merge_ranks",
    "merge_recordings",
    "profile_of_compile_logs",
    "profile_of_flight_records",
    "profile_of_memory",
    "profile_of_traces",
    "with_compile_logs",
    "with_log",
]
