"""Readers are found by content or by name; plug-ins come through entry points."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

from stepgrade.errors import BadInput, TooLarge, UnknownFormat
from stepgrade.readers import registry
from stepgrade.readers.registry import Reading, read_baseline, read_profile, readers
from tests.builders import make_step_profile

PARITY = '{"runtime": "apr", "throughput_tok_s": 20, "step_time_ms": 9, "kernel_launches_per_step": 3, "ops": {"a": 2}}'


def test_every_built_in_has_a_name_and_a_summary() -> None:
    known = readers()
    assert set(registry.BUILT_IN) <= set(known)
    for name in registry.BUILT_IN:
        assert name == known[name].NAME
        assert known[name].SUMMARY


def test_parity_profile(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(PARITY)
    profile = read_profile(tmp_path / "p")
    assert (profile.runtime, profile.throughput_tok_s, profile.launches_per_step) == ("apr", 20.0, 3.0)


def test_a_named_format_overrides_the_content(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(PARITY)
    assert read_profile(tmp_path / "p", Reading(input_format="step_profile")).runtime is None


def test_an_unknown_name_lists_the_known(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(PARITY)
    with pytest.raises(UnknownFormat, match="step_profile"):
        read_profile(tmp_path / "p", Reading(input_format="kinetto"))


def test_a_scorecard_is_a_baseline(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(
        '{"grade": "D", "efficiency": 0.1, "bottleneck": "launch", "throughput_tok_s": 100, "step_time_ms": null}'
    )
    baseline = read_baseline(tmp_path / "card.json")
    assert (baseline.throughput_tok_s, baseline.step_ms) == (100.0, None)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02" * 100, "binary"),
        (b"SQLite format 3\x00" + b"x" * 100, "binary"),
        (gzip.compress(make_step_profile().encode())[:-30], "cut off"),
        (gzip.compress(b""), "empty"),
        (b"\x1f\x8b\x08garbage", "gzip"),
    ],
)
def test_bytes_that_hold_no_profile(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(BadInput, match=told):
        read_profile(tmp_path / "bad")


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="directory"):
        read_profile(tmp_path)
    with pytest.raises(BadInput, match="no such file"):
        read_profile(tmp_path / "absent")
    with pytest.raises(BadInput, match="cannot be read"):
        read_profile("nul\0byte")


def test_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zip.gz").write_bytes(gzip.compress(b"line of a log\n" * 200_000))
    with pytest.raises(TooLarge, match="--max-bytes"):
        read_profile(tmp_path / "zip.gz", Reading(max_bytes=2_000_000))
    with pytest.raises(UnknownFormat):
        read_profile(tmp_path / "zip.gz", Reading(max_bytes=2_800_000))


def test_a_bomb_of_zeros_is_not_unpacked(tmp_path: Path) -> None:
    """Two gigabytes of zeros are refused by their first bytes."""
    import resource

    path = tmp_path / "bomb.gz"
    block = gzip.compress(bytes(2**26), compresslevel=1)
    path.write_bytes(block * 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnknownFormat, match="binary"):
        read_profile(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def test_a_plug_in_reads_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution on the path with an entry point is all it takes."""
    (tmp_path / "toy_reader.py").write_text(
        "from stepgrade.model import Profile, Source\n"
        "NAME, SUMMARY = 'toy', 'one number, the step in ms'\n"
        "def recognises(content): return content.head.startswith(b'toy:')\n"
        "def read(content):\n"
        "    ms = float(content.document()[4:])\n"
        "    return Profile(source=Source(format=NAME, files=(content.name,)), mean_step_ms=ms)\n"
    )
    info = tmp_path / "toy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stepgrade.readers]\ntoy = toy_reader\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "run").write_text("toy:42.5")
    assert read_profile(tmp_path / "run").mean_step_ms == 42.5
    assert read_profile(tmp_path / "run", Reading(input_format="toy")).source.format == "toy"
    sys.modules.pop("toy_reader")
