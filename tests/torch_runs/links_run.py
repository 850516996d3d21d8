"""One rank of a pipeline, or of an exchange of tokens, over gloo: run as a script, it writes a trace."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

WIDTH, ROWS, MICRO_BATCHES, STEPS = 256, 64, 4, 5


def run(step: Any, path: Path) -> None:
    """Run a few steps under the profiler."""
    import torch

    schedule = torch.profiler.schedule(wait=1, warmup=1, active=STEPS)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule, record_shapes=True) as profiler:
        for _ in range(STEPS + 2):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))


def pipeline(rank: int, ranks: int, slow: int, schedule: str) -> Any:
    """Return a step of a pipeline whose stage `slow` computes many times as long as the others."""
    import torch
    from torch import nn
    from torch.distributed import pipelining

    class Stage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            for _ in range(24 if rank == slow else 1):
                x = torch.relu(self.layer(x))
            return x

    stage = pipelining.PipelineStage(Stage(), rank, ranks, torch.device("cpu"))
    kinds = {"gpipe": pipelining.ScheduleGPipe, "1f1b": pipelining.Schedule1F1B}
    plan = kinds[schedule](stage, n_microbatches=MICRO_BATCHES, loss_fn=nn.MSELoss())
    batch = torch.randn(ROWS * MICRO_BATCHES, WIDTH)

    def step() -> None:
        if rank == 0:
            plan.step(batch)
        else:
            plan.step(**({"target": batch} if rank == ranks - 1 else {}))

    return step


def exchange(ranks: int, heavy: int) -> Any:
    """Return a step in which tokens go to experts and back; rank `heavy` gets three times as many, if any."""
    import torch
    from torch import distributed

    weight = torch.randn(WIDTH, WIDTH)
    sent = [ROWS * (3 if rank == heavy else 1) for rank in range(ranks)]

    def step() -> None:
        tokens = torch.randn(sum(sent), WIDTH)
        counts = torch.empty(ranks, dtype=torch.long)
        distributed.all_to_all_single(counts, torch.tensor(sent))
        own = torch.empty(int(counts.sum()), WIDTH)
        distributed.all_to_all_single(own, tokens, counts.tolist(), sent)
        for _ in range(8):
            own = own @ weight * 0.01
        distributed.all_to_all_single(torch.empty_like(tokens), own, sent, counts.tolist())

    return step


def main() -> None:
    """Take part as one rank: what to do, the planted rank, this rank, how many, where to write."""
    import torch
    from torch import distributed

    kind, planted, rank, ranks, folder = sys.argv[1], *map(int, sys.argv[2:5]), Path(sys.argv[5])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    meeting = f"file://{folder / 'meeting'}"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    step = exchange(ranks, planted) if kind == "exchange" else pipeline(rank, ranks, planted, kind)
    run(step, folder / f"rank{rank}.pt.trace.json")
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # gloo's threads may outlive the interpreter
