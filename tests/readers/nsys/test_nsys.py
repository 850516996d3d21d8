"""Exports of Nsight Systems: as independent interval arithmetic has them, of every version, and hostile ones."""

from __future__ import annotations

import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.errors import StepgradeError
from stepgrade.model.events import DeviceEvent, Trace
from stepgrade.ranks.collectives import message_bytes
from stepgrade.readers.nsys.reader import read_traces
from stepgrade.readers.source import ByteSource
from stepgrade.trace.profile import analyse_rank
from tests.conftest import Ran
from tests.readers.nsys.export import EPOCH_NS, MS, SECRET, TABLES, Export, two_ranks
from tests.samples import shared

SAMPLES = "samples/nsys"
NAMES = {"ddp53": "ddp_2xRTX3090_nsys2026.3", "bolong_opt": "emit_nvtx_train_A100_nsys2026.3"}
Run = Callable[..., Ran]


def traces_of(path: Path) -> list[Trace]:
    with ByteSource(path) as source:
        return [*read_traces(source)]


def union_ms(trace: Trace, rows: np.ndarray) -> float:
    spans = sorted(zip(trace.work.start_ns[rows].tolist(), trace.work.dur_ns[rows].tolist(), strict=True))
    total, end = 0, -(2**62)
    for start, dur in spans:
        total += max(0, start + dur - max(start, end))
        end = max(end, start + dur)
    return total / MS


def reference(name: str) -> dict[str, dict[str, dict[str, dict[str, float]]]]:
    found: dict[str, dict[str, dict[str, dict[str, float]]]] = json.loads(
        shared(f"reference_figures/{name}").read_text()
    )
    return found


@pytest.mark.samples
def test_busy_times_and_counts_are_the_independent_ones() -> None:
    checked = 0
    for name, places in reference("own_nsys.json")["files"].items():
        path = shared(SAMPLES) / f"{NAMES.get(name, name)}.sqlite"
        if not path.exists() or not any("kernel" in place["n"] for place in places.values()):
            continue
        found = {}
        for trace in traces_of(path):
            for device in sorted(set(trace.work.device.tolist())):
                found[f"pid{trace.threads[0].process}/dev{device}"] = (trace, trace.work.device == device)
        assert set(found) == set(places)
        for place, (trace, rows) in found.items():
            want, kind = places[place], trace.work.kind
            assert union_ms(trace, rows) == pytest.approx(want["busy_ms"], abs=1e-3)
            assert int((rows & (kind == DeviceEvent.MEMSET)).sum()) == want["n"].get("memset", 0)
            assert int((rows & (kind == DeviceEvent.COPY_D2D)).sum()) == want["n"].get("copy_d2d", 0)
            kernels = sum(want["n"].get(key, 0) for key in ("kernel", "comm", "graph"))
            assert int((rows & (kind == DeviceEvent.KERNEL)).sum()) == kernels
            starts, durs = trace.work.start_ns[rows], trace.work.dur_ns[rows]
            assert ((starts + durs).max() - starts.min()) / MS == pytest.approx(want["span_ms"], abs=1e-3)
            talks = np.array([text.startswith("nccl") for text in trace.strings])[trace.work.name]
            copies = (kind == DeviceEvent.COPY_H2D) | (kind == DeviceEvent.COPY_D2H)
            parts = {
                "kernel": (kind == DeviceEvent.KERNEL) & ~talks,
                "comm": (kind == DeviceEvent.KERNEL) & talks,
                "copy": copies | (kind == DeviceEvent.COPY_OTHER),
                "copy_d2d": kind == DeviceEvent.COPY_D2D,
                "memset": kind == DeviceEvent.MEMSET,
            }
            for part, chosen in parts.items():
                total = want["sum_ms"].get(part, 0.0)
                total += want["sum_ms"].get("graph", 0.0) if part == "kernel" else 0.0
                assert int(trace.work.dur_ns[rows & chosen].sum()) / MS == pytest.approx(total, abs=1e-3)
            computes = rows & ~parts["comm"] & ~parts["copy"]
            compute, talked = union_ms(trace, computes), union_ms(trace, rows & ~parts["copy"])
            assert compute == pytest.approx(want["compute_ms"], abs=1e-3)
            assert talked - compute == pytest.approx(want["exposed_comm_ms"], abs=1e-3)
            assert want["busy_ms"] - talked == pytest.approx(want["exposed_copy_ms"], abs=1e-3)
            checked += 1
    assert checked >= 11


def covered_ns(spans: list[tuple[int, int]], start: int, end: int) -> int:
    """Return how much of the time from start to end the spans cover, one nanosecond counted once."""
    total, reached = 0, start
    for first, last in sorted(spans):
        total += max(0, min(last, end) - max(first, reached))
        reached = max(reached, last)
    return total


