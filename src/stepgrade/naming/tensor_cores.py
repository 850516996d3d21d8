"""Whether a kernel uses tensor cores (matrix cores on AMD), by its name."""

from __future__ import annotations

import re
from functools import lru_cache

# Instructions and libraries that use them: HMMA, IMMA, WGMMA, tcgen05; nvjet; CUTLASS's tensorop; MFMA and
# WMMA with Tensile's MI and MIOpen's gtcx and xdlops; fused attention of 16 bits.
_USES = re.compile(
    r"[his](16)?(884|1688|8816|16816|16832)(?!\d)|[hi]mma|wgmma|gmma|nvjet|tensorop|tcgen05|umma|utcmma"
    r"|sm(80|86|89|90|100|120)_xmma|_mi\d+x\d+|gtcx|xdlops|mfma|wmma|fmha|flash_(fwd|bwd)|flashattn|ck_tile.*gemm"
    r"|bf16bf16|e4m3|_f16f16|kernel_cutlass.*(sm90|sm100)"
)
# Products that are known not to.
_PLAIN = re.compile(r"simt|[sd]gemm(?!.*(tf32|1688))|scudnn(?!.*(884|1688))|gemv|winograd|fft")
_LONGEST = 400


@lru_cache(maxsize=20_000)
def uses_tensor_cores(name: str) -> bool | None:
    """Return whether a product's kernel multiplies on tensor cores; None if unknown."""
    text = name[:_LONGEST].lower()  # quicker than patterns that take either case
    if _USES.search(text):
        return True
    return False if _PLAIN.search(text) else None
