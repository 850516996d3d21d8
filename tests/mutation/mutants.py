"""Small faults to plant in a module: one changed comparison, operator, number, statement or result each."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "+", ast.Pow: "*",
}  # fmt: skip


class Mutant(NamedTuple):
    """One fault: where it is in the text, what stands there, and what replaces it."""

    kind: str
    line: int
    last_line: int
    start: int
    end: int
    before: str
    after: str

    def applied(self, text: str) -> str:
        """Return the module's text with the fault in it."""
        return text[: self.start] + self.after + text[self.end :]


def mutants(text: str) -> list[Mutant]:
    """Return every fault that can be planted in the functions of a module."""
    lines = text.splitlines(keepends=True)
    offsets = [0]
    for line in lines:
        offsets.append(offsets[-1] + len(line))

    def offset(line: int, column: int) -> int:
        return offsets[line - 1] + len(lines[line - 1].encode()[:column].decode())

    found = []
    for node, (kind, after) in _faults(ast.parse(text)):
        start, end = offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)
        found.append(Mutant(kind, node.lineno, node.end_lineno, start, end, text[start:end], after))
    return found


def choose(found: list[Mutant], chance: random.Random) -> Mutant | None:
    """Return a fault at random, each kind as likely as the others."""
    if not found:
        return None
    kind = chance.choice(sorted({one.kind for one in found}))
    return chance.choice([one for one in found if one.kind == kind])


def _faults(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, tuple[str, str]]]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in function.body:
                if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield from _inside(statement)


def _inside(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, tuple[str, str]]]:
    """Yield the faults of a statement and what it holds; annotations and messages of errors are left alone."""
    if isinstance(node, ast.Raise | ast.Assert | ast.Import | ast.ImportFrom):
        return
    if isinstance(node, ast.expr | ast.stmt) and (fault := _fault(node)):
        yield node, fault
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "format_spec"):
            continue
        for child in value if isinstance(value, list) else [value]:
            is_nested = isinstance(
                child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.JoinedStr
            )
            if isinstance(child, ast.AST) and not is_nested:
                yield from _inside(child)


def _fault(node: ast.expr | ast.stmt) -> tuple[str, str] | None:  # noqa: PLR0911  one return for each kind
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            right = ast.unparse(node.comparators[0])
            return "comparison", f"({ast.unparse(node.left)} {_COMPARISONS[type(op)]} {right})"
        case ast.BoolOp():
            word = " or " if isinstance(node.op, ast.And) else " and "
            return "boolean", "(" + word.join(f"({ast.unparse(value)})" for value in node.values) + ")"
        case ast.UnaryOp(op=ast.Not()):
            return "not", f"bool({ast.unparse(node.operand)})"
        case ast.BinOp() if type(node.op) in _OPERATORS and not _is_text(node):
            sign = _OPERATORS[type(node.op)]
            return "arithmetic", f"(({ast.unparse(node.left)}) {sign} ({ast.unparse(node.right)}))"
        case ast.Constant(value=bool()):
            return None
        case ast.Constant(value=int() | float()):
            return "constant", repr(
                node.value + 1 if isinstance(node.value, int) else node.value * 1.5 or 1.0
            )
        case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
            return "return None", "return None"
        case ast.AugAssign() | ast.Expr(value=ast.Call()):
            return "dropped statement", "pass"
    return None


def _is_text(node: ast.BinOp) -> bool:
    """Return whether an operator joins or repeats text or lists, which no other operator can do."""
    parts = (node.left, node.right)
    return any(
        isinstance(part, ast.JoinedStr | ast.List | ast.Tuple | ast.Dict | ast.Set | ast.DictComp)
        or (isinstance(part, ast.Constant) and isinstance(part.value, str | bytes))
        for part in parts
    )
