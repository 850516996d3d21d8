"""Decide whether two runs are comparable: same work, same machine, same kind of measurement."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import asdict

from stepgrade.errors import BadOption, did_you_mean
from stepgrade.hardware.cost.plan import short_dtype
from stepgrade.model import Note
from stepgrade.model.scorecard import Fingerprint

ALL = "all"
FIELDS = Fingerprint.__struct_fields__
# Mean quantities per step, and by how much two runs of the same code may differ in them.
_AVERAGES = ("tokens_per_step", "samples_per_step")
_SAME_WORK = 0.01


def allowed_fields(texts: Sequence[str]) -> frozenset[str]:
    """Return the fields that may differ: names, with commas or repeated, or all; raise BadOption."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (ALL, *FIELDS):
            hint = did_you_mean(name, (ALL, *FIELDS))
            raise BadOption(f"{name!r} is not a part of a fingerprint", field="allow_different", hint=hint)
    return frozenset(FIELDS) if ALL in names else frozenset(names)


def differences(
    now: Fingerprint | None, before: Fingerprint | None, allowed: Collection[str] = ()
) -> tuple[Note, ...]:
    """Return a note for each field that both know and that differs; its code is the field's name."""
    if now is None or before is None:
        return ()
    # Scorecards before 0.2 have the precision as their source wrote it.
    current, earlier = (
        asdict(run) | {"precision": short_dtype(run.precision) if run.precision else None}
        for run in (now, before)
    )
    rows = []
    for field, here in current.items():
        there = earlier[field]
        if field == "versions":
            rows += [
                (field, f"versions of {name}", here[name], there[name])
                for name in sorted(here)
                if name in there
            ]
        elif here is None or there is None:
            continue
        elif field not in _AVERAGES or not math.isclose(here, there, rel_tol=_SAME_WORK):
            rows.append((field, field, here, there))
    return tuple(
        Note(field, f"{name}: {_shown(here)} now, {_shown(there)} in the baseline")
        for field, name, here, there in rows
        if here != there and field not in allowed
    )


def _shown(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return f"{value:,.0f}" if whole else str(value)


def digest_of(fingerprint: Fingerprint) -> str:
    """Return a short name of the fingerprint: equal circumstances have equal names."""
    import hashlib  # only history needs it

    text = msgspec.json.encode(fingerprint, order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]
