"""The operations of a profile's programs: names, costs, passes and layers."""

from __future__ import annotations

import math
import re
from typing import Final

import numpy as np
from msgspec import Struct, json, structs
from numpy.typing import NDArray

from stepgrade.model.columns import groups
from stepgrade.model.events import NONE, Collective, Compiled, Ids, Inputs, Longs
from stepgrade.readers.processes import Events
from stepgrade.readers.xplane.hlo import CONTROL_FLOW, Dims, Instruction, Module
from stepgrade.readers.xplane.planes import Plane, PlaneSpace

COLLECTIVE: Final = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|ragged-all-to-all|collective-permute|collective-broadcast"
    r"|send|recv)(-start|-done)?(?=[.\d]|$)"
)
_UNKNOWN_FUSION: Final = "fused computation"
_PRODUCTS: Final = {"dot": "dot_general", "convolution": "conv_general_dilated"}
_MOST_ITERATIONS: Final = 512
_WHOLE_NUMBERS: Final = (4, 5, 8)  # 32 and 64 bits with a sign, 32 without
_WRAPPED: Final = re.compile(r"([\w.]{1,40})\((.*)\)")
# JAX's own names, which are not scopes of the program.
_MACHINERY: Final = re.compile(
    r"(while|body|cond|closed_call|checkpoint|rematted_computation|remat\d?|pjit|main|core_call|shard_map|xla_call"
    r"|custom_[jv]+p_call(_jaxpr)?|branch_\d{1,4}_fun|scan|body_fun|cond_fun|named_call|checkpoint_name)?"
)
_NUMBERED: Final = re.compile(r"([A-Za-z_][\w.\- ]{0,60}?)[_.\-\[ ]{0,2}(\d{1,5})\]?")
_RECOMPUTED: Final = re.compile(r"rematted_computation|checkpoint/\w{0,20}remat")
_LONGEST_PATH: Final = 1000


class HloOperation(Struct, kw_only=True):
    """One operation of a program."""

    name: str
    hlo: str  # its name in the program
    path: str = ""
    direction: str | None = None
    layer: tuple[str, int] | None = None
    flops: int | None = None
    bytes: int | None = None
    types: tuple[str, ...] = ()
    is_control_flow: bool = False
    loop: str = ""  # the loop whose rounds are the layers
    trips: int | None = None
    inner: int = 1  # how often it runs in one round of that loop
    collective: Collective | None = None
    program: Module | None = None

    def described(self, layer: str | None) -> Inputs:
        """Return the description of one execution."""
        return Inputs(
            dims=b"[]",
            types=json.encode(self.types),
            compiled=Compiled(
                path=self.path, direction=self.direction, layer=layer, flops=self.flops, bytes=self.bytes
            ),
        )


class Programs:
    """The programs of a profile by their ids, each decoded when an operation of it is first looked up."""

    def __init__(self, data: bytes, space: PlaneSpace) -> None:
        self._data = data
        self._protos: dict[tuple[str, int | None], tuple[int, int]] = {}
        self._modules: dict[tuple[int, int], tuple[Module, dict[str, str | None]]] = {}
        self._operations: dict[tuple[int, str, str, frozenset[str]], HloOperation] = {}
        self._seen: dict[frozenset[str], frozenset[str]] = {}
        for plane in space.planes:
            for name, stats in zip(plane.names, plane.metadata, strict=True):
                proto = stats.get("Hlo Proto") or stats.get("hlo_proto")
                if not isinstance(proto, tuple):
                    continue
                module, _, number = name.removesuffix(")").rpartition("(")
                program = stats.get("program_id")
                own_id = int(number) if number.isdecimal() and len(number) < 21 else None
                for key in (own_id, program if isinstance(program, int) else None, None):
                    self._protos.setdefault((module or name, key), proto)

    def operation(self, module: str, program: int, hlo: str, path: str, seen: frozenset[str]) -> HloOperation:
        """Return an operation; `seen` are the operations of its program that have events."""
        keys = ((module, program), (module, program & 0xFFFFFFFFFFFFFFFF), (module, None))
        for span in (self._protos[key] for key in keys if key in self._protos):
            if span not in self._modules:
                compiled = Module(self._data, *span)
                self._modules[span] = compiled, _passes(compiled)
            if hlo in self._modules[span][0].by_name:
                decoded, passes = self._modules[span]
                break
        else:
            path = _plain_path(path)
            opcode = hlo.lstrip("%").rstrip(".0123456789")
            # Without its HLO a fusion may be anything, including a matmul.
            is_unknown = opcode.endswith("fusion") and not path
            return HloOperation(
                name=_UNKNOWN_FUSION if is_unknown else _name(opcode, opcode, path),
                hlo=hlo,
                path=path,
                direction=_direction(path),
                layer=_layer(path),
                is_control_flow=opcode in CONTROL_FLOW,
                collective=_collective(opcode, None, None),
            )
        # Devices run the same program: an operation is described once for all of them.
        key = (id(decoded), hlo, path, self._seen.setdefault(seen, seen))
        if key not in self._operations:
            self._operations[key] = _from_module(decoded, decoded.by_name[hlo], passes, path, seen)
        return self._operations[key]


