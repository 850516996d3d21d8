"""How each change is made at run time: what the script calls is wrapped before the script binds it.

Whether or not a change is tried, it is noted where the script makes the call.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils.checkpoint
from torch import Tensor
from torch.nn import Module
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from stepgrade.record.patches import Patches

Settings = Any


class Witnessing(Protocol):
    """Who makes the changes, and keeps what the script calls."""

    patches: Patches
    sites: dict[tuple[str, str, int], dict[str, Any]]  # by call, file and line
    backwards: int  # since the last step
    applied: int  # how often the change was made

    def note(self, call: str, **arguments: Any) -> tuple[str, int] | None:
        """Note where the script calls something, with the arguments that a change would set."""


_SIMPLE = (bool, int, float, str, type(None))
_OWN_OF_CHECKPOINT = frozenset(
    ["use_reentrant", "context_fn", "determinism_check", "debug", "preserve_rng_state", "early_stop"]
)


def loader(witness: Witnessing, settings: Settings) -> None:
    """Set keywords of the DataLoader that is made at one line, or cache its samples."""
    signature = inspect.signature(DataLoader.__init__)

    def around(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        given = signature.bind(*args, **kwargs).arguments
        names: tuple[str, ...] = ("num_workers", "batch_size", "pin_memory")
        found: dict[str, Any] = {name: given[name] for name in names if name in given}
        found["dataset"] = type(given.get("dataset")).__name__
        is_iterable = isinstance(given.get("dataset"), IterableDataset)
        place = witness.note("DataLoader", is_iterable=is_iterable, **_simple(found))
        if settings is not None and place == tuple(settings["place"]):
            witness.applied += 1
            if settings.get("cached"):
                own, kept = type(given["dataset"]), dict[Any, Any]()

                def get(dataset: Any, index: Any) -> Any:
                    if index not in kept:
                        kept[index] = own.__getitem__(dataset, index)
                    return kept[index]

                members = {"__getitem__": get, "__module__": own.__module__}
                given["dataset"].__class__ = type(own.__name__, (own,), members)
            kwargs |= settings.get("keywords", {})
        original(*args, **kwargs)

    witness.patches.wrap(DataLoader, "__init__", around)


def optimizer(witness: Witnessing, settings: Settings) -> None:
    """Set keywords of the optimizers that take them."""

    def around(original: Callable[..., None], self: Optimizer, *args: Any, **kwargs: Any) -> None:
        kind = type(self)
        taken = [name for name in ("foreach", "fused") if name in inspect.signature(kind).parameters]
        if taken and kind in kinds and id(self) not in begun:  # a class may call that of the one it extends
            begun.add(id(self))
            given = {name: kwargs.get(name) for name in taken}
            place = witness.note(kind.__name__, is_optimizer=True, **_simple(given))
            if settings is not None and place == tuple(settings["place"]):
                witness.applied += 1
                kwargs = {name: kwargs[name] for name in kwargs.keys() - set(taken)} | settings["keywords"]
        original(self, *args, **kwargs)
        begun.discard(id(self))

    begun, here = set[int](), vars(torch.optim).values()
    kinds = {one for one in here if isinstance(one, type) and issubclass(one, Optimizer)} - {Optimizer}
    for kind in kinds:
        if "__init__" in vars(kind):
            witness.patches.wrap(kind, "__init__", around)


def ddp(witness: Witnessing, settings: Settings) -> None:
    """Set keywords of DistributedDataParallel, or let it reduce gradients in the last backward pass only."""
    kind = torch.nn.parallel.DistributedDataParallel
    every = int((settings or {}).get("accumulates", 0))

    def before(model: Any, _: Any) -> None:
        model.require_backward_grad_sync = witness.backwards % every == every - 1

    def around(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        names = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph")
        witness.note("DistributedDataParallel", **_simple({name: kwargs.get(name) for name in names}))
        witness.applied += settings is not None
        original(self, *args, **(kwargs | (settings or {}).get("keywords", {})))
        if every:
            self.register_forward_pre_hook(before)

    witness.patches.wrap(kind, "__init__", around)


def model(witness: Witnessing, settings: Settings) -> None:
    """Change the model when it is called for the first time to be trained, and note what it is."""

    def before(module: Module, _: Any) -> None:
        if not torch.is_grad_enabled() or not any(one.requires_grad for one in module.parameters()):
            return
        handle.remove()
        can_choose = hasattr(module, "set_attn_implementation")
        witness.sites["model", "", 0] = {"calls": 1, "arguments": {"can_choose_attention": can_choose}}
        for name, value in (settings or {}).items():
            witness.applied += 1
            _MODEL[name](module, value)

    handle = register_module_forward_pre_hook(before)


def _convert_inputs(module: Module, convert: Callable[[Tensor], Tensor]) -> None:
    """Convert the tensors that a model gets as positional arguments."""

    def before(_: Module, args: Any) -> Any:
        return tuple(convert(one) if isinstance(one, Tensor) else one for one in args)

    module.register_forward_pre_hook(before)


def _simple(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if isinstance(value, _SIMPLE)}


def _autocast(module: Module, dtype: str) -> None:
    forward, kind = module.forward, next(module.parameters()).device.type

    def ours(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(kind, getattr(torch, dtype)):
            return forward(*args, **kwargs)

    module.forward = ours


class WrappedCall(NamedTuple):
    """A call of the script that is made in another way: `changed` gets the original, settings and arguments.

    `is_noted` tells by the arguments whether the change would change anything.
    """

    patch: str
    owner: Any
    name: str
    changed: Callable[..., Any]
    is_noted: Callable[..., bool] = lambda *_, **__: True
    call: str = ""  # in the script's text, if it is not the name

    def wrap(self, witness: Witnessing, settings: Settings) -> None:
        """Wrap it for a training."""

        def around(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            place = witness.note(self.call or self.name) if self.is_noted(*args, **kwargs) else None
            if settings is None or place is None:
                return original(*args, **kwargs)
            witness.applied += 1
            return self.changed(original, settings, *args, **kwargs)

        witness.patches.wrap(self.owner, self.name, around)


CALLS = (
    *(
        WrappedCall(
            "zero_grad",
            owner,
            "zero_grad",
            lambda original, _, self, *__, **___: original(self, set_to_none=True),
            lambda _, set_to_none=True: not set_to_none,
        )
        for owner in (Optimizer, Module)
    ),
    WrappedCall(
        "checkpointing",
        torch.utils.checkpoint,
        "checkpoint",
        lambda _, __, function, *args, **named: function(
            *args, **{name: named[name] for name in named.keys() - _OWN_OF_CHECKPOINT}
        ),
    ),
    WrappedCall(
        "anomaly",
        torch.autograd.set_detect_anomaly,
        "__init__",
        lambda original, _, self, __=None, *rest, **more: original(self, False, *rest, **more),
        lambda _, mode=True, *__, **___: bool(mode),
        "set_detect_anomaly",
    ),
    WrappedCall(
        "anomaly", torch.autograd.detect_anomaly, "__enter__", lambda *_: None, call="detect_anomaly"
    ),
    WrappedCall("collecting", gc, "collect", lambda *_: 0),
    WrappedCall("threads", torch, "set_num_threads", lambda original, count, _: original(count)),
    WrappedCall(
        "products", torch, "set_float32_matmul_precision", lambda original, precision, _: original(precision)
    ),
)
# What is set before the script runs, in case that it never makes the call.
AT_START: dict[str, Callable[[Any], None]] = {
    "threads": torch.set_num_threads,
    "products": torch.set_float32_matmul_precision,
}
_MODEL: dict[str, Callable[[Any, Settings], Any]] = {
    "compile": lambda module, _: module.compile(),
    "autocast": _autocast,
    "channels_last": lambda module, _: _convert_inputs(
        module.to(memory_format=torch.channels_last),
        lambda one: one.contiguous(memory_format=torch.channels_last) if one.dim() == 4 else one,
    ),
    "single": lambda module, _: _convert_inputs(
        module.float(), lambda one: one.float() if one.dtype is torch.float64 else one
    ),
    "attention": lambda module, name: module.set_attn_implementation(name),
}


def patch(witness: Witnessing, settings: dict[str, Settings]) -> None:
    """Wrap everything that a change could change, and make those changes that there are settings for."""
    for name, value in settings.items():
        if name in AT_START:
            AT_START[name](value)
            witness.applied += 1
    for call in CALLS:
        call.wrap(witness, settings.get(call.patch))
    for around in (loader, optimizer, ddp, model):
        around(witness, settings.get(around.__name__))
