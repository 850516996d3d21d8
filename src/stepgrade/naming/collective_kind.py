"""What a collective does, by its name: reduce, gather, exchange, send."""

from __future__ import annotations

import re
from enum import StrEnum
from functools import lru_cache


class CollectiveKind(StrEnum):
    """What a collective does with the data of its ranks."""

    ALL_TO_ALL = "all_to_all"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"
    SEND_RECEIVE = "send_receive"
    BROADCAST = "broadcast"
    OTHER = "other"


# An exchange consists of sends, so it comes first. NCCL calls kernels of both SendRecv.
_RULES = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (CollectiveKind.ALL_TO_ALL, r"all[_-]?to[_-]?all|dispatch|combine|a2a"),
        (CollectiveKind.REDUCE_SCATTER, r"reduce[_-]?scatter"),
        (CollectiveKind.ALL_GATHER, r"all[_-]?gather"),
        (CollectiveKind.ALL_REDUCE, r"all[_-]?reduce|cross_device_reduce|quickreduce|lamport"),
        (CollectiveKind.SEND_RECEIVE, r"(\b|_|:)(i?send|i?recv|receive)(\b|_)|^collective-permute"),
        (CollectiveKind.BROADCAST, r"broadcast"),
    )
)
_LONGEST = 250


@lru_cache(maxsize=10_000)
def collective_kind(name: str) -> CollectiveKind:
    """Return what the collective, operation or kernel of this name does."""
    text = name[:_LONGEST].lower()
    return next((kind for kind, pattern in _RULES if pattern.search(text)), CollectiveKind.OTHER)
