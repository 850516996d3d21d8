"""Are two runs comparable: the same work on the same machine, measured in the same way."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import msgspec

from stepgrade.analysis import Question
from stepgrade.errors import BadOption
from stepgrade.model import Fingerprint, Profile, Recorded

ALL = "all"
FIELDS = Fingerprint.__struct_fields__


def fingerprint_of(profile: Profile, question: Question) -> Fingerprint:
    """Return the circumstances of a run, from the profile and from what the user said of it."""
    against, recorded = question.against, profile.recorded or Recorded()
    return Fingerprint(
        device=_device(profile, question),
        devices=against.devices if against.devices > 1 else None,
        model=against.model or recorded.model,
        batch=against.batch or recorded.batch,
        seq=against.seq,
        tokens_per_step=question.tokens_per_step or profile.tokens_per_step,
        precision=against.dtype if against.model else profile.matmul_dtype or recorded.precision,
        world_size=profile.world_size,
        versions=recorded.versions,
        profiler=_profiler(profile),
    )


def _device(profile: Profile, question: Question) -> str | None:
    """Return where it ran: the catalogue's name, else the source's own word."""
    if question.against.device is not None:
        return question.against.device.key
    if profile.device is not None:
        return profile.device.name
    return profile.recorded.processor if profile.recorded else None


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
) -> tuple[str, ...]:
    """Return in words what both sides say, and say differently; the unknown is no difference."""
    if now is None or before is None:
        return ()
    return tuple(
        f"{name}: {_shown(here)} now, {_shown(there)} in the baseline"
        for name, here, there in _told(now, before)
        if here != there and name.split(" ")[0] not in allowed
    )


def _shown(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return f"{value:,.0f}" if whole else str(value)


def digest_of(fingerprint: Fingerprint) -> str:
    """Return a short name of the fingerprint: equal circumstances have equal names."""
    import hashlib  # noqa: PLC0415  only history needs it

    text = msgspec.json.encode(fingerprint, order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]


def _told(now: Fingerprint, before: Fingerprint) -> Iterator[tuple[str, object, object]]:
    for name in FIELDS:
        here, there = getattr(now, name), getattr(before, name)
        if name == "versions":
            both = sorted(here.keys() & there.keys())
            yield from ((f"versions of {part}", here[part], there[part]) for part in both)
        elif here is not None and there is not None:
            yield name, here, there


def _profiler(profile: Profile) -> str | None:
    """Return who measured and what was recorded: shapes and stacks cost time."""
    settings = profile.recorded.settings if profile.recorded else ()
    name = profile.source.producer or profile.source.format
    return f"{name} with {', '.join(settings)}" if settings else name
