"""A team's store with something to see: two projects, a regression on main, findings, an alert."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec

import stepgrade as sg
from stepgrade.model.scorecard import Finding, Fingerprint
from stepgrade.store import NewRun, open_history
from stepgrade.store.alerts import Alerts
from stepgrade.store.team import ProjectSettings, Team
from tests.builders import make_profile
from tests.conftest import ROOT

MODELS = (
    ("llama-3-8b", "h100-sxm5-80gb", 100.0),
    ("llama-3-8b", "a100-sxm4-80gb", 180.0),
    ("gpt-small", "gb10", 40.0),
)
FINDINGS = (
    ("input-wait", "critical", "the device waits for input 18 % of the step", 0.12, 0.18),
    ("unfused-optimizer", "warning", "the optimizer launches one kernel per tensor", 0.03, 0.05),
    ("eager-attention", "warning", "attention is not fused", 0.04, 0.09),
)


def _finding(rule: str, severity: str, claim: str, low: float, high: float) -> Finding:
    return Finding(
        rule=rule,
        severity=severity,  # type: ignore[arg-type]  # one of its words
        claim=claim,
        evidence={},
        remedy="see its page",
        gain_low=low,
        gain_high=high,
        check="profile again",
    )


def fill(place: str | Path, runs: int = 60) -> None:
    """Fill a store; `runs` of each model, the first with a regression two thirds of the way."""
    chance = random.Random(21)
    with open_history(str(place)) as history:
        team = Team(history.database)
        for project in ("llm", "vision"):
            team.add_project(project)
        commit_url = "https://git.example/team/llm/commit/{commit}"
        team.set_project(
            "llm", ProjectSettings(price_per_device_hour=2.5, currency="EUR", commit_url=commit_url)
        )
        llm = history.in_project("llm")
        new = []
        for number in range(runs):
            for place_, (model, device, level) in enumerate(MODELS):
                slower = 1.12 if place_ == 0 and number >= runs * 2 // 3 else 1.0
                step = level * slower * (1.0 + chance.gauss(0.0, 0.008))
                samples = tuple(step * (1.0 + chance.gauss(0.0, 0.01)) for _ in range(20))
                card = sg.score(make_profile(mean_step_ms=step, samples_ms=samples), tokens_per_step=8192.0)
                found = tuple(_finding(*row) for row in FINDINGS[place_:])
                where = Fingerprint(
                    device=device, model=model, batch=8, seq=1024, world_size=8, precision="bf16"
                )
                day, hour = number // 2 + 1, 8 + 8 * (number % 2)
                new.append(
                    NewRun(
                        card=msgspec.structs.replace(
                            card, fingerprint=where, findings=found, grade="BCA"[place_]
                        ),
                        branch="main",
                        commit=f"{number * 7919 + 0x5EED:08x}cafe",
                        labels={"machine": f"node-{place_ + 1}"},
                        added_at=f"2026-{1 + (day - 1) // 28:02}-{1 + (day - 1) % 28:02}T{hour:02}:00:00+00:00",
                        added_by="ci",
                        device_hours=64.0,
                    )
                )
        llm.add_all(new)
        profile = sg.load(str(ROOT / "examples" / "traces" / "gpt_naive.json.gz"))
        for number in range(2):
            card = sg.score(profile)
            source = msgspec.structs.replace(card.source, files=("gpt_naive.json.gz",))
            card = msgspec.structs.replace(card, source=source)
            llm.add(NewRun(card=card, branch="topic", commit=f"{number}beef", added_by="ci"))
        for alert in (
            one for row in {(run.branch, run.digest) for run in llm.runs()} for one in Alerts(llm).look(*row)
        ):
            Alerts(llm).announce(alert, "opened")
