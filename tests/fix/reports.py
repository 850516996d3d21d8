"""Reports of fixes, built without any trial."""

from __future__ import annotations

from stepgrade.fix.edit import diff_of
from stepgrade.model.fix import BaseRun, FixReport, Gain, Loss, Predicted, Together, Try


def written_report(before: str = "a = 1\n", after: str = "a = 2\n", name: str = "train.py") -> FixReport:
    """Return a report with one accepted change that was tried as an edit, and one of each other verdict."""
    gain = Gain(gain=0.31, low=0.28, high=0.34, rounds=4)
    diff = diff_of(before, after, name)
    loss = Loss(compared=24, max_relative=0.0, allowed=0.0)
    others = {
        "rejected": "not the same work: step 4 has 0 backward passes, not 1",
        "cannot_tell": "not decided",
        "does_not_apply": "the optimizer is fused already",
        "not_tried": "it changes the precision, which was not allowed",
    }
    return FixReport(
        command=(name, "--lr", "1"),
        base=BaseRun(
            step_ms=100.0,
            processor_ms=80.0,
            steps=12,
            trials=6,
            noise=0.01,
            grade="F",
            bottleneck="input",
            is_repeatable=True,
        ),
        tries=(
            Try(
                change="loader-workers",
                what="Prepare batches in worker processes",
                how="num_workers=2",
                applies=True,
                verdict="accepted",
                why="faster, and the same work",
                breaks="random augmentation draws from the workers' seeds",
                where=f"{name}:1",
                predicted=Predicted(low=0.2, high=0.4),
                measured=gain,
                same_work=True,
                loss=loss,
                diff=diff,
            ),
            *(
                Try(
                    change=f"other-{verdict}",
                    what="Something else",
                    how="",
                    applies=verdict != "does_not_apply",
                    verdict=verdict,
                    why=why,
                    breaks="x",
                )  # type: ignore[arg-type]
                for verdict, why in others.items()
            ),
        ),
        together=Together(
            changes=("loader-workers",),
            step_ms=69.0,
            measured=gain,
            same_work=True,
            diff=diff,
            written=gain,
            written_changes=("loader-workers",),
        ),
        seconds=61.0,
        edits={name: after},
    )
