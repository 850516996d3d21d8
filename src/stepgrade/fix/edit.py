"""Edit a call in a Python source: keywords set where the call is, everything else as it was."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from msgspec import Struct

from stepgrade.fix.trial import Site


class Edit(Struct, frozen=True):
    """A change of the source: keywords of the call at a line, a line before it, or other text for a span."""

    site: Site
    keywords: dict[str, Any] = {}
    line: str = ""  # with {model} for what the optimizer's parameters are of
    span: tuple[int, int] | None = None  # of characters
    text: str = ""  # for the span


class CannotEdit(Exception):
    """Why a change cannot be written at its place."""


def source_text(path: str) -> str:
    """Return a Python source with its own line ends; raise CannotEdit."""
    try:
        text = Path(path).read_bytes().decode()
    except UnicodeDecodeError as error:
        raise CannotEdit("it is not UTF-8") from error
    except OSError as error:
        raise CannotEdit(f"it cannot be read: {error.strerror or error}") from error
    if "\r" in text.replace("\r\n", ""):
        raise CannotEdit("its lines end in a way of their own")
    return text


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return the source after the edits, last line first; raise CannotEdit."""
    mark = text[: text.startswith("\ufeff")]
    text = text.removeprefix(mark)
    try:
        for edit in sorted(edits, key=lambda edit: edit.site.line, reverse=True):
            if edit.span is not None:
                text = text[: edit.span[0]] + edit.text + text[edit.span[1] :]
                continue
            call = _call_at(text, edit)
            text = _with_line(text, call, edit.line) if edit.line else _with_keywords(text, call, edit)
        ast.parse(text)
    except SyntaxError as error:
        raise CannotEdit(f"line {error.lineno} would not be Python") from error
    except (RecursionError, MemoryError) as error:
        raise CannotEdit("its expressions are nested too deeply") from error
    return mark + text


def diff_of(before: str, after: str, name: str) -> str:
    """Return a unified diff of a file."""
    lines = difflib.unified_diff(_lines(before), _lines(after), f"a/{name}", f"b/{name}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def _lines(text: str) -> list[str]:
    """Return the lines as Python counts them: no form feed ends one."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _call_at(text: str, edit: Edit) -> ast.Call:
    """Return the call that the recording saw; refuse when it is not the only one of its name at that line."""
    site = edit.site
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise CannotEdit("it is not Python") from error
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and node.lineno <= site.line <= (node.end_lineno or node.lineno)
        and ast.unparse(node.func).rpartition(".")[2] == site.call
    ]
    if len(found) != 1:
        raise CannotEdit(f"line {site.line} does not call {site.call} once by that name")
    if any(keyword.arg is None for keyword in found[0].keywords):
        raise CannotEdit(f"line {site.line} passes keywords on with **")
    return found[0]


def _offset(lines: list[str], line: int, column: int) -> int:
    """Return the position in the text of a line and a column in bytes."""
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


def _with_keywords(text: str, call: ast.Call, edit: Edit) -> str:
    """Set keywords of a call; "" is its first argument."""
    lines = _lines(text)
    there = {keyword.arg: keyword.value for keyword in call.keywords}
    changes: list[tuple[int, int, str]] = []
    added: list[str] = []
    for name, value in edit.keywords.items():
        old = call.args[0] if not name and call.args else there.get(name)
        if old is not None:
            start = _offset(lines, old.lineno, old.col_offset)
            end = _offset(lines, old.end_lineno or 0, old.end_col_offset or 0)
            changes.append((start, end, repr(value)))
        else:
            added.append(f"{name}={value!r}")
    if added:
        changes.append(_appended(text, lines, call, ", ".join(added)))
    for start, end, new in sorted(changes, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _appended(text: str, lines: list[str], call: ast.Call, added: str) -> tuple[int, int, str]:
    """Return where new keywords go: behind the last argument, on a line of their own if that one has one."""
    close = _offset(lines, call.end_lineno or 0, call.end_col_offset or 0) - 1
    arguments: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
    if not arguments:
        return close, close, added
    last = max(arguments, key=lambda node: (node.end_lineno or 0, node.end_col_offset or 0))
    end = _offset(lines, last.end_lineno or 0, last.end_col_offset or 0)
    while text[end] == ")" and end < close:  # of an argument in brackets
        end += 1
    rest = text[end:close]
    comma = rest.find(",")
    has_comma = comma >= 0 and not rest[:comma].strip()
    is_alone = last.lineno > call.lineno and not lines[last.lineno - 1][: last.col_offset].strip()
    if has_comma and "\n" in rest:
        indent = lines[last.lineno - 1][: len(lines[last.lineno - 1]) - len(lines[last.lineno - 1].lstrip())]
        if is_alone:  # on the next line, behind a comment
            start = end + rest.index("\n") + 1
            return start, start, f"{indent}{added},{_line_end(lines, last.lineno)}"
        return end + comma + 1, end + comma + 1, f" {added},"
    return end, end + (comma + 1 if has_comma else 0), f", {added}"


def _with_line(text: str, call: ast.Call, line: str) -> str:
    """Put a line before the statement that makes the optimizer of `EXPRESSION.parameters()`."""
    first = call.args[0] if call.args else None
    is_plain = (
        isinstance(first, ast.Call)
        and isinstance(first.func, ast.Attribute)
        and first.func.attr == "parameters"
    )
    if not is_plain or not isinstance(first, ast.Call) or not isinstance(first.func, ast.Attribute):
        raise CannotEdit("the optimizer is not made of one model's parameters()")
    lines = _lines(text)
    statement = next(
        node
        for node in sorted(
            (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.stmt)),
            key=lambda node: -node.lineno,
        )
        if node.lineno <= call.lineno <= (node.end_lineno or 0)
    )
    start = _offset(lines, statement.lineno, 0)
    indent = lines[statement.lineno - 1][: statement.col_offset]
    if indent.strip():
        raise CannotEdit(f"line {statement.lineno} holds another statement before it")
    new = line.format(model=ast.unparse(first.func.value))
    return f"{text[:start]}{indent}{new}{_line_end(lines, statement.lineno)}{text[start:]}"


def _line_end(lines: list[str], number: int) -> str:
    return "\r\n" if lines[number - 1].endswith("\r\n") else "\n"
