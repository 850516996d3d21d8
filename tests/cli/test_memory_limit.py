"""Small files that decode to much more than they are: refused by the budget of memory, in words that name it."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import sqlite3
import subprocess
import sys
import zlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import TooLarge
from stepgrade.memory import check_json, default_limit, json_bytes
from stepgrade.store import NewRun, open_history
from tests.builders import make_profile, make_step_profile
from tests.fuzz.samples import mlflow_database, wandb_file
from tests.readers.logs.generated import event, version
from tests.readers.nsys.export import Export
from tests.readers.rocprof.files import write_csv
from tests.readers.snapshot.snapshots import train
from tests.readers.xplane.files import PlaneFile

LIMIT = 128 << 20
# What Python, its libraries and the text itself take beside what is decoded.
BESIDE = 512 << 20
RUN = """
import sys
from stepgrade.cli import dispatch
code = dispatch.run(sys.argv[1:], limits_memory=True)
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print("\\nPEAK", code, int(peak) * 1024, file=sys.stderr)
"""


def repeated(head: bytes, part: bytes, tail: bytes, size: int = 24 << 20) -> bytes:
    """Return a gzipped text of about `size` bytes, most of them `part` again and again."""
    squeeze = zlib.compressobj(1, wbits=31)
    block = part * (max(1, (1 << 20) // len(part)))
    pieces = [squeeze.compress(head)]
    pieces += [squeeze.compress(block) for _ in range(size // len(block))]
    return b"".join((*pieces, squeeze.compress(tail), squeeze.flush()))


EVENT = b',{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1,"tid":1}'
BOMBS = {
    "samples": lambda: repeated(b'{"avg_step_ms":1,"steps":1,"samples_ms":[0', b",0", b"]}"),
    "layers": lambda: repeated(b'{"avg_step_ms":1,"steps":1,"per_layer":[{"layer":0}', b',{"layer":0}', b"]}"),
    "keys": lambda: b'{"avg_step_ms":1' + b"".join(b',"%x":0' % n for n in range(400_000)) + b"}",
    "operations": lambda: b'{"avg_step_ms":1,"ops":{"":1' + b"".join(b',"%x":0' % n for n in range(400_000)) + b"}}",
    "configuration of a recording": lambda: repeated(b'{"avg_step_ms":1,"stepgrade":{"config":{"a":[[]', b",[]", b"]}}}"),
    "notes": lambda: repeated(b'{"avg_step_ms":1,"stepgrade":{"notes":[""', b',""', b"]}}"),
    "a scorecard": lambda: repeated(b'{"grade":"A","efficiency":1,"bottleneck":"x","operations":[{}', b",{}", b"]}"),
    "a quoted log": lambda: repeated(b'{"a":"\\"_profiler\\"","b":[0', b',"a"', b"]}"),
    "a journal's samples": lambda: b'{"_recording":1}\n{"steady":{"steps":1,"wall_ms":1,"samples_ms":[0' + b",0" * 5_000_000 + b"]}}\n",
    "a journal's lines": lambda: repeated(b'{"_recording":1}\n', b'{"steady":{"steps":1,"wall_ms":1,"samples_ms":[' + b"1," * 50 + b"1]}}\n", b""),
    "events": lambda: repeated(b'{"schemaVersion":1,"traceEvents":[' + EVENT[1:], EVENT, b"]}", 60 << 20),
    "names of events": lambda: b'{"schemaVersion":1,"traceEvents":[' + EVENT[1:] + b"".join(b',{"ph":"X","cat":"cpu_op","name":"%x","ts":1,"dur":1}' % n for n in range(200_000)) + b"]}",
}  # fmt: skip


def kernels_of_nsight(place: Path) -> bytes:
    """Return an export of more kernels than fit."""
    made = Export(place)
    name = made.string("kernel")
    made.connection.executemany(
        "insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, 0, 7, ?, 1, ?, ?)",
        ((n * 10, n * 10 + 5, n, name, name) for n in range(3_000_000)),
    )
    made.connection.commit()
    made.connection.close()
    return place.read_bytes()


def names_of_xla() -> bytes:
    """Return a profile of more names than fit."""
    plane = PlaneFile("/device:GPU:0")
    line = plane.line("Stream #1")
    for n in range(400_000):
        plane.event(line, f"kernel {n:x}", n * 10, 5, flops=3)
    return plane.encoded()


def entries_of_a_snapshot() -> bytes:
    """Return a snapshot in which some entries are listed again and again, two bytes for each."""
    value = train(steps=3).value()
    value["device_traces"] = [value["device_traces"][0] * 20_000]
    return pickle.dumps(value, 4)


def steps_of_mlflow(place: Path) -> bytes:
    """Return a database with more steps than fit."""
    place.write_bytes(mlflow_database())
    with closing(sqlite3.connect(place)) as file, file:
        steps = ((1_700_000_000_000 + n, n) for n in range(700_000))
        file.executemany("insert into metrics values ('loss', 2.5, ?, 'a', ?, 0)", steps)
    return place.read_bytes()


def rows_of_rocprof(place: Path) -> bytes:
    """Return a table of ROCm's with more kernels than fit, gzipped."""
    place.mkdir()
    head, row, *_ = write_csv(place, 3).read_bytes().split(b"\n")
    return repeated(head + b"\n", row + b"\n", b"", 60 << 20)


