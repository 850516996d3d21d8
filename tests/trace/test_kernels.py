"""Kernels under operations: how they fill the device, and whether they multiply on tensor cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.naming.kernels import uses_tensor_cores


@pytest.mark.parametrize(
    ("name", "uses"),
    [
        ("nvjet_tst_256x128_64x4_1x2_h_bz_coopA_NNT", True),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_64x3_nn_align2>(Params)",
            True,
        ),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1", True),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", True),
        ("ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_stages_64x3_nt", True),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN", True),
        ("igemm_wrw_gtcx2_nhwc_bf16_bx0_ex1_bt256x128x16", True),
        ("volta_sgemm_128x64_nn", False),
        ("volta_scudnn_128x64_relu_small_nn_v1", False),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_tn_align1>(Params)", False),
        ("my_matmul_kernel", None),
    ],
)
def test_names_say_whether_tensor_cores_are_used(name: str, uses: bool | None) -> None:
    assert uses_tensor_cores(name) is uses


def event(name: str, cat: str, ts: int, dur: int, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": ts, "dur": dur, "args": args}


def made(path: Path) -> Path:
    """Write four steps of 1 ms with two kernels in each: 400 µs on half of the device, 200 µs on all of it."""
    events = []
    for step in range(5):
        at = 1000 * step
        events.append(event(f"ProfilerStep#{step}", "user_annotation", at, 1000))
        if step == 4:
            break
        for place, (name, dur, occupancy, blocks) in enumerate(
            [("nvjet_tst_128x128", 400, 0, 0.5), ("volta_sgemm_128x64_nn", 200, 50, 3.0)]
        ):
            number = 10 * step + place + 1
            events += [
                event("aten::mm", "cpu_op", at + 10 * place, 9, **{"External id": number}),
                event("cudaLaunchKernel", "cuda_runtime", at + 10 * place + 1, 2, correlation=number),
                event(
                    name,
                    "kernel",
                    at + 20 + 400 * place,
                    dur,
                    device=0,
                    stream=7,
                    correlation=number,
                    **{
                        "External id": number,
                        "est. achieved occupancy %": occupancy,
                        "blocks per SM": blocks,
                        "registers per thread": 64,
                    },
                ),
            ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def test_kernels_are_listed_under_their_operation(tmp_path: Path) -> None:
    card = sg.score(sg.load(made(tmp_path / "trace.json")))
    (op,) = [op for op in card.operations if op.name == "aten::mm"]
    found = {kernel.name: kernel for kernel in op.kernels}
    large, plain = found["nvjet_tst_128x128"], found["volta_sgemm_128x64_nn"]
    assert (large.occupancy, large.blocks_per_sm, large.registers, large.tensor_cores) == (
        None,
        0.5,
        64.0,
        True,
    )
    assert (plain.occupancy, plain.blocks_per_sm, plain.tensor_cores) == (0.5, 3.0, False)
    use = card.kernel_use
    assert use is not None
    assert use.sm_efficiency == pytest.approx(0.4 * 0.5 + 0.2)
    assert use.occupancy == pytest.approx(0.5)
    assert use.occupancy_known_share == pytest.approx(1 / 3)
    assert use.tensor_core_share == pytest.approx(2 / 3)


def with_counters(path: Path) -> Path:
    """Add samples of two counters to the made trace, as Kineto writes them: one each 250 µs, of device 0."""
    document = json.loads(made(path).read_text())
    for place in range(20):
        for name, value in (("sm__cycles_active.avg", 100.0 + place), ("dram__bytes.sum", 2)):
            document["traceEvents"].append(
                {
                    "ph": "C",
                    "cat": "hardware_counters",
                    "name": name,
                    "pid": "GPU 0 Counters",
                    "tid": 0,
                    "ts": 250 * place,
                    "args": {"": value},
                }
            )
    odd = {"ph": "C", "cat": "hardware_counters", "name": "other", "ts": 10, "tid": 0}
    document["traceEvents"] += [
        odd | {"pid": "GPU 1 Counters", "args": {"": 5.0}},
        odd | {"pid": "GPU 0 Counters", "args": {"": "many"}},
        odd | {"pid": "GPU 0 Counters", "args": {}},
        odd | {"pid": 7, "args": {"": 1.0}},
    ]
    path.write_text(json.dumps(document))
    return path


def test_counters_of_the_device_are_read(tmp_path: Path) -> None:
    card = sg.score(sg.load(with_counters(tmp_path / "trace.json")))
    assert card.kernel_use is not None
    assert card.steps is not None
    samples = 4 * (card.steps.steady or 0)
    found = {counter.name: counter for counter in card.kernel_use.counters}
    assert set(found) == {"sm__cycles_active.avg", "dram__bytes.sum"}
    active, moved = found["sm__cycles_active.avg"], found["dram__bytes.sum"]
    assert (moved.mean, moved.least, moved.most) == (2.0, 2.0, 2.0)
    assert moved.samples == active.samples
    assert abs(active.samples - samples) <= 4  # a step of the device begins when the one before it ends
    assert active.least < active.mean < active.most
    assert active.mean == pytest.approx((active.least + active.most) / 2)
    assert "sm__cycles_active.avg" in sg.render(card, full=True)


def test_the_queue_is_what_was_launched_and_has_not_begun(tmp_path: Path) -> None:
    use = sg.score(sg.load(made(tmp_path / "trace.json"))).kernel_use
    assert use is not None
    assert use.queue is not None
    # Launched 1 and 11 µs into the step, begun after 20 and 420 µs.
    assert use.queue.mean == pytest.approx((19 + 409) / 1000, rel=0.01)
    assert use.queue.empty_share == pytest.approx(1 - 419 / 1000, rel=0.01)
    assert use.queue.known_share == 1.0


def test_copies_have_their_bandwidth_by_direction_and_memory(tmp_path: Path) -> None:
    path = made(tmp_path / "trace.json")
    document = json.loads(path.read_text())
    for step in range(4):
        for place, (name, size) in enumerate(
            [("Memcpy HtoD (Pageable -> Device)", 50_000), ("Memcpy DtoH (Device -> Pinned)", 250_000)]
        ):
            number, at = 1000 + 10 * step + place, 1000 * step + 700 + 60 * place
            document["traceEvents"] += [
                event("cudaMemcpyAsync", "cuda_runtime", at - 1, 1, correlation=number),
                event(*(name, "gpu_memcpy", at, 50), device=0, stream=7, correlation=number, bytes=size),
            ]
    path.write_text(json.dumps(document))
    rows = {(row.direction, row.memory): row for row in sg.score(sg.load(path)).copies}
    assert set(rows) == {("h2d", "pageable"), ("d2h", "pinned")}
    slow, fast = rows["h2d", "pageable"], rows["d2h", "pinned"]
    assert (slow.calls, slow.ms, slow.bytes) == (1.0, pytest.approx(0.05), 50_000.0)
    assert (slow.gb_s, fast.gb_s) == (pytest.approx(1.0), pytest.approx(5.0))
