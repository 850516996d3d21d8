"""The inputs of the golden JSON: one file of every kind, generated, so that nothing of anybody else's is bundled.

python -m tests.golden_json.inputs FOLDER      write them, to try a command by hand
"""

from __future__ import annotations

import json
import random
import shutil
import sys
from pathlib import Path

from tests.builders import make_step_profile
from tests.cluster import Planned, write_ranks
from tests.conftest import ROOT
from tests.faulty_runs import US, Faults, make_faulty_trace
from tests.fuzz import samples
from tests.kineto_text import kineto_text
from tests.readers.logs.generated import DIALECTS
from tests.readers.nsys.export import two_ranks
from tests.readers.rocprof.files import write_csv, write_json, write_rocpd, write_rpd
from tests.readers.test_flight_recorder import call, waiting, write
from tests.readers.test_memory_timeline import EVENTS
from tests.trace_builder import Run, make_trace

WELL = Faults(reduce_ns=80 * US, world_size=2, rank=0)
FAULTY = Faults(
    loader_ns=3_000 * US, workers=False, pageable_ns=150 * US, reads=3, tiny=12, fp32=3.0, attention=2.5,
    single_tensor=20, reduce_ns=400 * US, reduce_at_end=True, slow_layer=1.8, stall_ns=300 * US, layout=0.2,
    copies=0.1, elementwise=0.3, world_size=2, rank=0,
)  # fmt: skip


def write_inputs(folder: Path) -> None:
    """Write every input into the folder, the same bytes each time."""
    _write_traces(folder)
    _write_recordings(folder)
    _write_logs(folder)
    _write_other_profilers(folder)
    for name in ("llama-3-8b.json", "qwen2.5-coder-1.5b.json"):
        shutil.copy(ROOT / "examples" / "models" / name, folder)


def _write_traces(folder: Path) -> None:
    device = Run(steps=6, layers=3, sync=True, reduce_ns=40_000, rank=0, world_size=2)
    for name, content in {
        "device.json": kineto_text(make_trace(device)),
        "graph.json": kineto_text(make_trace(Run(steps=5, graph=True, modules=False))),
        "inference.json": kineto_text(make_trace(Run(steps=5, optimizer=False, marks=False, shapes=False))),
        "host.json": samples.traces()[1],
        "three_ranks.json": samples.traces()[4],
        "everything.json": samples.traces()[-1],
        "well.json": kineto_text(make_faulty_trace(WELL)),
        "faulty.json": kineto_text(make_faulty_trace(FAULTY)),
    }.items():
        (folder / name).write_bytes(content)
    write_ranks(folder / "straggler", Planned(slow_rank=3))
    write_ranks(folder / "slow_link", Planned(slow_link=0))
    for name in ("gpt_naive", "gpt_fused"):
        shutil.copy(ROOT / "examples" / "traces" / f"{name}.json.gz", folder)


def _write_recordings(folder: Path) -> None:
    step, recorded, apr, parity, sampled = samples.profiles()
    for name, content in {
        "step_profile.json": step,
        "recorded.json": recorded,
        "apr.json": apr,
        "sampled.json": sampled,
        "parity.json": parity,
        "journal.jsonl": samples.journal(),
        "card.json": samples.card(),
    }.items():
        (folder / name).write_bytes(content)
    for name in ("gpt_naive", "gpt_fused", "parity_naive", "parity_fused"):
        shutil.copy(ROOT / "examples" / "runs" / f"{name}.json", folder / f"run_{name}.json")
    for number in range(8):
        _write_samples(folder / f"earlier{number}.json", seed=number, slower=0.0)
    _write_samples(folder / "same.json", seed=50, slower=0.0)
    _write_samples(folder / "slower.json", seed=51, slower=0.12)


def _write_samples(path: Path, *, seed: int, slower: float) -> None:
    """Write a step profile with forty step times; what makes a slower one slow is its attention."""
    chance = random.Random(seed)
    times = [100.0 * (1.0 + slower) * (1.0 + chance.gauss(0.0, 0.005)) for _ in range(40)]
    ops = {"gemm": 1200.0, "attention": 400.0 + 4000.0 * slower}
    path.write_text(make_step_profile(steps=40, step_ms=sum(times) / 40, samples_ms=times, ops=ops))


def _write_logs(folder: Path) -> None:
    for dialect, content in zip(DIALECTS, samples.training_logs(), strict=True):
        (folder / f"{dialect}.log").write_bytes(content)
    names = ("metrics.csv", "events.out.tfevents.1", "trainer_state.json", "run.wandb", "mlflow.db")
    for name, content in zip(names, samples.metrics(), strict=True):
        (folder / name).write_bytes(content)
    (folder / "compile.log").write_bytes(samples.torch_traces()[0])


def _write_other_profilers(folder: Path) -> None:
    for name, content in {
        "snapshot.pickle": samples.snapshots()[0],
        "xla_cpu.xplane.pb": samples.xplane()[0],
        "xla_gpu.xplane.pb": samples.xplane()[1],
        "xla_tpu.xplane.pb": samples.xplane()[2],
        "xla.trace.json": samples.SAMPLES["xla_trace"]()[1],
    }.items():
        (folder / name).write_bytes(content)
    (folder / "timeline.json").write_text(json.dumps(EVENTS))
    (folder / "hang").mkdir()
    others = [call(1), call(2), waiting(3)]
    write(folder / "hang", [others, others, [call(1), call(2)], others])
    two_ranks(folder / "nsys.sqlite")
    write_json(folder / "rocprof.json")
    (folder / "rocprof_csv").mkdir()
    write_csv(folder / "rocprof_csv")
    write_rocpd(folder / "rocpd.db")
    write_rpd(folder / "run.rpd")


if __name__ == "__main__":
    made = Path(sys.argv[1])
    made.mkdir(parents=True)
    write_inputs(made)
