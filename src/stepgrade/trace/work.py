"""What the steps of a trace hold: training, inference, or neither can be told."""

from __future__ import annotations

import re

from stepgrade.model.columns import distinct
from stepgrade.model.events import Ids, Trace
from stepgrade.model.profile import WorkKind
from stepgrade.naming.torch_names import BACKWARD, BACKWARD_RANGE, OPTIMIZER_STEP, named

# Optimizers and the gradients' own operations, where no range or autograd node names them.
_TRAINING_OP = re.compile(
    r"^aten::(_fused_(adam|adamw|sgd|adagrad)_?|_foreach_(lerp|addcdiv|addcmul|norm)_?|\w+_backward(_\w+)?)$"
    r"|_backward\d*$|Optimizer"
)
_TRAINING_RANGE = re.compile(r"\boptimi[sz]er|optim_step|\btrain(ing)?_step|zero_grad", re.IGNORECASE)
# Kernels of a backward pass or of an optimizer. A convolution's dgrad alone is a transposed convolution too.
_TRAINING_KERNEL = re.compile(
    r"wgrad|backward|(flash|fmha|attn|attention|norm|softmax)\w*_bwd|_bwd_(kernel|dq|dk)|grad_(input|weight|bias)"
    r"|GammaBeta|bwd_?weight|FusedAdam|FusedOptimizer|AdamFunctor|[aA]dam[wW]?_|multi_tensor_\w*(adam|sgd|lamb)",
    re.IGNORECASE,
)
_INFERENCE_NAME = re.compile(
    r"paged_attention|reshape_and_cache|flash_fwd_splitkv|kv_?cache|decode_attention|\b(prefill|decode|generate)\b"
    r"|execute_(model|context)|inference",
    re.IGNORECASE,
)
LONGEST_KERNEL_NAME = 2000


def find_work(trace: Trace) -> WorkKind:
    """Return training if a backward pass or an optimizer was seen, inference if only forward passes were.

    Autograd nodes, the number of a forward thread, ranges and kernels tell a backward pass. What is replayed
    from a graph shows by its kernels. Without operations, names must say that it is inference.
    """
    strings, ops = trace.strings, trace.ops
    if _any_named(strings, ops.name, BACKWARD, _TRAINING_OP) or (ops.forward_thread > 0).any():
        return "training"
    if _any_named(strings, trace.ranges.name, OPTIMIZER_STEP, BACKWARD_RANGE, _TRAINING_RANGE):
        return "training"
    kernels = [strings[name] for name in distinct(trace.work.name).tolist()]
    if any(_TRAINING_KERNEL.search(name, 0, LONGEST_KERNEL_NAME) for name in kernels):
        return "training"
    told = any(_INFERENCE_NAME.search(name, 0, LONGEST_KERNEL_NAME) for name in kernels)
    seen = len(ops.name) or told or _any_named(strings, trace.ranges.name, _INFERENCE_NAME)
    return "inference" if seen else "unknown"


def _any_named(strings: tuple[str, ...], names: Ids, *patterns: re.Pattern[str]) -> bool:
    return any(bool(named(strings, names, pattern).any()) for pattern in patterns)
