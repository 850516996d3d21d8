"""What a remedy needs of a run: what cannot be done there, or is done already, is not said."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from stepgrade.diagnosis.context import RuleContext

_PARTS = re.compile(r"(?<=[.;])\s+(?=\S)")
_LIKE_CUDA = frozenset({None, "cuda", "rocm"})  # PyTorch drives AMD's devices through torch.cuda as well


class Need(NamedTuple):
    """Words of a remedy, and when what they say can be done."""

    what: str
    words: re.Pattern[str]
    is_met: Callable[[RuleContext], bool]


# What another profiler wrote cannot be recorded again with the settings of PyTorch's.
_OTHER_PROFILERS = frozenset({"nsys", "rocprof", "xplane", "xla_trace"})

NEEDS = (
    Need(
        "PyTorch's profiler",
        re.compile(r"with_stack|CPU and CUDA activities"),
        lambda context: context.profile.source.format not in _OTHER_PROFILERS,
    ),
    Need(
        "a device that torch.cuda drives",
        re.compile(
            r"torch\.cuda|CUDA|cuda|nccl|NCCL|expandable_segments|tensor cores|sdpa_kernel|Flash|Liger"
            r"|TunableOp"
        ),
        lambda context: context.platform in _LIKE_CUDA,
    ),
    Need(
        "graphs of kernels",
        re.compile(r"reduce-overhead|\bgraphs?\b(?! break)"),
        lambda context: context.platform in _LIKE_CUDA and not context.replays_graphs,
    ),
    Need(
        "an accelerator",
        re.compile(r"pin_memory|pinned|non_blocking|\b(the|on|each) devices?\b|[Ll]aunch"),
        lambda context: context.platform != "cpu",
    ),
    Need(
        "arithmetic in bf16",
        re.compile(r"bfloat16|\bbf16\b"),
        lambda context: context.can_compute_in("bf16") is not False,
    ),
    Need(
        "arithmetic in tf32",
        re.compile(r"\btf32\b|float32_matmul_precision|tensorfloat32"),
        lambda context: context.can_compute_in("tf32") is not False,
    ),
    Need(
        "a training step",
        re.compile(
            r"optimizer|backward|[Gg]radient|GradScaler|zero_grad|no_sync|\bDDP\b|bucket_cap|\bZeRO"
            r"|the loss\b"
            r"|[Aa]ctivation checkpoint|checkpoint fewer|checkpoint every|frozen|training loop|epoch"
        ),
        lambda context: context.work != "inference",
    ),
    Need(
        "tables that are not FBGEMM's yet", re.compile(r"FBGEMM"), lambda context: not context.uses("fbgemm")
    ),
    Need(
        "shapes that were not recorded",
        re.compile(r"record_shapes|[Rr]ecord \w*\s?shapes|operations with shapes"),
        lambda context: not context.has_recorded("shapes"),
    ),
    Need(
        "stacks that were not recorded",
        re.compile(r"with_stack"),
        lambda context: not context.has_recorded("stacks"),
    ),
    Need(
        "operations that are not compiled yet",
        re.compile(r"torch\.compile(?!\(mode)"),
        lambda context: not context.is_compiled,
    ),
    Need(
        "parameters in shards",
        re.compile(r"FSDP|reshard_after_forward"),
        lambda context: context.parallelism in {None, "fsdp", "data"},
    ),
)


def fitting(text: str, context: RuleContext) -> str:
    """Return the sentences of a remedy that can be followed in this run; empty if none of them can."""
    kept = [
        part
        for part in _PARTS.split(text)
        if all(need.is_met(context) or not need.words.search(part) for need in NEEDS)
    ]
    whole = " ".join(kept).rstrip(";").removesuffix(".")
    if not whole:
        return ""
    is_word = whole.split(" ", 1)[0].isalpha()  # no name of a function or a setting
    return f"{whole[0].upper() if is_word else whole[0]}{whole[1:]}."
