"""A compiled function that trains for a few steps: run as a script, it writes a trace.

Some steps have a size of their own, for which it is compiled again; its graph may break.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import torch

STEPS, USUAL, CALLS = 8, 16, 20


def main() -> None:
    """Train under the profiler, with what the second argument says as JSON."""
    settings = json.loads(sys.argv[2])
    torch.set_num_threads(1)
    layer = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    def model(x: Any) -> Any:
        y = layer(x)
        if settings["breaks"]:
            torch._dynamo.graph_break()
        return torch.relu(y) * 2

    compiled = torch.compile(model, backend="eager", dynamic=False)
    compiled(torch.randn(USUAL, 64)).sum().backward()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, with_stack=settings["stacks"]) as profiler:
        for number in range(STEPS):
            rows = settings["odd_sizes"].get(str(number), USUAL)
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                for _ in range(CALLS):
                    compiled(torch.randn(rows, 64)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
    profiler.export_chrome_trace(sys.argv[1])


if __name__ == "__main__":
    main()
