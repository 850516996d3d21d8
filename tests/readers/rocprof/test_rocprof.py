"""Files of ROCm's profilers: one training in four formats, real files by their own figures, and hostile ones."""

from __future__ import annotations

import contextlib
import gzip
import json
import random
import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import stepgrade as sg
from stepgrade.errors import StepgradeError
from stepgrade.model.events import DeviceEvent, Trace
from stepgrade.readers.registry import read_source
from stepgrade.readers.rocprof.json_records import _marker_texts
from stepgrade.readers.source import ByteSource
from tests.conftest import Ran
from tests.readers.rocprof.files import GEMM, MS, SECRET, write_csv, write_json, write_rocpd, write_rpd
from tests.samples import shared

Run = Callable[..., Ran]
FORMATS: dict[str, Callable[[Path], Path]] = {
    "json": lambda folder: write_json(folder / "x_results.json"),
    "csv": write_csv,
    "rocpd": lambda folder: write_rocpd(folder / "x_results.db"),
    "rpd": lambda folder: write_rpd(folder / "x.rpd"),
}


def traces_of(path: Path) -> list[Trace]:
    with ByteSource(path) as source:
        return [*(read_source(source, "rocprof").traces or ())]


def union_ms(trace: Trace) -> float:
    total = reached = 0
    for start, dur in zip(trace.work.start_ns.tolist(), trace.work.dur_ns.tolist(), strict=True):
        total += max(0, start + dur - max(start, reached))
        reached = max(reached, start + dur)
    return total / MS


@pytest.mark.parametrize("name", FORMATS)
def test_the_same_training_in_every_format(name: str, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path)
    profile = sg.load(path)
    card = sg.score(profile)
    assert (profile.source.format, profile.contents["steps from"]) == ("rocprof", "range")
    assert profile.source.producer == "ROCm, of PyTorch"
    assert card.steps is not None
    assert card.steps.median_ms == pytest.approx(10.0, rel=1e-6)
    assert card.ledger is not None
    # 5 ms of a product and 1 µs of a fill; rpd also has a task of 1 µs that a graph replayed.
    assert card.ledger.compute == pytest.approx(0.5001 if name != "rpd" else 0.5002, abs=1e-6)
    assert card.ledger.exposed_copy == pytest.approx(0.1, abs=1e-6)
    product = next(op for op in profile.operations if op.name == "aten::mm")
    assert product.flops == 2 * 256 * 512 * 128
    assert len(card.ranks) == (2 if name in ("json", "rocpd") else 0)
    if name != "rpd":
        assert profile.device is not None
        assert profile.device.name == "AMD Instinct MI300X"


@pytest.mark.parametrize("name", FORMATS)
def test_work_goes_to_its_own_launch_and_device(name: str, tmp_path: Path) -> None:
    traces = traces_of(FORMATS[name](tmp_path))
    for place, trace in enumerate(traces):
        launches = dict(zip(trace.calls.correlation.tolist(), trace.calls.name.tolist(), strict=True))
        wanted = {DeviceEvent.KERNEL: "hipModuleLaunchKernel", DeviceEvent.COPY_H2D: "hipMemcpyAsync", DeviceEvent.MEMSET: "hipMemsetAsync"}  # fmt: skip
        seen = set()
        for kind, title, correlation in zip(
            trace.work.kind.tolist(), trace.work.name.tolist(), trace.work.correlation.tolist(), strict=True
        ):
            if "without a name" not in trace.strings[title]:
                assert trace.strings[launches[correlation]] == wanted[DeviceEvent(kind)]
                seen.add(kind)
        assert seen == set(wanted)
        if len(traces) > 1:
            assert set(trace.work.device.tolist()) == {place}
            assert trace.rank == place


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_of_the_environment_is_kept(name: str, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path)
    assert not any("canary" in text for trace in traces_of(path) for text in trace.strings)
    for to in ("json", "html", "terminal", "markdown"):
        assert "canary" not in sg.render(sg.score(sg.load(path)), to=to)


def test_an_rpd_may_be_gzipped(tmp_path: Path) -> None:
    plain = write_rpd(tmp_path / "x.rpd")
    (tmp_path / "y.rpd.gz").write_bytes(gzip.compress(plain.read_bytes()))
    assert sg.load(tmp_path / "y.rpd.gz").mean_step_ms == sg.load(plain).mean_step_ms


