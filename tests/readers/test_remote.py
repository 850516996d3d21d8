"""Ranks on an object store, on a web server, in memory, in archives, and packed by zstd."""

from __future__ import annotations

import gzip
import io
import os
import random
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import stepgrade as sg
from stepgrade.errors import BadInput, BadOption, StepgradeError, TooLarge
from stepgrade.readers.remote import is_url, shown_url
from stepgrade.readers.source import ByteSource
from tests.buckets import BUCKET, SECRET, object_store
from tests.cluster import Planned, write_ranks
from tests.conftest import Ran

fsspec = pytest.importorskip("fsspec")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of botocore and moto
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # aiohttp's sessions end with the process
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PLAN = Planned(world=4, tensor=1, pipeline=1, steps=3, slow_rank=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_ranks(folder, PLAN)
    (folder / "config.json").write_text('{"batch": 4}')
    return folder


def facts(profile: sg.Profile) -> object:
    """Return what does not depend on where the files are."""
    return profile.ranks, profile.samples_ms, profile.operations, profile.activity


def test_urls_are_shown_without_secrets() -> None:
    signed = f"https://me:{SECRET}@host:8080/a/rank0.json?X-Amz-Signature={SECRET}&x=1#{SECRET}"
    assert shown_url(signed) == "https://host:8080/a/rank0.json"
    assert shown_url("s3://bucket/a b/rank0.json") == "s3://bucket/a b/rank0.json"
    assert not is_url(r"C:\traces\rank0.json")
    for odd in ("ssh://host/x", "github://a:b@/x", "zip://x::s3://y", "file:///etc/passwd"):
        with pytest.raises(BadOption, match="unsupported scheme"):
            sg.load(odd)


def test_memory_and_patterns(folder: Path) -> None:
    files = fsspec.filesystem("memory")
    for path in folder.iterdir():
        files.pipe(f"/run/{path.name}", path.read_bytes())
    here = facts(sg.load(*sorted(folder.glob("rank*"))))
    for url in ("memory://run", "memory://run/", "memory://run/rank*.json"):
        profile = sg.load(url)
        assert facts(profile) == here
        assert profile.source.files == tuple(f"memory://run/rank{number}.json" for number in range(4))
    with pytest.raises(BadInput, match="contains no trace files"):
        sg.load("memory://run/*.pt")
    with pytest.raises(BadInput, match="no such file"):
        sg.load("memory://run/rank9.json")
    files.rm("/run", recursive=True)


class Store(BaseHTTPRequestHandler):
    """A web server that answers in ranges, slowly, and not to everybody."""

    root: Path
    delay = 0.0
    asked: list[str]

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        time.sleep(self.delay)
        type(self).asked.append(f"{self.command} {self.path} {self.headers.get('Range')}")
        name = self.path.partition("?")[0].lstrip("/")
        if name.startswith("secret"):
            self.send_error(403)
        elif not (self.root / name).is_file():
            self.send_error(404)
        else:
            data = (self.root / name).read_bytes()
            first, last = 0, len(data) - 1
            wanted = self.headers.get("Range")
            if wanted:
                start, _, end = wanted.removeprefix("bytes=").partition("-")
                first, last = int(start), min(int(end or last), last)
            self.send_response(206 if wanted else 200)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last - first + 1))
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(data[first : last + 1])


@pytest.fixture
def web(folder: Path) -> Iterator[str]:
    Store.root, Store.delay, Store.asked = folder, 0.0, []
    with ThreadingHTTPServer(("127.0.0.1", 0), Store) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_web_server_with_ranges_slow_answers_and_refusals(
    web: str, folder: Path, stepgrade: Callable[..., Ran]
) -> None:
    Store.delay = 0.05
    urls = [f"http://{web}/rank{number}.json?X-Amz-Signature={SECRET}" for number in range(4)]
    ran = stepgrade("score", *urls, "--format", "json")
    assert ran.code == 0
    assert SECRET not in ran.out + ran.err
    assert f"http://{web}/rank0.json" in ran.out
    assert any("bytes=" in line for line in Store.asked)
    here = facts(sg.load(*sorted(folder.glob("rank*"))))
    assert facts(sg.load(*urls, engine="pool", workers=2)) == here
    for name, word in (("secret.json", "permission denied"), ("rank99.json", "no such file")):
        ran = stepgrade("score", f"http://me:{SECRET}@{web}/{name}?Signature={SECRET}")
        assert ran.code == 2
        assert word in ran.err
        assert SECRET not in ran.err
        assert "Traceback" not in ran.err
        assert ran.err.count("\n") == 1
    gone = stepgrade("score", "http://127.0.0.1:9/rank0.json")
    assert gone.code == 2
    assert "cannot be read" in gone.err


