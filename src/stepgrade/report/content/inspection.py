"""What a file contains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from stepgrade.inspection import Inspection
from stepgrade.model.notes import texts_of
from stepgrade.report.blocks import Block, Heading, Space, Title, bullets, facts
from stepgrade.report.names import shortened

_TEXT_CELLS = 200
_NAME_WIDTH = 28


def blocks(inspection: Inspection, flags: Mapping[str, str]) -> Iterator[Block]:
    """Yield what the source contains, what it lacks, and whether it can be graded."""
    files = ", ".join(inspection.source.files)
    yield Title(files, f"stepgrade · {files}")
    yield Space()
    holds = {"format": inspection.source.format, **inspection.holds}
    yield facts({name: shortened(text, _TEXT_CELLS) for name, text in holds.items()}, _NAME_WIDTH)
    if inspection.missing:
        yield Heading("Not in this file")
        missing = {
            name: shortened(note.said(flags), _TEXT_CELLS) for name, note in inspection.missing.items()
        }
        yield facts(missing, _NAME_WIDTH, ("What", "So"))
    if inspection.grade is None:
        heading = "Cannot be graded: it contains no measurement"
    elif not inspection.ungraded_because:
        heading = "Fit to be graded"
    else:
        heading = "Fit to be graded once this is known" if inspection.fit else "Not fit to be graded"
    yield Heading(heading)
    yield bullets(texts_of(inspection.ungraded_because, flags))
    if inspection.fitness or inspection.notes:
        yield Heading("Notes")
        yield bullets(texts_of((*inspection.fitness, *inspection.notes), flags), style="dim")
