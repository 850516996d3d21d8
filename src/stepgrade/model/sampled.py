"""Steps that ran under a profiler beside those that were timed: what they did, not how fast a step is."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, to_builtins

from stepgrade.decoding import from_builtins
from stepgrade.model.activity import Activity
from stepgrade.model.operations import Operation
from stepgrade.model.profile import check_figure

# Recordings keep the names that these fields had first.
_STORED_OPERATIONS = {"ms": "total_ms", "class": "kind"}  # and their shapes and kernels
_STORED_COPIES = {"calls": "count"}


class SampledSteps(Struct, frozen=True, kw_only=True):
    """What the sampled steps did; figures are of all of them together, those of `activity` of one.

    Tokens and samples are those of the sampled steps, so that what they cost holds for steps of another size.
    """

    steps: int
    model_ms: float  # from forward to optimizer, as timed under the profiler
    busy_ms: float | None = None  # in operations; None where a device computes, which the sample does not see
    tokens: float | None = None
    samples: float | None = None
    matmul_flops: float | None = None
    matmul_known_share: float | None = None
    matmul_dtype: str | None = None
    operations: tuple[Operation, ...] = ()
    activity: Activity | None = None
    waited_for_core_share: float | None = None  # of the time of the step that waited least

    def __post_init__(self) -> None:
        figures: list[tuple[str, float | None]] = [
            ("count", self.steps),
            ("time", self.model_ms),
            ("busy time", self.busy_ms),
            ("tokens", self.tokens),
            ("samples", self.samples),
            ("FLOPs", self.matmul_flops),
            ("known share", self.matmul_known_share),
            ("wait", self.waited_for_core_share),
        ]
        for op in self.operations:
            if op.ms is None:
                raise ValueError(f"sampled steps, {op.name!r}: its time is missing")
            figures += [(repr(op.name), figure) for figure in (op.ms, op.calls, op.flops, op.bytes)]
        for place, figure in figures:
            check_figure(f"sampled steps, {place}", figure)
        unseen: list[object] = [to_builtins(self.activity)]
        while unseen:
            part = unseen.pop()
            if isinstance(part, dict):
                unseen += part.values()
            elif isinstance(part, list | tuple):
                unseen += part
            elif isinstance(part, int | float):
                check_figure("sampled steps, activity", part)

    def to_stored(self) -> dict[str, Any]:
        """Return what a recording keeps."""
        return _renamed(to_builtins(self), _STORED_OPERATIONS, _STORED_COPIES)

    @classmethod
    def from_stored(cls, document: dict[str, Any]) -> SampledSteps:
        """Return what a recording keeps; raise msgspec.ValidationError for anything else."""
        operations, copies = (
            {stored: name for name, stored in names.items()} for names in (_STORED_OPERATIONS, _STORED_COPIES)
        )
        return from_builtins(_renamed(document, operations, copies), cls)


def _renamed(
    document: dict[str, Any], of_operations: dict[str, str], of_copies: dict[str, str]
) -> dict[str, Any]:
    """Return sampled steps whose operations and copies have their fields under other names."""
    renamed = document | {"operations": _with_names(document.get("operations", []), of_operations)}
    activity = document.get("activity")
    if isinstance(activity, dict):
        renamed["activity"] = activity | {"copies": _with_names(activity.get("copies", []), of_copies)}
    return renamed


def _with_names(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {names.get(name, name): _with_names(part, names) for name, part in value.items()}
    return [_with_names(part, names) for part in value] if isinstance(value, list | tuple) else value