XLA_EVENT = b',{"ph":"X","pid":1,"tid":1,"ts":1,"dur":1,"name":"f","args":{"hlo_op":"x","hlo_module":"m"}}'
XLA_HEAD = b'{"metadata":{"highres-ticks":true},"traceEvents":[{"ph":"M","pid":1,"name":"process_name","args":{"name":"/device:GPU:0"}}'
BINARY_BOMBS: dict[str, Callable[[Path], bytes]] = {
    "kernels of Nsight": kernels_of_nsight,
    "names of XLA": lambda _: names_of_xla(),
    "entries of a snapshot": lambda _: entries_of_a_snapshot(),
    "steps of MLflow": steps_of_mlflow,
    "rows of ROCm's table": rows_of_rocprof,
    "records of a trainer": lambda _: repeated(b'{"log_history":[{"step":1}', b',{"step":1}', b"]}"),
    "events of XLA as text": lambda _: repeated(XLA_HEAD, XLA_EVENT, b"]}", 100 << 20),
}
STREAMED = {
    "step lines of a log": lambda: repeated(b"", b"step: 5  loss: 8.1  memory: 0.3GiB(0.4%)  tps: 100  tflops: 1.0  mfu: 1.0%\n", b"", 24 << 20),
    "one line of a log": lambda: repeated(b"step: 1  loss: ", b"1", b"\nstep: 2  loss: 8.1  tps: 100\n", 200 << 20),
    "scalars of TensorBoard": lambda: gzip.compress(version() + event(1, 1e9, "train/loss", 2.0) * 40_000, 1),
    "records of W&B": lambda: gzip.compress(wandb_file() + wandb_file()[7:] * 300, 1),
    "rows of a table": lambda: repeated(b"step,train/loss,step_time\n", b"7,1.0,0.5\n", b"", 6 << 20),
}  # fmt: skip


