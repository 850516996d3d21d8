"""`stepgrade devices` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepgrade.cli import main


def test_the_whole_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices"]) == 0
    shown = capsys.readouterr().out
    assert "183 devices" in shown
    assert "h100-sxm5-80gb" in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_a_filter_holds_every_word(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--filter", "RTX 4090 laptop", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [device["key"] for device in found["devices"]] == ["rtx-4090-laptop"]
    assert found["total"] == 183


def test_one_device_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "h100-sxm5-80gb"]) == 0
    shown = capsys.readouterr().out
    for text in ("989.4 TFLOP/s", "3,350 GB/s", "ridge point 295", "794.5", "sources", "2+ sources agree"):
        assert text in shown


def test_one_device_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "NVIDIA H100 80GB HBM3", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["device"]["key"] == "h100-sxm5-80gb"
    assert found["device"]["peak_tflops"]["bf16"] == 989.4
    assert found["ridge_flops_per_byte"]["bf16"] == pytest.approx(295.3, abs=0.1)


def test_a_product_that_frameworks_split(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "mi250x"]) == 0
    assert "2 devices, each mi250x-gcd" in capsys.readouterr().out


@pytest.mark.parametrize("to", ["terminal", "markdown", "json"])
def test_detection_never_fails(to: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", "--detect", "--format", to]) == 0
    assert "processor" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["--filter", "gaudi"], ["gaudi-3"]])
def test_markdown(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", *arguments, "--format", "markdown"]) == 0
    assert "| --- |" in capsys.readouterr().out


def test_measuring_shows_progress_and_keeps_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("numpy")
    monkeypatch.setattr("stepgrade.hardware.measure.CPU_MATMUL_SIZES", (64,))
    place = tmp_path / "measured.json"
    monkeypatch.setattr("stepgrade.hardware.measure.processor", _small_processor)
    monkeypatch.setattr("stepgrade.hardware.measure.measure_gpu", lambda _: None)
    assert main(["devices", "--measure", "--state", str(place)]) == 0
    printed = capsys.readouterr()
    assert "measuring memory, copy" in printed.err
    assert "GB/s" in printed.out
    assert place.exists()


def _small_processor() -> object:
    """Return a machine with so little memory that the arrays are small."""
    from stepgrade.hardware.detect import Processor

    return Processor(name="small", cores=1, memory_bytes=8 * 2**20)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["h100"], "name one of them: h100-pcie"),
        (["--filter", "voodoo"], "no device matches 'voodoo'"),
        (["gb10", "--detect"], "exclude each other"),
        (["--filter", "x", "--measure"], "exclude each other"),
        (["--colour"], "--colour"),
        (["a", "b"], "b"),
    ],
)
def test_bad_questions(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["devices", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert says in printed.err
    assert printed.err.count("\n") == 1
