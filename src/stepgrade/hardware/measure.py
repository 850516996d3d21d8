"""Measure this machine: memory bandwidth as STREAM counts it, and matmul rates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from importlib import import_module
from typing import Any

from stepgrade.errors import NotMeasured, UnknownDevice
from stepgrade.hardware.catalogue import identify
from stepgrade.hardware.detect import OtherLoad, processor, usable_cores
from stepgrade.hardware.measured import Measurement, Rate, keep_measured, measured_for
from stepgrade.hardware.setup import CPU_KEY
from stepgrade.model import DeviceSeen
from stepgrade.model.notes import Note, Result
from stepgrade.statistics import median
from stepgrade.units import show_share

# Every array far larger than any last-level cache that two of them could share.
CPU_ARRAY_BYTES = 256 * 2**20
CPU_MATMUL_SIZES = (1024, 512, 256)
GPU_ARRAY_BYTES = 2**30
GPU_MATMUL_SIZES = (4096, 8192)
MATMULS_PER_RUN = 20
# A rate is measured until its three best runs agree to this, within so many runs and seconds.
SETTLED_SHARE = 0.03
LEAST_RUNS, MOST_RUNS = 5, 60
MOST_SECONDS = 2.0
# If other programs take more than this share of the processor, results are too low.
BUSY_SHARE = 0.10

Progress = Callable[[str], None]
Kernel = Callable[[], object]


class Measured(Result, frozen=True, kw_only=True):
    """A measurement, and the file it was saved to, if any."""

    NOTES = ("notes",)

    measurement: Measurement
    kept_in: str | None
    notes: tuple[Note, ...] = ()


def measure_here(progress: Progress, state: str | None = None, *, gpu: bool = True) -> Measured:
    """Measure the GPU if torch sees one, else the processor, and save the result."""
    return keep_best((measure_gpu(progress) if gpu else None) or measure_processor(progress), state)


def keep_best(measurement: Measurement, state: str | None = None) -> Measured:
    """Save a measurement, with notes on its quality.

    A measurement on a busy machine does not replace one on a quiet machine.
    """
    notes, earlier = [], measured_for(measurement.key, state)
    if is_busy(measurement):
        text = (
            f"the machine was busy: other programs took {show_share(measurement.others_share, 0)} of its "
            "processor, so the real rates are higher; measure again when it is idle"
        )
        notes.append(Note("busy", text))
    rates = [*measurement.tflops.values()]
    rates += [measurement.bandwidth_gb_s] if measurement.bandwidth_gb_s else []
    spread = max((rate.spread_share for rate in rates), default=0.0)
    if spread > SETTLED_SHARE:
        text = f"the best runs still differed by {show_share(spread, 0)} when the time was up"
        notes.append(Note("spread", text))
    if is_busy(measurement) and earlier is not None and not is_busy(earlier):
        text = f"not saved: the measurement of {earlier.date[:10]}, on a quiet machine, is kept"
        return Measured(measurement=measurement, kept_in=None, notes=(*notes, Note("not_kept", text)))
    return Measured(measurement=measurement, kept_in=keep_measured(measurement, state), notes=tuple(notes))


def is_busy(measurement: Measurement) -> bool:
    """Return whether other programs ran during the measurement."""
    return (measurement.others_share or 0.0) > BUSY_SHARE


def measure_processor(
    progress: Progress, *, array_bytes: int = CPU_ARRAY_BYTES, most_seconds: float = MOST_SECONDS
) -> Measurement:
    """Measure this processor: the best of copy, scale and add, and matmul by precision.

    Matmuls are torch's if it is installed, since training uses them.
    """
    try:
        numpy = import_module("numpy")
    except ImportError as error:
        hint = "install numpy to measure the processor"
        raise NotMeasured("numpy is not installed", hint=hint) from error
    load = OtherLoad()
    rates = {}
    for name, kernel, moved_bytes in _stream_kernels(numpy, array_bytes):
        progress(f"memory, {name}")
        rates[name] = _rate(kernel, moved_bytes / 1e9, most_seconds)
    cores, tflops = usable_cores(), {}
    library, dtypes = numpy, {"fp32": "float32", "fp64": "float64"}
    with ExitStack() as stack:
        with suppress(ImportError):
            library = torch = import_module("torch")
            dtypes = {"fp32": "float32", "bf16": "bfloat16", "fp64": "float64"}
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(cores)
            stack.enter_context(torch.no_grad())

        def matmul(dtype: str, size: int) -> Kernel:
            kind = getattr(library, dtypes[dtype])
            a, b, c = (library.ones((size, size), dtype=kind) for _ in range(3))
            return partial(library.matmul, a, b, out=c)

        smallest = CPU_MATMUL_SIZES[-1]
        for dtype in dtypes:
            progress(f"matmul, {dtype}")
            # The largest size whose product is quick; some precisions are slow everywhere.
            kernel = matmul(dtype, smallest)
            kernel()
            start = time.perf_counter()
            kernel()
            took = time.perf_counter() - start
            quick = [size for size in CPU_MATMUL_SIZES if took * (size / smallest) ** 3 < 0.2]
            size = (*quick, smallest)[0]
            tflops[dtype] = _rate(matmul(dtype, size), 2 * size**3 / 1e12, most_seconds)
    return Measurement(
        key=CPU_KEY,
        name=processor().name,
        date=_now(),
        method=f"{library.__name__} {library.__version__}, {cores} threads, STREAM copy, scale and add",
        bandwidth_gb_s=max(rates.values(), key=lambda rate: rate.best),
        tflops=tflops,
        cores=cores,
        others_share=load.share(),
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
    load = OtherLoad()
    source = torch.empty(GPU_ARRAY_BYTES, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        torch.cuda.synchronize()

    bandwidth = _rate(copy, 2 * GPU_ARRAY_BYTES / 1e9, MOST_SECONDS)

    def matmul_rate(kind: Any, size: int) -> Rate:
        a, b = (torch.randn(size, size, device="cuda").to(kind) for _ in range(2))
        c = torch.empty_like(a)

        def multiply() -> None:
            for _ in range(MATMULS_PER_RUN):
                torch.matmul(a, b, out=c)
            torch.cuda.synchronize()

        return _rate(multiply, MATMULS_PER_RUN * 2 * size**3 / 1e12, MOST_SECONDS)

    tflops = {}
    for dtype, kind in (("bf16", torch.bfloat16), ("fp16", torch.float16), ("fp32", torch.float32)):
        progress(f"GPU matmul, {dtype}")
        rates = (matmul_rate(kind, size) for size in GPU_MATMUL_SIZES)
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
        others_share=load.share(),
    )


def _stream_kernels(numpy: Any, array_bytes: int) -> Iterator[tuple[str, Kernel, int]]:
    """Yield copy, scale and add over arrays split by core; ufuncs release the GIL."""
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


def _rate(kernel: Kernel, work: float, most_seconds: float) -> Rate:
    """Return the work per second, after a warm-up: runs repeat until the best three agree."""
    kernel()
    rates: list[float] = []
    began = time.perf_counter()
    while True:
        start = time.perf_counter()
        kernel()
        rates.append(work / (time.perf_counter() - start))
        best = sorted(rates, reverse=True)[:3]
        apart = (best[0] - best[-1]) / best[0]
        is_over = len(rates) >= MOST_RUNS or time.perf_counter() - began > most_seconds
        if len(rates) >= LEAST_RUNS and (apart <= SETTLED_SHARE or is_over):
            return Rate(best=best[0], median=median(rates), spread_share=apart, runs=len(rates))


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
