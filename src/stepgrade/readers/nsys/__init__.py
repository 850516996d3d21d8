"""Read what Nsight Systems exports as SQLite."""

from __future__ import annotations

import re

from stepgrade.errors import BadInput
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

_EXPORT = rb"(?i)create table.{0,3}(?:StringIds|TARGET_INFO_)"
# A report that was not exported: its version is in the first line, 2024@6@2@225.
_REPORT = re.compile(rb"\ANVIDIA (?:Tegra Profiler|Nsight Systems)[^\n\d]{0,40}(\d{4}@\d{1,3}(?:@\d{1,3})?)?")


def recognises(source: ByteSource) -> bool:
    """Tell by the table of names that every export has, or by the first words of a report."""
    if _REPORT.match(source.head):
        return True
    if not source.head.startswith(b"SQLite format 3\0"):
        return False
    from stepgrade.readers.sqlite import has_table  # needs numpy

    return has_table(source, _EXPORT, "StringIds")


def read(source: ByteSource) -> Part:
    """Return a trace for each process that used a device: they are the ranks of one run."""
    if report := _REPORT.match(source.head):
        version = (report[1] or b"").decode().replace("@", ".")
        of = f" of version {version}" if version else ""
        problem = f"is a report of Nsight Systems{of}, which only Nsight Systems reads"
        newer = f", with an nsys of {version} or newer" if version else ""
        hint = (
            "export it: nsys export --type sqlite --include-json=true -o run.sqlite run.nsys-rep"
            f"{newer}; do not share the report: it contains the environment variables"
        )
        raise BadInput(problem, where=source.name, hint=hint)
    from stepgrade.readers.nsys.reader import read_traces  # needs numpy

    return Part(traces=read_traces(source))


READER = Reader(
    name="nsys",
    summary="SQLite exports of Nsight Systems, of every version; its processes are the ranks of one run",
    recognises=recognises,
    read=read,
    kind="traces",
    rank_files=(".sqlite", ".sqlite.gz", ".db"),
)
