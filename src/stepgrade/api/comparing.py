"""Two runtimes, or several, operation by operation."""

from __future__ import annotations

from stepgrade.api.rendering import card_for_notebooks, fields_of, render
from stepgrade.compare import parity as comparison
from stepgrade.compare.matrix import ParityMatrix, compare_all
from stepgrade.model import Profile


class ParityReport(comparison.ParityReport, frozen=True, kw_only=True):
    """A comparison that shows itself in a notebook."""

    def _repr_markdown_(self) -> str:
        return render(self, to="markdown")

    def _repr_html_(self) -> str | None:
        return card_for_notebooks(self)


def parity(ours: Profile, theirs: Profile) -> ParityReport:
    """Compare two runtimes operation by operation."""
    return ParityReport(**fields_of(comparison.compare_profiles(ours, theirs)))


def parity_matrix(*profiles: Profile) -> ParityMatrix:
    """Compare several runtimes, each with each."""
    return compare_all(profiles)
