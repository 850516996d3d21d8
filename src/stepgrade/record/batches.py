"""Count the tokens and samples of a step, from the loaders' batches and the models' inputs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from msgspec import Struct
from torch import Tensor
from torch.nn import Module

_TOKENS_DIM = 2  # sequences in rows, or in columns
_SEQUENCE_DIM = 3  # the same with features
_DEPTH = 3


class _Part(Struct):
    """The input before an optimizer step: rows of each batch, and of each call of a module."""

    tokens: int = 0
    loaded: list[int] = []
    called: dict[int, list[int]] = {}


class BatchCounter:
    """Counts the tokens and samples of a step, which may have a part per optimizer.

    Samples are the rows of the loader's batches, since a GAN calls its discriminator several times per batch.
    Without a loader the module that sees the fewest rows counts: it is called once per batch. A batch that is
    loaded ahead is counted in the step that uses it.
    """

    def __init__(self) -> None:
        self._parts = [_Part()]
        self._ahead: list[int] = []
        # Whether a model has an embedding, else integers are categories or pixels, and whether sequences are
        # columns, the default of torch's recurrent and attention modules.
        self._reads: WeakKeyDictionary[Module, tuple[bool, bool]] = WeakKeyDictionary()

    def add_batch(self, batch: object) -> None:
        """Add a batch of a training loader."""
        if torch.is_grad_enabled():
            rows, entering = _listed(batch), _first_tensor(batch, _DEPTH)
            if entering is not None:
                self._parts[-1].loaded.append(rows or entering.shape[0])

    def add_call(self, module: Module, args: tuple[object, ...], kwargs: dict[str, object]) -> None:
        """Add a call of a model with gradients; integers in two dimensions are tokens."""
        if module not in self._reads:
            parts = list(module.modules())
            self._reads[module] = (
                any("embed" in type(part).__name__.casefold() for part in parts),
                any(vars(part).get("batch_first") is False for part in parts),
            )
        reads_tokens, is_time_first = self._reads[module]
        part = self._parts[-1]
        ids = kwargs.get("input_ids", args[0] if args else None)
        if isinstance(ids, Tensor) and ids.dim() == _TOKENS_DIM and not ids.is_floating_point():
            part.tokens += ids.numel() if reads_tokens or "input_ids" in kwargs else 0
        entering = _first_tensor((*args, kwargs), _DEPTH)
        if entering is not None:
            dims = _SEQUENCE_DIM if entering.is_floating_point() else _TOKENS_DIM
            in_columns = is_time_first and entering.dim() == dims
            rows = _listed(args) or entering.shape[1 if in_columns else 0]
            part.called.setdefault(id(module), []).append(rows)

    def mark(self) -> int:
        """End a part of the step; return the number of parts so far."""
        self._parts.append(_Part())
        return len(self._parts) - 1

    def take(self, parts: int | None = None) -> tuple[int, int]:
        """Return tokens and samples of the ending step, or of its first parts; 0 if unknown."""
        taken, self._parts = self._parts[:parts], self._parts[len(self._parts[:parts]) :] or [_Part()]
        called: dict[int, list[int]] = defaultdict(list)
        for part in taken:
            for module, rows in part.called.items():
                called[module] += rows
        tokens = sum(part.tokens for part in taken)
        loaded = self._ahead + [rows for part in taken for rows in part.loaded]
        if not loaded:
            return tokens, min(map(sum, called.values()), default=0)
        used = max(min(map(len, called.values()), default=len(loaded)), len(loaded) - 1)
        self._ahead = loaded[used:]
        return tokens, sum(loaded[:used])


def _listed(batch: object) -> int | None:
    """Return the samples of a batch that has one list per field of a sample, as in detection; else None.

    A pair of inputs looks the same, but all of its tensors have the same number of rows.
    """
    if not isinstance(batch, tuple | list) or not batch:
        return None
    parts = [part for part in batch if isinstance(part, tuple | list)]
    if len(parts) != len(batch) or len({len(part) for part in parts}) != 1:
        return None
    rows = {
        None if entering is None else entering.shape[0]
        for part in parts
        for sample in part
        for entering in [_first_tensor(sample, _DEPTH)]
    }
    return len(parts[0]) if len(rows) > 1 else None


def _first_tensor(value: object, depth: int) -> Tensor | None:
    """Return the first tensor with rows in a batch: a tensor, or a sequence or mapping of tensors."""
    if isinstance(value, Tensor):
        return value if value.dim() else None
    if depth == 0 or not isinstance(value, tuple | list | Mapping):
        return None
    parts = value.values() if isinstance(value, Mapping) else value
    for part in parts:
        found = _first_tensor(part, depth - 1)
        if found is not None:
            return found
    return None
