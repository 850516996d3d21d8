"""The file of a recording: a journal during training, replaced by one JSON object at the end."""

from __future__ import annotations

import errno
import json
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, to_builtins
from msgspec.structs import asdict

from stepgrade.model.notes import Note
from stepgrade.model.profile import STEP_PROFILER_V2
from stepgrade.record.environment import peak_memory_bytes
from stepgrade.record.timeline import GAPS
from stepgrade.record.totals import Totals

if TYPE_CHECKING:
    from stepgrade.record.recording import Recording

from stepgrade.files import MODES, temporary_folder, write_whole
from stepgrade.units import show_ms

JOURNAL_VERSION = 1
_LEAST_GAP_SHARE = 0.005
_COUNTED = {
    "profiled_steps": "{} under torch.profiler left out of the times",
    "lost_steps": "{} missing: the device was too far behind the host",
    "loss_not_finite": "the loss of {} was not a finite number",
    "unwatched_steps": "{} of an optimizer that is not watched left out: training went on with it",
    "steps_elsewhere": "{} of another thread left out: one thread is followed",
}
_LONGEST_BYTES = 1 << 22  # of a journal; it is compacted then


class Journal:
    """Appends lines to a file; on failure raises OSError without leaving a partial line."""

    def __init__(self, path: Path, readable_by: str = "owner") -> None:
        self.path = path
        self._mode = MODES[readable_by]
        self._file: tuple[int, int, int] | None = None  # device, inode and size of the file once it exists

    def check(self) -> None:
        """Raise OSError early if the file cannot be written."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.is_dir():
            raise IsADirectoryError(f"{self.path} is a directory")
        if not _is_special(self.path):
            with tempfile.TemporaryFile(dir=self.path.parent):
                pass

    @property
    def is_due_to_be_whole(self) -> bool:
        """Return whether the next line must hold everything: the first, after many, or of a lost file."""
        return self._file is None or self._file[2] > _LONGEST_BYTES or not self.path.exists()

    def write(self, head: dict[str, object], line: dict[str, object]) -> None:
        """Replace the file by a journal of two lines: its head and the sums over all steps."""
        if _is_special(self.path):
            return  # a pipe or a device gets the final JSON only
        if self._file is not None and self.path.exists():
            self._check_ours(self.path.stat())
        text = encode(head) + encode(line)
        write_whole(self.path, text, new_mode=self._mode)
        self._file = _identity(self.path.stat())

    def append(self, line: dict[str, object]) -> None:
        """Append a line."""
        # Reopened each time: a script that closes all files may have reused the descriptor.
        with self.path.open(
            "r+b", buffering=0
        ) as stream:  # unbuffered: a buffer would be written again after a failure
            self._check_ours(os.fstat(stream.fileno()))
            end = stream.seek(0, os.SEEK_END)
            left = memoryview(encode(line))
            try:
                while left:
                    left = left[stream.write(left) :]
            except OSError:
                with suppress(OSError):
                    stream.truncate(end)
                raise
            finally:
                self._file = _identity(os.fstat(stream.fileno()))

    def _check_ours(self, found: os.stat_result) -> None:
        if _identity(found) != self._file:
            raise FileExistsError(errno.EEXIST, "another program has replaced it")

    def finish(self, text: bytes) -> Path:
        """Replace the journal by the final JSON; if that fails, write to the temporary directory.

        Return the path; raise OSError if neither can be written.
        """
        path = self.path
        if self._file is not None and path.exists() and _identity(path.stat()) != self._file:
            path = _unused(path)  # do not replace the file of another run in the same directory
        try:
            write_whole(path, text, new_mode=self._mode)
        except OSError:
            folder = Path(temporary_folder())
            if folder.resolve() == path.parent.resolve():
                raise
            elsewhere = _unused(folder / path.name)
            write_whole(elsewhere, text, new_mode=self._mode)
            return elsewhere
        return path


def _unused(path: Path) -> Path:
    """Return the path, or the first unused one with a number after its name."""
    number, unused = 1, path
    while os.path.lexists(unused):
        number += 1
        unused = path.with_name(f"{path.stem}-{number}{path.suffix}")
    return unused


def rank_path(path: Path, rank: int, world_size: int) -> Path:
    """Return the file of a rank: with several ranks, `run.json` becomes `run.rank3.json`."""
    return path if world_size == 1 else path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def encode(value: dict[str, object]) -> bytes:
    """Return a line of JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _identity(found: os.stat_result) -> tuple[int, int, int]:
    # Including the size: a new file may reuse the inode of a removed one.
    return found.st_dev, found.st_ino, found.st_size