def _passes(module: Module) -> dict[str, str | None]:
    """Return the pass of each instruction: by its path, else by what it works on.

    An instruction that takes gradients and whose path names no pass belongs to the optimizer. Instructions of
    the compiler, which have no path, belong with their operands.
    """
    found: dict[int, str | None] = {}
    named: dict[str, str | None] = {}
    trains = any("transpose(" in instruction.path for instruction in module.instructions.values())
    for instruction in module.instructions.values():  # operands come before what uses them
        own = _direction(instruction.path) if instruction.path else None
        if own is None and instruction.called and not instruction.path:
            inner = (_direction(part.path) for part in module.inside(instruction) if part.path)
            own = next((direction for direction in inner if direction), None)
        if own is None and trains:
            above = [found.get(number) for number in instruction.operands]
            if "backward" in above or "optimizer" in above:
                own = "optimizer" if instruction.path or "optimizer" in above else "backward"
            elif not instruction.path:
                own = next((direction for direction in above if direction), None)
        found[instruction.number] = named[instruction.name] = own
    return named


def _from_module(
    module: Module, instruction: Instruction, passes: dict[str, str | None], path: str, seen: frozenset[str]
) -> HloOperation:
    inside = [*module.inside(instruction)]
    # What a loop or a call runs has events of its own, as a rule.
    is_control_flow = instruction.opcode in CONTROL_FLOW and any(other.name in seen for other in inside[1:])
    counted = [instruction] if is_control_flow else inside
    products = [(other, flops) for other in counted if (flops := module.product_flops(other)) is not None]
    path = _plain_path(instruction.path or path or next((other.path for other in inside if other.path), ""))
    main = max(products, key=lambda found: found[1])[0] if products else instruction
    opcode = next((other.opcode for other in counted if COLLECTIVE.match(other.opcode)), main.opcode)
    # How often a loop without events of its own ran, and which branch was taken, is unknown.
    unknown = instruction.opcode in ("while", "conditional") and not is_control_flow
    unknown |= instruction.opcode == "custom-call" and not products
    flops = None if unknown else sum(found[1] for found in products)
    if not products and not unknown:
        flops = 0 if is_control_flow else module.arithmetic_flops(instruction)
    typed = [module.operand(main, index).first.type_name for index in range(min(2, len(main.operands)))]
    loops = [caller for caller in module.around(instruction) if caller.opcode == "while"]
    loop = next((caller for caller in reversed(loops) if not _is_whole_step(module, caller, passes)), None)
    inner = 1
    for caller in loops[: loops.index(loop)] if loop else ():
        inner *= module.trips(caller) or 1
    return HloOperation(
        name=_name(
            _PRODUCTS.get(opcode, "dot_general" if products else opcode),
            instruction.opcode,
            path,
            instruction.target,
        ),
        hlo=instruction.name,
        path=path,
        direction=passes.get(instruction.name),
        layer=_layer(path),
        flops=flops,
        bytes=0 if is_control_flow else module.moved_bytes(instruction),
        types=tuple(name for name in typed if name),
        is_control_flow=is_control_flow,
        loop=loop.name if loop else "",
        trips=module.trips(loop) if loop else None,
        inner=inner,
        collective=_collective(opcode, instruction, module),
        program=module,
    )


def _is_whole_step(module: Module, loop: Instruction, passes: dict[str, str | None]) -> bool:
    """Tell whether a loop's body has a forward and a backward pass: its rounds are batches, not layers."""
    if not module.passes:
        for number, body in module.computations.items():
            own = {passes.get(instruction.name) for instruction in body}
            module.passes.setdefault(number, set()).update(own)
            for caller in module.around(body[0]) if body else ():
                module.passes.setdefault(caller.computation, set()).update(own)
    return any({"forward", "backward"} <= module.passes.get(number, set()) for number in loop.called)


