"""Every real trace at hand, column by column, against the slow reader."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from lanes import NEEDS_LIBRARY, check
from slow_kineto import TABLES, fast_rows, load, slow_rows
from tests.kineto_traces import looks_like_kineto, read_ranks, read_trace
from tests.samples import each_of, shared

from stepgrade.readers.steps import only_steps

pytestmark = pytest.mark.samples


def sample(part: str) -> Path:
    return next(shared("samples/kineto").glob(f"*{part}*.json*"))


@pytest.mark.parametrize("file", each_of("samples/kineto/*.json*"))
def test_every_column_is_exact_and_in_order(file: Path) -> None:
    assert looks_like_kineto(file.read_bytes()[:65536])
    document = load(file)
    for trace in read_ranks([file]):
        merged = "merged" in file.name
        expected, found = slow_rows(document, trace.rank if merged else None), fast_rows(trace)
        for table in TABLES:
            assert found[table] == expected[table], table
            rows = getattr(trace, table)
            order = np.lexsort((-rows.dur_ns, rows.start_ns))
            assert (np.diff(order) > 0).all()
        assert trace.lost == ()


@NEEDS_LIBRARY
@pytest.mark.parametrize(
    "file", [*each_of("samples/kineto/*.json*"), *each_of("samples/kineto_more/*.json*")]
)
def test_both_lanes_read_the_samples_alike(file: Path) -> None:
    check(file.read_bytes())


ERAS = [
    ("kineto_v1", "2020"),
    ("kineto_v3", "2021"),
    ("inference_rank1_stub", "2021"),
    ("sampled_rank0", "2023"),
    ("saf_amg", "2023"),
    ("ns_resolution", "2024-04"),
    ("mi250", "2024-05"),
    ("b200", "2024-05"),
    ("merged", "merged"),
]


@pytest.mark.parametrize(("part", "era"), ERAS)
def test_eras_are_distinguishable(part: str, era: str) -> None:
    assert next(read_ranks([sample(part)])).era == era


def test_what_the_top_level_says() -> None:
    trace = read_trace(sample("20251211_8xH100_rank3"))
    assert (trace.rank, trace.world_size, trace.backend) == (3, 8, "nccl")
    assert [device.name for device in trace.devices] == ["NVIDIA H100 80GB HBM3"] * 8
    assert (trace.devices[1].index, trace.devices[1].sm_count, trace.devices[1].capability) == (1, 132, "9.0")
    assert trace.versions == {
        "schemaVersion": "1",
        "cuda_runtime_version": "12060",
        "cuda_driver_version": "12080",
        "cupti_version": "24",
    }
    assert trace.recorded == {"shapes"}
    assert any(thread.name and thread.name.endswith("(python)") for thread in trace.threads)


def test_keys_after_the_events_count_too() -> None:
    trace = read_trace(sample("tl_h100_bert"))
    assert trace.recorded == {"shapes", "stacks", "memory", "modules", "flops"}
    assert trace.devices[0].name == "NVIDIA H100 80GB HBM3"


def test_unknown_keys_leave_nothing_behind() -> None:
    trace = read_trace(sample("tl_h100_bert"))
    seen = repr((trace.versions, trace.devices, trace.strings, trace.lost, trace.threads, trace.categories))
    for secret in ("REDACTED", "torch_profiler_kwargs", "warmups"):
        assert secret not in seen


def test_eight_files_are_eight_ranks_on_one_clock() -> None:
    traces = list(read_ranks(sorted(shared("samples/kineto").glob("modded-nanogpt_20251211_8xH100_rank*"))))
    assert [trace.rank for trace in traces] == list(range(8))
    bases = [trace.base_ns or 0 for trace in traces]
    assert max(bases) - min(bases) < 100_000_000


def test_a_merged_file_is_its_ranks() -> None:
    traces = list(read_ranks([sample("merged")]))
    assert [trace.rank for trace in traces] == [0, 1, 2, 3]


def test_steps_can_be_chosen() -> None:
    file = sample("20251211_8xH100_rank0")
    whole = read_trace(file)
    numbers = sorted(
        int(text.removeprefix("ProfilerStep#")) for text in whole.strings if "ProfilerStep#" in text
    )
    one = next(only_steps([whole], (numbers[1], numbers[1])))
    marks = [one.strings[at] for at in one.ranges.name.tolist() if one.strings[at].startswith("ProfilerStep")]
    assert marks == [f"ProfilerStep#{numbers[1]}"]
    assert 0 < len(one.work.name) < len(whole.work.name)
    parts = [next(only_steps([whole], (n, n))) for n in numbers]
    assert sum(len(part.ops.name) for part in parts) <= len(whole.ops.name)


@pytest.mark.parametrize("part", ["cscs_mse", "hta_cuda_event_sync", "tl_torch_compile", "hta_sampled_rank0"])
def test_gzip_or_not_makes_no_difference(part: str) -> None:
    packed = sample(part).read_bytes()
    text = gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    assert fast_rows(read_trace(text)) == fast_rows(read_trace(gzip.compress(text)))
