"""What a memory snapshot tells: the peak, what it is made of, who allocated it, and why it ran out."""

from __future__ import annotations

import lzma
import pickle
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.errors import BadInput
from stepgrade.model.memory import Memory
from stepgrade.readers import plain_pickle
from tests.readers.snapshot.snapshots import MIB, Recorded, train
from tests.samples import shared


def read(tmp_path: Path, data: bytes) -> Memory:
    path = tmp_path / "s.pickle"
    path.write_bytes(data)
    memory = sg.load(path).memory
    assert memory is not None
    return memory


def in_mib(memory: Memory) -> dict[str, float]:
    return {name: size / MIB for name, size in memory.categories.items()}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_categories_are_told_by_when_memory_lives(tmp_path: Path, protocol: int) -> None:
    memory = read(tmp_path, train().pickled(protocol))
    # With the last gradient made, two of the four layers are still held.
    assert memory.peak_bytes == sum(memory.categories.values())
    assert in_mib(memory) == {
        "weights": 40,
        "optimizer": 80,
        "activations": 10,
        "gradients": 40,
        "temporary": 1,
    }
    assert memory.curve is not None
    for name, amounts in memory.curve.categories.items():
        assert amounts[memory.curve.peak_index] == pytest.approx(memory.categories.get(name, 0.0))


def test_the_curve_is_as_high_as_a_plain_replay(tmp_path: Path) -> None:
    run = train(steps=5)
    held, levels = sum(size for address, size in run.blocks.items()), []
    net = sum({"alloc": 1, "free_completed": -1}.get(e["action"], 0) * e["size"] for e in run.entries)
    level = held - net
    for entry in run.entries:
        level += {"alloc": 1, "free_completed": -1}.get(entry["action"], 0) * entry["size"]
        levels.append(level)
    memory = read(tmp_path, run.pickled())
    assert memory.peak_bytes == max(levels)
    assert memory.curve is not None
    totals = [sum(at) for at in zip(*memory.curve.categories.values(), strict=True)]
    assert max(totals) == max(levels)
    assert min(totals) >= min(levels)


def test_who_allocated_the_peak_is_named(tmp_path: Path) -> None:
    memory = read(tmp_path, train(layers=1).pickled())
    assert memory.peak_at is not None
    assert memory.holders[0].category in {"gradients", "activations"}
    assert {holder.where for holder in memory.holders} >= {"~/run/train.py:11"}


def test_without_stacks_nothing_is_said_of_categories(tmp_path: Path) -> None:
    memory = read(tmp_path, train(stacks=False).pickled())
    assert memory.categories == {}
    assert memory.peak_bytes is not None


def test_stacks_of_allocations_only_are_enough(tmp_path: Path) -> None:
    run = train()
    for entry in run.entries:
        if entry["action"].startswith("free"):
            entry["frames"] = []
    assert in_mib(read(tmp_path, run.pickled()))["gradients"] == 40


@pytest.mark.parametrize("key", ["frames", "time_us", "stream", "addr", "size", "action"])
def test_every_key_may_be_missing(tmp_path: Path, key: str) -> None:
    run = train()
    for entry in run.entries:
        entry.pop(key)
    assert read(tmp_path, run.pickled()).peak_bytes is not None


@pytest.mark.parametrize("key", ["device_traces", "allocator_settings", "external_annotations"])
def test_older_files_have_fewer_parts(tmp_path: Path, key: str) -> None:
    value = train().value()
    del value[key]
    assert read(tmp_path, pickle.dumps(value)).peak_bytes is not None


@pytest.mark.parametrize("bad", [None, "x", -1, 1.5, [], {}, 1 << 70, True])
@pytest.mark.parametrize("where", ["entry", "segment", "block", "frame", "annotation"])
def test_values_of_the_wrong_kind_are_left_out(tmp_path: Path, where: str, bad: Any) -> None:
    value = train(steps=2).value()
    rows = {
        "entry": value["device_traces"][0][3],
        "segment": value["segments"][0],
        "block": value["segments"][0]["blocks"][0],
        "frame": value["device_traces"][0][0]["frames"][0],
        "annotation": value["external_annotations"][0],
    }
    for key in rows[where]:
        rows[where][key] = bad
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(value))
    try:
        sg.score(sg.load(path))
    except BadInput:
        assert bad == 1 << 70


def test_memory_that_grows_names_the_line(tmp_path: Path) -> None:
    assert read(tmp_path, train(steps=8).pickled()).growth is None
    growth = read(tmp_path, train(steps=8, leak=3 * MIB).pickled()).growth
    assert growth is not None
    assert growth.bytes_per_step == 3 * MIB
    assert growth.holders[0].where == "~/run/train.py:11"