def _name(opcode: str, own: str, path: str, target: str = "") -> str:
    """Return the name that an operation goes by: what the program calls it, else what the compiler does."""
    if opcode in _PRODUCTS.values() or COLLECTIVE.match(opcode) or own in CONTROL_FLOW:
        return opcode
    if own == "custom-call":
        return target or _primitive(path) or own
    primitive = _primitive(path)
    if primitive in _PRODUCTS.values():
        primitive = ""  # a product's bias or layout: the product itself is elsewhere
    if own == "fusion" or own.endswith("fusion"):
        return f"{primitive} fusion" if primitive else "fusion"
    return primitive if primitive and not own.startswith("copy") else own


def _collective(opcode: str, instruction: Instruction | None, module: Module | None) -> Collective | None:
    if COLLECTIVE.match(opcode) is None:
        return None
    name = COLLECTIVE.sub(lambda found: found[1], opcode)
    if instruction is None or module is None:
        return Collective(name=name)
    sent = module.operand(instruction, 0).first
    made = instruction.shape.first
    return Collective(
        name=name,
        in_elements=sent.elements or None,
        out_elements=made.elements,
        dtype=(made.type_name or "").removeprefix("c10::").replace("signed char", "char") or None,
        group_size=instruction.group_size,
    )


class PlaneOperations(Struct, kw_only=True):
    """The operations of a plane's events."""

    operations: list[HloOperation]
    which: Ids  # of each event, or NONE

    def parted(self, rows: Longs) -> tuple[Longs, Longs]:
        """Return the rows that are work, and those of loops and calls around others."""
        around = np.array([*(op.is_control_flow for op in self.operations), False], np.bool_)
        control = around[self.which[rows]]
        return rows[~control], rows[control]

    def world_size(self, devices: int) -> int | None:
        """Return how many devices there are in all, by those of the file and by the groups of collectives."""
        sizes = (op.collective.group_size or 0 for op in self.operations if op.collective)
        count = max(devices, *sizes, 1)
        return count if count > 1 else None

    def tokens(self, spent_ns: Longs) -> Dims | None:
        """Return the sizes of the tokens that the program with the most time takes: whole numbers in rows."""
        known = [op.program for op in self.operations]
        programs = {id(program): program for program in known if program is not None}
        total = dict.fromkeys(programs, 0.0)
        per_operation = np.bincount(self.which[self.which >= 0], spent_ns[self.which >= 0], len(known))
        for program, time in zip(known, per_operation.tolist(), strict=True):
            if program is not None:
                total[id(program)] += time
        if not total:
            return None
        main = programs[max(total, key=lambda key: total[key])]
        sizes = [
            each.shape.dims
            for each in main.computations.get(main.entry, ())
            if each.opcode == "parameter"
            and each.shape.type in _WHOLE_NUMBERS
            and 2 <= len(each.shape.dims) <= 3
            and each.shape.dims[-1] > 1
        ]
        return max(sizes, key=math.prod, default=None)

    def name_ids(self, events: Events) -> Ids:
        """Return the name id of each operation."""
        return np.array([*(events.name_id(op.name) for op in self.operations), 0], np.int32)


def operations_of(plane: Plane, programs: Programs) -> PlaneOperations:
    """Return the operation of each event that names one, by itself or as a TPU does."""
    events, texts = plane.events, plane.texts
    is_op_line = np.array([line.name == "XLA Ops" for line in plane.lines] or [False], np.bool_)[events.line]
    named = events.texts["hlo_op"] >= 0
    chosen = named | is_op_line
    hlo = np.where(is_op_line, -2 - events.name, events.texts["hlo_op"]).astype(np.int64)
    path = np.where(events.texts["name"] >= 0, events.texts["name"], events.texts["tf_op"])
    which = np.zeros(len(chosen), np.int64)
    for column in (hlo, events.texts["hlo_module"], events.numbers["program_id"], path):
        values = groups(column)
        which = groups(which * len(values.values) + values.which).which.astype(np.int64)
    rows = np.flatnonzero(chosen)
    found = groups(which[rows])
    which = np.full(len(chosen), NONE, np.int64)
    which[rows] = found.which
    firsts = np.empty(len(found.values), np.int64)
    firsts[found.which[::-1]] = rows[::-1]

    def text(column: Ids, row: int) -> str:
        return texts[int(column[row])] if column[row] >= 0 else ""

    def name_of(row: int) -> str:
        return (
            plane.shown[int(events.name[row])].lstrip("%")
            if is_op_line[row]
            else text(events.texts["hlo_op"], row)
        )

    seen = frozenset(map(name_of, firsts.tolist()))
    operations = []
    for row in firsts.tolist():
        program = int(events.numbers["program_id"][row])
        module = text(events.texts["hlo_module"], row)
        own_path = texts[int(path[row])] if path[row] >= 0 and texts[int(path[row])] != "XlaModule:" else ""
        operation = programs.operation(module, program, name_of(row), own_path, seen)
        if is_op_line[row]:  # of a TPU, whose metadata has figures
            operation = structs.replace(operation)
            stats = plane.metadata[int(events.name[row])]
            flops, moved = stats.get("model_flops", stats.get("flops")), stats.get("bytes_accessed")
            category = str(stats.get("hlo_category", ""))
            operation.is_control_flow |= category in CONTROL_FLOW
            if "convolution" in category:
                operation.name = "dot_general" if "dot_general" in operation.path else "conv_general_dilated"
            if isinstance(flops, int) and not operation.is_control_flow:
                operation.flops = max(flops, 0)
            if isinstance(moved, int):
                operation.bytes = max(moved, 0)
        operations.append(operation)
    return PlaneOperations(operations=operations, which=which.astype(np.int32))


