"""Metric files of trackers: written by the trackers' own libraries, cut anywhere, and damaged on purpose."""

from __future__ import annotations

import math
import random
import sqlite3
import struct
from contextlib import closing, suppress
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import StepgradeError, UnknownFormat
from stepgrade.loading import load
from stepgrade.protobuf import values
from stepgrade.readers.logs import tensorboard, wandb
from stepgrade.readers.logs.names import meaning, row_of, seconds_of
from stepgrade.readers.logs.records import RecordLog
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource
from tests.readers.logs.generated import EVENTS, version
from tests.samples import shared


def read(text: bytes) -> sg.Profile:
    found = read_source(ByteSource(text)).log
    assert isinstance(found, sg.Profile)
    return found


def test_an_event_file_tells_steps_by_its_wall_times() -> None:
    profile = read(EVENTS)
    assert profile.mean_step_ms == pytest.approx(2000.0)
    assert profile.tokens_per_step == pytest.approx(8192.0)


@pytest.mark.parametrize("cut", [30, 200, 1000, len(EVENTS) - 5])
def test_a_file_that_is_cut_anywhere_is_read_so_far(cut: int) -> None:
    log = RecordLog("a")
    tensorboard.read_events([EVENTS[:cut]], log)
    assert len(log.scanned().rows) in (0, 1)


def test_pieces_make_no_difference() -> None:
    whole, pieces = RecordLog("a"), RecordLog("a")
    tensorboard.read_events([EVENTS], whole)
    tensorboard.read_events([EVENTS[at : at + 3] for at in range(0, len(EVENTS), 3)], pieces)
    assert whole.scanned().rows[0].columns == pieces.scanned().rows[0].columns