def test_what_failed_is_told(tmp_path: Path) -> None:
    run = train()
    held = sum(run.blocks.values())
    kept = run.alloc(9 * MIB, "forward")
    run.fail(100 * MIB, free=6 * MIB)
    failed = read(tmp_path, run.pickled()).out_of_memory
    assert failed is not None
    assert (failed.asked_bytes, failed.free_bytes) == (100 * MIB, 6 * MIB)
    assert failed.allocated_bytes == held + 9 * MIB
    assert failed.where == "~/run/model.py:10"
    assert kept in run.blocks


def test_fragments_are_what_is_reserved_and_in_no_tensor(tmp_path: Path) -> None:
    run = train()
    memory = read(tmp_path, pickle.dumps(run.value(spare=10 * MIB)))
    spare = 10 * MIB * len(run.blocks)
    assert memory.fragmentation is not None
    assert memory.reserved_bytes is not None
    assert memory.fragmentation >= 0
    assert memory.largest_free_bytes == 10 * MIB
    assert memory.reserved_bytes >= spare


def test_the_same_list_in_many_places_is_read_once(tmp_path: Path) -> None:
    """A file of kilobytes could otherwise stand for billions of events."""
    value = train().value()
    value["device_traces"] = value["device_traces"] * 3000
    value["segments"] = [{**value["segments"][0]} for _ in range(3000)]
    blocks = value["segments"][0]["blocks"] * 3000
    for segment in value["segments"]:
        segment["blocks"] = blocks
    assert read(tmp_path, pickle.dumps(value)).peak_bytes is not None


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("sizes", [1 << 10, 1 << 26])
def test_rows_give_what_dicts_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, protocol: int, sizes: int
) -> None:
    """Entries are read as rows of a few shapes; opcode by opcode the result is the same."""
    run = train(steps=4)
    for number, entry in enumerate(run.entries):
        entry |= {"compile_context": "/".join("NA"), "frames": [*entry["frames"]]}
        if number % 5 == 0:
            del entry["time_us"], entry["stream"]
        if number % 7 == 0:
            entry["addr"] = str(entry["addr"])
    run.fail(9 * MIB, sizes)
    path = tmp_path / "s.pickle"
    path.write_bytes(pickle.dumps(run.value(), protocol))
    fast = sg.score(sg.load(path)).to_json()
    monkeypatch.setattr(plain_pickle, "_MOST_SHAPES", 0)
    assert sg.score(sg.load(path)).to_json() == fast


def test_sizes_beyond_all_memory_are_refused(tmp_path: Path) -> None:
    value = train().value()
    grown = {
        "action": "segment_alloc",
        "addr": 1,
        "size": (1 << 53) - 1,
        "stream": 0,
        "time_us": 1,
        "frames": [],
    }
    value["device_traces"][0][:0] = [dict(grown) for _ in range(1100)]
    with pytest.raises(BadInput, match="impossible sizes"):
        read(tmp_path, pickle.dumps(value))


def test_a_snapshot_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="without allocations"):
        read(tmp_path, Recorded().pickled())


@pytest.mark.parametrize("to", ["terminal", "json", "markdown", "html"])
def test_a_snapshot_is_shown_without_a_grade(tmp_path: Path, to: str) -> None:
    path = tmp_path / "s.pickle"
    path.write_bytes(train().pickled())
    card = sg.score(sg.load(path))
    assert card.grade == "ungraded"
    assert sg.render(card, to=to)


@pytest.mark.samples
def test_real_snapshots(tmp_path: Path) -> None:
    """The weights of the first file have 12,996 MiB: so have its gradients, and each of AdamW's two states."""
    folder = shared("samples/memory/snapshots")
    full = read(
        tmp_path, lzma.decompress((folder / "cs336_athrun_fullstep_ctx128_win.pickle.xz").read_bytes())
    )
    found = {name: round(size) for name, size in in_mib(full).items()}
    assert full.peak_bytes is not None
    assert round(full.peak_bytes / MIB) == 57_505
    assert (found["gradients"], found["optimizer"]) == (12_996, 2 * 12_996)
    assert found["weights"] == pytest.approx(12_996, rel=0.02)
    linux = read(tmp_path, lzma.decompress((folder / "cs336_wedson_train_medium128.pickle.xz").read_bytes()))
    assert linux.peak_bytes is not None
    assert linux.peak_at is not None
    assert round(linux.peak_bytes / MIB) == 6_696
    assert linux.peak_at.where is not None
    assert "optimizer.py" in linux.peak_at.where
    forward = read(tmp_path, (folder / "cs336_athrun_forward_ctx128_win.pickle").read_bytes())
    assert forward.peak_at is not None
    assert forward.peak_at.where is not None
    assert "model.py" in forward.peak_at.where
