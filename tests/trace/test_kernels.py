"""Kernels under operations: how they fill the device, and whether they multiply on tensor cores."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.naming.tensor_cores import uses_tensor_cores


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
