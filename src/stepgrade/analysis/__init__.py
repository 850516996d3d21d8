"""Analysis: from a Profile to a Scorecard. Pure: nothing is read, printed or stored here."""

from stepgrade.analysis.efficiency import Question
from stepgrade.analysis.score import score_profile
from stepgrade.analysis.scorecard import Scorecard

__all__ = ["Question", "Scorecard", "score_profile"]
