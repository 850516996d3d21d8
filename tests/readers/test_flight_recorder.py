"""Dumps of PyTorch's Flight Recorder: which rank a hanging run waits for, in which collective, at which line."""

from __future__ import annotations

import json
import os
import pickle
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.errors import BadInput
from stepgrade.model.ranks import Hang

LISTED = {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}}


def call(sequence: int, name: str = "nccl:all_reduce", **other: Any) -> dict[str, Any]:
    return {
        "record_id": sequence - 1,
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "process_group": ("0", "default_pg"),
        "profiling_name": name,
        "input_sizes": [[4, 8]],
        "output_sizes": [[4, 8]],
        "input_dtypes": ["Float"],
        "state": "completed",
        "is_p2p": False,
        "frames": [
            {"name": "all_reduce", "filename": "/x/site-packages/torch/distributed/d.py", "line": 5},
            {"name": "step", "filename": "/home/someone/run/train.py", "line": 40 + sequence},
        ],
    } | other


def write(
    folder: Path, ranks: list[list[dict[str, Any]]], *, config: Any = LISTED, protocol: int = 2
) -> list[Path]:
    paths = []
    for rank, entries in enumerate(ranks):
        document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        paths.append(folder / f"nccl_trace_rank_{rank}")
        paths[-1].write_bytes(pickle.dumps(document, protocol))
    return paths


def hang_of(*paths: Path) -> Hang:
    card = sg.score(sg.load(*paths))
    assert card.hang is not None
    assert card.grade == "ungraded"
    return card.hang


def claim_of(*paths: Path) -> str:
    return sg.score(sg.load(*paths)).findings[0].claim


def waiting(sequence: int) -> dict[str, Any]:
    return call(sequence, state="started")


@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_rank_that_never_came_is_named_with_both_lines(tmp_path: Path, protocol: int) -> None:
    behind = [call(1), call(2)]
    others = [call(1), call(2), waiting(3)]
    paths = write(tmp_path, [others, others, behind, others], protocol=protocol)
    found = hang_of(*paths)
    assert (found.kind, found.missing, found.waiting) == ("missing_rank", (2,), (0, 1, 3))
    assert (found.name, found.sequence, found.group) == ("all_reduce", 3, "default_pg")
    assert claim_of(*paths) == (
        "Ranks 0, 1 and 3 wait in all_reduce 3 of default_pg at ~/run/train.py:43, which rank 2 never reached; "
        "its last collective was all_reduce 2 of default_pg at ~/run/train.py:42."
    )


def test_who_waits_elsewhere_is_not_the_cause(tmp_path: Path) -> None:
    """Ranks 0 and 1 wait for 2, which waits for 3 in another group: 3 is the one to look at."""
    config = LISTED | {"7": {"name": "7", "desc": "mesh_tp", "ranks": "[2, 3]"}}
    at_tp = call(1, state="started", process_group=("7", "mesh_tp"), record_id=9)
    ranks = [[call(1), waiting(2)], [call(1), waiting(2)], [call(1), at_tp], [call(1)]]
    found = hang_of(*write(tmp_path, ranks, config=config))
    assert (found.kind, found.missing, found.group, found.waiting) == (
        "missing_rank",
        (3,),
        "default_pg",
        (0, 1),
    )


def test_ranks_that_wait_for_each_other(tmp_path: Path) -> None:
    config = {name: {"name": name, "desc": name, "ranks": "[0, 1]"} for name in ("a", "b")}
    first = call(1, state="started", process_group=("a", "a"))
    second = call(1, state="started", process_group=("b", "b"))
    found = hang_of(*write(tmp_path, [[first], [second]], config=config))
    assert found.kind == "deadlock"
    assert [(row.ranks, row.group) for row in found.circle] == [((0,), "a"), ((1,), "b")]


