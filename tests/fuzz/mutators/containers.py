"""What files come in: gzip, zip and tar, sound or damaged, with names and links that are not meant well."""

from __future__ import annotations

import gzip
import io
import random
import tarfile
import warnings
import zipfile
import zlib

from tests.fuzz.mutators.havoc import damaged_bytes, erased

NAMES = (
    "rank0.json", "rank1.json", "a/b/rank_2.pt.trace.json", "../../escaped.json", "/tmp/escaped.json", "rank0.json",  # noqa: S108
    "con", "x" * 200, "é\udcff.json", "a\nb.json", ".", "..", "a" + "/a" * 60, "trace.json.gz", "::error::.json", "C:\\x.json",
)  # fmt: skip


def packed(text: bytes, dice: random.Random) -> bytes:
    """Return the text, sometimes in a container, sometimes in a damaged one."""
    chance = dice.random()
    if chance < 0.85:
        return text
    made = dice.choice((_gzipped, _gzipped, _gzipped, _in_zstd, _zipped, _tarred))(text, dice)
    return made if dice.random() < 0.6 else damaged_bytes(made, dice, 8)


def _gzipped(text: bytes, dice: random.Random) -> bytes:
    zipped = gzip.compress(text, 1, mtime=0)
    match dice.randrange(10):
        case 0:  # several members
            half = len(text) // 2
            return (
                gzip.compress(text[:half], 1, mtime=0)
                + gzip.compress(b"", 1, mtime=0) * 3
                + gzip.compress(text[half:], 1, mtime=0)
            )
        case 1:
            return zipped + dice.choice((b"\0" * 500, b"x", dice.randbytes(40), zipped[:20]))
        case 2:  # the checksum or the size is wrong
            return zipped[:-8] + dice.randbytes(8)
        case 3:
            return zipped[: dice.randrange(len(zipped))]
        case 4:
            return gzip.compress(zipped, 1, mtime=0)
        case 5:
            return gzip.compress(bytes(4 << 20), 6, mtime=0) + zipped
        case 6:  # other frames of the same algorithm
            return dice.choice((zlib.compress(text, 1), zlib.compress(text, 1)[2:-4]))
        case _:
            return zipped


def _in_zstd(text: bytes, dice: random.Random) -> bytes:
    """Return frames of zstd that hold the text as it is: one or two blocks, a frame to skip, a size that is wrong."""
    half = len(text) // 2 if dice.random() < 0.3 else 0
    frames = []
    if dice.random() < 0.2:
        frames.append(b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"skip")
    for part in (text[:half], text[half:]) if half else (text,):
        size = len(part) if dice.random() < 0.9 else dice.choice((0, 1, 2**31, 2**32 - 1))
        head = b"\x28\xb5\x2f\xfd\xa0" + size.to_bytes(4, "little")
        blocks = [part[at : at + 100_000] for at in range(0, len(part), 100_000)] or [b""]
        for place, block in enumerate(blocks):
            kind = 0 if dice.random() < 0.95 else dice.randrange(4)  # as it is; repeated; packed; none
            is_last = place + 1 == len(blocks)
            head += (len(block) << 3 | kind << 1 | is_last).to_bytes(3, "little") + block
        frames.append(head)
    return b"".join(frames)


def _zipped(text: bytes, dice: random.Random) -> bytes:
    file = io.BytesIO()
    warnings.filterwarnings("ignore", "Duplicate name", module="zipfile")
    with zipfile.ZipFile(
        file, "w", dice.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    ) as archive:
        for _ in range(dice.choice((0, 1, 2, 3, 12))):
            name = dice.choice(NAMES).encode("utf-8", "replace").decode()
            entry = zipfile.ZipInfo(name)
            entry.external_attr = dice.choice((0, 0o120777 << 16, 0o40755 << 16, 0xFFFFFFFF))
            archive.writestr(entry, dice.choice((text, text, erased(text)[:500], b"", b"x" * 9)))
    made = bytearray(file.getvalue())
    if dice.random() < 0.3:  # the list at its end
        for _ in range(dice.choice((1, 3))):
            made[-dice.randrange(1, min(len(made), 120))] = dice.choice((0, 255, dice.randrange(256)))
    return bytes(made)


def _tarred(text: bytes, dice: random.Random) -> bytes:
    file = io.BytesIO()
    mode = dice.choice(("w", "w", "w:gz"))
    form = dice.choice((tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT))
    with tarfile.open(fileobj=file, mode=mode, format=form, errors="surrogateescape") as archive:
        for _ in range(dice.choice((0, 1, 2, 3, 12))):
            entry = tarfile.TarInfo(dice.choice(NAMES)[:90])
            entry.type = dice.choice(
                (tarfile.REGTYPE,) * 5
                + (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, tarfile.DIRTYPE)
            )
            entry.linkname = dice.choice(("rank0.json", "/etc/passwd", "../../x"))
            content = dice.choice((text, text, erased(text)[:500], b""))
            entry.size = len(content) if entry.isreg() else 0
            try:
                archive.addfile(entry, io.BytesIO(content))
            except (ValueError, UnicodeError):
                continue
    return file.getvalue()