def run(tmp_path: Path, *words: str) -> tuple[int, int, str]:
    """Run a command in a process of its own; return its exit code, its largest memory and what it said."""
    ran = subprocess.run(
        [sys.executable, "-c", RUN, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "PEAK" in ran.stderr, ran.stderr[-2000:]
    said, _, figures = ran.stderr.rpartition("\nPEAK ")
    code, peak = map(int, figures.split())
    return code, peak, said


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process took")
@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused_within_the_limit(bomb: str, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(BOMBS[bomb]())
    code, peak, said = run(tmp_path, "score", "bomb", "--max-memory", str(LIMIT))
    assert code == 2, said
    assert peak < LIMIT + BESIDE, f"{peak >> 20} MiB"
    assert "the limit is 128.0 MiB" in said, said
    assert "--max-memory SIZE" in said


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process took")
@pytest.mark.parametrize("bomb", BINARY_BOMBS)
def test_bombs_of_other_profilers_are_refused_within_the_limit(bomb: str, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(BINARY_BOMBS[bomb](tmp_path / "made"))
    code, peak, said = run(tmp_path, "score", "bomb", "--max-memory", str(LIMIT))
    assert code == 2, said
    assert peak < LIMIT + BESIDE, f"{peak >> 20} MiB"
    assert "--max-memory SIZE" in said


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process took")
@pytest.mark.parametrize("bomb", STREAMED)
def test_what_is_streamed_takes_no_more_for_more(bomb: str, tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(STREAMED[bomb]())
    code, peak, said = run(tmp_path, "score", "bomb", "--max-memory", str(LIMIT))
    assert code in (0, 2), said
    assert peak < LIMIT, f"{peak >> 20} MiB"


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process took")
def test_a_directory_of_mlflow_keeps_to_the_limit(tmp_path: Path) -> None:
    metrics = tmp_path / "mlruns" / "1" / "a" / "metrics"
    metrics.mkdir(parents=True)
    (metrics.parent / "meta.yaml").write_text("status: 3\n")
    (metrics / "loss").write_bytes(b"".join(b"%d 2.5 %d\n" % (n, n) for n in range(400_000)))
    code, peak, said = run(tmp_path, "score", "mlruns", "--max-memory", str(LIMIT))
    assert (code, "the limit is 128.0 MiB" in said) == (2, True), said
    assert peak < LIMIT + BESIDE, f"{peak >> 20} MiB"
    with (metrics / "loss").open("wb") as file:  # one line, of which the disk holds nothing
        file.truncate(3 << 30)
    code, peak, said = run(tmp_path, "score", "mlruns", "--max-memory", str(LIMIT), "--max-bytes", "300M")
    assert (code, "--max-bytes SIZE" in said) == (2, True), said
    assert peak < LIMIT


def test_pipes_and_devices_in_a_directory_are_not_waited_for(tmp_path: Path) -> None:
    metrics = tmp_path / "mlruns" / "1" / "a" / "metrics"
    params = metrics.parent / "params"
    metrics.mkdir(parents=True)
    params.mkdir()
    (metrics.parent / "meta.yaml").write_text("status: 3\n")
    began = 1_700_000_000_000  # milliseconds since the epoch, as MLflow writes them
    (metrics / "loss").write_bytes(b"".join(b"%d 2.5 %d\n" % (began + n * 500, n) for n in range(1, 60)))
    for name in ("step_time", "tokens_per_sec"):
        (metrics / name).symlink_to("/dev/zero")
    os.mkfifo(metrics / "samples_per_sec")
    os.mkfifo(params / "batch_size")
    assert sg.load(tmp_path / "mlruns").mean_step_ms == pytest.approx(500.0)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process took")
def test_a_blank_journal_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(
        repeated(b'{"_recording":1}\n', b"\n", b'{"steady":{"steps":2,"wall_ms":9}}', 120 << 20)
    )
    code, peak, said = run(tmp_path, "score", "bomb", "--max-memory", str(LIMIT))
    assert code == 0, said
    assert peak < LIMIT


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells how much memory a process took")
def test_inflated_cards_of_a_history(tmp_path: Path) -> None:
    """A dozen cards of 30 MB each in a few hundred kilobytes: they are passed over, and the gate says so."""
    place = tmp_path / "h.db"
    card = sg.score(make_profile())
    with open_history(str(place)) as store:
        store.add_all(NewRun(card=card, branch="main") for _ in range(12))
        text = json.loads(card.to_json())
        body = (
            json.dumps({**text, "x": []}).encode().replace(b'"x": []', b'"x": [' + b"[]," * 9_000_000 + b"0]")
        )
        store.database.execute("update stepgrade_card set body = ?", (zlib.compress(body, 1),))
    assert place.stat().st_size < 2 << 20
    (tmp_path / "run.json").write_text(make_step_profile())
    words = (
        "gate",
        "run.json",
        "--against",
        "history:main",
        "--history",
        str(place),
        "--max-memory",
        str(LIMIT),
    )
    code, peak, said = run(tmp_path, *words)
    assert code in (2, 3), said
    assert peak < LIMIT + BESIDE, f"{peak >> 20} MiB"


def test_the_estimate_counts_values_not_text() -> None:
    many = b"[" + b"0," * 100_000 + b"0]"
    assert json_bytes(many) > 40 * len(many)
    log = json.dumps({"log": "a, b: c [d] " * 50_000}).encode()
    assert json_bytes(log) > 20 << 20
    check_json(log, 20 << 20)  # what stands in a string is no value
    with pytest.raises(TooLarge, match="once decoded"):
        check_json(many, 1 << 20)


def test_the_limit_is_a_share_of_the_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < default_limit() <= whole // 4
    (tmp_path / "memory.max").write_text("1000000000\n")
    monkeypatch.setattr("stepgrade.memory._LIMITS", (str(tmp_path / "memory.max"), str(tmp_path / "none")))
    assert default_limit() == 250_000_000
    (tmp_path / "memory.max").write_text("max\n")
    assert default_limit() == whole // 4


@pytest.mark.parametrize("load", [sg.load, sg.load_baseline])
def test_the_limit_in_python(load: Callable[..., object], tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_bytes(gzip.compress(make_step_profile(samples_ms=[1.0] * 50_000).encode()))
    with pytest.raises(TooLarge, match="max_memory"):
        load(path, max_memory=1 << 20)
    assert load(path, max_memory=1 << 30)
