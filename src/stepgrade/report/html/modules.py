"""The modules of a model as an icicle, each as wide as its time: modules, operations, their kernels."""

from __future__ import annotations

from typing import Any

from stepgrade.model.layers import ModuleStep
from stepgrade.model.scorecard import Scorecard
from stepgrade.report.html.plot import Mark, joined
from stepgrade.report.names import shortened
from stepgrade.units import show_bytes, show_ms, show_share

MARKS_SHOWN = 1_500
LEVELS_SHOWN = 14
LEAST_WIDTH = 0.15  # percent: about a dot of a narrow screen
LABEL_CELL = 0.75  # percent of the width that a letter takes
NARROW = 4.0  # a letter takes so many times that of a narrow screen
ROWS_SHOWN = 100


def view(card: Scorecard) -> dict[str, Any] | None:
    """Return the levels of the icicle and a table of the longest modules; None without modules."""
    modules = card.modules
    whole_ms = sum(_ms(module) for module in modules if module.parent is None)
    if not modules or whole_ms <= 0.0:
        return None
    children: dict[int | None, list[int]] = {}
    for place, module in enumerate(modules):
        children.setdefault(module.parent, []).append(place)
    marks: list[tuple[int, Mark]] = []
    todo: list[tuple[int | None, int, float]] = [(None, 0, 0.0)]
    while todo and len(marks) < MARKS_SHOWN:
        parent, level, x = todo.pop(0)
        for place in children.get(parent, ()):
            width = _ms(modules[place]) / whole_ms * 100.0
            if width >= LEAST_WIDTH and level < LEVELS_SHOWN:
                marks.append((level, _mark(modules[place], x, width)))
                todo.append((place, level + 1, x))
            x += width
        if parent is not None and level < LEVELS_SHOWN:
            marks += _operations(modules[parent], level, x, whole_ms)
    levels = max(level for level, _ in marks) + 1
    longest = sorted(range(len(modules)), key=lambda place: -_ms(modules[place]))
    return {
        "levels": [[mark for at, mark in marks if at == level] for level in range(levels)],
        "height": 100.0 / levels,
        "share": show_share(sum(module.share for module in modules if module.parent is None)),
        "has_kernels": any(module.kernels for module in modules),
        "header": (
            *("module", "forward", "backward", "forward again"),
            *(("memory",) if modules[0].memory_bytes is not None else ()),
            "of the step",
        ),
        "rows": [_row(modules, place) for place in longest[:ROWS_SHOWN]],
        "left_out": max(0, len(modules) - ROWS_SHOWN),
    }


def _ms(module: ModuleStep) -> float:
    return module.fwd_ms + module.bwd_ms + module.recompute_ms


def _signed(count: float) -> str:
    """Return bytes, of which a module may free more than it allocates."""
    return f"-{show_bytes(-count)}" if count < 0 else show_bytes(count)


def _mark(module: ModuleStep, x: float, width: float) -> Mark:
    name = shortened(module.name, 60)
    tip = joined(
        f"{name}: {show_ms(_ms(module))}, {show_share(module.share)} of the step",
        f"forward {show_ms(module.fwd_ms)}" if module.fwd_ms else None,
        f"backward {show_ms(module.bwd_ms)}" if module.bwd_ms else None,
        f"forward again {show_ms(module.recompute_ms)}" if module.recompute_ms else None,
        None if module.memory_bytes is None else f"leaves {_signed(module.memory_bytes)} allocated",
    )
    return Mark(x=x, width=width, tip=tip, look=_look("module", name, width), label=_label(name, width))


def _operations(module: ModuleStep, level: int, x: float, whole_ms: float) -> list[tuple[int, Mark]]:
    """Return what a module does itself, beside the modules in it, and the kernels of that."""
    marks = []
    for name, ms in module.ops.items():
        width, shown = ms / whole_ms * 100.0, shortened(name, 60)
        if width >= LEAST_WIDTH:
            tip = f"{shown} in {shortened(module.name, 60)}: {show_ms(ms)}"
            look = _look("operation", shown, width)
            marks.append((level, Mark(x=x, width=width, tip=tip, look=look, label=_label(shown, width))))
            marks += _kernels(module, name, (level + 1, x, whole_ms))
        x += width
    return marks


def _kernels(module: ModuleStep, operation: str, at: tuple[int, float, float]) -> list[tuple[int, Mark]]:
    level, x, whole_ms = at
    marks = []
    for name, ms in module.kernels.get(operation, {}).items():
        width, shown = ms / whole_ms * 100.0, shortened(name, 60)
        if width >= LEAST_WIDTH:
            tip = f"{shortened(name, 120)} of {shortened(operation, 60)}: {show_ms(ms)}"
            look = _look("kernel", shown, width)
            marks.append((level, Mark(x=x, width=width, tip=tip, look=look, label=_label(shown, width))))
        x += width
    return marks


def _label(name: str, width: float) -> str:
    """Return the name if there is room for it."""
    return name if len(name) * LABEL_CELL <= width else ""


def _look(kind: str, name: str, width: float) -> str:
    """Return the look of a mark; a narrow screen has no room for the labels of tight ones."""
    return f"{kind} tight" if len(name) * LABEL_CELL * NARROW > width else kind


def _row(modules: tuple[ModuleStep, ...], place: int) -> tuple[str, ...]:
    module, path, at = modules[place], list[str](), place
    while True:
        path.append(shortened(modules[at].name, 60))
        parent = modules[at].parent
        if parent is None:
            break
        at = parent
    times = (show_ms(ms) for ms in (module.fwd_ms, module.bwd_ms, module.recompute_ms))
    memory = () if module.memory_bytes is None else (_signed(module.memory_bytes),)
    return shortened(".".join(reversed(path)), 160), *times, *memory, show_share(module.share)
