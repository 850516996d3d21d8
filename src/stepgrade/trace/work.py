"""What the steps of a trace hold: training, inference, or neither can be told."""

from __future__ import annotations

import re

from stepgrade.model.columns import distinct
from stepgrade.model.events import Ids, Longs
from stepgrade.model.profile import WorkKind
from stepgrade.naming.torch_names import BACKWARD, BACKWARD_RANGE, OPTIMIZER_STEP, Mask, named
from stepgrade.timeline.compiled import in_direction
from stepgrade.timeline.timeline import Timeline

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


def find_work(timeline: Timeline) -> WorkKind:
    """Return training if a backward pass or an optimizer was seen, inference if only forward passes were.

    Autograd nodes, the number of a forward thread, ranges and kernels tell a backward pass. What is replayed
    from a graph shows by its kernels. Without operations, names must say that it is inference. What was done
    before the first step and after the last, as a warm-up is, does not count.
    """
    trace, steps = timeline.trace, timeline.steps
    first, last = int(steps.start_ns.min()), int(steps.end_ns.max())

    def within(start_ns: Longs, dur_ns: Longs) -> Mask:
        return (start_ns < last) & (start_ns + dur_ns > first)

    strings, ops, work = trace.strings, trace.ops, trace.work
    seen_ops = within(ops.start_ns, ops.dur_ns)
    if (in_direction(trace, "backward", "optimizer") & seen_ops).any():
        return "training"
    if _any_named(strings, ops.name[seen_ops], BACKWARD, _TRAINING_OP):
        return "training"
    if (ops.forward_thread[seen_ops] > 0).any():
        return "training"
    ranges = trace.ranges.name[within(trace.ranges.start_ns, trace.ranges.dur_ns)]
    if _any_named(strings, ranges, OPTIMIZER_STEP, BACKWARD_RANGE, _TRAINING_RANGE):
        return "training"
    launched = timeline.attribution.launch_ns
    in_steps = (launched < 0) | ((launched >= first) & (launched < last))
    kernels = [strings[name] for name in distinct(work.name[in_steps]).tolist()]
    if any(_TRAINING_KERNEL.search(name, 0, LONGEST_KERNEL_NAME) for name in kernels):
        return "training"
    told = any(_INFERENCE_NAME.search(name, 0, LONGEST_KERNEL_NAME) for name in kernels)
    seen = seen_ops.any() or told or _any_named(strings, ranges, _INFERENCE_NAME)
    return "inference" if seen else "unknown"


def _any_named(strings: tuple[str, ...], names: Ids, *patterns: re.Pattern[str]) -> bool:
    return any(bool(named(strings, names, pattern).any()) for pattern in patterns)
