"""Read the logs that torch.compile writes to the directory in TORCH_TRACE.

A record is a line `V1117 05:41:40.476000 9755 torch/_dynamo/utils.py:2009] {"compilation_metrics": …}`. Lines
that begin with a tab belong to it: graphs and generated code, which are most of the file and are skipped.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain

import msgspec
from msgspec import Struct

from stepgrade.decoding import from_json
from stepgrade.errors import BadInput, TooLarge
from stepgrade.model.compilation import CompiledFrame, CompileLog, FailedGuard, GraphBreak
from stepgrade.naming.python_frames import read_frame, without_address
from stepgrade.patterns import regex
from stepgrade.readers.base import Part, Reader
from stepgrade.readers.source import ByteSource

_HEADER = rb"[VIWEC]\d{4} \d\d:\d\d:\d\d\.\d{3,9} \d{1,20} [^\s\]]{1,500}:\d{1,9}\] "
_FIRST_LINE = regex(rb"\A" + _HEADER + rb'\{"')
# The first key is the kind of record.
_WANTED = regex(
    _HEADER
    + rb'(\{"(?:compilation_metrics|bwd_compilation_metrics|dynamo_start|artifact|chromium_event)": .*)',
    re.DOTALL,
)
_LONGEST_LINE = 4 << 20
_LONGEST_PAYLOAD = 256 << 10
_LONGEST_TEXT = 300
_BYTES_OF_FRAME = 2000
_LARGEST = 1 << 53
_MOST_ROWS = 1000
_MOST_GUARDS = 8  # of a frame
_MOST_KINDS_OF_GUARDS = 64
_GUARDS, _BREAK = "recompile_reasons", "dynamo_graph_break_reason"
_GRAPH_RECORDED = "CUDAGraphNode.record"
_RECORD_INSIDE = regex(r"[^\s:]{1,200}\.py:\d{1,9}\] ")
_COMPILE_ID = regex(r"^!?\d+(?:/\d+)*: ")
_NUMBERS = regex(r"\d+")
_BREAK_AT = regex(r"^Graph break in user code at (.{1,1000}):(\d{1,9})$", re.MULTILINE)
_FRAME_LINE = regex(r'^\s*File "(.{1,1000})", line (\d{1,9}), in (\S{1,300})$', re.MULTILINE)
_REASON = regex(r"^(?:Graph Break )?Reason: (.*)$|^(Graph break: .*)$", re.MULTILINE)
_EXPLAINED = regex(r"^(\S.*)\n+ {2}Explanation: (.*)$", re.MULTILINE)
_TRACEBACKS = regex(r"^(?:Traceback \(most recent call last\)|NoneType: None)", re.MULTILINE)
_RANK_IN_NAME = regex(r"rank_(\d{1,6})(?!\d)")


_RAISED = regex(r"(?<= raised:)\s{0,9}\n")


class _Artifact(Struct, frozen=True):
    name: str = ""


class _EventArgs(Struct, frozen=True):
    compile_id: str | None = None
    is_backward: bool | None = None


class _Event(Struct, frozen=True):
    name: str = ""
    ph: str = ""
    args: _EventArgs = _EventArgs()


class _Metrics(Struct):
    co_name: str | None = None
    co_filename: str | None = None
    co_firstlineno: int | None = None
    duration_us: float | None = None
    dynamo_cumulative_compile_time_us: float | None = None
    entire_frame_compile_time_s: float | None = None
    inductor_compile_time_s: float | None = None
    fail_reason: str | None = None
    is_runtime: bool | None = None


class _Record(Struct):
    compilation_metrics: _Metrics | None = None
    bwd_compilation_metrics: _Metrics | None = None
    dynamo_start: dict[str, object] | None = None
    chromium_event: dict[str, object] | None = None
    artifact: _Artifact | None = None
    compiled_autograd_id: int | None = None
    frame_id: int | None = None
    frame_compile_id: int | None = None
    rank: int | None = None

    @property
    def frame(self) -> str | None:
        """Return the number of the frame, with that of compiled autograd where it is of one."""
        numbers = [number for number in (self.compiled_autograd_id, self.frame_id) if number is not None]
        if not numbers or not all(0 <= number < _LARGEST for number in numbers):
            return None
        return "!" * (self.compiled_autograd_id is not None) + "/".join(map(str, numbers))


class _Frame:
    """One compiled frame so far."""

    def __init__(self) -> None:
        self.compiles: set[int] = set()
        self.seconds = 0.0
        self.function: str | None = None
        self.where: str | None = None
        self.failure: str | None = None
        self.guards: Counter[str] = Counter()
        self.last_guard: dict[str, str] = {}

    def add_metrics(self, metrics: _Metrics) -> None:
        # Field names differ by version and pass.
        seconds = (
            metrics.entire_frame_compile_time_s,
            (metrics.duration_us or 0.0) / 1e6,
            (metrics.dynamo_cumulative_compile_time_us or 0.0) / 1e6,
            metrics.inductor_compile_time_s,
        )
        self.seconds += next((value for value in seconds if value and 0 < value < _LARGEST), 0.0)
        if metrics.co_name and self.function is None:
            self.function = metrics.co_name[:_LONGEST_TEXT]
            self.where = _location(metrics.co_filename or "", metrics.co_firstlineno or 0, metrics.co_name)
        if metrics.fail_reason:
            # A backend's failure is in the line after the one that names the backend.
            self.failure = _sentence(_RAISED.sub(" ", metrics.fail_reason))

    def add_guard(self, reason: str) -> None:
        """Count a reason; reasons that differ only in numbers are merged."""
        kind = _NUMBERS.sub("#", reason)
        if kind in self.last_guard or len(self.last_guard) < _MOST_KINDS_OF_GUARDS:
            self.guards[kind] += 1
            self.last_guard[kind] = reason

    def row(self, frame: str) -> CompiledFrame:
        compiles = max(len(self.compiles), 1)
        return CompiledFrame(
            frame=frame,
            compiles=compiles,
            recompiles=compiles - (0 in self.compiles or not self.compiles),
            ms=self.seconds * 1e3,
            where=self.where,
            function=self.function,
            guards=tuple(
                FailedGuard(reason=self.last_guard[kind], count=count)
                for kind, count in self.guards.most_common(_MOST_GUARDS)
            ),
            failure=self.failure,
        )


class _Seen:
    """The whole log so far."""

    def __init__(self) -> None:
        self.frames: dict[str, _Frame] = {}
        self.breaks: Counter[tuple[str | None, str | None, str]] = Counter()
        self.recorded_graphs: Counter[tuple[str | None, bool | None]] = Counter()
        self.rank: int | None = None
        self.records = self.unread = 0

    def add(self, text: bytes, payload: str) -> None:
        """Take in one record with the lines that follow it."""
        try:
            record = from_json(text, _Record)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            self.unread += 1
            return
        self.records += 1
        if record.rank is not None and 0 <= record.rank < _LARGEST:
            self.rank = record.rank
        metrics = record.compilation_metrics or record.bwd_compilation_metrics
        if record.chromium_event is not None:
            self.add_event(payload)
        elif record.frame is not None and record.artifact is not None:
            if record.artifact.name == _BREAK:
                self.breaks[broken_at(payload)] += 1
            elif record.artifact.name == _GUARDS and (reason := first_reason(payload)):
                self.frames.setdefault(record.frame, _Frame()).add_guard(reason)
        elif record.frame is not None and not (metrics and metrics.is_runtime):  # of compiled code
            frame, number = self.frames.setdefault(record.frame, _Frame()), record.frame_compile_id
            if metrics is not None:
                frame.add_metrics(metrics)
            if number is not None and 0 <= number < _LARGEST and record.bwd_compilation_metrics is None:
                frame.compiles.add(number)

    def add_event(self, payload: str) -> None:
        """Count a recording of a CUDA graph; other events are redundant."""
        try:
            event = from_json(payload, _Event) if _GRAPH_RECORDED in payload else _Event()
        except (msgspec.DecodeError, RecursionError):
            self.unread += 1
            return
        if event.name == _GRAPH_RECORDED and event.ph == "B":
            compile_id = (event.args.compile_id or "")[:_LONGEST_TEXT] or None
            self.recorded_graphs[compile_id, event.args.is_backward] += 1


def recognises(source: ByteSource) -> bool:
    """Tell by the first line: the prefix of torch's logs, and an object of JSON."""
    return _FIRST_LINE.match(source.head) is not None


