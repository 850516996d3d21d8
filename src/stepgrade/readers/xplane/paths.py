"""Where an operation comes from, by its path in JAX: jit(step)/transpose(jvp(layer_3))/mlp/dot_general."""

from __future__ import annotations

import re
from typing import Final

_WRAPPED: Final = re.compile(r"([\w.]{1,40})\((.*)\)")
# JAX's own names, which are not scopes of the program.
_MACHINERY: Final = re.compile(
    r"(while|body|cond|closed_call|checkpoint|rematted_computation|remat\d?|pjit|main|core_call|shard_map|xla_call"
    r"|custom_[jv]+p_call(_jaxpr)?|branch_\d{1,4}_fun|scan|body_fun|cond_fun|named_call|checkpoint_name)?"
)
_NUMBERED: Final = re.compile(r"([A-Za-z_][\w.\- ]{0,60}?)[_.\-\[ ]{0,2}(\d{1,5})\]?")
_RECOMPUTED: Final = re.compile(r"rematted_computation|checkpoint/\w{0,20}remat")
_LONGEST: Final = 1000


def plain_path(path: str) -> str:
    """Return one path where several were merged into `prefix/(a/add:b/mul)`, without the colon at the end."""
    path = path[:_LONGEST].rstrip(":")
    prefix, merged, rest = path.partition("/(")
    return f"{prefix}/{rest.split(':', 1)[0].rstrip(')')}" if merged and ":" in rest else path


def direction_of(path: str) -> str | None:
    """Return the pass that a path belongs to: forward, backward, recompute; None if unknown."""
    if "transpose(" in path:
        return "recompute" if _RECOMPUTED.search(path) else "backward"
    if "rematted_computation" in path:
        return "recompute"
    return "forward" if "jvp(" in path else None


def primitive_of(path: str) -> str:
    """Return the last name of a path: what is computed."""
    return _parts(path)[-1] if path else ""


def scopes_of(path: str) -> list[str]:
    """Return the scopes of the program that a path goes through, without JAX's own names."""
    found = []
    for part in _parts(path)[:-1]:
        name = part
        for _ in range(8):
            wrapped = _WRAPPED.fullmatch(name)
            if wrapped is None:
                break
            name = "" if wrapped[1] in ("jit", "pjit") else wrapped[2]
        found += [scope for scope in name.split("/") if not _MACHINERY.fullmatch(scope)]
    return found


def layer_of(path: str) -> tuple[str, int] | None:
    """Return name and number of the outermost scope that is numbered, None without any."""
    for scope in scopes_of(path):
        numbered = _NUMBERED.fullmatch(scope)
        if numbered:
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
