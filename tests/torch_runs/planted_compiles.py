"""Functions that are compiled again, or whose graphs break, each for one reason: run as a script.

With TORCH_TRACE set, torch logs what happens. A line of standard output for each planted fault says what the
log must show: the function, how often it is compiled again and what its guard speaks of, or the line of the break.
"""

from __future__ import annotations

import inspect
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor.cudagraph_trees import CompilationMode, dynamo_timed_cudagraph

SCALE = 1


def size(x: Any) -> Any:
    return x * 2


def width(left: Any, other: Any) -> Any:
    return left.sum() + other


def dtype(x: Any) -> Any:
    return x + 1


def number(x: Any, factor: Any) -> Any:
    return x * factor


def text(x: Any, how: Any) -> Any:
    return x.sum() if how == "sum" else x.mean()


def flag(x: Any, deep: Any) -> Any:
    return x.relu() if deep else x


def length(parts: Any) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


def missing(x: Any, mask: Any) -> Any:
    return x + 1 if mask is None else x * mask


def gradient(x: Any) -> Any:
    return x.exp()


def strides(x: Any) -> Any:
    return x + x


def dimensions(x: Any) -> Any:
    return x.abs()


def world(x: Any) -> Any:
    return x * SCALE


def keys(table: Any) -> Any:
    return sum(table.values())


def grad_mode(x: Any) -> Any:
    return x.sin()


def kinds(value: Any, x: Any) -> Any:
    return x + value


class Block(torch.nn.Module):
    """A module that does not do the same in training."""

    def forward(self, x: Any) -> Any:
        return x * 2 if self.training else x


def asked(x: Any) -> Any:
    y = x + 1
    torch._dynamo.graph_break()  # breaks
    return y * 2


def printed(x: Any) -> Any:
    y = x + 1
    print("loss", file=sys.stderr)  # breaks
    return y * 2


def item(x: Any) -> Any:
    y = x.sum()
    value = y.item()  # breaks
    return x * value


def branch(x: Any) -> Any:
    y = x * 2
    if y.sum() > 0:  # breaks
        return y + 1
    return y - 1


def timed(x: Any) -> Any:
    y = x * 2
    time.sleep(0)  # breaks
    return y + 1


def opened(x: Any) -> Any:
    y = x * 2
    handle = open("/dev/null")  # breaks  # noqa: SIM115, PTH123
    handle.close()
    return y + 1


def inner(y: Any) -> Any:
    torch._dynamo.graph_break()  # breaks
    return y + 1


def nested(x: Any) -> Any:
    return inner(x * 2) * 3


def listed(x: Any) -> Any:
    y = x * 2
    values = y.tolist()  # breaks
    return y * len(values)


def walked(x: Any) -> Any:
    y = x * 2
    count = len(y.nonzero())  # breaks
    return y * count


@torch._dynamo.disable
def library(y: Any) -> Any:
    return y + 1


def disabled(x: Any) -> Any:
    y = x * 2
    y = library(y)  # breaks
    return y * 3


def a(*sizes: int) -> Any:
    return torch.ones(*sizes)


# function, its calls, how often it is compiled again, what the guard speaks of
RECOMPILED: tuple[tuple[Callable[..., Any], list[tuple[Any, ...]], int, str], ...] = (
    (size, [(a(3),), (a(4),), (a(5),), (a(4),)], 2, "'x' size mismatch"),
    (width, [(a(3), a(2)), (a(3), a(7))], 1, "'other' size mismatch"),
    (dtype, [(a(3),), (a(3).double(),), (a(3).half(),)], 2, "'x' dtype mismatch"),
    (number, [(a(3), 2), (a(3), 3), (a(3), 4)], 2, "factor"),
    (text, [(a(3), "sum"), (a(3), "mean")], 1, "how"),
    (flag, [(a(3), True), (a(3), False)], 1, "deep"),
    (length, [([a(3)] * 2,), ([a(3)] * 3,)], 1, "parts"),
    (missing, [(a(3), None), (a(3), a(3))], 1, "mask"),
    (gradient, [(a(3),), (a(3).requires_grad_(),)], 1, "'x' requires_grad mismatch"),
    (strides, [(a(3, 4),), (a(4, 3).t(),)], 1, "'x' stride mismatch"),
    (dimensions, [(a(3),), (a(3, 3),)], 1, "'x' rank mismatch"),
    (keys, [({"a": a(2)},), ({"a": a(2), "b": a(2)},)], 1, "table"),
    (kinds, [(1, a(3)), (a(3), a(3))], 1, "value"),
)
BROKEN = (asked, printed, item, branch, timed, opened, nested, listed, walked, disabled)


def line_of_break(function: Callable[..., Any]) -> int:
    """Return the line that is marked in the function, or in the one that it calls."""
    lines, first = inspect.getsourcelines(inner if function is nested else function)
    return first + next(place for place, line in enumerate(lines) if "# breaks" in line)


def tell(**known: object) -> None:
    """Print what the log must show."""
    sys.stdout.write(json.dumps(known) + "\n")


def main() -> None:
    """Plant the faults one after the other."""
    global SCALE  # noqa: PLW0603  one that changes is a fault
    torch.set_num_threads(1)
    for function, calls, again, guard in RECOMPILED:
        compiled = torch.compile(function, backend="eager", dynamic=False)
        for call in calls:
            compiled(*call)
        tell(function=function.__name__, again=again, guard=guard)
    compiled = torch.compile(world, backend="eager")
    for scale in (1, 5):
        SCALE = scale
        compiled(a(3))
    tell(function="world", again=1, guard="SCALE")
    compiled = torch.compile(grad_mode, backend="eager")
    compiled(a(3))
    with torch.no_grad():
        compiled(a(3))
    tell(function="grad_mode", again=1, guard="grad_mode")
    block = Block()
    compiled = torch.compile(block, backend="eager")
    for mode in (True, False):
        block.train(mode)
        compiled(a(3))
    tell(function="forward", again=1, guard="training")
    # A CUDA graph needs a device, but what is written when one is recorded does not.
    for path in (0, 0, 0, 1):
        compiled_by = torch._guards.CompileId(frame_id=900, frame_compile_id=path)
        with dynamo_timed_cudagraph("CUDAGraphNode.record", compiled_by, CompilationMode.FORWARD):
            pass
    tell(cudagraph_records=4, cudagraph_rerecords=2)
    for broken in BROKEN:
        torch.compile(broken, backend="eager")(a(3))
        tell(function="inner" if broken is nested else broken.__name__, breaks_at=line_of_break(broken))


if __name__ == "__main__":
    main()