@pytest.fixture(scope="module")
def bucket(folder: Path) -> Iterator[str]:
    with object_store() as (client, _):
        for path in folder.iterdir():
            name, data = path.name, path.read_bytes()
            if name.startswith("rank"):
                name, data = f"{name}.gz", gzip.compress(data)
            client.put_object(Bucket=BUCKET, Key=f"run 7/{name}", Body=data)
        yield f"s3://{BUCKET}/run 7"


def test_an_object_store_gives_the_same_run(bucket: str, folder: Path, stepgrade: Callable[..., Ran]) -> None:
    here = facts(sg.load(*sorted(folder.glob("rank*"))))
    for engine in ("here", "pool"):
        assert facts(sg.load(bucket, engine=engine, workers=2)) == here
    assert facts(sg.load(f"{bucket}/rank*.json.gz")) == here
    one = sg.load(f"{bucket}/rank1.json.gz")
    assert one.source.files == ("s3://traces/run 7/rank1.json.gz",)
    for url in (f"{bucket}/rank9.json.gz", "s3://no-such-bucket/rank0.json"):
        ran = stepgrade("score", url)
        assert ran.code == 2
        assert "no such file" in ran.err
        assert SECRET not in ran.err


def test_a_file_that_is_still_written_is_noticed(tmp_path: Path) -> None:
    paths = write_ranks(tmp_path, PLAN)

    def write_on(*_: int) -> None:
        with paths[1].open("ab") as file:
            file.write(b" ")

    import msgspec

    from stepgrade.loading.ranks import FileTask, analyse_file
    from stepgrade.readers.discover import RunFile

    file = RunFile(path=str(paths[1]), format="kineto", name="rank1.json")
    task = FileTask(file=file, steps=None, max_bytes=1 << 30, max_memory=1 << 30)
    answer = analyse_file(msgspec.msgpack.encode(task), write_on)
    from stepgrade.loading.ranks import FileRanks

    (rank,) = msgspec.msgpack.decode(answer, type=FileRanks).ranks
    assert rank.unpacked().profile.warnings[0].code == "still_written"


def tar_of(entries: dict[str, bytes], mode: str = "w") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, data in entries.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return packed.getvalue()