def _is_special(path: Path) -> bool:
    try:
        return not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


class RunDescription(Struct):
    """What describes the run for its fingerprint; filled in as it becomes known."""

    device: dict[str, object] = {}
    rank: int = 0
    world_size: int = 1
    versions: dict[str, str] = {}
    config: dict[str, object] = {}


def journal_head(
    recording: Recording, run: RunDescription, tokens_per_step: float | None, flush_seconds: float
) -> dict[str, object]:
    """Return the first line of a journal: the description of the run."""
    return {
        "_recording": JOURNAL_VERSION,
        "flush_seconds": flush_seconds,
        "layers": list(recording.models.layer_names),
        "tokens_per_step": tokens_per_step,
        "stepgrade": {**asdict(run), "config": dict(run.config)},
    }


def journal_line(
    recording: Recording, warm: Totals, steady: Totals, *, with_lines: bool = False
) -> dict[str, object]:
    """Return a line of a journal: sums over some warm-up steps and some steady steps.

    With the lines of Python that held all steps up until now.
    """

    def sums(totals: Totals) -> dict[str, object] | None:
        if not totals.steps:
            return None
        return {
            "steps": totals.steps,
            "wall_ms": totals.wall_ns / 1e6,
            "tokens": totals.tokens,
            "rows": totals.rows,
            "phases_ms": _phases_ms(totals, recording),
            "layers_ms": _layers_ms(totals),
            "samples_ms": _samples_ms(totals),
            "every": totals.samples.every,
        }

    return {
        "warmup": sums(warm),
        "steady": sums(steady),
        "recorded_steps": recording.ended,
        "loss": recording.loss.summary(),
        "sampled": None if recording.window.is_written else _sampled(recording),
        "lines": _lines(recording) if with_lines else None,
        "machine": _machine(recording) if with_lines else None,
    }


def step_profile(
    totals: Totals,
    recording: Recording,
    run: RunDescription,
    tokens_per_step: float | None,
    notes: list[Note],
) -> dict[str, object]:
    """Return the final JSON: step_profiler_v2's fields, then ours; all times but averages are totals."""
    steps, wall_ms = totals.steps, totals.wall_ns / 1e6
    phases_ms = {
        name: ms
        for name, ms in _phases_ms(totals, recording).items()
        if name not in GAPS or ms >= _LEAST_GAP_SHARE * wall_ms
    }
    tokens = tokens_per_step or (totals.tokens / steps if totals.tokens else None)
    rows = totals.rows / steps if totals.rows else None
    return {
        "_profiler": STEP_PROFILER_V2,
        "steps": steps,
        "avg_step_ms": wall_ms / steps,
        "wall_coverage": min(1.0, sum(phases_ms.values()) / wall_ms),
        "bottleneck": None,
        "phases": {
            name: {"total_ms": ms, "pct": 100.0 * ms / wall_ms, "avg_ms": ms / steps}
            for name, ms in phases_ms.items()
        },
        "per_layer": [
            {
                "layer": layer,
                "name": recording.models.layer_names[layer],
                "fwd_ms": forward_ms,
                "bwd_ms": backward_ms,
            }
            | ({"recompute_ms": recompute_ms} if recompute_ms else {})
            for layer, forward_ms, backward_ms, recompute_ms in _layers_ms(totals)
        ],
        **({"tokens_per_step": tokens} if tokens is not None else {}),
        **({"samples_per_step": rows} if rows is not None else {}),
        "samples_ms": _samples_ms(totals),
        "peak_memory_bytes": peak_memory_bytes(run.device["kind"]),
        "stepgrade": {
            **asdict(run),
            "notes": [note.text for note in notes],
            "notes_coded": to_builtins(notes),
            "recorded_steps": recording.ended,
            "clock": recording.clock.name,
            "machine": _machine(recording),
            "processor_ms": [round(spent_ns / 1e6, 4) for spent_ns in totals.processor.kept_ns],
            "loss": recording.loss.summary(),
            "sampled": _sampled(recording),
            "lines": _lines(recording),
            "counted": to_builtins(recording.counted.counted(recording.ended)),
            "sensors": recording.sensors.summary() if recording.sensors else None,
        },
    }


