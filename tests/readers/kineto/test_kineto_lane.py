"""The compiled lane reads every trace as the Python lane does, bit for bit, or leaves it to the Python lane.

`STEPGRADE_LANES` sets how many strange traces are read by both (`make fuzz-lane`: 100,000), `STEPGRADE_FUZZ_SEED` where to
begin.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lanes import NEEDS_LIBRARY, check, document, only_python, outcome
from make_kineto import LAYOUTS, documents, plain_trace, write
from msgspec import structs
from test_kineto_fuzz import DAMAGES
from tests.conftest import ROOT
from tests.kineto_traces import read_file

from stepgrade.readers import compiled
from stepgrade.readers.kineto import chunks, lane
from stepgrade.readers.kineto.chunks import ChunkReader
from stepgrade.readers.kineto.decode import Args

COUNT = int(os.environ.get("STEPGRADE_LANES", "800"))
SEED = int(os.environ.get("STEPGRADE_FUZZ_SEED", "0"))
BATCHES = 4
SANITIZED = (
    *("-C", "debug-assertions=on", "-C", "overflow-checks=on", "-C", "link-arg=-lasan"),
    *("-Zsanitizer=address", "-Zexternal-clangrt"),
)


def fuzz(count: int, seed: int) -> int:
    """Read strange traces by both lanes; return how many chunks the compiled one has read."""
    dice = random.Random(seed)
    plain = json.loads(plain_trace(40), parse_float=lambda digits: f"@{digits}@")
    texts = [write(plain, layout) for layout in LAYOUTS]
    read = 0

    def counted(self: lane.CompiledLane, *args: Any) -> bool | None:
        nonlocal read
        needs_text = untouched(self, *args)
        read += needs_text is not None
        return needs_text

    with pytest.MonkeyPatch.context() as patch:
        untouched = lane.CompiledLane.read
        patch.setattr(lane.CompiledLane, "read", counted)
        for number in range(count):
            patch.setattr(chunks, "SLOT_BYTES", dice.choice((300, 600, 3000, 1 << 19)))
            patch.setattr(lane, "_MOST_ODD", dice.choice((2, 10**9)))
            patch.setattr(lane, "_FLUSH_ROWS", dice.choice((1, 20, 1 << 16)))
            text = document(dice) if dice.random() < 0.6 else dice.choice(texts)
            if dice.random() < 0.5:
                text = dice.choice(DAMAGES)(text, dice) if text in texts else DAMAGES[number % 3](text, dice)
            check(text, **({"max_memory": dice.randrange(80_000)} if dice.random() < 0.1 else {}))
    return read


@NEEDS_LIBRARY
@pytest.mark.parametrize("batch", range(BATCHES))
def test_both_lanes_read_strange_traces_alike(batch: int) -> None:
    count = COUNT // BATCHES
    assert fuzz(count, SEED * BATCHES + batch) > 3 * count


@NEEDS_LIBRARY
@given(documents(), st.sampled_from(LAYOUTS))
def test_both_lanes_read_every_era_alike(drawn: Any, layout: str) -> None:
    check(write(drawn, layout))


@NEEDS_LIBRARY
@pytest.mark.parametrize("layout", ["kineto", "compact"])
def test_chunks_may_end_anywhere(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = write(json.loads(plain_trace(2), parse_float=lambda digits: f"@{digits}@"), layout)
    (whole,) = read_file(text, processes=1)
    for size in range(16, len(text) + 2):
        monkeypatch.setattr(chunks, "SLOT_BYTES", size)
        check(text)
        (cut,) = read_file(text, processes=1)
        assert cut.ops.start_ns.tolist() == whole.ops.start_ns.tolist()


@NEEDS_LIBRARY
def test_a_file_may_break_at_every_byte() -> None:
    text = plain_trace(3)
    for at in range(len(text)):
        check(text[:at] + text[at + 1 :])
        check(text[:at] + b'"' + text[at + 1 :])


@NEEDS_LIBRARY
def test_the_library_reads_what_profilers_write() -> None:
    reader = ChunkReader(1 << 40)
    assert reader._lane
    text = plain_trace(300)
    array = text[text.index(b"[") : text.rindex(b"]") + 1]
    assert reader._lane.read(memoryview(array), lambda _: None) is False
    assert reader._lane.pending_rows == 300
    assert reader._lane.read(memoryview(array.replace(b'id": 99', b'id": 9e1')), lambda _: None) is None
    assert reader._lane.pending_rows == 300  # nothing of a chunk with anything odd
    reader.flush()
    assert [reader.tables.tables[name].row_count for name in ("ops", "calls", "work")] == [100] * 3


@NEEDS_LIBRARY
def test_after_many_odd_chunks_the_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "SLOT_BYTES", 1000)
    asked = 0
    check_outcome = lane._check

    def count(result: int, *others: int) -> None:
        nonlocal asked
        asked += result == lane._ODD
        check_outcome(result, *others)

    monkeypatch.setattr(lane, "_check", count)
    read_file(plain_trace(600).replace(b'"kernel"', b'"mtia_ccp_events"'), processes=1)
    assert asked == lane._MOST_ODD


@NEEDS_LIBRARY
@pytest.mark.parametrize(("result", "error"), [(2, MemoryError), (3, RuntimeError)])
def test_a_failing_library_is_not_believed(result: int, error: type[Exception]) -> None:
    reader = ChunkReader(1 << 40)
    assert reader._lane
    reader._lane._scan = lambda *_: result
    with pytest.raises(error):
        reader.read(memoryview(b"[{}]"), 0)


def test_without_a_library_python_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = tmp_path / "lane.so"
    foreign.write_bytes(b"\x7fELF of another machine")
    for path in (str(foreign), str(tmp_path / "missing.so")):
        monkeypatch.setattr(compiled, "LIBRARY", path)
        assert compiled.load() is None
        assert ChunkReader(1 << 40)._lane is None
    assert len(outcome(plain_trace(9))[0].ops.name) == 3


@NEEDS_LIBRARY
def test_it_can_be_switched_off_and_has_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    with only_python():
        assert compiled.load() is None
    assert compiled.load() is not None
    monkeypatch.setattr(compiled, "VERSION", -1)
    compiled._load.cache_clear()
    assert compiled.load() is None
    compiled._load.cache_clear()


def test_both_sides_have_the_same_names() -> None:
    rust = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "lane").glob("*.rs")}
    assert re.search(r"VERSION: u32 = (\d+);", rust["lib.rs"])[1] == str(compiled.VERSION)  # type: ignore[index]
    assert re.search(r"REPORT: usize = (\d+);", rust["lib.rs"])[1] == str(lane._REPORT)  # type: ignore[index]
    listed = re.search(r"const ARGS.*?= \[(.*?)\n\];", rust["kineto.rs"], re.DOTALL)
    assert listed
    names = re.findall(r'b"([^"]+)"', listed[1])
    known = {field.encode_name: field.name for field in structs.fields(Args)}
    places = {known[name]: place for place, name in enumerate(names)}
    assert [places[name] for name in lane._COLLECTIVE_FIELDS] == [*range(21, 30)]
    assert [places[name] for name in (*lane._LAUNCH_FIELDS, "block")] == [*range(16, 21)]
    inputs = ("dims", "dims_old", "types", "concrete", "strides", "backend")
    assert [places[name] for name in inputs] == [*range(10, 16)]


def test_only_the_border_is_unsafe() -> None:
    holders = [
        path.name for path in (ROOT / "lane").glob("*.rs") if "unsafe" in path.read_text(encoding="utf-8")
    ]
    assert holders == ["lib.rs"]


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("rustc") or sys.platform != "linux", reason="needs rustc on Linux")
def test_the_address_sanitizer_finds_nothing(tmp_path: Path) -> None:
    sys.path.insert(0, str(ROOT))
    try:
        import hatch_build
    finally:
        sys.path.remove(str(ROOT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RUSTC_BOOTSTRAP", "1")
        try:
            hatch_build.build(tmp_path / "lane.so", *SANITIZED)
        except hatch_build.NotBuilt as error:
            pytest.skip(f"rustc or gcc has no sanitizer: {error}")
    runtime = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    ).stdout.strip()
    code = (
        "import sys; sys.path[:0] = sys.argv[1:3]\n"
        "from stepgrade.readers import compiled\n"
        "compiled.LIBRARY = sys.argv[3]\n"
        "from test_kineto_lane import fuzz\n"
        "print(fuzz(400, 77))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(ROOT), str(Path(__file__).parent), str(tmp_path / "lane.so")],
        env=os.environ | {"LD_PRELOAD": runtime, "ASAN_OPTIONS": "detect_leaks=0", "STEPGRADE_PURE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert int(ran.stdout) > 1000