def describe(
    found: PlaneOperations, rows: Longs, run: Longs, start_ns: Longs
) -> tuple[list[Inputs], NDArray[np.intp]]:
    """Return descriptions of executions, and which of them each row has: in a loop, that of its round."""
    which = found.which[rows]
    loops = np.array(
        [bool(op.loop) and 0 < (op.trips or 0) <= _MOST_ITERATIONS for op in found.operations] or [False],
        np.bool_,
    )
    turn = np.full(len(which), NONE, np.int64)
    inside = np.flatnonzero(loops[which])
    inside = inside[np.lexsort((start_ns[inside], run[inside], which[inside]))]
    if len(inside):
        own, own_run = which[inside], run[inside]
        begins = np.append(True, (own[1:] != own[:-1]) | (own_run[1:] != own_run[:-1]))
        index = np.arange(len(inside))
        trips = np.array([op.trips or 1 for op in found.operations], np.int64)[own]
        inner = np.array([op.inner for op in found.operations], np.int64)[own]
        turn[inside] = (index - np.maximum.accumulate(np.where(begins, index, 0))) // inner % trips
    kinds = groups(which.astype(np.int64) * (_MOST_ITERATIONS + 1) + turn + 1)
    described = []
    for kind in kinds.values.tolist():
        index, turns = divmod(kind, _MOST_ITERATIONS + 1)
        operation, layer = found.operations[index], None
        if operation.layer:
            layer = f"{operation.layer[0]}_{operation.layer[1]}"
        elif turns and operation.trips is not None:
            is_reverse = operation.direction in ("backward", "recompute")
            layer = f"scan_{operation.trips - turns if is_reverse else turns - 1}"
        described.append(operation.described(layer))
    return described, kinds.which


def _plain_path(path: str) -> str:
    """Return one path where several were merged into `prefix/(a/add:b/mul)`, without the colon at the end."""
    path = path[:_LONGEST_PATH].rstrip(":")
    prefix, merged, rest = path.partition("/(")
    return f"{prefix}/{rest.split(':', 1)[0].rstrip(')')}" if merged and ":" in rest else path


def _direction(path: str) -> str | None:
    """Return the pass that a path belongs to: forward, backward, recompute; None if unknown."""
    if "transpose(" in path:
        return "recompute" if _RECOMPUTED.search(path) else "backward"
    if "rematted_computation" in path:
        return "recompute"
    return "forward" if "jvp(" in path else None


def _primitive(path: str) -> str:
    """Return the last name of a path: the primitive that is computed."""
    return _parts(path)[-1] if path else ""


def _layer(path: str) -> tuple[str, int] | None:
    """Return name and number of the outermost numbered scope of the program, None without any."""
    for part in _parts(path)[:-1]:
        name = part
        for _ in range(8):
            wrapped = _WRAPPED.fullmatch(name)
            if wrapped is None:
                break
            name = "" if wrapped[1] in ("jit", "pjit") else wrapped[2]
        for scope in name.split("/"):
            if not _MACHINERY.fullmatch(scope) and (numbered := _NUMBERED.fullmatch(scope)):
                return numbered[1], int(numbered[2])
    return None


def _parts(path: str) -> list[str]:
    """Return the parts of a path; a slash in brackets parts nothing."""
    parts, depth, first = [], 0, 0
    for index, letter in enumerate(path):
        if letter == "(":
            depth += 1
        elif letter == ")":
            depth -= 1
        elif letter == "/" and depth <= 0:
            parts.append(path[first:index])
            first = index + 1
    return [*parts, path[first:]]
