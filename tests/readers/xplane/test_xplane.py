"""XPlane files: built ones whose every figure is known, and real ones against independent figures."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepgrade as sg
from stepgrade.errors import BadInput, TooLarge
from stepgrade.model.events import DeviceEvent, Trace
from stepgrade.readers.registry import read_source, reader_for
from stepgrade.readers.source import ByteSource, ReadOptions
from stepgrade.readers.xplane.devices import first_kernels
from stepgrade.timeline.timeline import build_timeline
from tests.readers.xplane.files import (
    FORWARD_FLOPS,
    PlaneFile,
    chrome_trace,
    cpu_profile,
    gpu_profile,
    tpu_profile,
    xla_allocations,
)
from tests.samples import each_of, shared
from tests.trace_builder import analyse_trace

SAMPLES = "samples/xplane"
# The files of reference_figures/own_xplane.json, by the names that they have there.
INDEPENDENT = {
    "tl_mi300_jax08_gemm": "tl_mi300_jax08_gemm",
    "tl_mi300_jax08_attention": "tl_mi300_jax08_attention",
    "tl_jax_te_fused_attn": "tl_jax_te_fused_attn",
    "xprof_tpu_inference_2": "xprof_tpu_inference_2",
    "jaxprof_noscan": "jax_cpu_noscan",
    "jaxprof_remat": "jax_cpu_remat",
    "jaxprof_dp2": "jax_cpu_dp2",
}


def traces_of(source: bytes | Path) -> list[Trace]:
    with ByteSource(source) as opened:
        assert reader_for(opened).name == "xplane"
        return [*(read_source(opened).traces or ())]


def flops_by_direction(trace: Trace) -> Counter[str]:
    """Add up the matrix products of all executions by pass."""
    found: Counter[str] = Counter()
    for name, inputs in zip(trace.ops.name.tolist(), trace.ops.inputs.tolist(), strict=True):
        compiled = trace.inputs[inputs].compiled if inputs >= 0 else None
        if trace.strings[name] == "dot_general" and compiled is not None:
            found[compiled.direction or "forward"] += compiled.flops or 0
    return found


def busy_ms(trace: Trace) -> float:
    """Return the union of the device's work, walked in order: no code of the project."""
    total, reached = 0, -1
    order = np.argsort(trace.work.start_ns, kind="stable")
    for start, dur in zip(
        trace.work.start_ns[order].tolist(), trace.work.dur_ns[order].tolist(), strict=True
    ):
        end = start + dur
        total += max(0, end - max(start, reached))
        reached = max(reached, end)
    return total / 1e6


def test_steps_passes_layers_and_flops_of_a_scan() -> None:
    (trace,) = traces_of(cpu_profile(steps=4, trips=4))
    assert flops_by_direction(trace) == {
        "forward": 4 * 4 * FORWARD_FLOPS,
        "backward": 4 * 4 * 2 * FORWARD_FLOPS,
        "recompute": 4 * 4 * FORWARD_FLOPS,
    }
    profile = analyse_trace(trace)
    assert profile.steps == 4
    assert profile.contents["steps from"] == "profiler_step"
    assert profile.work == "training"
    assert [layer.name for layer in profile.layers] == ["scan_0", "scan_1", "scan_2", "scan_3"]
    for place, layer in enumerate(profile.layers):
        assert layer.fwd_ms == pytest.approx((11 + place) / 1000)
        assert layer.bwd_ms == pytest.approx(2 * (10 + place) / 1000)
        assert layer.recompute_ms == pytest.approx((10 + place) / 1000)
    phases = {phase.name: phase.ms for phase in profile.phases}
    assert phases["optimizer"] == pytest.approx(0.005)
    assert phases["communication"] == pytest.approx(0.007)
    assert phases["forward"] == pytest.approx((4 * 11 + 6) / 1000)
    assert profile.ledger is not None
    assert profile.ledger.idle_input == 4 * 20_000
    assert profile.ledger.exposed_communication == 4 * 7_000
    assert trace.base_ns == 1_700_000_000_000_000_000 + 5000
    assert trace.versions == {"jax": "0.10.2"}


def test_steps_without_marks_are_executions_of_the_program() -> None:
    (trace,) = traces_of(cpu_profile(steps=5, marks=False))
    profile = analyse_trace(trace)
    assert profile.contents["steps from"] == "executions"
    assert profile.recorded_steps == 5


def test_devices_of_one_host_are_ranks() -> None:
    traces = traces_of(cpu_profile(devices=2))
    assert [trace.world_size for trace in traces] == [2, 2]
    assert traces[0].base_ns == traces[1].base_ns
    assert flops_by_direction(traces[0]) == flops_by_direction(traces[1])


