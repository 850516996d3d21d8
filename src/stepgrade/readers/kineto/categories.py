"""Category names of the profiler over the years: what each means, and how a file is recognised by them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from msgspec import Raw

# Names are capitalised in 2020 and 2021, lower-case from 2022 on.
OPERATOR_CATEGORY = "Operator"
OPERATOR_RANGES = "Operator (range)"  # ours: annotations were operators too before 2022
OP_CATEGORIES = ("cpu_op", OPERATOR_CATEGORY)
# Our own, for Ascend device and runtime events that torch_npu writes without a category.
NPU_KERNELS, NPU_CALLS = "npu_kernel", "npu_runtime"
NPU_LAUNCHES = "async_npu"  # flows from an operation to its kernel; the id is the kernel's start time
# The processes of the autograd profiler's own export, without Kineto.
LEGACY_HOST, LEGACY_DEVICE = "CPU functions", "CUDA functions"
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
FLOW_CATEGORIES = frozenset(("ac2g", "async", "async_gpu", "async_cpu_to_gpu", "fwdbwd", NPU_LAUNCHES))
MEMORY_CATEGORY = "cpu_instant_event"
MEMORY_EVENT = "[memory]"
# Samples of the device's counters (CUPTI's PM sampling), from August 2026 on.
COUNTER_CATEGORY = "hardware_counters"
SEEN_CATEGORIES = (
    USED_CATEGORIES
    | FLOW_CATEGORIES
    | {
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

_AUTOGRAD_NODE = re.compile(r"Backward\d*$|AccumulateGrad$")
_WAIT_OF_MTIA = re.compile(
    r"(event|semaphore|stream|barrier|fence)[ _-]?wait\b|wait[ _-]?(for[ _-])?(event|semaphore)", re.I
)
MODULE_PREFIX = "nn.Module: "
# Before 2022 an annotation was an `Operator` like any other; these are PyTorch's own.
_ANNOTATION_PREFIXES = (
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


def is_annotation(name: str, inputs: Iterable[Raw]) -> bool:
    """Tell whether an `Operator` of 2020 or 2021 is a named range and not an operation."""
    return name.startswith(_ANNOTATION_PREFIXES) or ("::" not in name and not any(map(bytes, inputs)))


def is_allocation(name: str, ph: str) -> bool:
    """Tell whether an event is an allocation or a free; those of 2021 have no category."""
    return name == MEMORY_EVENT and ph in {"i", "I"}


def is_wait_of_mtia(name: str) -> bool:
    """Tell whether an MTIA kernel event is only a queue waiting for another."""
    return _WAIT_OF_MTIA.match(name) is not None


def npu_category(name: str, task: object) -> str | None:
    """Return the category of an event of torch_npu that has none; None if it is not work.

    Device work has a task type, and so does waiting for another stream.
    """
    if name.startswith("AscendCL@"):
        return NPU_CALLS
    is_wait = isinstance(task, str) and ("WAIT" in task or "RECORD" in task)
    is_work = (task is not None and not is_wait) or name.startswith("hcom_")
    return NPU_KERNELS if is_work else None


def uncategorised(name: str, pid: object, task: object) -> str | None:
    """Return the category of an event that has none; None if it is not work."""
    return legacy_category(name, pid) or npu_category(name, task)


def legacy_category(name: str, pid: object) -> str | None:
    """Return the category of an event of the autograd profiler, which has two processes and no categories.

    Its annotations look like operations before 2022; autograd's nodes have no namespace either.
    """
    if pid == LEGACY_HOST:
        return OP_CATEGORIES[0] if "::" in name or _AUTOGRAD_NODE.search(name) else OPERATOR_RANGES
    return LEGACY_KERNELS if pid == LEGACY_DEVICE else None


def era_name(
    *, is_list: bool, keys: Iterable[str], categories: Iterable[str], text_times: bool, merged: bool
) -> str:
    """Name the era of a file by its content; traces do not record the PyTorch version."""
    header, seen = set(keys), set(categories)
    capitalised = seen & {OPERATOR_CATEGORY, "Kernel", "Runtime", "Memcpy", "Memset"}
    rules = (
        (is_list, "2020"),
        (merged and not header, "merged"),
        ("base_ns" in header, "2024-05"),
        (text_times, "2024-04"),
        (bool(capitalised), "2021"),
        (bool(seen & {"async_gpu", "async_cpu_to_gpu"}), "2022"),
    )
    return next((name for holds, name in rules if holds), "2023")


_KEYS: Final = re.compile(
    rb'"(?:schemaVersion|deviceProperties|baseTimeNanoseconds|distributedInfo|trace_id)"\s*:'
)
_CATEGORY: Final = re.compile(
    rb'"cat"\s*:\s*"(?:' + b"|".join(re.escape(c.encode()) for c in sorted(USED_CATEGORIES)) + rb')"'
)
_NPU: Final = re.compile(rb'"Ascend Hardware"|"torch_to_npu"|"AscendCL@')
_LEGACY: Final = re.compile(rb'"pid"\s*:\s*"(?:CPU|CUDA) functions"')
_AIU: Final = re.compile(rb'"TS1"\s*:\s*"\d+"[^}]{0,200}"TS5"\s*:')
_OTHER: Final = re.compile(rb'"(?:rocprofiler-sdk-tool|highres-ticks)"\s*:')


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
