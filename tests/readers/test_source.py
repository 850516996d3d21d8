"""One way to bytes: whatever the source is, a reader gets the same text, within the same limit."""

from __future__ import annotations

import builtins
import gzip
import io
import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from stepgrade.errors import BadInput, TooLarge
from stepgrade.loading import load
from stepgrade.readers.source import ByteSource, Readable, ReadOptions
from tests.conftest import ROOT

TEXT = bytes(range(256)) * 3000
FUSED = ROOT / "examples" / "traces" / "gpt_fused.json.gz"


def pipe(path: Path, content: bytes) -> Path:
    os.mkfifo(path)
    threading.Thread(target=path.write_bytes, args=(content,), daemon=True).start()
    return path


def sources(folder: Path, text: bytes) -> dict[str, Readable]:
    (folder / "plain").write_bytes(text)
    (folder / "packed").write_bytes(gzip.compress(text))
    members = gzip.compress(text[:1000]) + gzip.compress(text[1000:])
    return {
        "path": folder / "plain",
        "gzip": str(folder / "packed"),
        "bytes": text,
        "gzipped bytes": gzip.compress(text),
        "members": members,
        "stream": io.BytesIO(gzip.compress(text)),
        "pipe": pipe(folder / "pipe", text),
        "gzipped pipe": pipe(folder / "gzipped pipe", gzip.compress(text)),
    }


def filled(source: ByteSource) -> bytes:
    buffer, text = memoryview(bytearray(70_000)), b""
    while count := source.fill(buffer):
        text += buffer[:count]
    return text


def at_path(source: ByteSource) -> bytes:
    with source.path() as path:
        return Path(path).read_bytes()


def sought(source: ByteSource) -> bytes:
    with source.seekable() as file:
        file.seek(1000)
        end = file.read()
        file.seek(0)
        return file.read(1000) + end


WAYS = {
    "document": lambda source: source.document(),
    "chunks": lambda source: b"".join(source.chunks()),
    "fill": filled,
    "path": at_path,
    "seekable": sought,
}


@pytest.mark.parametrize("way", WAYS)
def test_every_source_gives_the_same_bytes_in_every_way(way: str, tmp_path: Path) -> None:
    for kind, opened in sources(tmp_path, TEXT).items():
        with ByteSource(opened) as source:
            assert source.head == TEXT[: 64 << 10], kind
            assert WAYS[way](source) == TEXT, kind


@pytest.mark.parametrize("way", WAYS)
def test_the_limit_holds_in_every_way(way: str, tmp_path: Path) -> None:
    for opened in sources(tmp_path, TEXT).values():
        with ByteSource(opened, ReadOptions(max_bytes=len(TEXT) - 1)) as source:
            with pytest.raises(TooLarge, match="max_bytes"):
                WAYS[way](source)


@pytest.mark.parametrize("way", [way for way in WAYS if way != "fill"])
@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_damaged_gzip_is_refused(way: str, damage: str) -> None:
    packed = gzip.compress(os.urandom(400_000))
    broken = packed[:-5000] if damage == "cut" else packed[:200_000] + b"\xff" * 50 + packed[200_050:]
    with ByteSource(broken) as source:
        with pytest.raises(BadInput, match="gzip"):
            WAYS[way](source)


def test_fill_gives_what_is_intact_and_says_what_is_wrong() -> None:
    text = os.urandom(400_000)
    with ByteSource(gzip.compress(text)[:-5000]) as source:
        intact = filled(source)
        assert len(intact) > 300_000
        assert text.startswith(intact)
        assert source.damage == "the gzip data ends early"


def test_a_source_can_begin_again(tmp_path: Path) -> None:
    for kind, opened in sources(tmp_path, TEXT).items():
        with ByteSource(opened) as source:
            if source.can_restart:
                assert filled(source) == TEXT
                source.restart()
            assert filled(source) == TEXT, kind


def test_a_temporary_copy_goes_with_the_reader(tmp_path: Path) -> None:
    with ByteSource(gzip.compress(TEXT)) as source:
        with source.path() as path:
            assert Path(path).exists()
        assert not Path(path).exists()


def test_progress_is_that_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "packed").write_bytes(gzip.compress(os.urandom(3_000_000)))
    size = (tmp_path / "packed").stat().st_size
    seen: list[tuple[int, int]] = []
    options = ReadOptions(progress=lambda done, total: seen.append((done, total)))
    with ByteSource(tmp_path / "packed", options) as source:
        source.document()
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


def test_a_trace_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    really_open = builtins.open

    def counting(file: Any, *arguments: Any, **more: Any) -> Any:
        opened.append(file)
        return really_open(file, *arguments, **more)

    monkeypatch.setattr(builtins, "open", counting)
    monkeypatch.setenv("STEPGRADE_CACHE", "off")  # whose key is a hash of the file
    load(FUSED)
    assert [str(file) for file in opened].count(str(FUSED)) == 1


class _Trickle(io.RawIOBase):
    """A pipe that gives as many bytes as it likes."""

    def __init__(self, data: bytes, dice: random.Random) -> None:
        self._data, self._dice = io.BytesIO(data), dice

    def read(self, size: int = -1) -> bytes:
        return self._data.read(min(size, self._dice.choice((1, 2, 7, 100, 1 << 17))))


@pytest.mark.parametrize("seed", range(12))
def test_gzip_streams_one_after_the_other(seed: int) -> None:
    """Of any length, empty ones too, cut anywhere by a pipe, with and without isal, and whatever follows them."""
    dice = random.Random(seed)
    count = dice.choice((1, 2, 3, 40, 900))
    lengths = dice.choice(((0, 1, 2, 5), (0, 300, 5000), (1, 5000, 200_000)))[: 3 if count < 900 else 2]
    parts = [bytes(dice.choices(b"abc \n", k=dice.choice(lengths))) for _ in range(count)] + [b"end"]
    packed = b"".join(gzip.compress(part, dice.choice((1, 6)), mtime=0) for part in parts)
    packed += dice.choice((b"", b"\0" * 10, b"junk", b"\x1f"))
    for given in (packed, _Trickle(packed, dice)):
        with ByteSource(given) as source:  # type: ignore[arg-type]
            assert b"".join(source.chunks()) == b"".join(parts)
