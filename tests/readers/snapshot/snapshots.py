"""Memory snapshots as torch writes them, of a run that is told by its allocations."""

from __future__ import annotations

import pickle
from typing import Any

MIB = 1 << 20
PYTHON = {"forward": ("/home/me/run/model.py", "forward"), "loss": ("/home/me/run/train.py", "loss_of"),
          "zero_grad": ("/usr/lib/python3/site-packages/torch/optim/optimizer.py", "zero_grad"),
          "optimizer": ("/usr/lib/python3/site-packages/torch/optim/adamw.py", "step")}  # fmt: skip


class Recorded:
    """Allocations and frees, one after the other."""

    def __init__(self, *, stacks: bool = True) -> None:
        self.entries: list[dict[str, Any]] = []
        self.annotations: list[dict[str, Any]] = []
        self.blocks: dict[int, int] = {}
        self.frames = {
            place: [{"name": name, "filename": path, "line": 10 + number},
                    {"name": "main", "filename": "/home/me/run/train.py", "line": 90}]
            for number, (place, (path, name)) in enumerate(PYTHON.items())
        }  # fmt: skip
        self.stacks = stacks
        self.address = 0x7F0000000000

    def _add(self, action: str, address: int, size: int, place: str, **more: Any) -> None:
        frames = self.frames.get(place, []) if self.stacks else []
        at = {"time_us": 1_700_000_000_000_000 + 10 * len(self.entries)}
        self.entries.append(
            {"action": action, "addr": address, "size": size, "stream": 0, "frames": frames, **at, **more}
        )

    def before(self, size: int) -> int:
        """Hold memory from before the recording."""
        self.address += 1 << 32
        self.blocks[self.address] = size
        return self.address

    def alloc(self, size: int, place: str) -> int:
        self._add("alloc", self.before(size), size, place)
        return self.address

    def free(self, address: int, place: str) -> None:
        size = self.blocks.pop(address)
        self._add("free_requested", address, size, place)
        self._add("free_completed", address, size, place)

    def fail(self, size: int, free: int) -> None:
        self._add("oom", 0, size, "forward", device_free=free)

    def annotate(self, stage: str, name: str = "Optimizer.step#AdamW.step") -> None:
        time_us = 1_700_000_000_000_000 + 10 * len(self.entries) - (5 if stage == "START" else -5)
        self.annotations.append({"stage": stage, "name": name, "device": 0, "time_us": time_us})

    def value(self, spare: int = 0) -> dict[str, Any]:
        def block(address: int, size: int, state: str) -> dict[str, Any]:
            return {"address": address, "size": size, "requested_size": size, "state": state, "frames": []}

        segments = [
            {"device": 0, "address": address, "total_size": size + spare, "allocated_size": size,
             "active_size": size, "requested_size": size, "stream": 0, "segment_type": "large",
             "segment_pool_id": (0, 0), "is_expandable": False, "frames": [],
             "blocks": [block(address, size, "active_allocated"), block(address + size, spare, "inactive")]}
            for address, size in self.blocks.items()
        ]  # fmt: skip
        return {
            "segments": segments,
            "device_traces": [self.entries],
            "allocator_settings": {"expandable_segments": False, "garbage_collection_threshold": 0.0},
            "external_annotations": self.annotations,
        }

    def pickled(self, protocol: int = 4) -> bytes:
        return pickle.dumps(self.value(), protocol)


def train(steps: int = 3, *, layers: int = 4, leak: int = 0, stacks: bool = True) -> Recorded:
    """Return a run with AdamW: weights of 10 MiB a layer, activations of 5, a loss of 7, temporaries of 1."""
    run = Recorded(stacks=stacks)
    for _ in range(3 * layers):  # weights, m and v
        run.before(10 * MIB)
    gradients: list[int] = []
    for _ in range(steps):
        for address in gradients:
            run.free(address, "zero_grad")
        kept = []
        for _ in range(layers):
            kept.append(run.alloc(5 * MIB, "forward"))
            run.free(run.alloc(MIB, "forward"), "forward")
        kept.append(run.alloc(7 * MIB, "loss"))
        if leak:
            run.alloc(leak, "loss")
        gradients = []
        for address in reversed(kept):
            gradients += [run.alloc(10 * MIB, "")] if len(gradients) < layers else []
            run.free(run.alloc(MIB, ""), "")
            run.free(address, "")
        run.annotate("START")
        run.free(run.alloc(2 * MIB, "optimizer"), "optimizer")
        run.annotate("END")
    return run
