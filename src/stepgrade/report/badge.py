"""The grade as a small SVG picture, for a README."""

from __future__ import annotations

from xml.sax.saxutils import escape

from stepgrade.model.comparison import GateReport
from stepgrade.units import show_share

_COLOURS = {"A": "#2da44e", "B": "#57ab5a", "C": "#bf8700", "D": "#d4762c", "F": "#cf222e"}
_UNKNOWN = "#6e7781"
_LABEL = "training"
_CHARACTER = 6.6
_PADDING = 12


def render(report: GateReport) -> str:
    """Return the badge: the grade and the share of the ceiling, or the best grade of an ungraded run."""
    reached = f" {show_share(report.efficiency, 0)}" if report.efficiency is not None else ""
    bound = f", {report.grade_at_most} or lower" if report.grade_at_most else ""
    text = f"{report.grade}{reached if report.grade in _COLOURS else bound}"
    return draw(text, _COLOURS.get(report.grade, _UNKNOWN))


def draw(text: str, colour: str) -> str:
    """Return an SVG of 20 pixels height with a grey and a coloured half."""
    left, right = (round(len(part) * _CHARACTER + _PADDING) for part in (_LABEL, text))
    middle, width = left + right / 2, left + right
    shown = escape(text)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="20" role="img" '
        f'aria-label="{_LABEL}: {shown}"><title>{_LABEL}: {shown}</title>'
        f'<clipPath id="r"><rect width="{width}" height="20" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{left}" height="20" fill="#444c56"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        '<g fill="#fff" text-anchor="middle" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">'
        f'<text x="{left / 2}" y="14">{_LABEL}</text><text x="{middle}" y="14">{shown}</text></g></svg>\n'
    )
