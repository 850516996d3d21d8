"""Read what ROCm's profilers write: rocprofv3 as JSON, CSV or rocpd, and rpd of rocmProfileData."""

from __future__ import annotations

import re

from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

_JSON = re.compile(rb'\A\s{0,99}\{\s{0,99}"rocprofiler-sdk-tool"\s{0,9}:')
_CSV = re.compile(rb'\A"?Kind"?,"?Agent_Id"?,"?Queue_Id"?,')
_TABLES = rb"(?i)create (?:table|view).{0,20}rocpd_(?:op|kernel_dispatch|api|info_agent|string)"


def recognises(source: ByteSource) -> bool:
    """Tell by the first key of JSON, the first line of a kernel trace, or the tables of SQLite."""
    if _JSON.match(source.head) or _CSV.match(source.head):
        return True
    if not source.head.startswith(b"SQLite format 3\0"):
        return False
    from stepgrade.readers.sqlite import has_table  # needs numpy

    return has_table(source, _TABLES, "rocpd_op", "rocpd_kernel_dispatch")


def read(source: ByteSource) -> Part:
    """Return a trace for each process that used a device: they are the ranks of one run."""
    # What needs numpy is imported only here.
    if _JSON.match(source.head):
        from stepgrade.readers.rocprof.json_records import read_traces

        return Part(traces=read_traces(source))
    from stepgrade.readers.rocprof.tables import read_csv, read_database

    return Part(traces=(read_csv if _CSV.match(source.head) else read_database)(source))


READER = Reader(
    name="rocprof",
    summary="ROCm: rocprofv3 JSON, CSV and rocpd, and rpd; its processes are the ranks of one run",
    recognises=recognises,
    read=read,
    kind="traces",
    rank_files=(".json", ".json.gz", ".csv", ".csv.gz", ".db", ".rpd", ".rpd.gz"),
)
