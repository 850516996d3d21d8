"""A run in progress: one line for a pipe, a few lines for a terminal."""

from __future__ import annotations

from stepgrade.model.scorecard import UNGRADED, Scorecard
from stepgrade.model.step_log import StepLog
from stepgrade.report.names import shortened
from stepgrade.scoring.goodput import remaining_s
from stepgrade.units import show_ms, show_rate, show_samples_rate, show_share

_MESSAGE_CELLS = 160
_ALARMS_SHOWN = 4


def facts(card: Scorecard, log: StepLog | None, silent_s: float | None) -> dict[str, str]:
    """Return the run's current figures by name, in display order."""
    shown: dict[str, str] = {}
    last, total = (log.step[-1], log.total_steps) if log is not None and log.step else (None, None)
    if last is not None:
        shown["step"] = f"{last:,.0f}" + (f" of {total:,.0f}" if total else "")
    elif card.steps is not None and card.steps.count:
        shown["step"] = f"{card.steps.count:,}"
    if card.step_time_ms is not None:
        shown["a step"] = show_ms(card.step_time_ms)
    if card.throughput_tok_s is not None:
        shown["rate"] = show_rate(card.throughput_tok_s)
    elif card.samples_s is not None:
        shown["rate"] = show_samples_rate(card.samples_s)
    printed = card.printed.mfu if card.printed is not None else None
    if (mfu := printed if card.mfu is None else card.mfu) is not None:
        shown["MFU"] = show_share(mfu)
    shown["grade"] = card.grade if card.grade == UNGRADED else f"{card.grade} ({show_share(card.efficiency)})"
    if card.goodput is not None:
        shown["goodput"] = show_share(card.goodput.productive)
    if log is not None and (left_s := remaining_s(log)) is not None:
        shown["to go"] = show_ms(left_s * 1e3)
    if silent_s is not None:
        shown["last line"] = f"{show_ms(silent_s * 1e3)} ago"
    return shown


def alarms(card: Scorecard, silent_s: float | None, usual_s: float | None) -> tuple[str, ...]:
    """Return what someone should look at now: a run that stalls or diverges, and what it loses."""
    found = []
    if silent_s is not None and usual_s and silent_s > max(10.0 * usual_s, 60.0):
        found.append(f"no line for {show_ms(silent_s * 1e3)}: one comes every {show_ms(usual_s * 1e3)}")
    found += [
        note.text for note in (*card.ungraded_because, *card.fitness) if note.code in ("diverged", "loss_nan")
    ]
    found += [finding.claim for finding in card.findings if finding.severity != "info"]
    return tuple(shortened(text, _MESSAGE_CELLS) for text in found[:_ALARMS_SHOWN])


def line(clock: str, shown: dict[str, str], warned: tuple[str, ...]) -> str:
    """Return all of it as one line."""
    parts = [f"{name} {text}" for name, text in shown.items()]
    return " | ".join([clock, *parts, *(f"! {text}" for text in warned)])


def screen(path: str, clock: str, shown: dict[str, str], warned: tuple[str, ...]) -> list[str]:
    """Return all of it as lines for a terminal."""
    rows = [f"stepgrade watch · {shortened(path, _MESSAGE_CELLS)} · {clock}", ""]
    rows += [f"  {name:<10} {text}" for name, text in shown.items()]
    return [*rows, *([""] if warned else []), *(f"  ! {text}" for text in warned)]
