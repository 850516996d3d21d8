"""Lines of styled text for a terminal: colours by meaning, bars, wrapping, columns.

Drawn by hand because a scorecard must appear at once: importing a rendering library takes longer
than everything else that `stepgrade score` does.
"""

from __future__ import annotations

from collections.abc import Iterable

from stepgrade.report.names import cells, printable, shortened, wrapped

# The sixteen base colours follow the user's theme, so they read on dark and on light backgrounds.
_STYLES = {
    "title": "1",
    "dim": "2",
    "bar": "36",
    "good": "32",
    "fair": "33",
    "bad": "31",
    "badge-good": "1;30;42",
    "badge-fair": "1;30;43",
    "badge-bad": "1;37;41",
    "badge-none": "7",
}
_EIGHTHS = " ▏▎▍▌▋▊▉"
LEAST_WIDTH = 40
LEAST_FACT_WIDTH = 22


class Canvas:
    """Collects lines; styles become escape codes only where colour is wanted."""

    def __init__(self, *, width: int, color: bool) -> None:
        self.width = max(LEAST_WIDTH, width)
        self._color = color
        self._lines: list[str] = []

    def style(self, text: str, style: str | None) -> str:
        """Return `text` in a style, or as it is when colour is off."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self._color and style and text else text

    def line(self, text: str = "") -> None:
        """Add a finished line."""
        self._lines.append(text.rstrip())

    def heading(self, text: str) -> None:
        """Add an empty line and a section's title."""
        self.line()
        self.paragraph(text, indent="", style="title")

    def paragraph(
        self, text: str, *, indent: str = "  ", first: str | None = None, style: str | None = None
    ) -> None:
        """Add text made printable and wrapped to the width; `first` replaces the first line's indent."""
        room = self.width - cells(indent)
        for number, part in enumerate(wrapped(printable(text), room)):
            self.line((first if first is not None and number == 0 else indent) + self.style(part, style))

    def fact(self, name: str, text: str, *, name_width: int = 12) -> None:
        """Add a name and text beside it, or below it where the width leaves too little room."""
        title = f"  {self.style(name.ljust(name_width), 'title')}"
        if self.width >= name_width + LEAST_FACT_WIDTH:
            self.paragraph(text, indent=" " * (name_width + 2), first=title)
        else:
            self.line(title)
            self.paragraph(text, indent="    ")

    def bars(self, rows: Iterable[tuple[str, float, str]], widest_name: int | None = None) -> None:
        """Add one bar a row: name, length as a share of the longest, and figures at the right."""
        rows = list(rows)
        longest = max((length for _, length, _ in rows), default=0.0)
        figures_width = max((cells(figures) for _, _, figures in rows), default=0)
        name_width = self._name_width((name for name, _, _ in rows), widest_name or self.width // 3)
        bar_width = max(4, self.width - name_width - figures_width - 6)
        for name, length, figures in rows:
            shown = padded(shortened(name, name_width), name_width)
            drawn = bar(length / longest if longest > 0 else 0.0, bar_width)
            self.line(f"  {shown}  {self.style(drawn, 'bar')}  {figures:>{figures_width}}")

    def text(self) -> str:
        """Return all lines."""
        return "\n".join(self._lines) + "\n"

    def _name_width(self, names: Iterable[str], widest: int) -> int:
        longest = max((cells(shortened(name, self.width)) for name in names), default=0)
        return min(longest, max(12, widest))


def bar(share: float, width: int) -> str:
    """Return a bar of `share` (0 to 1) of `width` cells, in eighths, filled up with spaces."""
    eighths = round(max(0.0, min(1.0, share)) * width * 8)
    full, rest = divmod(eighths, 8)
    drawn = "█" * full + (_EIGHTHS[rest] if rest else "")
    return drawn.ljust(width)


def padded(text: str, width: int) -> str:
    """Return printable text filled up with spaces to `width` cells."""
    return text + " " * max(0, width - cells(text))
