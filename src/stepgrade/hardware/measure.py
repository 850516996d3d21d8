"""What this machine really reaches: memory bandwidth as STREAM counts it, and matmul rates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

from stepgrade.errors import NotMeasured, UnknownDevice
from stepgrade.hardware.detect import processor, usable_cores
from stepgrade.hardware.identify import identify
from stepgrade.hardware.measured import Measurement, Rate, keep_measured
from stepgrade.hardware.setup import CPU_KEY
from stepgrade.model import DeviceSeen
from stepgrade.model.notes import Result
from stepgrade.statistics import median

# Every array far larger than any last-level cache that two of them could share.
CPU_ARRAY_BYTES = 256 * 2**20
CPU_MATMUL_SIZE = 1024
GPU_ARRAY_BYTES = 2**30
GPU_MATMUL_SIZES = (4096, 8192)
RUNS = 7
MATMULS_PER_RUN = 20

Progress = Callable[[str], None]
Kernel = Callable[[], object]


class Measured(Result, frozen=True, kw_only=True):
    """A measurement, and the file that keeps it."""

    measurement: Measurement
    kept_in: str


def measure_here(progress: Progress, state: str | None = None) -> Measured:
    """Measure the GPU when torch sees one, else the processor, and keep the result."""
    measurement = measure_gpu(progress) or measure_processor(progress)
    return Measured(measurement=measurement, kept_in=keep_measured(measurement, state))


def measure_processor(
    progress: Progress, *, array_bytes: int = CPU_ARRAY_BYTES, runs: int = RUNS
) -> Measurement:
    """Measure this processor with numpy: the best of copy, scale and add, and fp32 and fp64 matmul."""
    try:
        numpy = import_module("numpy")
    except ImportError as error:
        hint = "install numpy to measure the processor"
        raise NotMeasured("numpy is not installed", hint=hint) from error
    rates = {}
    for name, kernel, moved_bytes in _stream_kernels(numpy, array_bytes):
        progress(f"memory, {name}")
        rates[name] = _rate(kernel, moved_bytes / 1e9, runs)
    tflops = {}
    for dtype in ("fp32", "fp64"):
        progress(f"matmul, {dtype}")
        tflops[dtype] = _numpy_matmul(numpy, dtype, runs)
    return Measurement(
        key=CPU_KEY,
        name=processor().name,
        date=_now(),
        method=f"numpy {numpy.__version__}, {usable_cores()} threads, STREAM copy, scale and add",
        bandwidth_gb_s=max(rates.values(), key=lambda rate: rate.best),
        tflops=tflops,
    )


def measure_gpu(progress: Progress) -> Measurement | None:
    """Measure the first GPU through torch: a copy of 1 GiB, and matmuls by precision; None without one."""
    try:
        torch = import_module("torch")
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    progress("GPU memory, copy")
    bandwidth = _torch_copy(torch, RUNS)
    tflops = {}
    for dtype, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        progress(f"GPU matmul, {dtype}")
        rates = (_torch_matmul(torch, kind, size, RUNS) for size in GPU_MATMUL_SIZES)
        tflops[dtype] = max(rates, key=lambda rate: rate.best)
    known = torch.cuda.get_device_properties(0)
    seen = DeviceSeen(name=known.name, memory_bytes=known.total_memory, sm_count=known.multi_processor_count)
    try:
        key = identify(seen).key
    except UnknownDevice:
        key = str(known.name)
    return Measurement(
        key=key,
        name=known.name,
        date=_now(),
        method=f"torch {torch.__version__}",
        bandwidth_gb_s=bandwidth,
        tflops=tflops,
    )


def _stream_kernels(numpy: Any, array_bytes: int) -> Iterator[tuple[str, Kernel, int]]:
    """Yield copy, scale and add over arrays cut into one piece per core; ufuncs let the others run."""
    cores = usable_cores()
    count = min(array_bytes, (processor().memory_bytes or array_bytes * 8) // 8) // 8
    a, b, c = (numpy.ones(count) for _ in range(3))
    pieces = list(zip(*(numpy.array_split(array, cores) for array in (a, b, c)), strict=True))
    pool = ThreadPoolExecutor(cores)

    def on_all(work: Callable[[Any, Any, Any], Any]) -> Kernel:
        def run() -> None:
            list(pool.map(lambda piece: work(*piece), pieces))

        return run

    yield "copy", on_all(lambda x, y, _: numpy.copyto(y, x)), 2 * 8 * count
    yield "scale", on_all(lambda x, y, _: numpy.multiply(x, 3.0, out=y)), 2 * 8 * count
    yield "add", on_all(lambda x, y, z: numpy.add(x, y, out=z)), 3 * 8 * count
    pool.shutdown()


def _numpy_matmul(numpy: Any, dtype: str, runs: int) -> Rate:
    kind = numpy.float32 if dtype == "fp32" else numpy.float64
    a, b, c = (numpy.ones((CPU_MATMUL_SIZE, CPU_MATMUL_SIZE), dtype=kind) for _ in range(3))
    return _rate(lambda: numpy.matmul(a, b, out=c), 2 * CPU_MATMUL_SIZE**3 / 1e12, runs)


def _torch_copy(torch: Any, runs: int) -> Rate:
    source = torch.empty(GPU_ARRAY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    return _rate(copy, 2 * GPU_ARRAY_BYTES / 1e9, runs)


def _torch_matmul(torch: Any, kind: Any, size: int, runs: int) -> Rate:
    a, b = (torch.randn(size, size, device="cuda").to(kind) for _ in range(2))
    c = torch.empty_like(a)

    def multiply() -> None:
        for _ in range(MATMULS_PER_RUN):
            torch.matmul(a, b, out=c)
        torch.cuda.synchronize()

    return _rate(multiply, MATMULS_PER_RUN * 2 * size**3 / 1e12, runs)


def _rate(kernel: Kernel, work: float, runs: int) -> Rate:
    """Return the work per second over `runs` runs, after one that warms up."""
    kernel()
    rates = []
    for _ in range(runs):
        start = time.perf_counter()
        kernel()
        rates.append(work / (time.perf_counter() - start))
    middle = median(rates)
    return Rate(best=max(rates), median=middle, spread_share=(max(rates) - min(rates)) / middle, runs=runs)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