def test_a_gpu_is_read_from_its_streams_alone() -> None:
    (trace,) = traces_of(gpu_profile(steps=3, kernels=6))
    assert Counter(trace.work.kind.tolist()) == {DeviceEvent.KERNEL: 18, DeviceEvent.COPY_H2D: 3}
    assert trace.work.bytes[trace.work.kind == DeviceEvent.COPY_H2D].tolist() == [4096] * 3
    assert busy_ms(trace) == pytest.approx(3 * (6 * 0.05 + 0.02))
    assert trace.devices[0].name == "NVIDIA A100-SXM4-80GB"
    profile = analyse_trace(trace)
    assert profile.recorded_steps == 3
    assert profile.launches_per_step == 7  # six kernels and a copy
    assert {layer.name for layer in profile.layers} == {"layer_0", "layer_1"}


def test_a_tpu_counts_a_loop_by_its_own_time_and_a_wait_as_a_copy() -> None:
    traces = traces_of(tpu_profile(steps=4, devices=2))
    assert [trace.devices[0].name for trace in traces] == ["TPU v6 Lite"] * 2
    trace = traces[0]
    names = Counter(trace.strings[name] for name in trace.work.name.tolist())
    assert names == {"dot_general": 8, "all-reduce": 4, "copy-done": 4, "control flow": 12}
    assert busy_ms(trace) == pytest.approx(4 * 0.85)
    assert int(trace.work.dur_ns.sum()) == 4 * 850_000
    profile = analyse_trace(trace)
    assert profile.recorded_steps == 4
    assert profile.steps
    assert profile.ledger is not None
    per_step = profile.ledger.total / profile.steps
    assert per_step == pytest.approx(1_000_000)
    assert profile.ledger.exposed_copy / profile.steps == pytest.approx(250_000)
    assert profile.ledger.exposed_communication / profile.steps == pytest.approx(100_000)
    assert profile.matmul_flops == 2 * 4096


def test_files_that_follow_one_another_are_one_profile(tmp_path: Path) -> None:
    path = tmp_path / "two.pb"
    path.write_bytes(tpu_profile(devices=1) + gpu_profile())
    assert len(traces_of(path)) == 2
    # Each machine's devices have the ranges of their own host, not of all.
    for profile in (cpu_profile(), gpu_profile()):
        (alone,) = traces_of(profile)
        assert [len(trace.ranges.name) for trace in traces_of(profile * 3)] == 3 * [len(alone.ranges.name)]


def test_a_gzipped_file_and_a_directory_of_hosts_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "plugins" / "profile" / "2026"
    folder.mkdir(parents=True)
    (folder / "a.xplane.pb").write_bytes(cpu_profile())
    (folder / "b.xplane.pb.gz").write_bytes(gzip.compress(cpu_profile()))
    profile = sg.load(folder)
    assert profile.world_size == 2
    assert [rank.rank for rank in profile.ranks] == [0, 1]
    (folder / "a.xplane.pb").write_bytes(tpu_profile(devices=2))
    (folder / "b.xplane.pb.gz").write_bytes(gzip.compress(tpu_profile(devices=2)))
    profile = sg.load(folder)
    assert profile.world_size == 4
    assert [rank.rank for rank in profile.ranks] == [0, 1, 2, 3]
    assert profile.source.format == "xplane"


def test_what_is_damaged_is_said(tmp_path: Path) -> None:
    whole = cpu_profile(steps=6)
    (trace,) = traces_of(whole[: int(len(whole) * 0.99)])
    assert any("truncated" in doubt for doubt in trace.doubts)
    with pytest.raises(BadInput, match="damaged"):
        traces_of(whole[:60])
    with pytest.raises(BadInput, match="without any operations"):
        traces_of(PlaneFile("/host:CPU", _lines=[(1, "python", 0, [])]).encoded())
    with pytest.raises(TooLarge), ByteSource(whole, ReadOptions(max_memory=1000)) as opened:
        [*(read_source(opened).traces or ())]


@pytest.mark.samples
@pytest.mark.parametrize("name", INDEPENDENT)
def test_real_files_agree_with_independent_figures(name: str) -> None:
    figures = json.loads(shared("reference_figures/own_xplane.json").read_text())["files"][name]
    traces = traces_of(shared(SAMPLES) / f"{INDEPENDENT[name]}.xplane.pb")
    total: Counter[str] = Counter()
    for trace in traces:
        total += flops_by_direction(trace)
    expected = figures["matmul_flops"]
    assert {key: total[key] for key in ("forward", "backward", "recompute")} == {
        key: expected[key] for key in ("forward", "backward", "recompute")
    }
    devices = [plane for plane in figures["planes"].values() if "busy_ms" in plane]
    for trace, plane in zip(traces, devices, strict=False):
        assert busy_ms(trace) == pytest.approx(plane["busy_ms"], rel=1e-3)
    for number, _, _, dur in figures["steps"]:
        place = next(
            row
            for row, text in enumerate(trace.strings[name] for name in trace.ranges.name.tolist())
            if text == f"ProfilerStep#{number}"
        )
        assert trace.ranges.dur_ns[place] / 1e6 == pytest.approx(dur, abs=0.001)


