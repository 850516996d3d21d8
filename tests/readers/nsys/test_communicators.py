"""What a kernel of NCCL carries out, by the calls around its launch and their payloads."""

from __future__ import annotations

from typing import Any

import pytest

from stepgrade.readers.nsys.collectives import CommunicationCall, Communicators

GROUP, SIZE, RANKS = "NCCL communicator ID", "Message size [bytes]", "No. of ranks"
PROCESS = 7


def call(name: str, **payload: Any) -> CommunicationCall:
    names = {"group": GROUP, "size": SIZE, "ranks": RANKS, "rank": "Rank"}
    return CommunicationCall(
        name=name, start_ns=0, end_ns=10, payload={names[key]: value for key, value in payload.items()}
    )


def known(*calls: CommunicationCall) -> Communicators:
    return Communicators({PROCESS << 24 | 5: list(calls)}, PROCESS)


@pytest.mark.parametrize(
    ("name", "elements"),
    [
        ("ncclAllReduce", (1000, 1000)),
        ("ncclAllGather", (1000, 4000)),
        ("ncclReduceScatter", (4000, 1000)),
        ("ncclBroadcast", (1000, 1000)),
    ],
)
def test_elements_by_what_each_rank_gives_and_gets(name: str, elements: tuple[int, int]) -> None:
    one = call(name, group=3, size=2000, ranks=4, rank=1)
    found = known(one).describe("ncclDevKernel_X_Sum_bf16_RING_LL", [one])
    assert (found.name, found.dtype, found.group_size, found.group) == (name[4:].lower(), "bfloat16", 4, "3")
    assert (found.in_elements, found.out_elements) == elements


def test_messages_are_counted_where_they_are_sent() -> None:
    calls = [
        call("ncclSend", group=3, size=400),
        call("ncclRecv", group=3, size=600),
        call("ncclSend", size=80),
    ]
    found = known().describe("ncclDevKernel_SendRecv(x)", calls)
    assert (found.name, found.in_elements, found.dtype) == ("send_recv", 480, "byte")
    received = known().describe("ncclDevKernel_SendRecv(x)", [call("ncclRecv", size=600)])
    assert (received.name, received.in_elements, received.group) == ("recv", 600, None)
    mixed = known().describe("k_f32_", [call("ncclAllReduce", size=400), call("ncclSend", size=40)])
    assert (mixed.name, mixed.in_elements, mixed.dtype) == ("group", 110, "float")


def test_a_size_that_is_not_known_is_none() -> None:
    gather = [call("ncclAllGather", group=3, size=400), call("ncclAllGather", group=3)]
    assert known().describe("k_f32_", gather).in_elements is None
    negative = known().describe("k_f32_", [call("ncclAllGather", group=3, size=-4)])
    assert (negative.in_elements, negative.out_elements) == (None, None)
    assert known().describe("k_f32_", [call("ncclAllGather", size=0)]).in_elements == 0


def test_the_largest_communicator_is_the_run() -> None:
    found = known(
        call("ncclCommInitRank", group=1, ranks=2, rank=1),
        call("ncclCommInitRank", group=2, ranks=8, rank=5),
        call("ncclCommInitRank", group=3, ranks=4, rank=0),
        call("ncclCommInitRank", group=4, ranks=16, rank=16),  # there is no such rank
        call("ncclCommInitRank", group=5, ranks=16, rank=-1),
        call("ncclCommInitRank", group=6, ranks=0, rank=0),
        call("ncclCommInitRank", group=7, ranks=1 << 20, rank=3),
        call("ncclCommInitRank", group="x", ranks=32, rank=3),
    )
    assert (found.rank, found.world_size) == (5, 8)
    assert found.sizes == {1: 2, 2: 8, 3: 4, 4: 16, 5: 16}
