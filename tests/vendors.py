"""What the libraries of two vendors call their work in a trace."""

from __future__ import annotations

from dataclasses import dataclass

BF16, FP32 = "c10::BFloat16", "float"


@dataclass(frozen=True)
class Vendor:
    """What a vendor's libraries call their work."""

    device: str
    products: dict[str, tuple[str, ...]]
    flash: str
    launch: str
    copy: str
    blocking_copy: str
    sync: str
    free: str
    host_to_device: dict[bool, str]  # by whether the memory is pinned


CUDA = Vendor(
    device="NVIDIA H100 80GB HBM3",
    products={
        BF16: (
            "nvjet_tst_128x256_64x4_2x1_v_bz_coopA_NNT",
            "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_execute_kernel__5x_cublas",
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_128x128_64x3_nn_align8>",
        ),
        FP32: (
            "ampere_sgemm_128x64_tn",
            "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x128_8x4_nn_align1>",
        ),
    },
    flash="void pytorch_flash::flash_{way}_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
    launch="cudaLaunchKernel",
    copy="cudaMemcpyAsync",
    blocking_copy="cudaMemcpyAsync",
    sync="cudaStreamSynchronize",
    free="cudaFree",
    host_to_device={True: "Memcpy HtoD (Pinned -> Device)", False: "Memcpy HtoD (Pageable -> Device)"},
)
ROCM = Vendor(
    device="AMD Instinct MI300X",
    products={
        BF16: (
            "Cijk_Ailk_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT256x256x64_MI16x16x1_SN",
            "Cijk_Alik_Bljk_BBS_BH_MT128x128x32_MI32x32x8x1_SN_1LDSB0",
        ),
        FP32: ("Cijk_Ailk_Bljk_SB_MT128x128x16_MI32x32x1x2_SN",),
    },
    flash="attn_{way}.kd",
    launch="hipExtModuleLaunchKernel",
    copy="hipMemcpyAsync",
    blocking_copy="hipMemcpyWithStream",
    sync="hipStreamSynchronize",
    free="hipFree",
    host_to_device={True: "Memcpy HtoD (Host -> Device)", False: "Memcpy HtoD (Host -> Device)"},
)