@pytest.mark.parametrize(
    ("other", "what", "value"),
    [
        ({"profiling_name": "nccl:broadcast"}, "kind", "broadcast"),
        ({"input_sizes": [[4, 9]]}, "sizes", "[4, 9]"),
        ({"input_dtypes": ["Half"]}, "type", "Half"),
    ],
)
def test_ranks_that_do_not_call_the_same(
    tmp_path: Path, other: dict[str, Any], what: str, value: str
) -> None:
    same, odd = [call(1), waiting(2)], [call(1), call(2, state="started", **other)]
    found = hang_of(*write(tmp_path, [same, same, odd, same]))
    assert (found.kind, found.differ_in, found.sequence) == ("mismatch", what, 2)
    assert (found.differences[0].ranks, found.differences[0].value) == ((2,), value)


def test_sizes_that_may_differ_are_no_mismatch(tmp_path: Path) -> None:
    ranks = [[call(1, "nccl:all_to_allv", input_sizes=[[rank + 1]])] for rank in range(4)]
    assert hang_of(*write(tmp_path, ranks)).kind == "none"


def test_a_collective_that_does_not_end(tmp_path: Path) -> None:
    ranks = [[call(1), waiting(2)] if rank else [call(1), call(2)] for rank in range(4)]
    found = hang_of(*write(tmp_path, ranks))
    assert (found.kind, found.waiting, found.missing) == ("unfinished", (1, 2, 3), ())


def test_a_rank_without_a_dump(tmp_path: Path) -> None:
    found = hang_of(*write(tmp_path, [[call(1), waiting(2)]] * 3))
    assert (found.kind, found.without_dump, found.missing) == ("missing_rank", (3,), ())


def test_a_message_that_nobody_sends(tmp_path: Path) -> None:
    receives = call(1, "nccl:recv 1<-0", is_p2p=True, p2p_seq_id=1, state="started")
    ranks = [[call(1)], [call(1), receives | {"record_id": 5}], [call(1)], [call(1)]]
    found = hang_of(*write(tmp_path, ranks))
    assert (found.kind, found.missing, found.waiting) == ("missing_rank", (0,), (1,))
    assert found.name == "recv from rank 0 to rank 1"
    sends = call(1, "nccl:send 0->1", is_p2p=True, p2p_seq_id=1, record_id=5)
    assert hang_of(*write(tmp_path, [[call(1), sends], *ranks[1:]])).kind == "unfinished"


def test_messages_are_not_matched_when_the_first_are_lost(tmp_path: Path) -> None:
    receives = call(1, "nccl:recv 1<-0", is_p2p=True, state="started", record_id=900)
    ranks = [[call(1)], [receives], [call(1)], [call(1)]]
    card = sg.score(sg.load(*write(tmp_path, ranks)))
    assert card.hang is not None
    assert card.hang.kind == "none"
    assert "messages_lost" in {note.code for note in card.notes}


def test_only_what_all_buffers_still_hold_is_compared(tmp_path: Path) -> None:
    """A ring of the last entries begins at another number on each rank."""
    long = [call(number) for number in range(1, 40)]
    found = hang_of(*write(tmp_path, [long, long[20:], long[35:], long[3:]]))
    assert found.kind == "none"


def test_one_rank_is_not_enough(tmp_path: Path) -> None:
    paths = write(tmp_path, [[call(1), waiting(2)]])
    assert hang_of(paths[0]).kind == "one_rank"


def test_json_is_read_like_the_pickle(tmp_path: Path) -> None:
    ranks = [[call(1), waiting(2)], [call(1)]]
    pickled = hang_of(*write(tmp_path, ranks, config={}))
    folder = tmp_path / "json"
    folder.mkdir()
    for rank, entries in enumerate(ranks):
        document = {"version": "2.10", "pg_config": {}, "entries": entries}
        (folder / f"rank{rank}.json").write_text(json.dumps(document))
    assert hang_of(folder) == pickled


def test_any_order_of_files_and_entries_gives_the_same(tmp_path: Path) -> None:
    ranks = [[call(1), call(2), waiting(3)]] * 2 + [[call(1), call(2)]] * 2
    expected = hang_of(*write(tmp_path, ranks))
    dice = random.Random(3)
    shuffled = [dice.sample(entries, len(entries)) for entries in ranks]
    paths = write(tmp_path, shuffled)
    assert hang_of(*dice.sample(paths, len(paths))) == expected


