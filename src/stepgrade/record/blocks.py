"""The models of a training and their blocks: those that repeat, or those given by name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary, ref

from msgspec import Struct

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


class Model(Struct):
    """A detected model: its class, its blocks, the first one's number, and the step it was last called in."""

    module: ref[Module]
    kind: type
    blocks: list[str]
    first_layer: int
    called_in_step: int = 0


class Models:
    """The detected models by identity, and the names of their blocks, which are numbered as layers."""

    def __init__(self) -> None:
        self.known: dict[int, Model] = {}
        self.layer_names: list[str] = []
        self._blocks: WeakValueDictionary[int, Module] = WeakValueDictionary()
        self._parts: WeakValueDictionary[int, Module] = WeakValueDictionary()

    def add(self, model: Module, named: Sequence[str] | None, step: int) -> tuple[int, list[Module], int]:
        """Return how many blocks a model has, those that are new, and the number of the first."""
        found = find_blocks(model, named)
        fresh = [(name, block) for name, block in found if id(block) not in self._blocks]
        kind, names = type(unwrap(model)), [name for name, _ in fresh]
        # A model of the same class replaces one that is no longer used, such as that of the previous fold.
        unused = (
            key
            for key, other in self.known.items()
            if (other.module() is None or other.called_in_step < step)
            and other.kind is kind
            and other.blocks == names
        )
        replaced = self.known.pop(next(unused, 0), None)  # no object has the id 0
        first = len(self.layer_names) if replaced is None else replaced.first_layer
        self.known[id(model)] = Model(module=ref(model), kind=kind, blocks=names, first_layer=first)
        self._blocks.update({id(block): block for _, block in fresh})
        self._parts.update({id(part): part for part in model.modules()})
        if replaced is None:
            prefix = ""  # the model's class if another model has the same names
            while any(prefix + name in self.layer_names for name in names):
                prefix = f"{prefix[:-1]}'." if prefix else f"{kind.__name__}."
            self.layer_names += [prefix + name for name in names]
        return len(found), [block for _, block in fresh], first

    def has_part(self, module: Module) -> bool:
        """Return whether a module is a detected model or part of one."""
        return id(module) in self._parts

    def alive(self) -> Iterator[Module]:
        """Yield the models that still exist."""
        return (module for model in self.known.values() if (module := model.module()) is not None)
