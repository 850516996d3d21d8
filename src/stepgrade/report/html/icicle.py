"""The modules of a model as an icicle, each as wide as its time: modules, operations, their kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stepgrade.model.layers import ModuleStep
from stepgrade.report.content.charts import module_ms
from stepgrade.report.figures import Icicle
from stepgrade.report.html.plot import Mark
from stepgrade.report.names import shortened
from stepgrade.report.words import joined
from stepgrade.units import show_bytes, show_ms, show_share

ROWS_SHOWN = 100
MARKS_SHOWN = 1_500
LEVELS_SHOWN = 14
LEAST_WIDTH = 0.15  # percent: about a dot of a narrow screen
LABEL_CELL = 0.75  # percent of the width that a letter takes
NARROW = 4.0  # a letter takes so many times that of a narrow screen


def view(block: Icicle) -> dict[str, Any]:
    """Return the levels of the icicle, and the longest modules with their paths."""
    modules = block.modules
    longest = sorted(modules, key=lambda module: -module_ms(module))[:ROWS_SHOWN]
    rows = []
    for module in longest:
        path, at = [shortened(module.name, 60)], module
        while at.parent is not None:
            at = modules[at.parent]
            path.append(shortened(at.name, 60))
        rows.append((shortened(".".join(reversed(path)), 160), module))
    return {
        "levels": _levels(modules),
        "share": sum(module.share for module in modules if module.parent is None),
        "has_kernels": any(module.kernels for module in modules),
        "has_memory": modules[0].memory_bytes is not None,
        "rows": rows,
        "left_out": max(0, len(modules) - ROWS_SHOWN),
    }


def signed_bytes(count: float) -> str:
    """Return bytes, of which a module may free more than it allocates."""
    return f"-{show_bytes(-count)}" if count < 0 else show_bytes(count)


def _levels(modules: tuple[ModuleStep, ...]) -> list[list[Mark]]:
    """Return the marks of each level, from the outermost modules down."""
    whole_ms = sum(module_ms(module) for module in modules if module.parent is None)
    children: dict[int | None, list[int]] = {}
    for index, module in enumerate(modules):
        children.setdefault(module.parent, []).append(index)
    found: list[list[Mark]] = []
    todo: list[tuple[int | None, int, float]] = [(None, 0, 0.0)]

    def add(level: int, mark: Mark) -> None:
        found.extend([] for _ in range(level + 1 - len(found)))
        found[level].append(mark)

    while todo and sum(map(len, found)) < MARKS_SHOWN:
        parent, level, x = todo.pop(0)
        for index in children.get(parent, ()):
            width = module_ms(modules[index]) / whole_ms * 100.0
            if width >= LEAST_WIDTH and level < LEVELS_SHOWN:
                add(level, _mark("module", modules[index].name, _module_tip(modules[index]), x, width))
                todo.append((index, level + 1, x))
            x += width
        if parent is None or level >= LEVELS_SHOWN:
            continue
        for depth, mark in _operations(modules[parent], x, whole_ms):
            add(level + depth, mark)
    return found


def _operations(module: ModuleStep, x: float, whole_ms: float) -> Iterator[tuple[int, Mark]]:
    """Yield what a module does itself, beside the modules in it, and below that its kernels."""
    for name, ms in module.ops.items():
        width, begin = ms / whole_ms * 100.0, x
        x += width
        if width < LEAST_WIDTH:
            continue
        tip = f"{shortened(name, 60)} in {shortened(module.name, 60)}: {show_ms(ms)}"
        yield 0, _mark("operation", name, tip, begin, width)
        for kernel, kernel_ms in module.kernels.get(name, {}).items():
            width = kernel_ms / whole_ms * 100.0
            if width >= LEAST_WIDTH:
                tip = f"{shortened(kernel, 120)} of {shortened(name, 60)}: {show_ms(kernel_ms)}"
                yield 1, _mark("kernel", kernel, tip, begin, width)
            begin += width


def _module_tip(module: ModuleStep) -> str:
    return joined(
        f"{shortened(module.name, 60)}: {show_ms(module_ms(module))}, {show_share(module.share)} of the step",
        f"forward {show_ms(module.fwd_ms)}" if module.fwd_ms else None,
        f"backward {show_ms(module.bwd_ms)}" if module.bwd_ms else None,
        f"forward again {show_ms(module.recompute_ms)}" if module.recompute_ms else None,
        None if module.memory_bytes is None else f"leaves {signed_bytes(module.memory_bytes)} allocated",
    )


def _mark(kind: str, name: str, tip: str, x: float, width: float) -> Mark:
    """Return a mark with its name if there is room; a narrow screen has none for the labels of tight ones."""
    shown = shortened(name, 60)
    look = f"{kind} tight" if len(shown) * LABEL_CELL * NARROW > width else kind
    return Mark(x=x, width=width, tip=tip, look=look, label=shown if len(shown) * LABEL_CELL <= width else "")
