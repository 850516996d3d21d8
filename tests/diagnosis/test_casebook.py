"""The bottleneck and the warnings of each real trace are those that docs/casebook-findings.md explains."""

from __future__ import annotations

import pytest

import stepgrade as sg
from tests.samples import shared

pytestmark = pytest.mark.samples

CASES: dict[str, tuple[str, list[str]]] = {
    "amdhpc_merged_nccl_only*": ("unknown", ["unexplained-idle", "straggler-rank"]),
    "ao_ref_ep_moe_fwd*": ("launch", ["short-kernels", "exposed-communication"]),
    "ao_syncless_ep_moe_fwd*": ("communication", ["short-kernels", "exposed-communication"]),
    "cscs_mse_trace*": ("memory_bw", ["elementwise-chains"]),
    "hta_backward_thread*": ("host", ["hardly-any-work"]),
    "hta_cpu_only_rank34.*": ("communication", ["collective-is-all"]),
    "hta_cpu_only_rank34_full*": ("communication", ["exposed-communication"]),
    "hta_cuda_event_sync*": ("host", ["hardly-any-work"]),
    "hta_cupti_profiler*": ("unknown", ["device-unseen"]),
    "hta_inference_rank1_stub*": ("host", ["hardly-any-work"]),
    "hta_large_integer*": ("communication", ["collective-is-all"]),
    "hta_mi250_minitoy*": ("host", ["start-up"]),
    "hta_ns_resolution*": ("compute", ["fp32-matmuls"]),
    "hta_rank_not_found*": ("unknown", ["device-unseen"]),
    "hta_sampled_rank0*": ("unknown", ["unexplained-idle", "exposed-communication", "host-stall"]),
    "hta_triton_example*": ("host", ["hardly-any-work"]),
    "kineto_docs_before*": ("unknown", []),
    "kineto_v1*": ("launch", ["loader-on-main-thread", "short-kernels", "fp32-matmuls"]),
    "kineto_v3*workers0*": ("input", ["loader-on-main-thread", "short-kernels", "fp32-matmuls"]),
    "kineto_v3*workers4*": ("launch", ["short-kernels", "fp32-matmuls"]),
    "*adamhook_before*": ("compute", []),
    "*adamhook_after*": ("compute", []),
    "*8xH100_rank0*": ("communication", ["exposed-communication"]),
    "*8xH100*": ("straggler", ["straggler-rank"]),
    "part_cpu_only*": ("compute", ["elementwise-chains"]),
    "saf_amg_final*": ("memory_bw", ["elementwise-chains", "sync-wait", "device-copies"]),
    "tl_b200_eager*": ("launch", ["short-kernels", "host-stall"]),
    "tl_h100_bert*": ("launch", ["launch-gaps"]),
    "tl_mi210_gpu_only*": ("memory_bw", ["short-kernels", "layout-conversions"]),
    "tl_mi300_bert*": ("launch", ["launch-gaps"]),
    "tl_mi300_ddp_resnet18*": ("host", ["allocator-sync"]),
    "tl_mi300_resnet_act*": ("communication", ["exposed-communication"]),
    "tl_torch_compile_triton*": ("compute", []),
    "tl_vllm_decode*": ("unknown", []),
}


MORE = "samples/kineto_more"
FIRST: dict[str, tuple[str, str | None]] = {
    "ao_quantize_vit_int8*": ("unknown", "unexplained-idle"),
    "hta_dlrm_a100_control*": ("communication", "exposed-communication"),
    "hta_mtia_train_rank0*": ("unknown", "unexplained-idle"),
    "kineto_v2_2021-03*": ("input", "loader-on-main-thread"),
    "kineto_v3_2021-06*": ("compute", "short-kernels"),
    "part_a100_fwd*": ("host", "start-up"),
    "saf_amg_baseline*": ("compute", "fp32-matmuls"),
    "switch_moe_a100*": ("host", "start-up"),
    "tl_h100_timesformer*": ("host", "host-stall"),
    "tl_h100_vit_nsfw*": ("launch", "short-kernels"),
    "tl_mi300_xdit_flux*": ("unknown", None),
    "tl_mi300_xdit_sd35*": ("launch", "launch-gaps"),
    "tl_normalization_layers*": ("launch", "warm-up-only"),
    "tl_vllm_decode_capture*": ("host", "graph-capture"),
    "tptut_h100_layer_fwd*": ("launch", "launch-gaps"),
}


@pytest.mark.parametrize("pattern", FIRST)
def test_a_trace_that_came_later_is_judged_as_the_casebook_says(pattern: str) -> None:
    (path,) = shared(MORE).glob(pattern)
    bottleneck, first = FIRST[pattern]
    card = sg.score(sg.load(path))
    assert card.bottleneck == bottleneck
    loud = [finding.rule for finding in card.findings if finding.severity != "info"]
    assert (loud[0] if loud else None) == first
    assert not any("bf16" in advice for advice in card.recommendations if "V100" in str(card.device))


def test_a_read_back_gains_no_more_than_a_third_where_preprocessing_holds_the_device_up() -> None:
    (path,) = shared(MORE).glob("tl_h100_timesformer*")
    first = sg.score(sg.load(path)).findings[0]
    assert first.gain_high < 0.34
    assert first.where is not None
    assert first.where.endswith("model.py:40")


@pytest.mark.parametrize("pattern", CASES)
def test_a_real_trace_is_judged_as_the_casebook_says(pattern: str) -> None:
    bottleneck, warnings = CASES[pattern]
    card = sg.score(sg.load(*sorted(shared("samples/kineto").glob(pattern))))
    assert card.bottleneck == bottleneck
    assert [finding.rule for finding in card.findings if finding.severity != "info"] == warnings
