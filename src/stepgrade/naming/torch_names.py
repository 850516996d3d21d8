"""What the names in a PyTorch trace mean: steps, optimizers, input, backward, synchronisation."""

from __future__ import annotations

import re
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

from stepgrade.model.events import NONE, HostOps, HostRanges, Ids, RangeKind, Trace

Mask = NDArray[np.bool_]

STEP = re.compile(r"^ProfilerStep\s*#\s*(\d+)")
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
OPTIMIZER = re.compile(r"^Optimizer\.(step|zero_grad)#|^##\s*(optimizer|zero_grad)\b", re.IGNORECASE)
LOADER = re.compile(r"^enumerate\(DataLoader\)#")
INPUT = re.compile(
    r"^enumerate\(DataLoader\)#|\bdata_?load|(load|wait_for|fetch|next|get)_(\w+_)?batch\b|\bwait_for_data",
    re.IGNORECASE,
)
BACKWARD = re.compile(r"^autograd::engine::evaluate_function|Backward\d*\b|^torch::autograd::AccumulateGrad")
BACKWARD_RANGE = re.compile(r"^##\s*backward\b|\bbackward\b", re.IGNORECASE)
FORWARD_RANGE = re.compile(r"^##\s*forward\b|\.forward$", re.IGNORECASE)
ENGINE = re.compile(r"^autograd::engine::evaluate_function: (.*)$")
COMMUNICATION_RANGE = re.compile(r"^(nccl|gloo|mpi|ucc|hccl|xccl):")
COMMUNICATION_OP = re.compile(r"^(c10d::|_c10d_functional|record_param_comms|symm_mem::)")
COLLECTIVE = re.compile(r"^(nccl|gloo|mpi|ucc|hccl|xccl):|^c10d::")
COMPILED = re.compile(r"^## Call CompiledFxGraph|^Torch-Compiled Region|^CompiledFunction")
SYNC_CALL = re.compile(r"Synchronize|^(cuda|hip)(Memcpy|Free|FreeHost|HostFree)$|MemcpyWithStream")
LAUNCH_CALL = re.compile(r"^(cu|hip)\w*Launch\w*(Kernel|Graph)|^(cu(da)?|hip)GraphLaunch|^mtia.*[Ll]aunch")
GRAPH_LAUNCH = re.compile(r"^(cu(da)?|hip)GraphLaunch")
QUEUE_FULL = re.compile(r"^Command Buffer Full$")
# Before 2022 the profiler wrote annotations as operators; these are the names that give them away.
ANNOTATION_OP = re.compile(
    r"^(ProfilerStep\s*#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#|## |(nccl|gloo|mpi|ucc):"
    r"|DistributedDataParallel\.forward$)"
)


# Names that mean something here are short; kernels' names, kilobytes long, are looked at no further.
LONGEST_NAME = 120


@lru_cache(maxsize=32)  # several parts of the analysis ask the same of all names of a trace
def matching(strings: tuple[str, ...], pattern: re.Pattern[str]) -> Mask:
    """Tell for each string whether the pattern is found in its beginning."""
    find = pattern.search
    found = np.fromiter((find(text, 0, LONGEST_NAME) is not None for text in strings), np.bool_, len(strings))
    found.flags.writeable = False
    return found


def named(strings: tuple[str, ...], names: Ids, pattern: re.Pattern[str]) -> Mask:
    """Tell for each event, by the column of its name, whether the pattern is found in its name."""
    if not len(names):
        return np.zeros(0, np.bool_)
    return matching(strings, pattern)[names]


def settled(trace: Trace) -> Trace:
    """Return the trace with annotations that were written as operators moved to the ranges."""
    moved = named(trace.strings, trace.ops.name, ANNOTATION_OP)
    if not moved.any():
        return trace
    return msgspec.structs.replace(
        trace, ops=_kept(trace.ops, ~moved), ranges=_joined(trace.ranges, trace.ops, moved)
    )


def _kept(ops: HostOps, keep: Mask) -> HostOps:
    columns = {field: getattr(ops, field)[keep] for field in HostOps.__struct_fields__}
    return HostOps(**columns)


def _joined(ranges: HostRanges, ops: HostOps, moved: Mask) -> HostRanges:
    count = int(moved.sum())
    missing = np.full(count, NONE, np.int64)
    return HostRanges(
        name=np.append(ranges.name, ops.name[moved]),
        kind=np.append(ranges.kind, np.full(count, RangeKind.ANNOTATION, np.int8)),
        start_ns=np.append(ranges.start_ns, ops.start_ns[moved]),
        dur_ns=np.append(ranges.dur_ns, ops.dur_ns[moved]),
        thread=np.append(ranges.thread, ops.thread[moved]),
        external_id=np.append(ranges.external_id, ops.external_id[moved]),
        python_id=np.append(ranges.python_id, missing),
        python_parent=np.append(ranges.python_parent, missing),
    )
