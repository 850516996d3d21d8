"""The precision of real kernels by their names."""

from __future__ import annotations

import pytest

from stepgrade.naming.kernels import collective_kind, precision_of_kernel


@pytest.mark.parametrize(
    ("name", "precision"),
    [
        ("ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_64x4_tn", "bf16"),
        ("ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_nn", "fp16"),
        ("ampere_sgemm_32x32_sliced1x4_tn", "fp32"),
        ("volta_scudnn_128x128_stridedB_splitK_medium_nn_v1", "fp32"),
        ("volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1", "fp32"),
        ("volta_sgemm_64x64_nt", "fp32"),
        ("volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn", "fp16"),
        ("volta_h884gemm_256x64_ldg8_nn", "fp16"),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "fp16"),
        ("void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)", "fp32"),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6, 7, 3, 3, 5, false, 512>(int)", "fp32"),
        ("void implicit_convolve_sgemm<float, float, 1024, 6, 7, 3, 3, 5, 1, false>(int)", "fp32"),
        ("void cudnn::cnn::wgrad2d_grouped_direct_kernel<false, true, int, __half, float, float>", "fp16"),
        ("void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_32x6_tn_align4>", "tf32"),
        ("void cutlass::Kernel<cutlass_75_tensorop_s1688gemm_f16_256x128_nn_align8>", "fp16"),
        ("sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16", "tf32"),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize32x32x8_stage3", "fp32"),
        ("sm90_xmma_gemm_e4m3bf16_e4m3f32_f32_tn_n_tilesize128x128x128", "fp8"),
        ("nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "bf16"),
        ("nvjet_sm100_tst_128x256_64x4", "bf16"),
        ("nvjet_hsh_64x8_64x16_4x1_v_bz_TNN", "fp16"),
        ("nvjet_sss_128x64_32x8_1x1_h_bz_TNN", "tf32"),
        ("nvjet_qqtst_128x128_128x6_2x1_v_bz_coopB_TNT", "fp8"),
        ("cutlass_80_tensorop_i16832gemm_s8_256x128_64x3_tn_align16", "int8"),
        ("void cutlass::Kernel<cutlass_80_tensorop_d884gemm_64x64_16x4_nt_align1>", "fp64"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT128x192x64_MI16x16x1_SN", "bf16"),
        ("Cijk_Ailk_Bljk_HHS_BH_MT128x128x32_MI32x32x8x1_SN", "fp16"),
        ("Cijk_Ailk_Bljk_SB_MT128x128x16_MI32x32x1x2_SN", "fp32"),
        ("igemm_fwd_gtcx2_nhwc_bf16_bx0_ex1_bt32x256x32", "bf16"),
        (
            "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, cutlass::bfloat16_t>>",
            "bf16",
        ),
        ("fmha_cutlassF_f16_aligned_64x64_rf_sm80", "fp16"),
        ("void gemv2T_kernel_val<int, int, float, float, float>", "fp32"),
        ("triton_tem_fused_mm_relu_7", None),
        ("sage_fwd", None),
    ],
)
def test_precision(name: str, precision: str | None) -> None:
    assert precision_of_kernel(name) == precision


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nccl:all_reduce", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("void deep_ep::internode::dispatch<false, 8>", "all_to_all"),
        ("vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>", "all_reduce"),
        ("symm_mem::multimem_all_reduce_", "all_reduce"),
        ("nccl:send", "send_receive"),
        ("ncclDevKernel_SendRecv", "other"),
        ("hcom_allReduce__628_0", "all_reduce"),
        ("nccl:broadcast", "broadcast"),
    ],
)
def test_collectives(name: str, kind: str) -> None:
    assert collective_kind(name) == kind