def test_kernels_alone_show_their_steps_by_repetition(tmp_path: Path) -> None:
    """Without calls, copies and ranges the order on the queue is all there is."""
    path = write_json(tmp_path / "x.json", pids=(100,))
    found = json.loads(path.read_text())
    records = found["rocprofiler-sdk-tool"][0]["buffer_records"]
    kernels = []
    for step in range(9):
        for place, kernel_id in enumerate((0, 1, 2, 3, 2, 1)):
            made = json.loads(json.dumps(records["kernel_dispatch"][0]))
            made["dispatch_info"]["kernel_id"] = kernel_id
            start = (step * 10 + place) * MS
            kernels.append(made | {"start_timestamp": start, "end_timestamp": start + MS // 2})
    records |= {"kernel_dispatch": kernels, "hip_api": [], "marker_api": [], "memory_copy": []}
    path.write_text(json.dumps(found))
    profile = sg.load(path)
    assert (profile.contents["steps from"], profile.recorded_steps) == ("kernels", 9)
    assert profile.samples_ms[0] == pytest.approx(10.0)
    assert any(note.code == "host_unseen" and "emit_nvtx" in note.text for note in profile.warnings)


@pytest.mark.samples
def test_the_training_of_fifty_steps() -> None:
    path = shared("samples/rocprof/tl_rocprofv3_908_results.json.gz")
    want = json.loads(shared("reference_figures/tracelens_rocprofv3_908.json").read_text())
    (trace,) = traces_of(path)
    assert len(trace.work.name) == want["own"]["kernels"]
    assert int(trace.work.dur_ns.sum()) / MS == pytest.approx(want["own"]["sum_ms"], abs=1e-6)
    assert union_ms(trace) == pytest.approx(want["gpu_timeline_ms"]["busy_time"], abs=1e-4)
    talk = np.array([text.startswith("nccl") for text in trace.strings])[trace.work.name]
    assert int(trace.work.dur_ns[talk].sum()) / MS == pytest.approx(
        want["by_category_ms"]["COMM"]["ms"], abs=1e-3
    )
    profile = sg.load(path)
    assert (profile.recorded_steps, profile.work, profile.contents["steps from"]) == (
        50,
        "training",
        "kernels",
    )


@pytest.mark.samples
@pytest.mark.parametrize(
    ("name", "kernels"),
    [("rocpd_converted_mi350x_train.db", 5000), ("rpd_matmul_result.rpd", 85), ("rocprofv3_decode_kernel_trace.csv", 144)],
)  # fmt: skip
def test_other_real_files(name: str, kernels: int, stepgrade: Run) -> None:
    path = shared("samples/rocprof") / name
    (trace,) = traces_of(path)
    assert kernels == len(trace.work.name)
    assert stepgrade("score", path).code in (0, 3)
    if name.endswith(".db"):
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        (table,) = connection.execute(
            "select name from sqlite_master where type = 'table' and name like 'rocpd_kernel_d%'"
        ).fetchone()
        spans = sorted(connection.execute(f'select start, "end" from "{table}"').fetchall())  # noqa: S608
        connection.close()
        total = reached = 0
        for start, end in spans:
            total += max(0, end - max(start, reached))
            reached = max(reached, end)
        assert union_ms(trace) == pytest.approx(total / MS, abs=1e-9)


HOSTILE_JSON = [
    b'{"rocprofiler-sdk-tool":',
    b'{"rocprofiler-sdk-tool": 5}',
    b'{"rocprofiler-sdk-tool": []}',
    b'{"rocprofiler-sdk-tool": [{}]}',
    b'{"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [{}]}}]}',
    (
        b'{"rocprofiler-sdk-tool": [{"metadata": {"pid": -9223372036854775808}, "buffer_records": {"kernel_dispatch": '
        b'[{"start_timestamp": 9223372036854775807, "end_timestamp": -9223372036854775808, "kind": 99, "operation": -7}]}}]}'
    ),
    b'{"rocprofiler-sdk-tool": [{"buffer_records": {"kernel_dispatch": [{"start_timestamp": 1e400}]}}]}',
    b'{"rocprofiler-sdk-tool": ' + b"[" * 100_000,
    b'{"rocprofiler-sdk-tool": [{"strings": {"marker_api": [[1]]}, "buffer_records": {"kernel_dispatch": [{"end_timestamp": 5}]}}]}',
]  # fmt: skip


@pytest.mark.parametrize("content", HOSTILE_JSON, ids=range(len(HOSTILE_JSON)))
def test_hostile_json_gives_a_card_or_one_line(content: bytes, tmp_path: Path, stepgrade: Run) -> None:
    (tmp_path / "x.json").write_bytes(content)
    ran = stepgrade("score", tmp_path / "x.json")
    assert ran.code in (0, 2, 3), ran.err
    assert ran.err.count("\n") <= 1


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("seed", range(15))
def test_damaged_files_give_a_card_or_one_line(name: str, seed: int, tmp_path: Path) -> None:
    path = FORMATS[name](tmp_path)
    content, chance = bytearray(path.read_bytes()), random.Random(seed)
    if seed % 4 == 0:
        content = content[: chance.randrange(1, len(content))]
    for _ in range(chance.choice([1, 5, 50, 500])):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)
    before = sorted(tmp_path.iterdir())
    said = ""
    try:
        sg.render(sg.score(sg.load(path)))
    except StepgradeError as error:
        said = str(error)
    assert "\n" not in said
    assert sorted(tmp_path.iterdir()) == before
    assert path.read_bytes() == content
    assert SECRET not in said


def test_a_small_memory_is_kept_to(tmp_path: Path) -> None:
    for write in FORMATS.values():
        path = write(tmp_path)
        with pytest.raises(StepgradeError, match="memory"):
            sg.load(path, max_memory=10_000)


def test_kernel_names_are_kept_whole(tmp_path: Path) -> None:
    (trace, _) = traces_of(write_json(tmp_path / "x.json"))
    assert GEMM in trace.strings


def test_a_correlation_of_thousands_of_digits_is_passed_over() -> None:
    """Python refuses to make a number of more than 4,300 digits."""
    assert _marker_texts({"9" * 5000: "a", "7": "b", "8": 5, "x": "c"}) == {7: "b"}


@pytest.mark.parametrize(("extra", "memory_bytes", "units"), [
    ({}, None, None),
    ({"mem_banks": [], "cu_count": 0}, None, None),
    ({"mem_banks": [{"size_in_bytes": 1 << 30}, "odd", {"size_in_bytes": 2 << 30}], "cu_count": 8}, 3 << 30, 8),
])  # fmt: skip
def test_what_an_agent_does_not_say_is_missing(
    extra: dict[str, object], memory_bytes: int | None, units: int | None, tmp_path: Path
) -> None:
    path = write_rocpd(tmp_path / "run.db", pids=(100,))
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute(
            "update rocpd_info_agent_0000_0 set extdata = ? where type = 'GPU'", (json.dumps(extra),)
        )
    (trace,) = traces_of(path)
    assert {(one.memory_bytes, one.sm_count) for one in trace.devices} == {(memory_bytes, units)}


@pytest.mark.parametrize(
    ("ids", "indices"),
    [
        ((0, 1), (0, 1)),
        ((5, 3), (5, 3)),  # as the tool numbers them
        ((4, 4), (0, 1)),  # alike: by their order
        ((0, -1), (0, 1)),
        ((0, 1 << 16), (0, 1)),
        ((0, (1 << 16) - 1), (0, (1 << 16) - 1)),
    ],
)
def test_devices_are_numbered_as_the_tool_does_where_it_does(
    ids: tuple[int, int], indices: tuple[int, int], tmp_path: Path
) -> None:
    path = write_json(tmp_path / "x_results.json", pids=(100,))
    document = json.loads(path.read_text())
    gpus = [agent for agent in document["rocprofiler-sdk-tool"][0]["agents"] if agent["type"] == 2]
    for agent, number in zip(gpus, ids, strict=True):
        agent["logical_node_type_id"] = number
    path.write_text(json.dumps(document))
    (trace,) = traces_of(path)
    assert tuple(device.index for device in trace.devices) == indices
    assert set(trace.work.device.tolist()) == {indices[0]}


def test_a_mark_without_a_length_is_no_range(tmp_path: Path) -> None:
    path = write_rocpd(tmp_path / "run.db", pids=(100,))
    (before,) = traces_of(path)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("update rocpd_region_0000_0 set end = start")
    (after,) = traces_of(path)
    assert len(before.ranges.name) > 0
    assert len(after.ranges.name) == 0
