"""Runs inside a trial: makes one change to what the script calls, and writes down what the training did.

`stepgrade fix` compares what two trials wrote: a change that skips work would otherwise pass for a fast one.
"""

from __future__ import annotations

import atexit
import hashlib
import inspect
import json
import math
import os
import random
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.data.dataloader import _BaseDataLoaderIter
from torch.utils.flop_counter import flop_registry

from stepgrade.files import write_whole
from stepgrade.fix.patches import patch
from stepgrade.record.environment import peak_memory_bytes, rank_and_world
from stepgrade.record.patches import Patches

_DIGESTED_BATCHES = 4
_SAMPLED_OF_BATCH = 256  # elements of each tensor
_READ_BEHIND = 2  # steps; to read a loss at once would hold a device up in every step
_SAMPLED_WEIGHTS, _SAMPLED_ELEMENTS = 64, 64
_GRACE_S = 20.0  # for a script that waits for others at its end
_OUR_FOLDERS = (os.path.dirname(os.path.dirname(__file__)) + os.sep,)
SEED = 20_261


class FlopCounter(TorchDispatchMode):  # type: ignore[misc]
    """Counts the FLOPs of all operations that torch has a formula for, forward and backward."""

    def __init__(self) -> None:
        super().__init__()
        self.is_on, self.flops = False, 0.0

    def __enter__(self) -> FlopCounter:
        self.is_on = True
        super().__enter__()
        return self

    def __torch_dispatch__(self, func: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it."""
        found = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += float(formula(*args, **(kwargs or {}), out_val=found))
        return found


def has_compiled() -> bool:
    """Tell whether dynamo has compiled anything in this process; what it runs cannot be counted."""
    dynamo = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters["stats"])


class Witness:
    """What a training did, step by step; a step ends with the first optimizer's."""

    def __init__(self, session: str, plan: dict[str, Any]) -> None:
        self.session, self.plan, self.pid = session, plan, os.getpid()
        self.patches = Patches()
        self.sites: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.backwards = 0  # since the last step
        self.applied = 0
        self._leader: Optimizer | None = None
        self._optimizers: dict[int, Optimizer] = {}
        self._began = time.monotonic()
        self._losses: list[Tensor] = []
        self._updates = self._gradients = self._evaluations = 0
        self._steps: list[dict[str, Any]] = []
        self._batches: Counter[str] = Counter()
        self._shapes, self._digests = 0, list[str]()
        self._sampled = 0
        self._asked: list[list[str]] = []  # the indices of the batches of each iterator, ahead of its reader
        self._iterators: WeakKeyDictionary[Any, list[str]] = WeakKeyDictionary()
        self._taken: Counter[int] = Counter()  # of these, by the identity of the list
        self._read = 0  # losses of so many steps
        self._first: list[list[float | None]] | None = None
        self._is_written = False
        self._counter = FlopCounter()
        self._flops: float | None = None

    def note(self, call: str, **arguments: Any) -> tuple[str, int] | None:
        """Note where the script's own code calls something, with the arguments that a change would set."""
        frame = inspect.currentframe()
        while frame is not None:
            name = frame.f_code.co_filename
            is_theirs = not name.startswith(("<", *_OUR_FOLDERS)) and "site-packages" not in name
            if is_theirs and f"{os.sep}lib{os.sep}python" not in name:
                place = self._in_folder(os.path.abspath(name)), frame.f_lineno
                found = self.sites.setdefault((call, *place), {"calls": 0, "arguments": arguments})
                found["calls"] += 1
                return place
            frame = frame.f_back
        return None

    def _in_folder(self, path: str) -> str:
        """Return a path of the copy as that of the user's own folder."""
        for copy in (self.plan["copy"], os.path.realpath(self.plan["copy"])):
            if path.startswith(copy + os.sep):
                return str(self.plan["folder"] + path.removeprefix(copy))
        return path

    def start(self) -> None:
        """Seed what the script leaves unseeded, make the change, and begin to watch.

        With `other_seed` the script's own seeds are others too.
        """
        torch.manual_seed(SEED)
        random.seed(SEED)
        with suppress(ImportError):
            import numpy as np

            np.random.seed(SEED)
        if self.plan["other_seed"]:
            self.patches.wrap(torch, "manual_seed", lambda original, seed: original(int(seed) + 1))
            torch.manual_seed(SEED)
        patch(self, self.plan["settings"])
        self.patches.wrap(torch.autograd, "backward", self._see_backward)
        self.patches.wrap(_BaseDataLoaderIter, "__next__", self._see_batch)
        self.patches.wrap(_BaseDataLoaderIter, "_next_index", self._see_indices)
        self.patches.wrap(torch.nn.Module, "eval", self._see_evaluation)
        register_optimizer_step_post_hook(self._end_update)
        atexit.register(self.write, "ended")

    def _see_backward(self, original: Any, /, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        roots = [tensors] if isinstance(tensors, Tensor) else list(tensors)
        self._losses += [
            root.detach().sum() if root.numel() != 1 else root.detach().clone() for root in roots
        ]
        self.backwards += 1
        return original(tensors, *args, **kwargs)

    def _see_batch(self, original: Any, iterator: Any) -> Any:
        batch = original(iterator)
        self._taken[id(self._iterators.get(iterator))] += 1
        tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, Tensor)]
        shapes = ";".join(f"{tuple(tensor.shape)}{tensor.dtype}" for tensor in tensors)
        self._shapes = zlib.crc32(shapes.encode(), self._shapes)
        self._batches[type(iterator._dataset).__name__] += 1
        for tensor in tensors:
            if tensor.device.type == "cpu" and tensor.numel():
                every = max(1, tensor.numel() // _SAMPLED_OF_BATCH)
                some = tensor.detach().reshape(-1)[::every].contiguous()
                self._sampled = zlib.crc32(memoryview(some.view(torch.uint8).numpy()), self._sampled)
        if len(self._digests) < _DIGESTED_BATCHES:
            self._digests.append(digest(tensors))
        return batch

    def _see_indices(self, original: Any, iterator: Any) -> Any:
        indices = original(iterator)
        if iterator not in self._iterators:
            self._iterators[iterator] = []
            self._asked.append(self._iterators[iterator])
        self._iterators[iterator].append(repr(indices))
        return indices

    def _see_evaluation(self, original: Any, module: Any) -> Any:
        self._evaluations += 1
        return original(module)

    def _end_update(self, optimizer: Optimizer, *_: Any) -> None:
        if os.getpid() != self.pid or self._is_written:
            return
        self._optimizers.setdefault(id(optimizer), optimizer)
        self._updates += 1
        self._gradients += sum(
            parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]
        )
        if self._leader is None:
            self._leader = optimizer
        if optimizer is not self._leader:
            return
        self._read_losses(len(self._steps) - _READ_BEHIND)
        self._steps.append(
            {
                "wall_ns": time.perf_counter_ns(),
                "processor_ns": time.process_time_ns(),
                "losses": self._losses,
                "backwards": self.backwards,
                "updates": self._updates,
                "gradients": self._gradients,
                "evaluations": self._evaluations,
            }
        )
        self._losses, self.backwards, self._updates, self._gradients, self._evaluations = [], 0, 0, 0, 0
        self._count_flops()
        if self._first is None:
            self._first = self._some_weights()
        count, after_s = len(self._steps), self.plan["seconds"]
        is_late = after_s is not None and time.monotonic() - self._began > after_s
        # Several ranks all end at the same step.
        if count >= self.plan["steps"] or (
            is_late and count >= self.plan["least_steps"] and rank_and_world()[1] == 1
        ):
            self.write("stopped")
            timer = threading.Timer(_GRACE_S, os._exit, (0,))  # if the script holds the exit up
            timer.daemon = True
            timer.start()
            raise SystemExit(0)

    def _read_losses(self, most: int) -> None:
        for step in self._steps[self._read : most]:
            step["losses"] = [_finite(float(loss)) for loss in step["losses"]]
        self._read = max(self._read, most)

    def _count_flops(self) -> None:
        """Count the FLOPs of the second step, which is not timed; a compiled model hides its operations."""
        if len(self._steps) == 1 and not has_compiled():
            self._counter.__enter__()
        elif len(self._steps) == 2 and self._counter.is_on:
            self._counter.__exit__(None, None, None)
            self._flops = None if has_compiled() else self._counter.flops

    def weights(self) -> Iterator[Tensor]:
        """Yield every weight that an optimizer has."""
        seen = set[int]()
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield parameter.detach()

    def _some_weights(self) -> list[list[float | None]]:
        chosen = [weight for weight, _ in zip(self.weights(), range(_SAMPLED_WEIGHTS), strict=False)]
        step = [max(1, weight.numel() // _SAMPLED_ELEMENTS) for weight in chosen]
        some = [_local(weight).reshape(-1)[::every] for weight, every in zip(chosen, step, strict=True)]
        return [[*map(_finite, one[:_SAMPLED_ELEMENTS].double().tolist())] for one in some]

    def write(self, how: str) -> None:
        """Write everything down, once, in the process that trained."""
        if self._is_written or os.getpid() != self.pid or not self._steps:
            return
        self._is_written = True
        self._read_losses(len(self._steps))
        rank, world = rank_and_world()
        weights = [_local(weight) for weight in self.weights()]
        kinds = {weight.device.type for weight in weights}
        kind = "cuda" if "cuda" in kinds else "cpu"
        seen = {
            "how": how,
            "applied": self.applied,
            "rank": rank,
            "world_size": world,
            "device": kind,
            "threads": torch.get_num_threads(),
            "steps": self._steps,
            "batches": dict(self._batches),
            "shapes": self._shapes,
            "digests": self._digests,
            "sampled": self._sampled,
            "asked": [zlib.crc32("".join(asked[: self._taken[id(asked)]]).encode()) for asked in self._asked],
            "first_weights": self._first,
            "last_weights": self._some_weights(),
            "weights": digest(weights),
            "dtypes": sorted({str(weight.dtype).removeprefix("torch.") for weight in weights}),
            "flops": self._flops,
            "peak_bytes": peak_memory_bytes(kind),
            "sites": [
                {"call": call, "file": file, "line": line, **found}
                for (call, file, line), found in self.sites.items()
            ],
        }
        files = {os.path.abspath(getattr(one, "__file__", None) or "") for one in [*sys.modules.values()]}
        named = {self._in_folder(file) for file in files if "site-packages" not in file}
        inside = os.path.join(self.plan["folder"], "")
        seen["modules"] = sorted(file for file in named if file.startswith(inside) and file.endswith(".py"))
        write_whole(Path(self.session, f"witness-{self.pid}.json"), json.dumps(seen).encode())


def begin(session: str, plan: dict[str, Any]) -> None:
    """Start a witness in this process."""
    Witness(session, plan).start()


def digest(tensors: list[Tensor]) -> str:
    """Return a hash of the bits of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        found.update(f"{tuple(tensor.shape)}{tensor.dtype}".encode())
        found.update(memoryview(flat.view(torch.uint8).numpy()) if flat.numel() else b"")
    return found.hexdigest()


def _finite(number: float) -> float | None:
    """Return a number that JSON can hold, else None."""
    return number if math.isfinite(number) else None


def _local(weight: Tensor) -> Tensor:
    """Return the part of a sharded weight that this process has."""
    to_local = getattr(weight, "to_local", None)
    return weight if to_local is None else to_local()
