"""Find and open files of an object store or a web server by fsspec, without showing secrets.

Credentials come from the store's own library (environment, profile, machine role). User, password and query
of a URL never leave this module, and messages of a library are dropped: they may quote a signed URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from msgspec import Struct

from stepgrade.errors import BadInput, BadOption, MissingExtra

# What to install for each kind of store; fsspec knows many more, some of which run programs.
STORES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
    "http": "http",
    "https": "http",
    "memory": "remote",
}
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,31})://(.*)", re.DOTALL)
_BLOCK_BYTES = 4 << 20
_GLOB = frozenset("*?[")
_STAMPS = ("ETag", "etag", "md5Hash", "LastModified", "last_modified", "updated", "mtime", "created")


class RemoteFile(Struct, frozen=True, kw_only=True):
    """A file of a store: its URL as it was given, and how it is shown."""

    url: str
    name: str
    size_bytes: int = 0  # 0 if unknown


def is_url(source: str) -> bool:
    """Tell whether the source is a URL; a Windows path is not."""
    return _URL.match(source) is not None


def shown_url(url: str) -> str:
    """Return the URL without user, password, query and fragment."""
    match = _URL.match(url)
    if match is None:
        return url
    location = re.split(r"[?#]", match[2], maxsplit=1)[0] if match[1].lower().startswith("http") else match[2]
    host, slash, path = location.partition("/")
    return f"{match[1]}://{host.rpartition('@')[2]}{slash}{path}"


def find(url: str) -> list[RemoteFile] | None:
    """Return the files under a pattern or in a directory; None for a single file."""
    files, path = _store(url)
    is_web = url.lower().startswith("http")
    scheme = url.partition("://")[0]
    with _in_words(url):
        if not is_web and _GLOB & set(path):
            found = files.glob(path, detail=True)
        elif not is_web and (url.endswith("/") or files.isdir(path)):
            found = {entry["name"]: entry for entry in files.ls(path, detail=True)}
        else:
            return None
    return [
        RemoteFile(
            url=f"{scheme}://{name.lstrip('/')}",
            name=shown_url(f"{scheme}://{name.lstrip('/')}"),
            size_bytes=int(entry.get("size") or 0),
        )
        for name, entry in found.items()
        if entry.get("type") == "file"
    ]


def open_url(url: str) -> tuple[BinaryIO, int]:
    """Return the open file and its size, 0 where it cannot be read twice."""
    files, path = _store(url)
    with _in_words(url):
        file = files.open(path, "rb", block_size=_BLOCK_BYTES, cache_type="readahead")
    size = int(getattr(file, "size", None) or 0)
    opened: Any = _InWords(file, url)
    return opened, size


def stamp(url: str) -> tuple[object, ...]:
    """Return what changes when the file is written again."""
    files, path = _store(url)
    with _in_words(url):
        files.invalidate_cache()
        info = files.info(path)
    return (info.get("size"), *(str(info[name]) for name in _STAMPS if name in info))


def _store(url: str) -> tuple[Any, str]:
    """Return the file system of a URL and the path in it."""
    scheme = url.partition("://")[0].lower()
    if scheme not in STORES or "::" in url:
        known = ", ".join(f"{name}://" for name in STORES)
        raise BadOption("has an unsupported scheme", where=shown_url(url), hint=f"one of {known}")
    hint = f"pip install 'stepgrade[{STORES[scheme]}]'"
    try:
        from fsspec.core import url_to_fs  # an extra

        files, path = url_to_fs(url)
    except ImportError as error:
        raise MissingExtra(f"reading {scheme}:// needs a package", hint=hint) from error
    except Exception as error:  # noqa: BLE001  every store has errors of its own
        raise _read_error(error, url) from None
    return files, path


@contextmanager
def _in_words(url: str) -> Iterator[None]:
    """Convert exceptions of a store's library into our errors."""
    try:
        yield
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001  every store has errors of its own
        raise _read_error(error, url) from None  # the cause may quote the signed URL


def status_of(error: BaseException | None) -> int | None:
    """Return the HTTP status of an error or of its cause."""
    while error is not None:
        status = getattr(error, "status", None)
        response = getattr(error, "response", None)
        if isinstance(response, dict):  # botocore's
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", status)
        if isinstance(status, int):
            return status
        error = error.__cause__ or error.__context__
    return None


def _read_error(error: Exception, url: str) -> BadInput:
    name, status = shown_url(url), status_of(error)
    if isinstance(error, PermissionError) or status in (401, 403):
        hint = "check the credentials and the name: some stores deny access to missing files"
        return BadInput("permission denied", where=name, hint=hint)
    origin = error.__cause__ or error.__context__
    if status is None and isinstance(origin, OSError) and not isinstance(origin, FileNotFoundError):
        return BadInput("cannot be read: connection failed", where=name, hint="is the address right?")
    if isinstance(error, FileNotFoundError) or status == 404:
        return BadInput("no such file", where=name, hint="check the name, and whether the run has finished")
    if "Credentials" in type(error).__name__:
        return BadInput(
            "needs credentials", where=name, hint="set credentials as for the store's own command-line tool"
        )
    if isinstance(error, TimeoutError):
        return BadInput("timed out", where=name)
    what = f"{type(error).__name__}, status {status}" if status else type(error).__name__
    return BadInput(f"cannot be read: {what}", where=name)


class _InWords:
    """A remote file that raises our errors."""

    def __init__(self, file: Any, url: str) -> None:
        self._file, self._url = file, url

    def read(self, most: int = -1) -> bytes:
        with _in_words(self._url):
            data: bytes = self._file.read(most)
            return data

    def seek(self, location: int) -> int:
        with _in_words(self._url):
            at: int = self._file.seek(location)
            return at

    def close(self) -> None:
        self._file.close()
