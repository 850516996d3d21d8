from __future__ import annotations

import pytest

from stepgrade.analysis.trace.classify import classify


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", "gemm"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "gemm"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_nn_align8>(...)", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT32x16x128", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>", "gemm"),
        ("aten::addmm", "gemm"),
        ("aten::_scaled_mm", "gemm"),
        ("void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnBwdSm90<", "attention"),
        ("void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<", "attention"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "attention"),
        ("kernel_unified_attention_3d", "attention"),
        ("aten::_scaled_dot_product_efficient_attention", "attention"),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, 512, true, 1>", "norm"),
        ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16>", "norm"),
        ("_ZN7ck_tile6kentryILi1ENS_12Rmsnorm2dFwdINS_27Rmsnorm2dFwdPipeline", "norm"),
        ("triton_red_fused__fused_rms_norm__unsafe_view_add_cat_mul", "norm"),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "convolution"),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 8, 3, 3, 5, false, 512>", "convolution"),
        ("igemm_fwd_gtcx3_nhwc_bf16_bx0_ex1_bt256x128x32", "convolution"),
        ("sm80_xmma_dgrad_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nhwc", "convolution"),
        ("aten::miopen_convolution", "convolution"),
        ("void split_embedding_codegen_forward_unweighted_kernel<c10::Half>", "embedding"),
        ("triton_poi_fused_embedding_dense_backward_0", "embedding"),
        ("triton_red_fused__log_softmax_div_mul_prepare_softmax_online", "softmax"),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<", "optimizer"),
        ("aten::_foreach_lerp_", "optimizer"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>", "elementwise"),
        ("triton_poi_fused__unsafe_view_mul_silu_2", "elementwise"),
        ("triton_poi_fused__scaled_mm_mul_silu_0", "elementwise"),
        ("triton_per_fused__flash_attn_backward__unsafe_view_mul_sigmoid_3", "reduction"),
        ("triton_tem_fused_mm_relu_7", "gemm"),
        (
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps",
            "reduction",
        ),
        ("void at::native::(anonymous namespace)::max_pool_backward_nchw<float, float>", "pooling"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<float>", "copy"),
        ("Memcpy HtoD (Pinned -> Device)", "copy"),
        ("Memcpy PtoP (Device -> Device)", "communication"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", "communication"),
        ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>", "communication"),
        ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "communication"),
        ("void at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<", "indexing"),
        ("at::cuda::(anonymous namespace)::spin_kernel(long)", "other"),
        ("", "other"),
    ],
)
def test_kernels_and_operations(name: str, label: str) -> None:
    assert classify(name).label == label
