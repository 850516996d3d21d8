"""A finding, the bottleneck and what-if answer one question with one number."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.errors import BadOption, NotMeasured, StepgradeError
from stepgrade.model.profile import Profile
from tests.faulty_runs import Faults, profile_of, profile_of_ranks
from tests.samples import shared

WAITS = {"communication": "communication", "input": "input", "transfer": "copies"}
# Of the step: what a promise takes from the ledger may round differently.
CLOSE = 0.002
FAULTS = {
    "reduction": Faults(reduce_ns=8_000_000, reduce_at_end=True),
    "reads": Faults(reads=4),
    "loader": Faults(loader_ns=9_000_000),
    "stall": Faults(stall_ns=20_000_000),
    "nothing": Faults(),
    "optimizer": Faults(single_tensor=40),
}


def gains_without(profile: Profile) -> dict[str, float]:
    """Return what leaving out a part altogether saves at best, for each part that the steps have."""
    found = dict[str, float]()
    for part in ("communication", "input", "copies", "sync", "host", "compute", "stragglers"):
        try:
            asked = sg.what_if(profile, [sg.AssumedChange(what=part)])
        except (NotMeasured, BadOption):
            continue
        found[part] = 1.0 - asked.answers[0].low_ms / asked.step_ms
    return found


def contradictions(profile: Profile) -> list[str]:
    """Return where the findings, the bottleneck and the replay disagree."""
    card, removed, found = sg.score(profile), gains_without(profile), list[str]()
    replayed = [one for one in card.findings if one.gain_by == "replay"]
    for finding in replayed:
        parts = {change.removeprefix("without ").split(" ")[0] for change in finding.change}
        most = removed.get(*parts) if len(parts) == 1 else None
        if most is not None and finding.gain_low > most + CLOSE:
            found.append(f"{finding.rule} promises {finding.gain_low}, without {parts} it is {most}")
        if finding.gain_low > finding.gain_high:
            found.append(f"{finding.rule} promises {finding.gain_low} to {finding.gain_high}")
    for cause in card.causes:
        change = (f"without {WAITS.get(cause.bottleneck)}",)
        for finding in replayed:
            if finding.change == change and cause.remaining_ms is not None:
                left_ms = card.part_ms(1.0 - finding.gain_high)
                if abs(left_ms - cause.remaining_ms) > card.part_ms(CLOSE):
                    found.append(
                        f"{finding.rule} leaves {left_ms} ms, the bottleneck {cause.remaining_ms} ms"
                    )
    joint = card.together
    if joint is not None:
        first = [one.gain_high for one in card.findings if one.rule in joint.rules]
        if not max(first) - CLOSE <= joint.gain_high <= 1.0 or joint.gain_low > joint.gain_high:
            found.append(f"together {joint.gain_low} to {joint.gain_high}, and alone {first}")
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_a_generated_run_contradicts_itself_nowhere(fault: str) -> None:
    assert contradictions(profile_of(FAULTS[fault])) == []


def test_ranks_contradict_themselves_nowhere() -> None:
    assert contradictions(profile_of_ranks(late_ns=3_000_000)) == []


@pytest.mark.samples
@pytest.mark.parametrize("folder", ["kineto", "kineto_more", "nsys", "rocprof", "xplane"])
def test_no_sample_contradicts_itself(folder: str) -> None:
    looked_at, found = 0, dict[str, list[str]]()
    for path in sorted(shared(f"samples/{folder}").iterdir()):
        profile = _profile(path)
        if profile is None:
            continue
        looked_at += bool(profile.steps_to_replay)
        wrong = contradictions(profile)
        if wrong:
            found[path.name] = wrong
    assert found == {}
    assert looked_at


def _profile(path: Path) -> Profile | None:
    try:
        profile = sg.load(path)
        sg.score(profile)
    except StepgradeError:
        return None
    return profile
