"""Two processes that train together over gloo, one of them late: run as a script, it writes a trace for each rank."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path


def train(rank: int, ranks: int, folder: Path, late_s: float) -> None:
    """Train under the profiler; the last rank is late to every step."""
    import torch
    from torch import distributed

    torch.manual_seed(0)
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder / 'meeting'}", rank=rank, world_size=ranks
    )
    model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
    parallel = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-4)
    batch = torch.randn(64, 256)

    def prepare() -> None:
        if rank == ranks - 1 and late_s:
            time.sleep(late_s)

    schedule = torch.profiler.schedule(wait=2, warmup=1, active=6)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, schedule=schedule, with_stack=True) as profiler:
        for _ in range(9):
            prepare()
            optimizer.zero_grad()
            parallel(batch).square().mean().backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(folder / f"rank{rank}.pt.trace.json"))
    distributed.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    train(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