def read(source: ByteSource) -> Part:
    """Return what one process compiled."""
    seen = _Seen()
    for text, payload in _records(source):
        seen.add(text, payload)
        if (
            len(seen.frames) + len(seen.breaks) + len(seen.recorded_graphs)
        ) * _BYTES_OF_FRAME > source.memory_bytes:
            raise TooLarge("has more compiled frames than memory allows", where=source.name)
    if not seen.records:
        raise BadInput(
            "is a torch log without any compilation",
            hint="pass the files that TORCH_TRACE=directory creates",
        )
    frames = sorted(
        (frame.row(name) for name, frame in seen.frames.items()), key=lambda row: (-row.ms, row.frame)
    )
    named = _RANK_IN_NAME.search(source.name)
    recorded = seen.recorded_graphs
    log = CompileLog(
        file=source.name,
        rank=int(named[1]) if seen.rank is None and named else seen.rank,
        total_ms=sum(frame.ms for frame in frames),
        compiles=sum(frame.compiles for frame in frames),
        recompiles=sum(frame.recompiles for frame in frames),
        cudagraph_records=recorded.total(),
        cudagraph_rerecords=recorded.total() - len(recorded),
        frames=tuple(frames[:_MOST_ROWS]),
        breaks=tuple(
            GraphBreak(where=where, function=function, reason=reason, compiles=count)
            for (where, function, reason), count in seen.breaks.most_common(_MOST_ROWS)
        ),
        unread=seen.unread,
    )
    return Part(compile_log=log)