@pytest.mark.samples
def test_the_ledger_is_the_independent_one() -> None:
    """Every step of every sample, against unions of the rows of the device that is analysed."""
    checked = 0
    for path in sorted(shared(SAMPLES).glob("*.sqlite")):
        try:
            traces = traces_of(path)
        except StepgradeError:
            continue
        for trace in traces:
            work = trace.work
            busiest = max(
                set(work.device.tolist()), key=lambda number: int(work.dur_ns[work.device == number].sum())
            )
            rows: dict[str, list[tuple[int, int]]] = {"compute": [], "talk": [], "copy": []}
            for name, kind, start, dur, device in zip(
                *(
                    column.tolist()
                    for column in (work.name, work.kind, work.start_ns, work.dur_ns, work.device)
                ),
                strict=True,
            ):
                text = trace.strings[name]
                host_copy = kind in (DeviceEvent.COPY_H2D, DeviceEvent.COPY_D2H, DeviceEvent.COPY_OTHER)
                place = "talk" if "nccl" in text or "PtoP" in text else "copy" if host_copy else "compute"
                if device == busiest:
                    rows[place].append((start, start + dur))
            for step in analyse_rank(trace).steps:
                assert step.ledger is not None
                compute, talk, copy = (
                    covered_ns(
                        [span for name in names for span in rows[name]],
                        step.start_ns,
                        step.start_ns + step.dur_ns,
                    )
                    for names in (("compute",), ("compute", "talk"), ("compute", "talk", "copy"))
                )
                assert step.ledger.total == step.dur_ns
                for ours, theirs in (
                    (step.ledger.compute, compute),
                    (step.ledger.exposed_communication, talk - compute),
                    (step.ledger.exposed_copy, copy - talk),
                ):
                    assert ours / step.dur_ns == pytest.approx(theirs / step.dur_ns, abs=1e-3), path.name
                checked += 1
    assert checked >= 25


@pytest.mark.samples
def test_what_the_casebook_says() -> None:
    graph = sg.load(shared(SAMPLES) / "cs336zx_2.7B_a100_cudagraph.sqlite")
    assert (graph.recorded_steps, graph.contents["steps from"]) == (10, "kernels")
    assert graph.mean_step_ms == pytest.approx(781.2, abs=0.1)
    forward = sg.load(shared(SAMPLES) / "cs336jsun_fwdbwd_rtx3070ti.sqlite")
    assert (forward.recorded_steps, forward.work) == (10, "unknown")
    ddp = sg.load(shared(SAMPLES) / "ddp_2xRTX3090_nsys2026.3.sqlite")
    assert (ddp.recorded_steps, ddp.work, ddp.world_size) == (1, "training", 2)
    phases = {phase.name: phase.ms for phase in ddp.phases}
    # 31.6 ms of two autograd threads, less what overlaps; 5.4 ms of two forward passes.
    assert 14.0 < phases["backward"] < 17.0
    assert 2.4 < phases["forward"] < 2.9
    profile = sg.load(shared(SAMPLES) / "emit_nvtx_train_A100_nsys2026.3.sqlite")
    assert (sg.score(profile).grade, profile.tokens_per_step, len(profile.layers)) == ("C", 2048, 12)


@pytest.mark.samples
def test_bytes_of_collectives_are_those_of_the_payloads() -> None:
    path = shared(SAMPLES) / "ddp_2xRTX3090_nsys2026.3.sqlite"
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    sent: dict[int, list[int]] = {}
    rows = connection.execute(
        "select globalTid >> 24 & 16777215, ifnull(n.jsonText, s.value) from NVTX_EVENTS n left join StringIds s "
        "on s.id = n.jsonTextId left join StringIds t on t.id = n.textId "
        "where ifnull(n.text, t.value) in ('ncclAllReduce', 'ncclBroadcast') order by start"
    )
    for process, text in rows:
        sent.setdefault(process, []).append(json.loads(text)["Message size [bytes]"])
    connection.close()
    for trace in traces_of(path):
        places = [place for place in trace.work.collective.tolist() if place >= 0]
        sizes = [message_bytes(trace.collectives[place]) for place in places]
        assert sorted(sizes, key=str) == sorted(sent[int(trace.threads[0].process)], key=str)
        assert {trace.collectives[place].group_size for place in places} == {2}


