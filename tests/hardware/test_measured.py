"""A measurement is taken, kept with its date and spread, and used beside the data sheet."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stepgrade.errors import BadInput, BadOption, NotMeasured
from stepgrade.hardware.detect import OtherLoad
from stepgrade.hardware.measure import (
    LEAST_RUNS,
    MOST_RUNS,
    keep_best,
    measure_gpu,
    measure_processor,
)
from stepgrade.hardware.measured import (
    Measurement,
    Rate,
    keep_measured,
    load_measured,
    measured_for,
    state_path,
)
from stepgrade.hardware.setup import Setup, chosen_device, target_of

FAST = Rate(best=20.0, median=19.0, spread_share=0.1, runs=3)


def measurement(key: str, date: str = "2026-01-02T03:04:05Z") -> Measurement:
    return Measurement(
        key=key, name=f"a {key}", date=date, method="numpy", bandwidth_gb_s=FAST, tflops={"fp32": FAST}
    )


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    place = str(tmp_path / "new" / "measured.json")
    assert load_measured(place) == []
    assert keep_measured(measurement("cpu"), place) == place
    keep_measured(measurement("gb10", "2026-02-02T00:00:00Z"), place)
    keep_measured(measurement("cpu", "2026-03-02T00:00:00Z"), place)
    assert [(kept.key, kept.date[:7]) for kept in load_measured(place)] == [
        ("cpu", "2026-03"),
        ("gb10", "2026-02"),
    ]
    assert measured_for("gb10", place) == measurement("gb10", "2026-02-02T00:00:00Z")
    assert measured_for("h100-pcie", place) is None
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["measured.json"]


def test_where_it_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPGRADE_STATE", "here.json")
    assert state_path() == "here.json"
    monkeypatch.delenv("STEPGRADE_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", "state")
    assert state_path() == str(Path("state") / "stepgrade" / "measured.json")
    monkeypatch.delenv("XDG_STATE_HOME")
    assert state_path().endswith(str(Path(".local") / "state" / "stepgrade" / "measured.json"))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"theirs": 1}', '{"measured": 3}', '{"schema_version": 99}', "\xff"]
)
def test_a_broken_file_is_named(tmp_path: Path, text: str) -> None:
    place = tmp_path / "measured.json"
    place.write_text(text, encoding="latin-1")
    with pytest.raises(BadInput) as error:
        load_measured(str(place))
    assert str(place) in str(error.value)
    with pytest.raises(BadInput):
        keep_measured(measurement("cpu"), str(place))
    assert place.read_text(encoding="latin-1") == text


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="cannot be"):
        keep_measured(measurement("cpu"), str(tmp_path / "file" / "measured.json"))


def test_this_processor_is_measured() -> None:
    pytest.importorskip("numpy")
    said: list[str] = []
    found = measure_processor(said.append, array_bytes=2**20, most_seconds=0.05)
    precisions = ["fp32", "bf16", "fp64"] if importlib.util.find_spec("torch") else ["fp32", "fp64"]
    assert said == ["memory, copy", "memory, scale", "memory, add", *(f"matmul, {p}" for p in precisions)]
    assert (found.key, found.cores) == ("cpu", len(os.sched_getaffinity(0)))
    assert list(found.tflops) == precisions
    assert found.others_share is None or 0.0 <= found.others_share <= 1.0
    assert found.bandwidth_gb_s is not None
    for rate in (found.bandwidth_gb_s, *found.tflops.values()):
        assert rate.best >= rate.median > 0
        assert rate.spread_share >= 0
        assert LEAST_RUNS <= rate.runs <= MOST_RUNS


def test_torchs_threads_stay_as_they_were() -> None:
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    measure_processor(lambda _: None, array_bytes=2**20, most_seconds=0.0)
    assert torch.get_num_threads() == 1


@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="Linux counts what other programs take")
def test_another_program_is_seen() -> None:
    load = OtherLoad()
    spin = "import time; end = time.monotonic() + 1.0\nwhile time.monotonic() < end: pass"
    subprocess.run([sys.executable, "-c", spin], check=True)
    share = load.share()
    assert share is not None
    assert 0.0 < share <= 1.0


def busy(date: str, share: float) -> Measurement:
    return msgspec.structs.replace(measurement("cpu", date), others_share=share)


def test_a_busy_machine_is_told_and_its_figures_replace_no_better_ones(tmp_path: Path) -> None:
    place = str(tmp_path / "measured.json")
    first = keep_best(busy("2026-01-01T00:00:00Z", 0.6), place)
    assert first.kept_in == place  # better than nothing
    assert [note.code for note in first.notes] == ["busy", "spread"]
    assert "60 %" in first.notes[0].text
    quiet = keep_best(busy("2026-02-01T00:00:00Z", 0.02), place)
    assert [note.code for note in quiet.notes] == ["spread"]
    again = keep_best(busy("2026-03-01T00:00:00Z", 0.6), place)
    assert again.kept_in is None
    assert "not_kept" in {note.code for note in again.notes}
    assert measured_for("cpu", place) == quiet.measurement


def test_without_numpy_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "numpy", None)
    with pytest.raises(NotMeasured, match="numpy is not installed"):
        measure_processor(lambda _: None)


def test_without_torch_there_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert measure_gpu(lambda _: None) is None


def test_a_measured_processor_is_a_device(tmp_path: Path) -> None:
    place = str(tmp_path / "measured.json")
    with pytest.raises(BadOption, match="measure_here"):
        chosen_device(Setup(device="cpu", state=place))
    keep_measured(measurement("cpu"), place)
    expected = target_of(Setup(device="cpu", state=place, bytes_per_token=1e6))
    assert expected.roof is not None
    assert (expected.roof.tok_s, expected.roof.basis) == (20_000, "measured")


def test_a_broken_file_does_not_stop_a_grade(tmp_path: Path) -> None:
    place = tmp_path / "measured.json"
    place.write_text("{")
    expected = target_of(Setup(device="gb10", state=str(place)))
    assert [limit.basis for limit in expected.ceilings] == ["data_sheet"]


def test_a_measurement_stands_beside_the_data_sheet(tmp_path: Path) -> None:
    place = str(tmp_path / "measured.json")
    keep_measured(measurement("gb10"), place)
    expected = target_of(Setup(device="gb10", state=place, bytes_per_token=1e6))
    assert [limit.basis for limit in expected.ceilings] == ["data_sheet", "measured"]
    assert "2026-01-02" in expected.ceilings[1].source
