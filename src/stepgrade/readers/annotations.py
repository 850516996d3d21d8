"""NVTX and roctx ranges: operations as PyTorch and XLA name them, and all others."""

from __future__ import annotations

import re
from array import array
from typing import Final

import numpy as np

from stepgrade.model.events import NONE, Inputs
from stepgrade.naming.torch_names import BACKWARD, LONGEST_NAME
from stepgrade.readers.processes import Events

# torch.autograd.profiler.emit_nvtx: every part after the name is optional.
_SIZES: Final = ", sizes = ["
_NUMBERS: Final = re.compile(r"(?:, seq = (?P<seq>\d{1,18}))?(?:, op_id = \d{1,30})?\Z")
_NUMBERS_LENGTH: Final = 80
_EMITTED_PARTS: Final = (", seq = ", ", op_id = ", ", sizes = ")
_QUALIFIED: Final = re.compile(r"[A-Za-z_]\w*::\w")
# TSL:Thunk:#name=jit(step)/dot_general,hlo_op=fusion.12#, as XLA writes; modules have their program's number.
_OF_XLA: Final = re.compile(
    r"TSL:(?P<kind>Thunk|XlaModule):#.{0,2000}?hlo_(?:op|module)=(?P<name>[^,#]{1,500})"
)
_LONGEST_TEXT: Final = 100_000
_LONGEST_NAME: Final = 1000
_WIDTH: Final = 8


class Annotations:
    """Ranges on their way to the tables of operations and of named ranges."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._rows = array("q")

    def add(self, process: int, thread: int, start: int, end: int, text: str) -> None:
        """Add a range; shapes and numbers are parsed out of its text."""
        name, is_op, sequence, inputs = text[:_LONGEST_TEXT], 0, NONE, NONE
        if any(part in name for part in _EMITTED_PARTS):
            is_op, name = 1, name.partition(", input_op_ids = ")[0]
            if name.endswith("]") and _SIZES in name:
                name, _, sizes = name.partition(_SIZES)
                described = Inputs(dims=f"[{sizes}".encode())
                inputs = self._events.inputs.setdefault(described, len(self._events.inputs))
            numbers = _NUMBERS.search(name, max(0, len(name) - _NUMBERS_LENGTH))
            if numbers is not None and numbers[0]:
                name, sequence = name[: numbers.start()], int(numbers["seq"] or NONE)
        elif found := _OF_XLA.match(name):
            is_op, name = int(found["kind"] == "Thunk"), found["name"]
        name_id = self._events.name_id(name[:_LONGEST_NAME])
        self._rows.extend((process, thread, start, end, name_id, is_op, sequence, inputs))

    def write(self) -> None:
        """Put the ranges into the tables, once all are added."""
        rows = np.frombuffer(self._rows or array("q"), np.int64).reshape(-1, _WIDTH)
        name, is_op = rows[:, 4].astype(np.int32), rows[:, 5] > 0
        texts = list(self._events.strings)
        if is_op.any():
            # Operations without autograd have only a name.
            qualified = [
                _QUALIFIED.match(text) is not None and not text.startswith("cub::") for text in texts
            ]
            is_op |= np.array(qualified, np.bool_)[name]
        # Autograd nodes carry the sequence number of their forward operation.
        is_node = np.array([BACKWARD.search(text, 0, LONGEST_NAME) is not None for text in texts], np.bool_)
        for table, chosen in (("ops", is_op), ("ranges", ~is_op)):
            process, thread, start, end, _, _, sequence, inputs = rows[chosen].T
            op_columns = {
                "sequence": sequence,
                "inputs": inputs.astype(np.int32),
                "forward_thread": np.where(sequence >= 0, is_node[name[chosen]], NONE) if texts else sequence,
            }
            more = op_columns if table == "ops" else {}
            self._events.add(
                table, process=process, start=start, end=end, thread=thread, name=name[chosen], **more
            )
