"""The repeated blocks of a model: found by themselves, or named."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

# Wrappers that hold the module they wrap under this name: torch.compile, checkpointing, FSDP, DDP.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module")
_LEAST_BLOCKS = 2


def find_blocks(model: Any, named: Sequence[str] | None) -> list[tuple[str, Any]]:
    """Return names and modules of the blocks, in the model's order; empty when there are none.

    Without names: of the classes that repeat inside a list or a sequence of modules, the one that holds
    most of the parameters. A name may be a pattern such as `model.layers.*`.
    """
    modules = list(model.named_modules())
    if named is not None:
        return _named(modules, named)
    groups = _repeated(modules)
    if not groups:
        return []
    best = max(groups, key=lambda group: (_parameters(group), -len(group[0][0].split("."))))
    return [(_plain(name), module) for name, module in best]


def told_apart(names: list[str], taken: Sequence[str], model: Any) -> list[str]:
    """Return the names, with the model's class before them where another model has them already."""
    if not set(names) & set(taken):
        return names
    prefix = type(bare(model)).__name__
    while any(f"{prefix}.{name}" in taken for name in names):
        prefix += "'"
    return [f"{prefix}.{name}" for name in names]


def bare(module: Any) -> Any:
    """Return the module inside its wrappers."""
    for name in _WRAPPED:
        inner = getattr(module, "_modules", {}).get(name)
        if inner is not None and (name != "module" or len(module._modules) == 1):  # noqa: SLF001  torch's own
            return bare(inner)
    return module


def _repeated(modules: Iterable[tuple[str, Any]]) -> list[list[tuple[str, Any]]]:
    """Return the modules that are children of a container beside others of their class, by class."""
    found: dict[type, list[tuple[str, Any]]] = defaultdict(list)
    for path, container in modules:
        if type(container).__name__ not in ("ModuleList", "ModuleDict", "Sequential"):
            continue
        for kind, names in _by_class(container).items():
            if len(names) >= _LEAST_BLOCKS:
                found[kind] += (
                    (f"{path}.{name}".lstrip("."), container.get_submodule(name)) for name in names
                )
    return [_outermost(group) for group in found.values()]


def _by_class(container: Any) -> dict[type, list[str]]:
    names: dict[type, list[str]] = defaultdict(list)
    for name, child in container.named_children():
        inner = bare(child)
        if any(True for _ in inner.children()):
            names[type(inner)].append(name)
    return names


def _outermost(group: list[tuple[str, Any]]) -> list[tuple[str, Any]]:
    paths = {name for name, _ in group}
    return [(name, module) for name, module in group if not _inside(name, paths)]


def _inside(name: str, paths: set[str]) -> bool:
    parts = name.split(".")
    return any(".".join(parts[:depth]) in paths for depth in range(1, len(parts)))


def _parameters(group: list[tuple[str, Any]]) -> int:
    return sum(parameter.numel() for _, module in group for parameter in module.parameters())


def _plain(name: str) -> str:
    """Return the name as it was before wrappers put theirs into it."""
    wrapped = set(_WRAPPED[:-1])
    parts = [part for part in name.split(".") if part not in wrapped]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)


def _named(modules: Iterable[tuple[str, Any]], named: Sequence[str]) -> list[tuple[str, Any]]:
    found: dict[str, Any] = {}
    for name, module in modules:
        if any(_matches(_plain(name), wanted) for wanted in named):
            found.setdefault(_plain(name), module)  # a wrapper comes before what it wraps
    return list(found.items())


def _matches(name: str, pattern: str) -> bool:
    """Tell whether each part of the name fits its part of the pattern."""
    parts, wanted = name.split("."), pattern.split(".")
    return len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)) and bool(name)
