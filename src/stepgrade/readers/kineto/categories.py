"""Category names of the profiler over the years: what each means, and how a file is recognised by them."""

from __future__ import annotations

import re
from typing import Final

from stepgrade.patterns import regex

# Names are capitalised in 2020 and 2021, lower-case from 2022 on.
OPERATOR_CATEGORY = "Operator"
OPERATOR_RANGES = "Operator (range)"  # ours: annotations were operators too before 2022
OP_CATEGORIES = ("cpu_op", OPERATOR_CATEGORY)
# Our own, for Ascend device and runtime events that torch_npu writes without a category.
NPU_KERNELS, NPU_CALLS = "npu_kernel", "npu_runtime"
NPU_LAUNCHES = "async_npu"  # flows from an operation to its kernel; the id is the kernel's start time
# The processes of the autograd profiler's own export, without Kineto.
LEGACY_HOST = "CPU functions"
LEGACY_KERNELS = "CUDA functions"  # nested times of operations on the device
CALL_CATEGORIES = (
    "cuda_runtime",
    "cuda_driver",
    "Runtime",
    "mtia_runtime",
    "xpu_runtime",
    "xpu_driver",
    "glow_runtime",
    "privateuse1_runtime",
    "privateuse1_driver",
    NPU_CALLS,
)
MTIA_KERNELS = "mtia_ccp_events"
KERNEL_CATEGORIES = (
    *("kernel", "Kernel", "concurrent_kernel", MTIA_KERNELS, "hpu_op"),
    *(NPU_KERNELS, LEGACY_KERNELS),
)
COPY_CATEGORIES = ("gpu_memcpy", "Memcpy")
MEMSET_CATEGORIES = ("gpu_memset", "Memset")
ANNOTATION_CATEGORIES = ("user_annotation", OPERATOR_RANGES)
FRAME_CATEGORIES = ("python_function",)
OVERHEAD_CATEGORIES = ("overhead",)
DEVICE_RANGE_CATEGORIES = ("gpu_user_annotation",)

USED_CATEGORIES = frozenset(
    (
        *OP_CATEGORIES,
        *CALL_CATEGORIES,
        *KERNEL_CATEGORIES,
        *COPY_CATEGORIES,
        *MEMSET_CATEGORIES,
        *ANNOTATION_CATEGORIES,
        *FRAME_CATEGORIES,
        *OVERHEAD_CATEGORIES,
        *DEVICE_RANGE_CATEGORIES,
    )
)
OLD_FLOWS = frozenset(("async_gpu", "async_cpu_to_gpu"))  # of 2022
CAPITALISED = frozenset((OPERATOR_CATEGORY, "Kernel", "Runtime", "Memcpy", "Memset"))  # of 2021
MEMORY_CATEGORY = "cpu_instant_event"
MEMORY_EVENT = "[memory]"
# Samples of the device's counters (CUPTI's PM sampling), from August 2026 on.
COUNTER_CATEGORY = "hardware_counters"
SEEN_CATEGORIES = (
    USED_CATEGORIES
    | OLD_FLOWS
    | {
        "ac2g",
        "async",
        "fwdbwd",
        NPU_LAUNCHES,
        MEMORY_CATEGORY,
        COUNTER_CATEGORY,
        "Trace",
        "cuda_sync",
        "cuda_event",
        "cuda_profiler_range",
        "mtia_insight",
        "mtia_workloadd",
    }
)

_AUTOGRAD_NODE = regex(r"Backward\d*$|AccumulateGrad$")
MTIA_WAIT = regex(
    r"(event|semaphore|stream|barrier|fence)[ _-]?wait\b|wait[ _-]?(for[ _-])?(event|semaphore)", re.I
)
MODULE_PREFIX = "nn.Module: "
# Before 2022 an annotation was an `Operator` like any other; these are PyTorch's own.
ANNOTATION_PREFIXES = (
    "ProfilerStep#",
    "Optimizer.",
    "enumerate(DataLoader)#",
    "DistributedDataParallel.",
    "FullyShardedDataParallel.",
    "nccl:",
    "gloo:",
    "## ",
    "[pl]",
)


def is_allocation(name: str, ph: str) -> bool:
    """Tell whether an event is an allocation or a free; those of 2021 have no category."""
    return name == MEMORY_EVENT and ph in {"i", "I"}


def uncategorised(name: str, pid: object, task: object) -> str | None:
    """Return the category of an event that has none; None if it is not work.

    The autograd profiler's own export has two processes; torch_npu's device events have a task type, those
    that wait for another stream too.
    """
    if pid == LEGACY_HOST:
        # Annotations look like operations; autograd's nodes have no namespace either.
        return OP_CATEGORIES[0] if "::" in name or _AUTOGRAD_NODE.search(name) else OPERATOR_RANGES
    if pid == LEGACY_KERNELS:
        return LEGACY_KERNELS
    if name.startswith("AscendCL@"):
        return NPU_CALLS
    is_wait = isinstance(task, str) and ("WAIT" in task or "RECORD" in task)
    return NPU_KERNELS if (task is not None and not is_wait) or name.startswith("hcom_") else None


_KEYS: Final = regex(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo|trace_id)"\s*:'
)
_CATEGORY: Final = regex(
    rb'"cat"\s*:\s*"(?:' + b"|".join(re.escape(c.encode()) for c in sorted(USED_CATEGORIES)) + rb')"'
)
_NPU: Final = regex(rb'"Ascend Hardware"|"torch_to_npu"|"AscendCL@')
_LEGACY: Final = regex(rb'"pid"\s*:\s*"(?:CPU|CUDA) functions"')
_AIU: Final = regex(rb'"TS1"\s*:\s*"\d+"[^}]{0,200}"TS5"\s*:')
_OTHER: Final = regex(rb'"(?:rocprofiler-sdk-tool|highres-ticks)"\s*:')


def looks_like_kineto(head: bytes) -> bool:
    """Tell from the first bytes of the text (64 KB are plenty) whether Kineto wrote it."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    has_category = any(sign.search(head) is not None for sign in (_CATEGORY, _NPU, _LEGACY))
    if start == b"[" or has_category:
        return has_category and start in (b"[", b"{")
    key = _KEYS.search(head)
    if start != b"{" or key is None or _OTHER.search(head):
        return False
    # A key of ours before any other object opens, or the array of events itself.
    return b'"traceEvents"' in head or head.count(b"{", 0, key.start()) == 1


def looks_like_aiu(head: bytes) -> bool:
    """Tell from the first bytes whether the runtime of IBM's Spyre (AIU) wrote it."""
    return _AIU.search(head) is not None and b'"cat"' not in head
