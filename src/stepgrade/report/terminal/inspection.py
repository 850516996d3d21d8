"""What a file holds, in a terminal, in less than a page."""

from __future__ import annotations

from stepgrade.model.notes import texts_of
from stepgrade.report.names import shortened
from stepgrade.report.terminal.canvas import Canvas
from stepgrade.scoring.inspection import Inspection

_TEXT_CELLS = 200


def draw(inspection: Inspection, canvas: Canvas) -> None:
    """Draw the contents, what is missing, and the fitness."""
    source = inspection.source
    canvas.line(canvas.style(shortened(f"stepgrade · {', '.join(source.files)}", canvas.width), "dim"))
    canvas.line()
    _row(canvas, "format", source.format)
    for name, text in inspection.holds.items():
        _row(canvas, name, text)
    if inspection.missing:
        canvas.heading("Not in this file")
        for name, consequence in inspection.missing.items():
            _row(canvas, name, consequence)
    canvas.heading("Fit to be graded" if inspection.fit else "Not fit to be graded: it holds no measurement")
    for text in texts_of((*inspection.fitness, *inspection.notes)):
        canvas.paragraph(text, indent="    ", first="  · ")


def _row(canvas: Canvas, name: str, text: str) -> None:
    canvas.fact(name, shortened(text, _TEXT_CELLS), name_width=28)