def zip_of(entries: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return packed.getvalue()


PACKERS: dict[str, Any] = {
    "ranks.tar": tar_of,
    "ranks.tar.gz": lambda entries: tar_of(entries, "w:gz"),
    "ranks.zip": zip_of,
}


@pytest.mark.parametrize("name", PACKERS)
def test_archives_of_ranks(name: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in an archive decide nothing: what climbs out of it is read where everything else is."""
    names = ["run/rank0.json", "../../rank1.json", "/etc/rank2.json", "a/b/../rank3.json"]
    entries = {inside: (folder / f"rank{number}.json").read_bytes() for number, inside in enumerate(names)}
    entries["run/config.json"] = b"{}"
    (tmp_path / name).write_bytes(PACKERS[name](entries))
    kept = tmp_path / "kept"
    kept.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(kept))
    profile = sg.load(tmp_path / name)
    assert facts(profile) == facts(sg.load(*sorted(folder.glob("rank*"))))
    assert profile.source.files[0] == f"{tmp_path / name}/run/rank0.json"
    assert list(kept.iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", name]


def test_archives_that_are_no_run_or_too_large(tmp_path: Path, stepgrade: Callable[..., Ran]) -> None:
    links = io.BytesIO()
    with tarfile.open(fileobj=links, mode="w") as archive:
        for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE):
            entry = tarfile.TarInfo("rank0.json")
            entry.type, entry.linkname = kind, "/etc/passwd"
            archive.addfile(entry)
    bomb = zip_of({"rank0.json": b" " * (8 << 20)})
    cut = tar_of({"rank0.json": b"x" * 4096})[:2048]
    for name, data, word in (
        ("links.tar", links.getvalue(), "contains no traces"),
        ("bomb.zip", bomb, "more than the limit"),
        ("cut.tar", cut, "damaged"),
        ("cut.zip", bomb[:300], "damaged"),
    ):
        (tmp_path / name).write_bytes(data)
        ran = stepgrade("score", tmp_path / name, "--max-bytes", "1MiB")
        assert (ran.code, word in ran.err, "Traceback" in ran.err) == (2, True, False), (name, ran.err)


def hostile_archives() -> dict[str, bytes]:
    """Return archives that make Python's own readers take memory or raise what is no error of theirs."""
    long_name = tarfile.TarInfo("x")
    long_name.type, long_name.size = tarfile.XHDTYPE, 8 << 30
    folders = io.BytesIO()
    with tarfile.open(fileobj=folders, mode="w") as archive:
        entry = tarfile.TarInfo("d")
        entry.type = tarfile.DIRTYPE
        for _ in range(40):
            archive.addfile(entry)
    odd = {}
    for name, method in (("bzip2", zipfile.ZIP_BZIP2), ("lzma", zipfile.ZIP_LZMA)):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            archive.writestr("rank0.json", b"x" * 500)
        odd[f"{name}.zip"] = packed.getvalue().replace(b"BZh9", b"BZh0")
    sound = zip_of({"rank0.json": b"{}"})
    listed = bytearray(sound)
    at = listed.rfind(b"PK\x05\x06")
    listed[at + 12 : at + 16] = (0x7FFF_FFFF).to_bytes(4, "little")
    return {
        "long.tar": tar_of({"a": b""})[:512] + long_name.tobuf() + bytes(1 << 20),
        "folders.tar": folders.getvalue(),
        "list.zip": bytes(listed),
        **odd,
    }


@pytest.mark.parametrize("name", hostile_archives())
def test_hostile_archives_are_refused_in_one_line(
    name: str, tmp_path: Path, stepgrade: Callable[..., Ran], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stepgrade.readers.archives.MOST_FILES", 3)
    (tmp_path / name).write_bytes(hostile_archives()[name])
    ran = stepgrade("score", tmp_path / name)
    assert (ran.code, ran.err.count("\n")) == (2, 1), ran.err


@pytest.mark.parametrize("seed", range(60))
def test_damaged_archives_raise_errors_of_ours_alone(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    sound = dice.choice(list(PACKERS.values()))({"rank0.json": b"{}" * 300, "d/rank1.json": b"[]"})
    body = bytearray(sound)
    for _ in range(dice.choice((1, 2, 8, 40))):
        body[dice.randrange(len(body))] = dice.randrange(256)
    path = tmp_path / "f"
    path.write_bytes(bytes(body[: dice.choice((len(body), len(body), dice.randrange(len(body))))]))
    with pytest.raises(StepgradeError):
        sg.load(path)


def test_short_frames_of_zstd_are_not_copied_once_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """What follows a frame was copied whole for every one of them: a thousand times the file."""
    zstd = pytest.importorskip("backports.zstd")
    data = zstd.compress(b"ab") * 6000
    fed = 0
    with ByteSource(data) as source:
        unpacker: Any = source._unpacker
        feed = unpacker._feed

        def counted() -> bytes:
            nonlocal fed
            given: bytes = feed()
            fed += len(given)
            return given

        monkeypatch.setattr(unpacker, "_feed", counted)
        assert b"".join(source.chunks()) == b"ab" * 6000
    assert fed < 200 * len(data)


def test_zstd_is_unpacked_like_gzip(folder: Path, tmp_path: Path) -> None:
    zstd = pytest.importorskip("backports.zstd")
    text = (folder / "rank0.json").read_bytes()
    packed = tmp_path / "rank0.json.zst"
    packed.write_bytes(zstd.compress(text[:1000]) + zstd.compress(text[1000:]))
    assert sg.load(packed).samples_ms == sg.load(folder / "rank0.json").samples_ms
    with ByteSource(packed) as source:
        assert b"".join(source.chunks()) == text
    packed.write_bytes(zstd.compress(text)[:-20])
    with pytest.raises(BadInput, match="zstd data ends early"), ByteSource(packed) as source:
        list(source.chunks())
    bomb = tmp_path / "bomb.zst"
    bomb.write_bytes(zstd.compress(b'{"traceEvents": [' + b" " * (64 << 20)))
    assert bomb.stat().st_size < 10_000
    with pytest.raises(TooLarge):
        sg.load(bomb, max_bytes=1 << 20)
    damaged = bytearray(zstd.compress(os.urandom(100_000)))
    damaged[10:60] = bytes(50)
    packed.write_bytes(damaged)
    with pytest.raises(BadInput):
        sg.load(packed)