def _sampled(recording: Recording) -> dict[str, object] | None:
    sampled = recording.window.sampled
    return sampled.to_stored() if sampled else None


def recording_notes(recording: Recording, totals: Totals, *, is_warm: bool) -> list[Note]:
    """Return what a reader of the profile should know about how it was recorded."""
    layered, every = bool(recording.models.layer_names), totals.samples.every
    (small, large), unit = recording.sizes.uneven() or (0, 0), "tokens" if totals.tokens else "samples"
    ends = "a step ends when the weights have changed after a backward pass"
    unseen = "no torch optimizer was seen"
    if recording.own_updates.has_optimizer:
        unseen = "the optimizer's steps are not seen, as inside torch.compile"
    elif not recording.own_updates.is_certain:
        ends = "each backward pass counts as a step, which is too many where gradients are accumulated"
    compiled = (
        "the forward of the blocks was never seen, perhaps because they are inside one torch.compile graph; "
        "compile the blocks one by one to get their times"
    )
    times, evaluated_ns = (recording.counts[f"evaluation_{unit}"] for unit in ("steps", "ns"))
    evaluated = f"{'1 step' if times == 1 else f'{times} steps'} with an evaluation"
    possible = {
        "warm_up_only": (is_warm, "only warm-up steps were recorded: later steps may be faster"),
        "step_times_thinned": (every > 1, f"the time of one step in {every} is kept"),
        **{
            code: (count, text.format("1 step" if count == 1 else f"{count} steps"))
            for code, text in _COUNTED.items()
            for count in [recording.counts[code]]
        },
        "evaluation_steps": (
            times,
            f"left out: {evaluated}, {show_ms(evaluated_ns / 1e6)} in all",
        ),
        "uneven_steps": (
            large,
            f"steps take longer the more they hold, most {small} to {large} {unit}",
        ),
        "own_updates": (recording.own_steps, f"{unseen}: {ends}"),
        "device_clock": (
            recording.clock.name != "host",
            "times were measured with events on the device's stream",
        ),
        "no_forward": (
            layered and not recording.saw_forward,
            "the model's forward was never seen: pass the module that the loop calls",
        ),
        "no_layer_forward": (layered and recording.saw_forward and not totals.forward_ns, compiled),
    }
    return [Note(code, text) for code, (applies, text) in possible.items() if applies]


def _machine(recording: Recording) -> object:
    return to_builtins(recording.contention.machine()) if recording.contention is not None else None


def _lines(recording: Recording) -> object:
    return to_builtins(recording.lines.lines(recording.ended - recording.lines.first_step))


def _phases_ms(totals: Totals, recording: Recording) -> dict[str, float]:
    names = recording.phase_names()
    return {names[code]: spent_ns / 1e6 for code, spent_ns in sorted(totals.phases_ns.items())}


def _layers_ms(totals: Totals) -> list[tuple[int, float, float, float]]:
    """Return number, forward, backward and recomputation of each layer that was called."""
    forward, backward, recompute = totals.forward_ns, totals.backward_ns, totals.recompute_ns
    return [
        (
            layer,
            forward.get(layer, 0) / 1e6,
            backward.get(layer, 0) / 1e6,
            recompute.get(layer, 0) / 1e6,
        )
        for layer in sorted({*forward, *backward, *recompute})
    ]


def _samples_ms(totals: Totals) -> list[float]:
    return [round(wall_ns / 1e6, 4) for wall_ns in totals.samples.kept_ns]
