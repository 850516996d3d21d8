"""Are two runs comparable: the same work on the same machine, measured in the same way."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from stepgrade.errors import BadOption
from stepgrade.model import Fingerprint, Note

ALL = "all"
FIELDS = Fingerprint.__struct_fields__


def allowed_fields(texts: Sequence[str]) -> frozenset[str]:
    """Read `--allow-different`: names of fields, with commas or repeated, or all; raise BadOption."""
    names = [name.strip() for text in texts for name in text.split(",") if name.strip()]
    for name in names:
        if name not in (ALL, *FIELDS):
            known = ", ".join((ALL, *FIELDS))
            raise BadOption(f"{name!r} is no part of a fingerprint", where="--allow-different", hint=known)
    return frozenset(FIELDS) if ALL in names else frozenset(names)


def differences(
    now: Fingerprint | None, before: Fingerprint | None, allowed: Collection[str] = ()
) -> tuple[Note, ...]:
    """Return in words what both sides say, and say differently; the unknown is no difference."""
    if now is None or before is None:
        return ()
    return tuple(
        Note(field, f"{name}: {_shown(here)} now, {_shown(there)} in the baseline")
        for field, name, here, there in _told(now, before)
        if here != there and field not in allowed
    )


def _shown(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return f"{value:,.0f}" if whole else str(value)


def digest_of(fingerprint: Fingerprint) -> str:
    """Return a short name of the fingerprint: equal circumstances have equal names."""
    import hashlib  # noqa: PLC0415  only history needs it

    text = msgspec.json.encode(fingerprint, order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]


def _told(now: Fingerprint, before: Fingerprint) -> Iterator[tuple[str, str, object, object]]:
    for name in FIELDS:
        here, there = getattr(now, name), getattr(before, name)
        if name == "versions":
            both = sorted(here.keys() & there.keys())
            yield from ((name, f"versions of {part}", here[part], there[part]) for part in both)
        elif here is not None and there is not None:
            yield name, name, here, there
