"""Why a run has no grade, and the best it can have: no device is more efficient than it is busy."""

from __future__ import annotations

from msgspec import Struct

from stepgrade.contract import Grade
from stepgrade.model import Ledger, Note, Profile
from stepgrade.model.ceiling import Ceiling
from stepgrade.model.scorecard import AT_MOST, Arithmetic
from stepgrade.scoring.efficiency import Efficiency, ScoreOptions
from stepgrade.units import show_share

# Operations of other classes move memory; none of the FLOPs that a grade counts are in them.
_MAY_COMPUTE = ("attention", "convolution", "gemm", "other", None)
# Of phases more of the step than this bounds nothing; a timeline has seen all of it.
_MOST_SHARE = 0.995


class Bound(Struct, frozen=True, kw_only=True):
    """The most of its ceiling that a run can have reached, and why it cannot be more."""

    share: float
    because: str

    @property
    def grade(self) -> str:
        """Return the best grade that the run can have."""
        return str(Grade.from_efficiency(self.share))

    @property
    def note(self) -> Note:
        """Return the bound in words, for those who read why there is no grade."""
        return Note(AT_MOST, f"{self.grade} or lower: {self.because}")


def why_ungraded(
    profile: Profile, options: ScoreOptions, efficiency: Efficiency, ledger: Ledger | None
) -> tuple[tuple[Note, ...], Bound | None]:
    """Return why there is no grade (nothing if there is one), and what bounds it all the same."""
    unfit, work = profile.unfit, options.work or profile.work
    if work == "inference":
        text = (
            "the steps are inference, a forward pass without backward or optimizer; a grade is for training"
        )
        unfit = (Note("inference", text, supply="{work}" if options.work is None else ""), *unfit)
    # Where no step was timed, no figure that could be given would make a grade.
    untimed = profile.hang is not None or (profile.compilation is not None and profile.mean_step_ms is None)
    reasons = unfit if untimed else (*unfit, *efficiency.ungraded_because)
    if not reasons or untimed or work == "inference" or (unfit and work != "training"):
        return reasons, None
    bound = bound_of(profile, ledger, efficiency.arithmetic, efficiency.roof)
    return (*reasons, *((bound.note,) if bound else ())), bound


def bound_of(
    profile: Profile, ledger: Ledger | None, arithmetic: Arithmetic | None, roof: Ceiling | None
) -> Bound | None:
    """Return the lower of two bounds: how much of the step is computing, and how much arithmetic there is.

    `ledger` is that of the device or that of the phases; `roof` is the ceiling that a grade would be taken
    against. None where nothing bounds the run.
    """
    bounds = [bound for bound in (_by_ledger(profile, ledger, roof),) if bound is not None]
    busy = bounds[0].share if bounds else 1.0
    if arithmetic is not None and arithmetic.share is not None and (roof is None or roof.kind == "compute"):
        computing = [op for op in profile.operations if op.kind != "communication"]
        whole_ms = sum(op.ms or 0.0 for op in computing)
        arithmetic_ms = sum(op.ms or 0.0 for op in computing if op.kind in _MAY_COMPUTE)
        may_count = arithmetic_ms / whole_ms if whole_ms else 1.0
        uncounted = busy * may_count * (1.0 - (arithmetic.known_share or 0.0))
        counted = f"the counted arithmetic is {show_share(arithmetic.share)} of the peak"
        rest = f", what has no count takes {show_share(uncounted)} of the step" if uncounted >= 0.0005 else ""
        bounds.append(Bound(share=arithmetic.share + uncounted, because=f"{counted}{rest}"))
    lowest = min(bounds, key=lambda bound: bound.share, default=None)
    if lowest is None or (lowest.share >= _MOST_SHARE and profile.ledger is None):
        return None
    return lowest


def _by_ledger(profile: Profile, ledger: Ledger | None, roof: Ceiling | None) -> Bound | None:
    """Return the bound by the time in which nothing is computed; phases tell only some of that time."""
    if ledger is None or ledger.compute is None:
        return None
    is_of_timeline, on_link = profile.ledger is not None, roof is not None and roof.kind == "link"
    communicates = (ledger.exposed_communication or 0.0) if on_link else 0.0
    if is_of_timeline:
        share = ledger.compute + communicates
        part = "processor" if profile.activity and profile.activity.driver == "host" else "device"
        does = "computes or communicates" if on_link else "computes"
        return Bound(share=share, because=f"the {part} {does} {show_share(share, 0)} of the step")
    waits = [share for name, share in ledger.known().items() if name not in ("compute", "unattributed")]
    share = max(0.0, 1.0 - sum(waits) + communicates)
    return Bound(share=share, because=f"at most {show_share(share, 0)} of the step is computing")