@pytest.mark.samples
def test_a_step_of_the_samples_has_exactly_its_flops() -> None:
    for name, ranks in (("jax_cpu_noscan", 1), ("jax_cpu_dp2", 2)):
        profiles = [analyse_trace(trace) for trace in traces_of(shared(SAMPLES) / f"{name}.xplane.pb")]
        assert len(profiles) == ranks
        assert sum(one.matmul_flops or 0 for one in profiles) == 3_019_898_880


@pytest.mark.samples
def test_the_calls_that_run_every_program_are_no_steps() -> None:
    """Of 42 executions 18 are products and hold the time; the runtime runs all of them by the same call."""
    (trace,) = traces_of(shared(SAMPLES) / "tl_mi300_jax08_gemm.xplane.pb")
    profile = analyse_trace(trace)
    assert profile.recorded_steps == 18
    assert {op.name for op in profile.operations} == {"dot_general"}


@pytest.mark.samples
def test_a_profile_that_was_copied_as_text_is_refused() -> None:
    with pytest.raises(BadInput, match="damaged"):
        traces_of(shared(SAMPLES) / "xprof_tpu_inference_2_CORRUPT_utf8.xplane.pb")


@pytest.mark.parametrize("path", each_of(f"{SAMPLES}/*.xplane.pb"))
def test_nothing_of_host_user_or_source_is_kept(path: Path) -> None:
    try:
        traces = traces_of(path)
    except BadInput:
        return
    for trace in traces:
        kept = " ".join((*trace.strings, *(str(one.compiled) for one in trace.inputs)))
        assert "experimental/users" not in kept
        assert "tw003" not in kept


def test_a_chrome_trace_of_jax_has_steps_and_operations(tmp_path: Path) -> None:
    (tmp_path / "t.trace.json").write_bytes(chrome_trace(steps=4, devices=2))
    profile = sg.load(tmp_path / "t.trace.json")
    assert profile.source.format == "xla_trace"
    assert profile.recorded_steps == 4
    assert len(profile.ranks) == 2
    (tmp_path / "host.xplane.pb").write_bytes(cpu_profile())
    assert sg.load(tmp_path).source.format == "xplane"  # of a directory with both


def test_a_fusion_without_its_program_may_be_anything(tmp_path: Path) -> None:
    text = chrome_trace(steps=4).replace(b"dot.", b"add_multiply_fusion.")
    (tmp_path / "t.trace.json").write_bytes(text)
    card = sg.score(sg.load(tmp_path / "t.trace.json"))
    assert card.bottleneck not in ("memory_bw", "compute")
    assert "elementwise-chains" not in {finding.rule for finding in card.findings}


@pytest.mark.samples
@pytest.mark.parametrize("name", ["jax_cpu_dp2.trace", "jax_cpu_dp2.perfetto", "jax_cpu_remat.trace"])
def test_a_chrome_trace_says_the_same_as_the_profile_that_it_was_made_from(name: str) -> None:
    ours = sg.load(shared(SAMPLES) / f"{name}.json.gz")
    whole = sg.load(shared(SAMPLES) / f"{name.partition('.')[0]}.xplane.pb")
    assert ours.steps == whole.steps
    assert ours.samples_ms == pytest.approx(whole.samples_ms, abs=1e-4)
    assert ours.ledger is not None
    assert whole.ledger is not None
    assert ours.ledger.compute + ours.ledger.exposed_communication == pytest.approx(
        whole.ledger.compute + whole.ledger.exposed_communication, rel=1e-3
    )


@pytest.mark.parametrize("where", [{"allocator_name": "GPU_0_bfc"}, {"index_on_host": 0}])
def test_the_memory_in_use_after_each_allocation(tmp_path: Path, where: dict[str, Any]) -> None:
    path = tmp_path / "gpu.xplane.pb"
    path.write_bytes(gpu_profile() + xla_allocations(blocks=6, size=1 << 20, **where))
    memory = sg.load(path).memory
    assert memory is not None
    assert memory.peak_bytes == 6 << 20
    assert memory.curve is not None
    assert max(memory.curve.categories["other"]) == 6 << 20


@pytest.mark.parametrize("where", [{"allocator_name": "xla_gpu_host_bfc"}, {"index_on_host": 7}, {}])
def test_the_memory_of_the_host_or_of_another_device_is_not_the_devices(
    tmp_path: Path, where: dict[str, Any]
) -> None:
    path = tmp_path / "gpu.xplane.pb"
    path.write_bytes(gpu_profile() + xla_allocations(**where))
    assert sg.load(path).memory is None


