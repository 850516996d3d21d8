"""What public traces that nobody had looked at before showed: each kind made small, and what is true of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.cli import main
from stepgrade.model.events import DeviceEvent
from stepgrade.timeline.timeline import build_timeline
from stepgrade.trace.profile import analyse_rank
from tests.kineto_text import kineto_text
from tests.kineto_traces import read_trace
from tests.trace_builder import Run, TraceBuilder, make_trace

IMAGES = [[8, 3, 32, 32], [16, 3, 3, 3], [16]]


def card_of(tmp_path: Path, events: list[dict[str, Any]]) -> sg.Scorecard:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(events), encoding="utf-8")
    return sg.score(sg.load(path))


def legacy(name: str, start: float, dur: float, *, device: bool = False) -> dict[str, Any]:
    """Return an event as the autograd profiler exports it: no category, two processes."""
    process = "CUDA functions" if device else "CPU functions"
    return {
        "name": name,
        "ph": "X",
        "ts": start,
        "dur": dur,
        "tid": 0 if device else 1,
        "pid": process,
        "args": {},
    }


def test_unescaped_paths_of_windows_cost_no_event() -> None:
    run = make_trace(Run(steps=3, device=False))
    text = kineto_text(run).replace(b"aten::gelu", b"torch\\optim\\adam.py(3): step")
    with pytest.raises(ValueError, match="escape"):
        json.loads(text)
    trace = read_trace(io.BytesIO(text))
    assert trace.lost == ()
    assert len(trace.ops.name) == len(run.ops.name)
    assert "torch/optim/adam.py(3): step" in trace.strings


def test_escapes_that_are_sound_stay_as_they_are() -> None:
    text = kineto_text(make_trace(Run(steps=3, device=False)))
    text = text.replace(b"aten::gelu", rb"a\\b \u00e9 \"c\" \/d").replace(b"aten::mul", rb"x\y")
    strings = read_trace(io.BytesIO(text)).strings
    assert 'a\\b é "c" /d' in strings
    assert "x/y" in strings


def test_the_autograd_profilers_own_export_is_read(tmp_path: Path) -> None:
    events = []
    for step in range(10):
        for place, name in enumerate(
            ("conv2d", "batch_norm", "relu_", "adaptive_avg_pool2d", "flatten", "linear")
        ):
            events.append(legacy(f"aten::{name}", 1000.0 + 6000 * step + 1000 * place, 990.0))
    card = card_of(tmp_path, events)
    assert card.bottleneck == "memory_bw"  # one convolution of six equal operations
    assert card.work == "inference"
    assert card.steps is not None
    assert card.steps.median_ms == pytest.approx(6.0, rel=0.01)


def test_the_autograd_profilers_device_times_count_once(tmp_path: Path) -> None:
    events = [legacy("aten::zeros", 0.0, 50.0)]
    for step in range(6):
        at = 100.0 + 1000 * step
        events += [legacy("aten::conv2d", at, 20.0), legacy("aten::cudnn_convolution", at + 5, 10.0)]
        events += [legacy("aten::conv2d", at + 10, 900.0, device=True)]
        events += [legacy("aten::cudnn_convolution", at + 12, 890.0, device=True)]
        events += [legacy("aten::contiguous", at + 13, 2.0, device=True)]
    card = card_of(tmp_path, events)
    shares = {op.name: op.share for op in card.operations}
    assert card.bottleneck == "compute"
    assert "aten::conv2d" not in shares
    assert shares["aten::cudnn_convolution"] > 0.9


def test_operations_that_only_a_device_has_show_that_it_was_not_recorded() -> None:
    out = TraceBuilder()
    for step in range(5):
        out.op("aten::conv2d", 1_000_000 * step, 50_000)
        out.op("aten::cudnn_convolution", 1_000_000 * step + 10_000, 30_000)
        out.op("aten::flatten", 1_000_000 * step + 60_000, 5_000)
    warnings = {note.code for note in analyse_rank(out.trace()).profile.warnings}
    assert "device_unseen" in warnings


@pytest.mark.parametrize(
    "name",
    ["aten::cudnn_is_acceptable", "aten::_scaled_dot_product_flash_attention", "aten::mkldnn_convolution"],
)
def test_what_a_processor_calls_as_well_shows_no_device(name: str) -> None:
    out = TraceBuilder(devices=())
    for step in range(5):
        out.op(name, 1_000_000 * step, 500_000)
        out.op("aten::flatten", 1_000_000 * step + 600_000, 5_000)
    assert "device_unseen" not in {note.code for note in analyse_rank(out.trace()).profile.warnings}


def conv_pass(out: TraceBuilder, at: int, dims: list[Any] | None = None) -> None:
    """Add the forward pass of a small network."""
    names = (
        "conv2d",
        "batch_norm",
        "relu_",
        "max_pool2d",
        "conv2d",
        "relu_",
        "adaptive_avg_pool2d",
        "linear",
    )
    for place, name in enumerate(names):
        sizes = (
            dims
            if place == 0
            else [[8, 16, 16, 16], [16, 16, 3, 3], [16]]
            if name == "conv2d" and dims
            else None
        )
        out.op(f"aten::{name}", at + 1_000_000 * place, 990_000, dims=sizes)


def test_a_loop_is_found_behind_the_making_of_the_model() -> None:
    out = TraceBuilder(devices=())
    for place in range(30):  # as many operations as four rounds of the loop
        out.op(("aten::normal_", "aten::fill_", "aten::uniform_")[place % 3], 20_000 * place, 15_000)
    for step in range(6):
        conv_pass(out, 1_000_000 + 8_000_000 * step)
    timeline = build_timeline(out.trace())
    assert timeline.steps.basis == "operations"
    assert len(timeline.steps.number) == 6


def test_a_loop_of_three_operations_is_found_by_what_a_pass_does_once() -> None:
    out = TraceBuilder(devices=())
    for step in range(10):
        for place, name in enumerate(("aten::rand", "aten::to", "aten::square")):
            out.op(name, 3_000_000 * step + 1_000_000 * place, 900_000)
    assert len(build_timeline(out.trace()).steps.number) == 10


def test_layers_of_two_operations_are_no_steps() -> None:
    out = TraceBuilder(devices=())
    for place in range(9):
        out.op(("aten::linear", "aten::relu")[place % 2], 1_000_000 * place, 900_000)
    assert build_timeline(out.trace()).steps.basis == "span"


@pytest.mark.parametrize(("outer", "is_found"), [("aten::dropout", False), ("aten::bernoulli", True)])
def test_random_numbers_of_dropout_are_the_model_s_own(outer: str, is_found: bool) -> None:
    out = TraceBuilder(devices=())
    for step in range(6):
        at = 100_000_000 * step
        out.range(f"ProfilerStep#{step}", at, 100_000_000)
        out.op("aten::linear", at, 30_000_000)
        out.op(outer, at + 31_000_000, 60_000_000)
        out.op("aten::bernoulli_", at + 31_100_000, 59_800_000)
    profile = analyse_rank(out.trace()).profile
    card = sg.score(profile)
    assert any(found.rule == "random-numbers" for found in card.findings) == is_found
    assert card.bottleneck == "compute"  # drawn one by one, whoever draws them


@pytest.mark.parametrize(("rest_ms", "layers"), [(1, 5), (500, 0)])
def test_a_pattern_that_holds_little_of_the_time_shows_no_layers(rest_ms: int, layers: int) -> None:
    out = TraceBuilder(devices=())
    for step in range(4):
        at = 1_000_000_000 * step
        out.range(f"ProfilerStep#{step}", at, 1_000_000_000)
        for place in range(20):
            name = ("aten::layer_norm", "aten::linear", "aten::gelu", "aten::add")[place % 4]
            out.op(name, at + 2_000_000 * place, 1_900_000)
        out.op("aten::grid_sampler", at + 50_000_000, rest_ms * 1_000_000)
    assert len(analyse_rank(out.trace()).profile.layers) == layers


def test_a_driver_that_gives_no_kernels_away_is_not_asked_to_be_recorded() -> None:
    out = TraceBuilder()
    for step in range(4):
        at = 10_000_000 * step
        out.range(f"ProfilerStep#{step}", at, 10_000_000)
        out.op("aten::mm", at + 100_000, 900_000)
        out.call("cudaLaunchKernel", at + 300_000, 10_000)
    card = sg.score(analyse_rank(out.trace()).profile)
    assert card.findings[0].rule == "device-unseen"
    assert not any("ProfilerActivity" in advice for advice in card.recommendations)


@pytest.mark.parametrize("grows", [False, True], ids=["the same sizes", "a longer batch each time"])
def test_rounds_begin_where_the_first_layer_takes_other_sizes(grows: bool) -> None:
    out = TraceBuilder(devices=(), recorded=frozenset({"shapes"}))
    for step in range(6):
        for layer in range(7):
            rows = 8 + step if grows else 8
            sizes = [[rows, 3 if layer == 0 else 64], [64, 3 if layer == 0 else 64]]
            for place, name in enumerate(("aten::conv2d", "aten::batch_norm", "aten::relu")):
                at = 21_000_000 * step + 3_000_000 * layer + 1_000_000 * place
                out.op(name, at, 900_000, dims=sizes)
    # Where no size comes back the names show rounds as well, though not which layer begins them.
    assert len(build_timeline(out.trace()).steps.number) == (21 if grows else 6)


@pytest.mark.parametrize("passes", [1, 2])
def test_images_of_a_step_are_what_the_first_convolution_takes_in(passes: int) -> None:
    out = TraceBuilder(devices=(), recorded=frozenset({"shapes"}))
    for step in range(4):
        out.range(f"ProfilerStep#{step}", 100_000_000 * step, 100_000_000)
        for number in range(passes):
            conv_pass(out, 100_000_000 * step + 1_000_000 + 10_000_000 * number, IMAGES)
    assert analyse_rank(out.trace()).profile.samples_per_step == 8 * passes


def test_features_of_another_model_are_no_images() -> None:
    out = TraceBuilder(devices=(), recorded=frozenset({"shapes"}))
    for step in range(4):
        out.range(f"ProfilerStep#{step}", 100_000_000 * step, 100_000_000)
        conv_pass(out, 100_000_000 * step + 1_000_000, [[2, 4, 64, 64], [320, 4, 3, 3], [320]])
    assert analyse_rank(out.trace()).profile.samples_per_step is None


def test_the_only_batch_begins_with_the_wait_for_it() -> None:
    out = TraceBuilder()
    out.range("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", 1_000_000, 500_000_000)
    copied = out.call("cudaMemcpyAsync", 502_000_000, 5_000)
    out.kernel(
        "Memcpy HtoD (Pageable -> Device)",
        502_010_000,
        900_000,
        correlation=copied,
        kind=DeviceEvent.COPY_H2D,
    )
    for place in range(8):
        at = 503_000_000 + 1_000_000 * place
        out.op(("aten::addmm", "aten::gelu", "aten::mul")[place % 3], at, 20_000)
        out.kernel("sgemm", at + 30_000, 900_000, correlation=out.call("cudaLaunchKernel", at + 5_000, 5_000))
    rank = analyse_rank(out.trace())
    assert rank.profile.ledger is not None
    assert rank.profile.ledger.idle_input == 500_000_000
    assert rank.steps[0].start_ns == 1_000_000


def test_a_processor_that_computes_four_fifths_of_the_step_is_not_held_by_its_host(tmp_path: Path) -> None:
    out = TraceBuilder(devices=())
    for step in range(8):
        begin = 40_000_000 * step
        out.range(f"ProfilerStep#{step}", begin, 40_000_000)
        for place in range(8):
            out.op("aten::mm", begin + 5_000_000 * place + 1_000_000, 4_000_000)
        out.range("Optimizer.step#SGD.step", begin + 39_000_000, 900_000)
    path = tmp_path / "busy.json"
    path.write_bytes(kineto_text(out.trace()))
    assert sg.score(sg.load(path)).bottleneck == "compute"


# How Kineto writes the devices of others: no public trace of one was to be had, so these are made from the
# categories of its source and, for Intel's, from one launch and its kernel as printed in public notes.
VENDORS = {
    "Intel XPU": ("xpu_runtime", "urEnqueueKernelLaunch", "kernel", "gemm_kernel"),
    "Intel Habana": ("privateuse1_runtime", "launch", "hpu_op", "gemm"),
}


@pytest.mark.parametrize("vendor", VENDORS)
def test_devices_of_other_vendors_are_read(tmp_path: Path, vendor: str) -> None:
    call, launch, kernel, name = VENDORS[vendor]
    run = make_trace(Run(steps=4, kernel_ns=100_000, host_op_ns=2_000, sync=False))
    document = json.loads(kineto_text(run))
    for event in document["traceEvents"]:
        if event["cat"] == "cuda_runtime" and event["name"].startswith("cudaLaunch"):
            event |= {"cat": call, "name": launch}
        elif event["cat"] == "kernel" and "gemm" in event["name"]:
            event |= {"cat": kernel, "name": name}
        elif event["cat"] == "kernel":
            event["cat"] = kernel
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    found, told = sg.load(path), analyse_rank(run).profile
    assert found.ledger is not None
    assert told.ledger is not None
    assert found.ledger.compute == told.ledger.compute
    assert found.steps == told.steps
    assert sg.score(found).bottleneck == sg.score(told).bottleneck


def test_an_xpu_that_was_not_recorded_is_said() -> None:
    out = TraceBuilder()
    for step in range(4):
        out.op("aten::mm", 1_000_000 * step, 50_000)
        out.call("urEnqueueKernelLaunch", 1_000_000 * step + 10_000, 5_000)
    assert "kernels_missing" in {note.code for note in analyse_rank(out.trace()).profile.warnings}


def test_products_of_a_compiler_s_templates_are_counted() -> None:
    out = TraceBuilder(recorded=frozenset({"shapes"}))
    for step in range(4):
        at = 1_000_000 * step
        out.range(f"ProfilerStep#{step}", at, 1_000_000)
        sizes = [[512, 256], [256, 128], [512, 128]]
        out.op("triton_tem_fused_mm_3", at + 1_000, 20_000, dims=sizes, types=["float"] * 3)
        launched = out.call("cuLaunchKernel", at + 5_000, 5_000)
        out.kernel("triton_tem_fused_mm_3", at + 20_000, 100_000, correlation=launched)
    (product,) = analyse_rank(out.trace()).profile.operations
    assert product.kind == "gemm"
    assert product.calls
    assert product.flops == 2 * 512 * 256 * 128 * product.calls
    assert analyse_rank(out.trace()).profile.matmul_known_share == 1.0


def test_a_model_s_configuration_grades_a_trace_without_shapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run(steps=6, layers=2, shapes=False, kernel_ns=400_000, host_op_ns=5_000)
    path, config = tmp_path / "trace.json", tmp_path / "config.json"
    path.write_bytes(kineto_text(make_trace(run)))
    config.write_text(
        json.dumps(
            {
                "model_type": "llama",
                "architectures": ["LlamaForCausalLM"],
                "hidden_size": 256,
                "intermediate_size": 1024,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 4,
                "vocab_size": 1000,
            }
        ),
        encoding="utf-8",
    )
    command = ["score", str(path), "--device", "a100-sxm4-80gb", "--format", "json"]
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["grade"] == "ungraded"
    shape = ["--model", str(config), "--batch", "8", "--seq", "128", "--tokens-per-step", str(8 * 128)]
    assert main([*command, *shape]) == 0
    card = json.loads(capsys.readouterr().out)
    assert card["grade"] in {"A", "B", "C", "D", "F"}
    # Six FLOPs for each weight and token are the least; attention and its mask are a third more at most.
    weights = 2 * (4 * 256 * 256 + 3 * 256 * 1024) + 1000 * 256
    least = 6.0 * weights * 8 * 128 / (card["step_time_ms"] / 1000.0) / 312e12
    assert least <= card["mfu"] <= 1.5 * least