@pytest.mark.parametrize("seed", range(40))
def test_damaged_bytes_never_raise_more_than_our_errors(seed: int) -> None:
    dice = random.Random(seed)
    for text in (EVENTS, b":W&B\xe1\xbe\x00" + bytes(dice.randrange(256) for _ in range(3000))):
        damaged = bytearray(text)
        for _ in range(dice.randrange(1, 60)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        list(values(memoryview(bytes(damaged))))
        for reader in (tensorboard.read_events, wandb.read_wandb):
            reader([bytes(damaged)], RecordLog("a"))
        with suppress(StepgradeError):
            read_source(ByteSource(bytes(damaged)))


def test_a_length_beyond_the_file_takes_no_memory() -> None:
    text = version() + struct.pack("<Q", 1 << 60) + bytes(100)
    log = RecordLog("a")
    tensorboard.read_events([text], log)
    assert log.scanned().rows == []


@pytest.mark.samples
def test_a_wandb_file_cut_at_any_block_is_read_so_far() -> None:
    text = shared("samples/metrics/wandb_offline_run.wandb").read_bytes()
    counts = []
    for cut in range(8, len(text), 997):
        log = RecordLog("W&B")
        wandb.read_wandb([text[:cut]], log)
        counts.append(sum(rows.count for rows in log.scanned().rows))
    assert counts == sorted(counts)
    assert counts[-1] > 20


def test_torch_itself_writes_what_is_read(tmp_path: Path) -> None:
    board = pytest.importorskip("torch.utils.tensorboard")
    writer = board.SummaryWriter(str(tmp_path))
    for step in range(1, 40):
        writer.add_scalar("step_time_s", 0.25, step, walltime=1e9 + step)
        writer.add_scalar("tokens_per_sec", 1000.0, step, walltime=1e9 + step)
    writer.close()
    profile = load(tmp_path)
    assert profile.mean_step_ms == pytest.approx(250.0)
    assert profile.tokens_per_step == pytest.approx(250.0)


def test_tags_that_count_other_steps_are_no_restarts(tmp_path: Path) -> None:
    board = pytest.importorskip("torch.utils.tensorboard")
    writer = board.SummaryWriter(str(tmp_path))
    now = 1e9 + 0.125
    for epoch in range(6):
        for step in range(epoch * 100, epoch * 100 + 100, 5):
            now += 1.0
            writer.add_scalar("Loss/train", 2.0, step, walltime=now)
        for step in range(epoch * 300, epoch * 300 + 300, 100):  # counted by batches of its own
            now += 2.0
            writer.add_scalar("Loss/valid", 2.0, step, walltime=now)
        writer.add_scalar("accuracy_of_epoch", 0.5, epoch, walltime=now)
    writer.close()
    card = sg.score(load(tmp_path))
    assert card.step_time_ms == pytest.approx(200.0)
    assert card.goodput is not None
    assert card.goodput.restart == 0.0
    assert card.goodput.evaluation == pytest.approx(5 * 6.0 / (6 * 26.0 - 6.0), rel=0.02)


def test_a_run_that_resumes_in_the_same_file_goes_back_in_its_own_tags(tmp_path: Path) -> None:
    board = pytest.importorskip("torch.utils.tensorboard")
    writer = board.SummaryWriter(str(tmp_path))
    for place, step in enumerate([*range(100), *range(60, 160)]):
        writer.add_scalar("train/loss", 2.0, step, walltime=1e9 + place)
        writer.add_scalar("train/tokens_per_sec", 1000.0, step, walltime=1e9 + place)
    writer.close()
    card = sg.score(load(tmp_path))
    assert card.goodput is not None
    assert card.goodput.restart == pytest.approx(0.2, abs=0.015)


def test_an_event_file_without_scalars_is_named() -> None:
    with pytest.raises(UnknownFormat, match="without scalars"):
        read(version())


def mlflow_run(root: Path, steps: int) -> None:
    (root / "metrics" / "train").mkdir(parents=True)
    (root / "params").mkdir()
    (root / "meta.yaml").write_text("status: 3\n")
    (root / "params" / "seq_len").write_text("128")
    (root / "metrics" / "train" / "loss").write_text(
        "".join(f"{1_700_000_000_000 + s * 500} 2.5 {s}\n" for s in range(1, steps))
    )


def test_a_store_of_mlflow_is_a_run_and_several_are_asked_about(tmp_path: Path) -> None:
    mlflow_run(tmp_path / "mlruns" / "1" / "a", 50)
    assert load(tmp_path / "mlruns").mean_step_ms == pytest.approx(500.0)
    mlflow_run(tmp_path / "mlruns" / "1" / "b", 50)
    with pytest.raises(StepgradeError, match="2 MLflow runs"):
        load(tmp_path / "mlruns")
    assert load(tmp_path / "mlruns" / "1" / "b").recorded_steps == 49


@pytest.mark.filterwarnings("ignore")  # those of MLflow's own libraries
def test_a_database_of_mlflow_is_its_last_run(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    for number in (1, 2):
        run = client.create_run("0", start_time=1000 * number).info.run_id
        client.log_param(run, "seq_len", 128)
        client.log_param(run, "api_key", "SECRET-1")
        for step in range(1, 30):
            client.log_metric(run, "loss", 2.5, timestamp=1_700_000_000_000 + step * 500 * number, step=step)
        client.log_metric(run, "loss", float("nan"), timestamp=1_700_000_000_000 + 30 * 500 * number, step=30)
    profile = load(tmp_path / "mlflow.db")
    assert profile.mean_step_ms == pytest.approx(1000.0)
    assert profile.recorded_steps == 30
    codes = {note.code for note in (*profile.notes, *profile.warnings)}
    assert "last_of_several" in codes
    assert codes & {"diverged", "loss_nan"}
    assert "SECRET" not in repr(profile.recorded) + repr(profile.facts)


def test_rows_of_a_database_of_mlflow(tmp_path: Path) -> None:
    """The run that began last counts; names without a meaning, other runs and texts for steps are left out."""
    path = tmp_path / "mlflow.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("create table latest_metrics (key)")
        database.execute("create table runs (run_uuid, start_time)")
        database.execute("create table metrics (key, value, timestamp, run_uuid, step, is_nan)")
        database.execute("create table params (key, value, run_uuid)")
        database.executemany(
            "insert into runs values (?, ?)", [("late", 900), ("early", 100), ("none", None), (None, 999)]
        )
        rows: list[tuple[object, ...]] = []
        for step in range(1, 21):
            at = 1_700_000_000_000 + step * 400
            rows += [("loss", 2.0, at, "late", step, 0), ("loss", 9.0, at * 2, "early", step, 0)]
        rows += [
            ("loss", 0.0, at + 400, "late", 21, 1),
            ("loss", 1.0, at, "late", "x", 0),
            (7, 1.0, at, "late", 3, 0),
        ]
        rows += [("squiggle", 1.0, at + 9_000_000, "late", 40, 0)]  # no row: nothing in it has a meaning
        database.executemany("insert into metrics values (?, ?, ?, ?, ?, ?)", rows)
        database.executemany(
            "insert into params values (?, ?, ?)",
            [("seq_len", "128", "late"), ("seq_len", "999", "early"), (3, "4", "late")],
        )
        database.commit()
    profile = load(path)
    assert profile.mean_step_ms == pytest.approx(400.0)
    assert profile.recorded_steps == 21
    assert profile.recorded.seq == 128
    codes = {note.code for note in (*profile.notes, *profile.warnings)}
    assert "last_of_several" in codes
    assert codes & {"diverged", "loss_nan"}


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_tables_with_any_separator_and_empty_cells(separator: str) -> None:
    rows = [("epoch", "step", "train/loss", "elapsed", "val_loss")]
    for step in range(1, 80):
        rows.append(("0", str(step), "2.5", f"{step * 0.75:.3f}", ""))
        if step % 20 == 0:
            rows.append(("0", str(step), "", "", "2.4"))
    text = "\n".join(separator.join(row) for row in rows) + "\n"
    profile = read(text.encode())
    assert profile.mean_step_ms == pytest.approx(750.0)
    assert profile.recorded_steps == 79


@pytest.mark.parametrize(
    ("name", "column", "scale"),
    [
        ("trainer/global_step", "step", 1.0),
        ("perf/step_time_ms", "step_s", 1e-3),
        ("train/device/samples_per_sec", "samples_s_device", 1.0),
        ("tokens_per_second_per_gpu", "tok_s_device", 1.0),
        ("tps", "tok_s", 1.0),
        ("device/mfu", "mfu", 1.0),
        ("_runtime", "elapsed_s", 1.0),
        ("memory(GiB)", "memory_bytes", 2.0**30),
    ],
)
def test_names_say_what_they_mean(name: str, column: str, scale: float) -> None:
    assert meaning(name) == (column, scale)


@pytest.mark.parametrize(
    "name", ["eval/tokens_per_sec", "train_tokens_per_second", "lr", "throughput", "val_loss"]
)
def test_other_names_mean_nothing_of_a_step(name: str) -> None:
    assert meaning(name) is None


def test_time_stamps_are_told_by_their_size() -> None:
    assert seconds_of(1_700_000_000.0) == seconds_of(1_700_000_000_000.0) == 1_700_000_000.0
    assert row_of([("timestamp", 1_700_000_000_123), ("step", 3)])["time"] == pytest.approx(1_700_000_000.123)
    assert seconds_of(1_700_000_000_000_000_000.0) == 1_700_000_000.0
    assert all(math.isnan(seconds_of(absurd)) for absurd in (math.inf, math.nan, 1e300))
