"""The precision of a matmul kernel, by its name."""

from __future__ import annotations

import re
from functools import lru_cache

PRECISIONS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8")

# Types of inputs in the names of kernels (cuBLAS, cuDNN, CUTLASS, nvjet; rocBLAS and hipBLASLt with Cijk_,
# MIOpen) and in the parameters of templates. The first that fits decides: sums are in fp32 in any case.
_RULES = tuple(
    (precision, re.compile(pattern))
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
_LONGEST = 250


@lru_cache(maxsize=20_000)
def precision_of_kernel(name: str) -> str | None:
    """Return the precision that a product's kernel multiplies in; None if unknown."""
    return next((precision for precision, rule in _RULES if rule.search(name, 0, _LONGEST)), None)


# Copies are compiled for the width of what they copy or for its type, other loops for its type.
_WIDTH = re.compile(r"OpaqueType<(\d{1,2})")
_COPIED = re.compile(r"CatArray\w*<(?:\w+::)*(\w+)")
_TYPES = re.compile(r"\b(BFloat16|Half|double|float)\b")
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
