"""Find the repeated blocks of a model, or those given by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.nn import Module

    NamedModule = tuple[str, Module]

# Wrappers that hold the module they wrap under this name: torch.compile, checkpointing, FSDP, DDP.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module", "module")
_LEAST_BLOCKS = 2


def find_blocks(model: Module, named: Sequence[str] | None) -> list[NamedModule]:
    """Return names and modules of the blocks in the model's order; empty if there are none.

    Without names: of the classes that repeat inside a list or a sequence of modules, the one that holds
    most of the parameters. A name may be a pattern such as `model.layers.*`.
    """
    modules = list(model.named_modules())
    if named is not None:
        found: dict[str, Module] = {}
        patterns = [pattern.split(".") for pattern in named]
        for path, module in modules:
            name = _without_wrappers(path)
            parts = name.split(".")
            alike = [wanted for wanted in patterns if len(wanted) == len(parts)]
            if name and any(all(map(fnmatchcase, parts, wanted)) for wanted in alike):
                found.setdefault(name, module)  # a wrapper comes before its content
        return list(found.items())
    groups = _repeated(modules)
    if not groups:
        return []

    from torch.nn.parameter import is_lazy  # an extra

    def size(group: list[NamedModule]) -> tuple[int, int]:
        depth = group[0][0].count(".")
        parameters = (parameter for _, block in group for parameter in block.parameters())
        return sum(parameter.numel() for parameter in parameters if not is_lazy(parameter)), -depth

    return [(_without_wrappers(name), module) for name, module in max(groups, key=size)]


def unique_names(names: list[str], taken: Sequence[str], model: Module) -> list[str]:
    """Return the names, prefixed with the model's class if another model has the same."""
    if not set(names) & set(taken):
        return names
    prefix = type(unwrap(model)).__name__
    while any(f"{prefix}.{name}" in taken for name in names):
        prefix += "'"
    return [f"{prefix}.{name}" for name in names]


def unwrap(module: Module) -> Module:
    """Return the module inside its wrappers."""
    for name in _WRAPPED:
        inside = getattr(module, "_modules", {})  # not a dict in a scripted module
        if name in inside and inside[name] is not None and (name != "module" or len(inside) == 1):
            return unwrap(inside[name])
    return module


def _repeated(modules: list[NamedModule]) -> list[list[NamedModule]]:
    """Return the outermost modules that share a container with others of their class, by class."""
    found: dict[type, dict[str, Module]] = defaultdict(dict)
    for path, container in modules:
        if type(container).__name__ not in ("ModuleList", "ModuleDict", "Sequential"):
            continue
        by_class: dict[type, dict[str, Module]] = defaultdict(dict)
        for name, child in container.named_children():
            inner = unwrap(child)
            if any(True for _ in inner.children()):
                by_class[type(inner)][f"{path}.{name}".lstrip(".")] = child
        for kind, children in by_class.items():
            if len(children) >= _LEAST_BLOCKS:
                found[kind] |= children
    return [
        [
            (name, block)
            for name, block in group.items()
            if group.keys().isdisjoint(accumulate(name.split(".")[:-1], "{}.{}".format))
        ]
        for group in found.values()
    ]


def _without_wrappers(path: str) -> str:
    """Return the name without the parts that wrappers add."""
    parts = [part for part in path.split(".") if part not in _WRAPPED[:-1]]
    return ".".join(parts[1:] if parts[:1] == ["module"] else parts)
