"""What the name of a kernel says: the collective, the precision, whether it uses tensor cores."""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from stepgrade.patterns import regex


class CollectiveKind(StrEnum):
    """What a collective does with the data of its ranks."""

    ALL_TO_ALL = "all_to_all"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    ALL_REDUCE = "all_reduce"
    SEND_RECEIVE = "send_receive"
    BROADCAST = "broadcast"
    OTHER = "other"


# An exchange consists of sends, so it comes first. NCCL calls kernels of both SendRecv.
_COLLECTIVES = tuple(
    (kind, regex(pattern))
    for kind, pattern in (
        (CollectiveKind.ALL_TO_ALL, r"all[_-]?to[_-]?all|dispatch|combine|a2a"),
        (CollectiveKind.REDUCE_SCATTER, r"reduce[_-]?scatter"),
        (CollectiveKind.ALL_GATHER, r"all[_-]?gather"),
        (CollectiveKind.ALL_REDUCE, r"all[_-]?reduce|cross_device_reduce|quickreduce|lamport"),
        (CollectiveKind.SEND_RECEIVE, r"(\b|_|:)(i?send|i?recv|receive)(\b|_)|^collective-permute"),
        (CollectiveKind.BROADCAST, r"broadcast"),
    )
)
_LONGEST = 250  # the start of a name says what a kernel does


@lru_cache(maxsize=10_000)
def collective_kind(name: str) -> CollectiveKind:
    """Return what the collective, operation or kernel of this name does."""
    text = name[:_LONGEST].lower()
    return next((kind for kind, pattern in _COLLECTIVES if pattern.search(text)), CollectiveKind.OTHER)


PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")

# Types of inputs in the names of kernels (cuBLAS, cuDNN, CUTLASS, nvjet; rocBLAS and hipBLASLt with Cijk_,
# MIOpen) and in the parameters of templates. The first that fits decides: sums are in fp32 in any case.
_PRECISIONS = tuple(
    (precision, regex(pattern))
    for precision, pattern in (
        ("int8", r"imma|i8816|i16832|_s8_|s8s8|i8i8|int8|^Cijk_\w+?_I8"),
        ("fp8", r"e4m3|e5m2|fp8|float8|nvjet_(?:sm\d+_)?q|_F8"),
        ("fp64", r"dgemm|d884|f64f64|<double\b|^Cijk_\w+?_DB?_"),
        ("bf16", r"bf16|bfloat16|nvjet_(?:sm\d+_)?t|^Cijk_\w+?_B(B|S)S?_"),
        (
            "fp16",
            r"fp16|f16|half|[hs]884|hgemm|h1688|nvjet_(?:sm\d+_)?h|^Cijk_\w+?_H(H|S)?S?_|^Cijk_\w+?_HB_",
        ),
        ("tf32", r"tf32|xf32|s1688|nvjet_(?:sm\d+_)?s(?!m\d)|^Cijk_\w+?_S_MX_"),
        ("fp32", r"sgemm|scudnn|f32|fp32|^Cijk_\w+?_S_?B?_|\bfloat\b"),
    )
)


@lru_cache(maxsize=20_000)
def precision_of_kernel(name: str) -> str | None:
    """Return the precision that a product's kernel multiplies in; None if unknown."""
    return next((precision for precision, rule in _PRECISIONS if rule.search(name, 0, _LONGEST)), None)


# Copies are compiled for the width of what they copy or for its type, other loops for its type.
_WIDTH = regex(r"OpaqueType<(\d{1,2})")
_COPIED = regex(r"CatArray\w*<(?:\w+::)*(\w+)")
_TYPES = regex(r"\b(BFloat16|Half|double|float)\b")
_ITEM_BYTES = {"BFloat16": 2, "Half": 2, "short": 2, "double": 8, "long": 8, "float": 4, "int": 4, "bool": 1}


@lru_cache(maxsize=2_000)
def item_bytes_of_kernel(name: str) -> int | None:
    """Return the element size of an elementwise kernel, by its template."""
    text = name[: 4 * _LONGEST]
    width = _WIDTH.search(text)
    if width:
        return min(int(width[1]), 16) or None
    found = _COPIED.search(text) or _TYPES.search(text)
    return _ITEM_BYTES.get(found[1]) if found else None


# Instructions and libraries that use them: HMMA, IMMA, WGMMA, tcgen05; nvjet; CUTLASS's tensorop; MFMA and
# WMMA with Tensile's MI and MIOpen's gtcx and xdlops; fused attention of 16 bits.
_USES = regex(
    r"[his](16)?(884|1688|8816|16816|16832)(?!\d)|[hi]mma|wgmma|gmma|nvjet|tensorop|tcgen05|umma|utcmma"
    r"|sm(80|86|89|90|100|120)_xmma|_mi\d+x\d+|gtcx|xdlops|mfma|wmma|fmha|flash_(fwd|bwd)|flashattn|ck_tile.*gemm"
    r"|bf16bf16|e4m3|_f16f16|kernel_cutlass.*(sm90|sm100)"
)
# Products that are known not to.
_PLAIN = regex(r"simt|[sd]gemm(?!.*(tf32|1688))|scudnn(?!.*(884|1688))|gemv|winograd|fft")


@lru_cache(maxsize=20_000)
def uses_tensor_cores(name: str) -> bool | None:
    """Return whether a product's kernel multiplies on tensor cores; None if unknown."""
    text = name[:400].lower()  # quicker than patterns that take either case
    if _USES.search(text):
        return True
    return False if _PLAIN.search(text) else None
