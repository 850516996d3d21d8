"""Several runtimes in a terminal: a table of who takes how much longer than whom."""

from __future__ import annotations

from stepgrade.compare.matrix import ParityMatrix
from stepgrade.report.names import shortened
from stepgrade.report.terminal.canvas import Canvas, padded
from stepgrade.units import show_ratio, show_share

_CELL = 9


def draw(matrix: ParityMatrix, canvas: Canvas) -> None:
    """Draw the matrix, then what the first lacks against each of the others."""
    count = len(matrix.runtimes)
    title = f"stepgrade · {count} runtimes, row over column: above 1 the row is slower"
    canvas.line(canvas.style(shortened(title, canvas.width), "dim"))
    canvas.line()
    width = max(12, canvas.width - 2 - (_CELL + 1) * count)
    heads = "".join(f"{f'({place})':>{_CELL + 1}}" for place in range(1, count + 1))
    canvas.line(f"  {' ' * width}{heads}")
    for place, name in enumerate(matrix.runtimes):
        shown = padded(shortened(f"({place + 1}) {name}", width), width)
        cells = "".join(f"{_cell(matrix, place, other):>{_CELL + 1}}" for other in range(count))
        canvas.line(f"  {shown}{cells}")
    canvas.heading(f"Matched with {shortened(matrix.runtimes[0], 40)}")
    canvas.bars(
        (name, share, show_share(share))
        for name, share in zip(matrix.runtimes[1:], matrix.matched_shares[0][1:], strict=True)
    )


def _cell(matrix: ParityMatrix, row: int, column: int) -> str:
    return "·" if row == column else show_ratio(matrix.time_ratios[row][column])
