"""What could not be read, counted by reason, and said in words."""

from __future__ import annotations

from collections import Counter

from msgspec import Struct

BROKEN = "not valid JSON"


class Losses(Struct):
    """Events left out, by reason, each with the place in the text of its first one."""

    counts: dict[str, int] = {}
    first: dict[str, int] = {}

    def add(self, reason: str, offset: int, count: int = 1) -> None:
        """Count events lost for `reason`."""
        self.counts[reason] = self.counts.get(reason, 0) + count
        self.first[reason] = min(offset, self.first.get(reason, offset))

    def merge(self, other: Losses) -> None:
        """Add what another lane lost."""
        for reason, count in other.counts.items():
            self.add(reason, other.first[reason], count)

    def words(self) -> tuple[str, ...]:
        """Say each reason in one sentence."""
        return tuple(
            f"{count} {'event' if count == 1 else 'events'} left out, {reason}, the first at byte "
            f"{self.first[reason]} of the text"
            for reason, count in Counter(self.counts).most_common()
        )