@pytest.mark.samples
def test_operations_of_emit_nvtx() -> None:
    figures = reference("own_nsys_nvtx.json")["new nsys/emit_nvtx_train_A100_nsys2026.3.sqlite"]
    profile = sg.load(shared(SAMPLES) / "emit_nvtx_train_A100_nsys2026.3.sqlite")
    by_name, steps = {op.name: op for op in profile.operations}, profile.steps or 1
    for name, (ms, calls) in figures["by_innermost_op_ms"].items():
        # Memory that is set and copied within the device is the operations' here, and counted apart there.
        if calls >= 20 and name != "aten::copy_":
            assert by_name[name].ms == pytest.approx(ms / steps, rel=0.02), name
    assert profile.matmul_flops == figures["matmul_flops_from_sizes"] / steps
    assert by_name["aten::bmm"].flops == pytest.approx(figures["matmul_flops_from_sizes"] / steps, rel=1e-9)
    assert profile.runtime == "pytorch" or profile.source.producer == "Nsight Systems, of PyTorch"


@pytest.mark.samples
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dynvit_a2000_truncated.sqlite", "without any events"),
        ("ecf_titanrtx_baseline_nsys2022.sqlite", "NVTX ranges only"),
        ("lighttransport_gemm_profile.sqlite", "no kernels"),
        ("wb2_rtx4060_no_kernels.sqlite", "no kernels"),
    ],
)
def test_what_cannot_be_judged_says_why(stepgrade: Run, name: str, words: str) -> None:
    ran = stepgrade("score", shared(SAMPLES) / name)
    assert (ran.code, words in ran.err) == (2, True), ran.err
    assert ran.err.count("\n") == 1


def test_two_processes_are_two_ranks_although_their_numbers_collide(tmp_path: Path) -> None:
    first, second = traces_of(two_ranks(tmp_path / "run.sqlite"))
    assert [(trace.rank, trace.world_size, trace.backend) for trace in (first, second)] == [
        (0, 2, "nccl"),
        (1, 2, "nccl"),
    ]
    assert first.threads[0].process == "200"  # the rank that NCCL names, not the order of processes
    assert {device.index: device.name for device in first.devices}[0] == "NVIDIA H100 80GB HBM3"
    for trace in (first, second):
        (described,) = trace.collectives
        assert (described.name, described.group_size, described.dtype) == ("allreduce", 2, "bfloat16")
        assert described.in_elements == 1 << 19
        assert set(trace.work.collective.tolist()) == {-1, 0}
        assert trace.base_ns == EPOCH_NS + trace.file_zero_ns
        # Each kernel starts after its own launch, never before the other process's of the same number.
        launches = dict(zip(trace.calls.correlation.tolist(), trace.calls.start_ns.tolist(), strict=True))
        for correlation, start in zip(
            trace.work.correlation.tolist(), trace.work.start_ns.tolist(), strict=True
        ):
            assert 0 <= start - launches[correlation] <= MS


def test_a_run_of_two_ranks_is_scored(tmp_path: Path) -> None:
    profile = sg.load(two_ranks(tmp_path / "run.sqlite", steps=8))
    card = sg.score(profile)
    assert card.steps is not None
    assert card.steps.median_ms == pytest.approx(10.0, rel=0.01)
    assert card.ledger is not None
    assert card.ledger.compute == pytest.approx(0.5, abs=0.01)
    assert card.source.format == "nsys"
    assert len(card.ranks) == 2
    # Tokens that are counted in a trace are one rank's; whether the others have the same ones is not known.
    rate = sg.score(structs.replace(profile, tokens_per_step=2048)).throughput
    assert rate is not None
    assert rate.basis.endswith("of one of 2 ranks")


def test_nothing_of_the_environment_is_kept(tmp_path: Path) -> None:
    path = two_ranks(tmp_path / "run.sqlite")
    for trace in traces_of(path):
        assert not any("canary" in text for text in trace.strings)
    for to in ("json", "html", "terminal", "markdown"):
        assert "canary" not in sg.render(sg.score(sg.load(path)), to=to)


