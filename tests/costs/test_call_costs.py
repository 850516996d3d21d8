"""Which call has which cost, where operations nest, lack settings, or hold work of several kinds."""

from __future__ import annotations

from typing import Any

import pytest

from stepgrade.model import Operation, Profile
from tests.trace_builder import TraceBuilder, analyse_trace

F32 = ["float"] * 3
IMAGE, KERNEL, RESULT = [8, 64, 56, 56], [128, 64, 3, 3], [8, 128, 56, 56]
SAME = ["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "False", "[0, 0]", "1"]
FLOPS = 2 * 8 * 128 * 56 * 56 * 64 * 9


class Nested:
    """Operations in each other on one thread, each with the kernels that it launches itself."""

    def __init__(self) -> None:
        self.out, self.now = TraceBuilder(), 0

    def op(
        self, name: str, *inside: Any, kernels: tuple[str, ...] = (), dims: Any = None, concrete: Any = None
    ) -> Any:
        def play() -> None:
            start = self.now
            self.now += 1_000
            for kernel in kernels:
                correlation = self.out.call("cudaLaunchKernel", self.now, 500)
                self.out.kernel(kernel, self.now + 10_000, 50_000, correlation=correlation)
                self.now += 60_000
            for one in inside:
                one()
            self.now += 1_000
            self.out.op(name, start, self.now - start, dims=dims, types=F32, concrete=concrete)
            self.now += 1_000

        return play

    def profile(self, *ops: Any) -> Profile:
        for one in ops:
            one()
        return analyse_trace(self.out.trace())


def found(profile: Profile) -> dict[str, Operation]:
    return {op.name: op for op in profile.operations}


def test_a_bias_inside_a_convolution_does_not_make_it_free() -> None:
    run = Nested()
    add = run.op("aten::add_", kernels=("elementwise_kernel",), dims=[RESULT, [1, 128, 1, 1]])
    backend = run.op(
        "aten::miopen_convolution",
        add,
        kernels=("igemm_fwd_gtcx3",),
        dims=[IMAGE, KERNEL, [128]],
        concrete=["", "", "", "[1, 1]", "[1, 1]", "[1, 1]", "1"],
    )
    outer = run.op("aten::convolution", backend, dims=[IMAGE, KERNEL, [128]], concrete=SAME)
    profile = run.profile(outer)
    assert found(profile)["aten::miopen_convolution"].flops == FLOPS
    assert profile.matmul_flops == FLOPS
    assert profile.matmul_known_share == 1.0


def test_a_backend_without_a_rule_has_the_cost_of_the_operation_around_it() -> None:
    run = Nested()
    backend = run.op("vendor::convolution_impl", kernels=("convolve_kernel",), dims=[IMAGE, KERNEL])
    profile = run.profile(run.op("aten::convolution", backend, dims=[IMAGE, KERNEL], concrete=SAME))
    assert found(profile)["vendor::convolution_impl"].flops == FLOPS
    assert profile.matmul_known_share == 1.0


def test_without_settings_the_next_input_tells_the_size_of_the_result() -> None:
    run = Nested()
    conv = run.op("aten::cudnn_convolution", kernels=("scudnn_kernel",), dims=[IMAGE, KERNEL])
    count = run.op("aten::add_", kernels=("elementwise_kernel",), dims=[[], []])
    norm = run.op("aten::batch_norm", kernels=("bn_fw_kernel",), dims=[RESULT, [128], [128]])
    assert found(run.profile(conv, count, norm))["aten::cudnn_convolution"].flops == FLOPS


def test_an_input_of_other_sizes_does_not_tell_it() -> None:
    for other in ([8, 64, 56, 56], [4, 128, 56, 56], [8, 128, 112, 112], [8, 128]):
        run = Nested()
        conv = run.op("aten::cudnn_convolution", kernels=("scudnn_kernel",), dims=[IMAGE, KERNEL])
        profile = run.profile(conv, run.op("aten::relu", kernels=("relu_kernel",), dims=[other]))
        assert found(profile)["aten::cudnn_convolution"].flops is None
        assert profile.matmul_known_share == 0.0


def test_the_gradients_of_2021_have_the_sizes_of_the_operation_around_them() -> None:
    run = Nested()
    data = run.op(
        "aten::cudnn_convolution_backward_input", kernels=("dgrad_engine",), dims=[[], RESULT, KERNEL]
    )
    weight = run.op(
        "aten::cudnn_convolution_backward_weight", kernels=("wgrad_alg0",), dims=[[], RESULT, IMAGE]
    )
    both = run.op("aten::cudnn_convolution_backward", data, weight, dims=[IMAGE, RESULT, KERNEL])
    first = run.op("aten::cudnn_convolution_backward", weight, dims=[IMAGE, RESULT, KERNEL])
    ops = found(run.profile(both, first))
    assert ops["aten::cudnn_convolution_backward_input"].flops == FLOPS
    assert ops["aten::cudnn_convolution_backward_weight"].flops == 2 * FLOPS


def test_what_has_no_count_is_missing_from_the_known_share() -> None:
    run = Nested()
    known = run.op("aten::mm", kernels=("sgemm",), dims=[[64, 64], [64, 64]])
    unknown = run.op("vendor::magic", kernels=("magic_kernel", "magic_kernel", "magic_kernel"))
    plain = run.op("aten::bernoulli_", kernels=("draw",), dims=[[64]])
    assert run.profile(known, unknown, plain).matmul_known_share == 0.25


def test_a_compiled_region_is_one_row_for_each_class_of_its_kernels() -> None:
    run = Nested()
    kernels = ("flash_fwd_kernel", "ampere_bf16_s16816gemm_bf16", "triton_poi_fused_add_0")
    region = run.op("Torch-Compiled Region: 0/0", kernels=kernels)
    ops = found(run.profile(region))
    assert {name: op.kind for name, op in ops.items()} == {
        "Torch-Compiled Region: 0/0 (attention)": "attention",
        "Torch-Compiled Region: 0/0 (gemm)": "gemm",
        "Torch-Compiled Region: 0/0 (elementwise)": "elementwise",
    }
    assert all(op.ms == 0.05 for op in ops.values())


def test_an_operation_of_one_class_keeps_its_name() -> None:
    run = Nested()
    region = run.op("CompiledFunction", kernels=("triton_poi_fused_add_0", "triton_poi_fused_mul_1"))
    assert [*found(run.profile(region))] == ["CompiledFunction"]


def test_a_library_s_layer_named_after_its_norm_is_told_by_its_kernels() -> None:
    run = Nested()
    layer = run.op("_LayerNormLinear", kernels=("rmsnorm_fwd_kernel", "nvjet_tst_128x256"))
    assert {op.kind for op in run.profile(layer).operations} == {"norm", "gemm"}


def test_fp32_tensors_in_a_tf32_kernel_are_of_tf32() -> None:
    run = Nested()
    tensors = [[64, 64], [64, 64]]
    names = ("cutlass_80_tensorop_s1688gemm_128x256", "cutlass_80_tensorop_s1688gemm_128x256", "splitKreduce")
    fast = run.op("aten::mm", kernels=names, dims=tensors)
    slow = run.op("aten::bmm", kernels=("ampere_sgemm_32x32",), dims=[[1, 64, 64], [1, 64, 64]])
    ops = found(run.profile(fast, slow))
    assert (ops["aten::mm"].dtype, ops["aten::bmm"].dtype) == ("tf32", "fp32")


@pytest.mark.parametrize("outer_first", [True, False])
def test_a_wrapper_has_no_cost_wherever_it_is_in_the_file(outer_first: bool) -> None:
    """The first row of a trace is an operation like any other, and events may be written in any order."""
    out = TraceBuilder()
    sizes: dict[str, Any] = {"dims": [[256, 512], [512, 128]], "types": F32[:2]}
    ops = [("aten::matmul", 0, 100_000), ("aten::mm", 10_000, 80_000)]
    for name, start, dur in ops if outer_first else reversed(ops):
        out.op(name, start, dur, **sizes)
    correlation = out.call("cudaLaunchKernel", 20_000, 5_000)
    out.kernel("ampere_sgemm_128x64", 30_000, 50_000, correlation=correlation)
    profile = analyse_trace(out.trace())
    flops = {op.name: op.flops for op in profile.operations}
    assert flops == {"aten::mm": 2.0 * 256 * 512 * 128}
    assert profile.matmul_flops == 2.0 * 256 * 512 * 128


@pytest.mark.parametrize("outer_first", [True, False])
def test_a_wrapper_on_a_host_has_no_cost_wherever_it_is_in_the_file(outer_first: bool) -> None:
    out = TraceBuilder(devices=())
    sizes: dict[str, Any] = {"dims": [[256, 512], [512, 128]], "types": F32[:2]}
    ops = [("aten::matmul", 0, 100_000), ("aten::mm", 10_000, 80_000)]
    for name, start, dur in ops if outer_first else reversed(ops):
        out.op(name, start, dur, **sizes)
    profile = analyse_trace(out.trace())
    assert {op.name: op.flops for op in profile.operations}["aten::mm"] == 2.0 * 256 * 512 * 128
    assert profile.matmul_flops == 2.0 * 256 * 512 * 128
