"""Readers are found by content or by name; plug-ins come through entry points."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import BadInput, MissingExtra, TooLarge, UnknownFormat
from stepgrade.loading import load, load_baseline
from stepgrade.model.scorecard import Baseline
from stepgrade.readers import registry
from stepgrade.readers.registry import readers
from tests.builders import make_step_profile
from tests.conftest import ROOT

PARITY = '{"runtime": "apr", "throughput_tok_s": 20, "step_time_ms": 9, "kernel_launches_per_step": 3, "ops": {"a": 2}}'


def test_every_built_in_has_a_name_and_a_summary() -> None:
    known = {reader.name: reader for reader in readers()}
    assert set(registry.BUILT_IN) <= set(known)
    for name in registry.BUILT_IN:
        assert known[name].summary


def test_parity_profile(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(PARITY)
    profile = load(tmp_path / "p")
    assert (profile.runtime, profile.throughput_tok_s, profile.launches_per_step) == ("apr", 20.0, 3.0)


def test_a_named_format_overrides_the_content(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(PARITY)
    assert load(tmp_path / "p", input_format="step_profile").runtime is None


def test_an_unknown_name_gets_the_nearest_or_all(tmp_path: Path) -> None:
    (tmp_path / "p").write_text(PARITY)
    with pytest.raises(UnknownFormat, match="did you mean kineto"):
        load(tmp_path / "p", input_format="kinetto")
    with pytest.raises(UnknownFormat, match=r"one of kineto, nsys, rocprof, xplane, .*step_profile"):
        load(tmp_path / "p", input_format="xyzzy")


def test_a_scorecard_is_a_baseline(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text(
        '{"grade": "D", "efficiency": 0.1, "bottleneck": "launch", "throughput_tok_s": 100, "step_time_ms": null}'
    )
    baseline = load_baseline(tmp_path / "card.json")
    assert isinstance(baseline, Baseline)
    assert (baseline.throughput_tok_s, baseline.step_ms) == (100.0, None)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "empty"),
        (b"\x00\x01\x02" * 100, "binary"),
        (b"SQLite format 3\x00" + b"x" * 100, "an SQLite database"),
        (gzip.compress(make_step_profile().encode())[:-30], "cut off"),
        (gzip.compress(b""), "empty"),
        (b"\x1f\x8b\x08garbage", "gzip"),
    ],
    ids=["nothing", "binary", "SQLite", "cut off", "gzip of nothing", "gzip of garbage"],
)
def test_bytes_that_hold_no_profile(content: bytes, told: str, tmp_path: Path) -> None:
    (tmp_path / "bad").write_bytes(content)
    with pytest.raises(BadInput, match=told):
        load(tmp_path / "bad")


def test_what_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="contains no trace files"):
        load(tmp_path)
    with pytest.raises(BadInput, match="no such file"):
        load(tmp_path / "absent")
    with pytest.raises(BadInput, match="cannot be read"):
        load("nul\0byte")


def test_more_than_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zip.gz").write_bytes(gzip.compress(b"line of a log\n" * 200_000))
    with pytest.raises(TooLarge, match="max_bytes"):
        load(tmp_path / "zip.gz", max_bytes=2_000_000)
    with pytest.raises(UnknownFormat):
        load(tmp_path / "zip.gz", max_bytes=2_800_000)


def test_a_bomb_of_zeros_is_not_unpacked(tmp_path: Path) -> None:
    """Two gigabytes of zeros are refused by their first bytes."""
    import resource

    path = tmp_path / "bomb.gz"
    block = gzip.compress(bytes(2**26), compresslevel=1)
    path.write_bytes(block * 32)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UnknownFormat, match="zero bytes"):
        load(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def install(folder: Path, reader: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a distribution with a reader on the path: an entry point is all it takes."""
    (folder / "toy_reader.py").write_text(
        "from stepgrade.model import Profile, Source\n"
        "from stepgrade.readers.base import Part, Reader\n"
        "def recognises(source): return source.head.startswith(b'toy:')\n" + reader
    )
    info = folder / "toy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[stepgrade.readers]\ntoy = toy_reader:READER\n")
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, "toy_reader", raising=False)


