"""Generate traces/h100_ddp.json.gz: rank 0 of a small GPT on eight H100, as torch.profiler writes it.

No GPU is needed: the events are computed. Attention is written out by hand, the optimizer updates one tensor
at a time, and each layer waits for the all-reduce of the layer before it. From the root:

python -m examples.make_gpu_trace
"""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.faulty_runs import US, Faults, make_faulty_trace
from tests.kineto_text import kineto_text

PATH = Path(__file__).parent / "traces" / "h100_ddp.json.gz"


def make() -> bytes:
    """Return the trace as JSON, the same bytes each time."""
    faults = Faults(
        attention=2.0, single_tensor=40, reduce_ns=900 * US, reduce_at_end=True, world_size=8, rank=0
    )
    return kineto_text(make_faulty_trace(faults))


if __name__ == "__main__":
    PATH.write_bytes(gzip.compress(make(), mtime=0))