def _records(source: ByteSource) -> Iterator[tuple[bytes, str]]:
    """Yield the JSON of each record about compilation, with the lines that follow it."""
    wanted: bytes | None = None
    payload: list[bytes] = []
    size = 0
    for line in chain(_lines(source), (b"",)):
        if line.startswith(b"\t"):
            if wanted is not None and size < _LONGEST_PAYLOAD:
                payload.append(line[1:])
                size += len(line)
            continue
        if wanted is not None:
            yield wanted, b"\n".join(payload).decode(errors="replace")
        found = _WANTED.match(line)
        wanted, payload, size = found[1] if found else None, [], 0


def _lines(source: ByteSource) -> Iterator[bytes]:
    """Yield the lines; of a line that is too long for a record, only its beginning."""
    begun = b""
    for chunk in source.chunks():
        first, *others = chunk.split(b"\n")
        if len(begun) < _LONGEST_LINE:
            begun += first
        if others:
            yield begun
            yield from others[:-1]
            begun = others[-1]
    yield begun


def _location(path: str, line: int, function: str) -> str | None:
    """Return file.py:line as it is shown; None for what has no line."""
    return (
        read_frame(f"{path[:1000]}({line}): {function[:_LONGEST_TEXT]}").where if path and line > 0 else None
    )


def _sentence(text: str) -> str:
    """Return the first line of a text that has one, without the record that a torn line runs into."""
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    return _RECORD_INSIDE.split(line[: 2 * _LONGEST_TEXT], maxsplit=1)[0][:_LONGEST_TEXT]


def first_reason(payload: str) -> str:
    """Return which guard of the code compiled last failed: the first of the list, or the only one."""
    text = payload
    if payload.startswith("["):
        try:
            listed = from_json(payload, list[str])
        except (msgspec.DecodeError, RecursionError):
            return ""
        text = listed[0] if listed else ""
    # The guard is followed by the line of torch that made it.
    return _COMPILE_ID.sub("", _sentence(text)).split("  # ")[0].strip()


def broken_at(payload: str) -> tuple[str | None, str | None, str]:
    """Return where a graph breaks, in which function, and why."""
    own = _TRACEBACKS.split(payload, maxsplit=1)[0]  # what follows is torch's own stack
    lines = [
        (int(number), function, read_frame(f"{path}({number}): {function}"))
        for path, number, function in _FRAME_LINE.findall(own)
    ]
    lines = [each for each in lines if each[2].is_user] or lines
    at = _BREAK_AT.search(own)
    function = lines[-1][1] if lines else None
    where = _location(at[1], int(at[2]), function or "") if at else lines[-1][2].where if lines else None
    explained, durations = _EXPLAINED.search(own), _REASON.search(own)
    reason = (durations[1] or durations[2] or "") if durations else own
    if explained:
        reason = f"{explained[1].removeprefix('Graph Break Reason: ')}: {explained[2]}"
    return where, function, _sentence(without_address(reason))


READER = Reader(
    name="torch_trace",
    summary="logs of torch.compile (TORCH_TRACE): compile times, guards that fail, graph breaks and why",
    recognises=recognises,
    read=read,
    kind="compile_log",
    rank_files=(".log",),
)