TOY_PROFILE = """
def read(source):
    ms = float(source.document()[4:])
    return Part(profile=Profile(source=Source(format='toy', files=(source.name,)), mean_step_ms=ms))
READER = Reader(name='toy', summary='one number, the step in ms', recognises=recognises, read=read)
"""
TOY_TRACE = """
from stepgrade.readers.kineto.reader import read_traces
from stepgrade.readers.source import ByteSource
def read(source):
    return Part(traces=iter(read_traces(ByteSource(source.document()[4:]))))
READER = Reader(name='toy', summary='', recognises=recognises, read=read, kind='traces',
                rank_files=('.toy',))
"""
TOY_NEEDS = """
def read(source):
    import a_package_that_is_not_there
READER = Reader(name='toy', summary='', recognises=recognises, read=read, requires='stepgrade[toy]')
"""


def test_a_plug_in_reads_its_format(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, TOY_PROFILE, monkeypatch)
    (tmp_path / "run").write_text("toy:42.5")
    assert load(tmp_path / "run").mean_step_ms == 42.5
    assert load(tmp_path / "run", input_format="toy").source.format == "toy"
    with pytest.raises(BadInput, match="is not a trace"):
        load(tmp_path / "run", tmp_path / "run")


def test_a_plug_in_may_give_traces_and_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, TOY_TRACE, monkeypatch)
    trace = ROOT / "examples" / "traces" / "gpt_fused.json.gz"
    for rank in range(2):
        content = b"toy:" + gzip.decompress(trace.read_bytes())
        (tmp_path / f"rank{rank}.toy").write_bytes(content)
    (tmp_path / "notes.toy").write_text("no trace")
    one, known = load(tmp_path / "rank0.toy"), load(trace)
    assert (one.mean_step_ms, one.ledger, one.steps) == (known.mean_step_ms, known.ledger, known.steps)
    assert load(tmp_path / "rank0.toy", steps=(3, 4)).steps == load(trace, steps=(3, 4)).steps
    ranks = load(tmp_path)
    assert [row.rank for row in ranks.ranks] == [0, 1]
    assert ranks == load(tmp_path / "rank0.toy", tmp_path / "rank1.toy")


def test_a_package_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, TOY_NEEDS, monkeypatch)
    (tmp_path / "run").write_text("toy:")
    with pytest.raises(MissingExtra, match=r"pip install 'stepgrade\[toy\]'"):
        load(tmp_path / "run")


def test_a_plug_in_that_is_no_reader_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "READER = 3\n", monkeypatch)
    (tmp_path / "run").write_text("toy:")
    with pytest.raises(UnknownFormat, match="'toy'"):
        load(tmp_path / "run")


def test_a_card_and_its_json_are_the_same_baseline(tmp_path: Path) -> None:
    """Only what is compared is decoded; nothing that is compared may be missing."""
    for run in ("gpt_naive.json", "gpt_fused.json"):
        card = sg.score(sg.load(ROOT / "examples" / "runs" / run), device="gb10")
        (tmp_path / run).write_text(card.to_json())
        assert load_baseline(tmp_path / run) == Baseline.of(card, str(tmp_path / run))
    trace = sg.score(sg.load(ROOT / "examples" / "traces" / "gpt_fused.json.gz"))
    (tmp_path / "trace").write_text(trace.to_json())
    assert load_baseline(tmp_path / "trace") == Baseline.of(trace, str(tmp_path / "trace"))


@pytest.mark.parametrize(
    ("field", "place"),
    [
        ('"throughput_tok_s": "fast"', "$.throughput_tok_s"),
        ('"phases": {"forward": {"ms": 1}, "backward": {"ms": []}}', '$.phases["backward"].ms'),
        ('"operations": [{"name": 3}]', "$.operations[0].name"),
        ('"steps": {"count": 1, "samples_ms": [1, "2"]}', "$.steps.samples_ms[1]"),
    ],
)
def test_a_hostile_card_is_refused_with_the_place(field: str, place: str, tmp_path: Path) -> None:
    (tmp_path / "card").write_text(f'{{"grade": "A", "efficiency": 1, "bottleneck": "launch", {field}}}')
    with pytest.raises(BadInput) as caught:
        load_baseline(tmp_path / "card")
    assert place in str(caught.value)
