"""Make a history to look at: forty runs of a bundled profile as a machine would vary them.

    python examples/make_history.py build/history.db

Runs differ by 1 % (seeded); from the twenty-ninth on, somebody made them 6 % slower.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

from msgspec.structs import replace

import stepgrade as sg
from stepgrade.store import NewRun, open_history

RUN = Path(__file__).parent / "runs" / "gpt_fused.json"


def slowed(profile: sg.Profile, factor: float) -> sg.Profile:
    """Return the run with every step and every part of it longer by a factor."""
    layers = [
        replace(one, fwd_ms=(one.fwd_ms or 0.0) * factor, bwd_ms=(one.bwd_ms or 0.0) * factor)
        for one in profile.layers
    ]
    phases = [replace(one, ms=(one.ms or 0.0) * factor) for one in profile.phases]
    operations = [replace(one, ms=(one.ms or 0.0) * factor) for one in profile.operations]
    return replace(
        profile,
        mean_step_ms=(profile.mean_step_ms or 0.0) * factor,
        samples_ms=tuple(ms * factor for ms in profile.samples_ms),
        phases=tuple(phases),
        layers=tuple(layers),
        operations=tuple(operations),
    )


def main() -> None:
    """Write a new history."""
    path = Path(sys.argv[1])
    if path.exists():
        sys.exit(f"{path} already exists: name a new file")
    profile, chance = sg.load(RUN), random.Random(6)  # noqa: S311  not for secrets
    with open_history(str(path)) as history:
        for number in range(40):
            factor = math.exp(chance.gauss(0.0, 0.01)) * (1.06 if number >= 28 else 1.0)
            card = sg.score(slowed(profile, factor))
            added_at = f"2026-{1 + number // 28:02}-{1 + number % 28:02}T12:00:00+00:00"
            commit = f"{chance.getrandbits(160):040x}"
            history.add(NewRun(card=card, branch="main", commit=commit, added_at=added_at))
    print(f"forty runs in {path}")


if __name__ == "__main__":
    main()