@pytest.mark.parametrize("missing", ["globalPid", "demangledName", "streamId", "shortName"])
def test_columns_come_and_go_with_the_version(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "run.sqlite"
    export = Export(path)
    for step in range(4):
        export.kernel("gemm", (10 * step + 1) * MS, (10 * step + 6) * MS, 100)
    export.connection.execute(f"alter table CUPTI_ACTIVITY_KIND_KERNEL drop column {missing}")
    (trace,) = traces_of(export.close())
    assert len(trace.work.name) == 4
    assert union_ms(trace, trace.work.device >= 0) == 20.0


@pytest.mark.parametrize("table", sorted(set(TABLES) - {"StringIds", "CUPTI_ACTIVITY_KIND_KERNEL"}))
def test_every_table_may_be_missing(tmp_path: Path, table: str) -> None:
    path = two_ranks(tmp_path / "run.sqlite")
    connection = sqlite3.connect(path)
    connection.execute(f"drop table {table}")
    connection.commit()
    connection.close()
    assert sum(len(trace.work.name) for trace in traces_of(path)) == 16


def test_graphs_that_were_recorded_as_a_whole_are_busy_time(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    for step in range(5):
        at = 10 * step * MS
        export.add("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", start=at, end=at + 9 * MS, deviceId=0, streamId=1,
                   correlationId=step, globalPid=7 << 24, graphExecId=3)  # fmt: skip
        export.call("cudaGraphLaunch_v10000", at, at + 1000, 7, step)
    (trace,) = traces_of(export.close())
    assert union_ms(trace, trace.work.device >= 0) == 45.0
    assert trace.strings[int(trace.work.name[0])] == "CUDA graph 3"


def test_ranges_from_before_the_capture_and_names_in_no_encoding(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    export.range("opened before", -20_000 * MS, 50 * MS, 7)
    export.kernel(b"gemm\xff\xfe", 10 * MS, 20 * MS, 7)
    export.add("NVTX_EVENTS", start=5, end=None, eventType=34, text="a mark", globalTid=7 << 24)
    (trace,) = traces_of(export.close())
    assert trace.ranges.start_ns.tolist() == [0]
    assert trace.strings[int(trace.work.name[0])] == "gemm\ufffd\ufffd"


def test_pinned_and_pageable_copies_are_distinguishable(tmp_path: Path) -> None:
    export = Export(tmp_path / "run.sqlite")
    for kind, source, target in ((1, 0, 2), (1, 1, 2), (2, 2, 0), (8, 2, 2)):
        export.add("CUPTI_ACTIVITY_KIND_MEMCPY", start=kind * MS, end=(kind + 1) * MS, deviceId=0, streamId=1,
                   correlationId=kind, globalPid=7 << 24, bytes=1024, copyKind=kind, srcKind=source,
                   dstKind=target)  # fmt: skip
    (trace,) = traces_of(export.close())
    names = sorted(trace.strings[place] for place in trace.work.name.tolist())
    assert names == ["Memcpy DtoD (Device -> Device)", "Memcpy DtoH (Device -> Pageable)",
                     "Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD (Pinned -> Device)"]  # fmt: skip
    assert trace.work.bytes.tolist() == [1024] * 4


@pytest.mark.parametrize(
    "sql",
    [
        (
            "drop table CUPTI_ACTIVITY_KIND_KERNEL; create view CUPTI_ACTIVITY_KIND_KERNEL as with recursive "
            "n(i) as (select 1 union all select i + 1 from n) select i as start, i as end from n"
        ),
        "create trigger t after insert on StringIds begin delete from StringIds; end",
        "update CUPTI_ACTIVITY_KIND_KERNEL set start = 9e300, deviceId = 'a', demangledName = zeroblob(100)",
        "update CUPTI_ACTIVITY_KIND_KERNEL set start = 9223372036854775807, end = -9223372036854775808",
        "update StringIds set value = zeroblob(30000000)",
        "update NVTX_EVENTS set text = replace(hex(zeroblob(100000)), '00', ', seq = 9, op_id = ')",
        "update NVTX_EVENTS set jsonText = replace(hex(zeroblob(100000)), '00', '[')",
        "update NVTX_EVENTS set start = 'x', end = zeroblob(4)",
        "update TARGET_INFO_GPU set id = 'x', name = 5, totalMemory = 'y', computeMajor = zeroblob(1)",
        "update TARGET_INFO_CUDA_DEVICE set cudaId = 'x', gpuId = null",
        "update META_DATA_EXPORT set value = zeroblob(1000)",
        "delete from CUPTI_ACTIVITY_KIND_RUNTIME",
    ],
)
def test_whatever_a_stranger_wrote_gives_a_card_or_one_line(stepgrade: Run, tmp_path: Path, sql: str) -> None:
    path = two_ranks(tmp_path / "run.sqlite")
    connection = sqlite3.connect(path)
    connection.executescript(sql)
    connection.close()
    before = path.read_bytes()
    ran = stepgrade("score", path)
    assert ran.code in (0, 2, 3), ran.err
    assert SECRET not in ran.out + ran.err
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.sqlite"]  # no journal, no index


@pytest.mark.parametrize("seed", range(40))
def test_damaged_pages_give_a_card_or_one_line(tmp_path: Path, seed: int) -> None:
    path = two_ranks(tmp_path / "run.sqlite")
    content, chance = bytearray(path.read_bytes()), random.Random(seed)
    if seed % 4 == 0:
        content = content[: chance.randrange(1, len(content))]
    for _ in range(chance.choice([1, 5, 50, 500])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)
    said = ""
    try:
        sg.render(sg.score(sg.load(path)))
    except StepgradeError as error:
        said = str(error)
    assert "\n" not in said