@pytest.mark.samples
def test_real_allocations_reach_the_peak_that_the_allocator_tells() -> None:
    memory = sg.load(shared(SAMPLES) / "tl_jax_te_fused_attn.xplane.pb").memory
    assert memory is not None
    assert memory.peak_bytes == 663_228_416  # its own peak_bytes_in_use


@pytest.mark.parametrize(
    ("kernels", "executions"),
    [
        ("a", 1),
        ("aaa", 3),
        ("abab", 2),
        ("aba", 2),  # the last was cut off
        ("zzabc", 1),  # memory is set twice, and then it computes
        ("zzabczzabc", 2),
        ("abcabd", 1),
    ],
)
def test_an_execution_may_begin_with_kernels_that_are_alike(kernels: str, executions: int) -> None:
    name = np.array([ord(letter) for letter in kernels], np.int32)
    one, other = np.zeros(len(name), np.int32), np.ones(len(name), np.int32)
    assert first_kernels(one, one, name).sum() == executions
    # Of another operation, or on another stream, it is another execution.
    twice = np.concatenate((name, name))
    for which, line in (
        (np.append(one, other), np.append(one, one)),
        (np.append(one, one), np.append(one, other)),
    ):
        begins = first_kernels(which, line, twice)
        assert begins.sum() == 2 * executions
        assert begins[[0, len(name)]].all()


def test_no_kernels_begin_nothing() -> None:
    nothing = np.empty(0, np.int32)
    assert len(first_kernels(nothing, nothing, nothing)) == 0


@pytest.mark.samples
@pytest.mark.parametrize("name", ["tl_mi300_jax08_gemm", "tl_mi300_jax08_attention", "tl_jax_te_fused_attn"])
def test_every_kernel_has_the_time_that_xprof_gives_it(name: str) -> None:
    theirs: Counter[str] = Counter()
    for row in json.loads(shared("reference_figures/xprof.json").read_text())[name]["kernels"]:
        kernel = row["kernel_name"].removesuffix(".kd")
        theirs[kernel] += round(row["total_duration_us"] * 1000)
        theirs[f"calls of {kernel}"] += int(row["occurrences"])
    (trace,) = traces_of(shared(SAMPLES) / f"{name}.xplane.pb")
    ours: Counter[str] = Counter()
    for text, dur_ns in zip(trace.work.name.tolist(), trace.work.dur_ns.tolist(), strict=True):
        kernel = trace.strings[text][:160]  # xprof's table is cut there
        ours[kernel] += dur_ns
        ours[f"calls of {kernel}"] += 1
    assert ours == theirs


@pytest.mark.samples
def test_operations_of_fused_attention_have_the_time_of_xprof_and_one_call_an_execution() -> None:
    theirs: Counter[str] = Counter()
    for row in json.loads(shared("reference_figures/xprof.json").read_text())["tl_jax_te_fused_attn"][
        "hlo_ops"
    ]:
        theirs[row["path"].rstrip(":").split("/")[-1]] += row["total_us"] / 1000
    (trace,) = traces_of(shared(SAMPLES) / "tl_jax_te_fused_attn.xplane.pb")
    calls = Counter(trace.strings[name] for name in trace.ops.name.tolist())
    ours: Counter[str] = Counter()
    operation = build_timeline(trace).links.op.tolist()
    for row, dur_ns in zip(operation, trace.work.dur_ns.tolist(), strict=True):
        ours[trace.strings[int(trace.ops.name[row])]] += dur_ns / 1e6
    for name in ("te_fused_attn_forward_ffi", "te_fused_attn_backward_ffi"):
        # The program has two of each and ran five times. xprof counts kernels: 10 and 25 for each of the two.
        assert calls[name] == 10
        assert ours[name] == pytest.approx(theirs[name], rel=1e-6)


@pytest.mark.samples
def test_operations_of_tpus_have_the_time_that_xprof_gives_them() -> None:
    theirs: Counter[str] = Counter()
    for row in json.loads(shared("reference_figures/xprof.json").read_text())["xprof_tpu_inference_2"][
        "hlo_ops"
    ]:
        theirs[row["category"]] += row["total_us"]
    ours: Counter[str] = Counter()
    for trace in traces_of(shared(SAMPLES) / "xprof_tpu_inference_2.xplane.pb"):
        for text, dur_ns in zip(trace.work.name.tolist(), trace.work.dur_ns.tolist(), strict=True):
            ours[trace.strings[text]] += dur_ns / 1000
    assert ours["copy-done"] == pytest.approx(theirs["copy-done"], rel=1e-3)
    assert ours["all-reduce"] == pytest.approx(theirs["all-reduce"], rel=1e-3)