@pytest.mark.parametrize(
    "entries",
    [
        None, 5, [3, None, "x"], [{}], [{"frames": [3, {}]}], [{"record_id": -1, "collective_seq_id": 1e9}],
        [call(1, process_group=("a", "b", "c"))], [call(1, profiling_name=None, input_sizes=5, state=9)],
        [call(2**60)], [call(1, input_sizes=[[2**62]] * 5000)],
    ],
)  # fmt: skip
def test_odd_dumps_end_in_a_card_or_in_one_line(tmp_path: Path, entries: Any) -> None:
    document = {"version": "2.10", "pg_config": {"0": 3}, "entries": entries}
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(document, 2))
    if not isinstance(entries, list):
        with pytest.raises(BadInput, match="without entries"):
            sg.load(path)
        return
    assert sg.score(sg.load(path, path)).hang is not None


def test_a_dump_is_never_unpickled(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, ("touch owned",)

    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps({"version": "2.10", "pg_config": {}, "entries": [Evil()]}, 2))
    with pytest.raises(BadInput, match="could run code"):
        sg.load(path)
    assert not (tmp_path / "owned").exists()


SCRIPT = """
import datetime, os, sys, threading, time
import torch
import torch.distributed as dist

kind, out = sys.argv[1:]
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank = dist.get_rank()
pair = dist.new_group([0, 1])
dist.barrier()

def write_dump():
    while not os.path.exists(out + "/stop"):
        time.sleep(0.05)
    dump = torch._C._distributed_c10d._dump_fr_trace(True, True, False)
    with open(f"{out}/nccl_trace_rank_{rank}", "wb") as file:
        file.write(dump)
    os._exit(0)

threading.Thread(target=write_dump).start()

def average():
    dist.all_reduce(torch.ones(8))  # the line of all

for _ in range(3):
    average()
open(f"{out}/began_{rank}", "w").close()
if kind == "leaves" and rank == 1:
    time.sleep(600)
if kind == "other" and rank == 1:
    dist.broadcast(torch.ones(2), 0)  # the line of rank 1
if kind == "circle" and rank == 0:
    dist.all_reduce(torch.ones(3), group=pair)  # the line of rank 0
average()
open(f"{out}/ended_{rank}", "w").close()
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "verdict"),
    [("leaves", "missing_rank"), ("other", "mismatch"), ("circle", "deadlock"), ("healthy", "none")],
)
def test_planted_divergence_of_a_real_run(tmp_path: Path, kind: str, verdict: str) -> None:
    """Three gloo processes that part ways, and dump their recorders when nothing moves any more."""
    pytest.importorskip("torch")
    script = tmp_path / "diverge.py"
    script.write_text(SCRIPT)
    out = tmp_path / "dumps"
    out.mkdir()
    runner = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "3",
        str(script),
        kind,
        str(out),
    ]
    environment = os.environ | {"TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        runner, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as run:
        try:
            awaited = "ended" if kind == "healthy" else "began"
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline and sum(1 for _ in out.glob(f"{awaited}_*")) < 3:
                time.sleep(0.05)
            time.sleep(1.0)  # the last call of each is then made
            (out / "stop").touch()
            run.wait(timeout=120)
        finally:
            run.kill()
    for mark in (*out.glob("*ed_*"), *out.glob("began_*"), out / "stop"):
        mark.unlink(missing_ok=True)
    card = sg.score(sg.load(out))
    assert card.hang is not None
    assert card.hang.kind == verdict
    lines = {text: number for number, text in enumerate(SCRIPT.splitlines(), start=1) if "# the line" in text}
    places = {text.rsplit("of ", 1)[1]: f"diverge.py:{number}" for text, number in lines.items()}
    claim = card.findings[0].claim if card.findings else ""
    expected = {
        "leaves": [places["all"], "which rank 1 never reached", "all_reduce 4"],
        "other": [places["all"], places["rank 1"], "broadcast on rank 1"],
        "circle": [places["all"], places["rank 0"]],
        "healthy": [],
    }[kind]
    assert [text for text in expected if text not in claim] == []
