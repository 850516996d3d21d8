"""What the names in a PyTorch trace mean: steps, optimizers, input, backward passes, synchronisation."""

from __future__ import annotations

import re
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from stepgrade.model.columns import distinct
from stepgrade.model.events import Ids, Kinds
from stepgrade.naming.work_class import WorkClass, classify
from stepgrade.patterns import regex

Mask = NDArray[np.bool_]

STEP = regex(r"^ProfilerStep\s*#\s*(\d{1,30})")
# One execution of a compiled program after another, as the reader of such profiles writes it.
EXECUTION = regex(r"^XlaStep#(\d{1,30})")
# PyTorch's own range, or one that a user named so.
OPTIMIZER_STEP = regex(r"^Optimizer\.step#|^(?i:optimi[sz]er[ _.]?step)\b")
OPTIMIZER = regex(
    r"^Optimizer\.(step|zero_grad)#|^##\s*(optimizer|zero_grad)\b|^optimi[sz]er([ _.]?step)?$|^zero[ _]grad$",
    re.IGNORECASE,
)
WARM_UP = regex(r"\bwarm[-_ ]?up|_warmup\b", re.IGNORECASE)
LOADER = regex(r"^enumerate\(DataLoader\)#")
INPUT = regex(
    r"^enumerate\(DataLoader\)#|\bdata_?load|(load|wait_for|fetch|next|get)_(\w+_)?batch\b|\bwait_for_data"
    r"|^(input|data)([ _-]?(pipeline|wait|fetch|loading))?$|^infeed\b",
    re.IGNORECASE,
)
# Schedules of pipelines call their passes F, B (gradients of inputs) and W (gradients of weights).
BACKWARD = regex(
    r"^autograd::engine::evaluate_function|Backward\d*\b|^torch::autograd::AccumulateGrad|^\w+\([BW]\)$"
)
BACKWARD_RANGE = regex(r"^##\s*backward\b|\bbackward\b", re.IGNORECASE)
FORWARD_RANGE = regex(r"^##\s*forward\b|\.forward$", re.IGNORECASE)
# Ranges that users put around the passes of a step.
FORWARD_PASS = regex(r"(\b|_)(forward|fwd)(\b|_)", re.IGNORECASE)
BACKWARD_PASS = regex(r"^(?!.*(forward|fwd)).*(\b|_)(backward|bwd)(\b|_)", re.IGNORECASE)
# Around all that torch.compile does to compile a function, and its backward pass.
COMPILES = regex(r"^entire_(frame|backward)_compile$")
COMMUNICATION_RANGE = regex(r"^(nccl|gloo|mpi|ucc|hccl|xccl|oneccl):")
COMMUNICATION_OP = regex(
    r"^(c10d::|_c10d_functional|record_param_comms|symm_mem::)"
    r"|^(all-reduce|all-gather|reduce-scatter|(ragged-)?all-to-all|collective-(permute|broadcast))(-start|-done)?$"
)
COLLECTIVE = regex(r"^(nccl|gloo|mpi|ucc|hccl|xccl|oneccl):|^c10d::")
COMPILED = regex(r"^## Call CompiledFxGraph|^Torch-Compiled Region|^CompiledFunction")
SYNC_CALL = regex(
    r"Synchronize|^(cuda|hip)(Memcpy|Free|FreeHost|HostFree)$|MemcpyWithStream"
    r"|^(ur|pi)(Event\w*Wait|QueueFinish)$"
)
# Of CUDA, HIP, MTIA, Intel's (Unified Runtime, before that PI, and Level Zero), Ascend's.
LAUNCH_CALL = regex(
    r"^(cu|hip)\w*Launch\w*(Kernel|Graph)|^(cu(da)?|hip)GraphLaunch|^mtia.*[Ll]aunch"
    r"|^(ur|pi)EnqueueKernelLaunch|^zeCommandListAppendLaunch|^torch_to_npu$"
)
# Operations that only a device has; those of a processor have other names.
DEVICE_OP = regex(
    r"^aten::_?((cudnn|miopen)_(convolution|batch_norm|depthwise|rnn|grid_sampler|affine_grid|attention)\w*"
    r"|thnn_fused_(lstm|gru)_cell\w*|(flash|efficient)_attention_(forward|backward)"
    r"|scaled_dot_product_(cudnn|efficient)_attention(_backward)?)$"
)
GRAPH_LAUNCH = regex(r"^(cu(da)?|hip)GraphLaunch")
QUEUE_FULL = regex(r"^Command Buffer Full$")
# Large embedding tables as recommenders have them.
EMBEDDING_TABLES = regex(r"^fbgemm::|split_embedding|table_batched_embedding|^aten::_?embedding_bag")
# Ranges that PyTorch itself writes: not layers, though their names may differ by a number.
FRAMEWORK_RANGE = regex(
    r"^(ProfilerStep\s*#|Optimizer\.(step|zero_grad)#|enumerate\(DataLoader\)#|## |(nccl|gloo|mpi|ucc):"
    r"|DistributedDataParallel\.forward$)"
)
# Meaningful names are short; kernel names can be kilobytes and are searched no further.
LONGEST_NAME = 120


@lru_cache(maxsize=64)  # several parts of the analysis search all names of a trace for the same pattern
def matching(strings: tuple[str, ...], pattern: re.Pattern[str]) -> Mask:
    """Tell for each string whether its start matches the pattern."""
    # Python tries a pattern at every character of a text, also one that can match at the first alone.
    find = pattern.match if is_anchored(pattern.pattern) else pattern.search
    found = np.fromiter((find(text, 0, LONGEST_NAME) is not None for text in strings), np.bool_, len(strings))
    found.flags.writeable = False
    return found


def is_anchored(pattern: str) -> bool:
    """Tell whether a pattern matches at the start of a text only: all its alternatives begin with ^."""
    depth, is_start, is_escaped, in_class = 0, True, False, False
    for char in pattern:
        if is_start and char != "^":
            return False
        is_start = False
        if is_escaped or char == "\\":
            is_escaped = not is_escaped
        elif in_class or char == "[":
            in_class = char != "]"
        else:
            depth += (char == "(") - (char == ")")
            is_start = char == "|" and depth == 0
    return not is_start


def named(strings: tuple[str, ...], names: Ids, pattern: re.Pattern[str]) -> Mask:
    """Tell for each event, given the column of its name, whether its name matches the pattern."""
    if not len(names):
        return np.zeros(0, np.bool_)
    return matching(strings, pattern)[names]


def classes_of(strings: tuple[str, ...], names: Ids) -> Kinds:
    """Return the work class of each event, given the column of its name."""
    table = np.full(max(len(strings), 1), WorkClass.OTHER, np.int8)
    used = distinct(names)
    table[used] = [classify(strings[index]) for index in used.tolist()]
    return table[names]
