"""Every call of the package that can remove, replace or overwrite a file or a row, found in its syntax tree."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# By the last name of what is called. `str.replace` has two arguments, `Path.replace` and `Path.rename` one.
_REMOVING = {"unlink", "rmdir", "removedirs", "rmtree", "move", "copyfile", "copy2", "copytree"}
_REPLACING = {"rename", "renames", "replace", "symlink_to", "hardlink_to", "symlink", "link"}
_TRUNCATING = {"truncate", "ftruncate"}
_WRITING = {"write_text", "write_bytes", "write_whole", "write_by", "mkstemp", "mkdtemp", "memmap", "tofile"}
_TEMPORARY = {"TemporaryDirectory", "NamedTemporaryFile", "TemporaryFile", "SpooledTemporaryFile"}
_OPENING = {"open", "fdopen", "GzipFile", "ZipFile", "TarFile", "BZ2File", "LZMAFile"}
_MODULES = {"os", "shutil", "tempfile"}
_READING_FLAGS = {"O_RDONLY", "O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_DIRECTORY"}
_WRITING_MODE = re.compile(r"[rbt]*[wax+][wax+bt]*")
_SQL = re.compile(r"\b(delete\s+from|drop\s+(?:table|index|schema|column)|truncate\s+table)\b", re.IGNORECASE)


class Found(NamedTuple):
    """One place: the module, the function, and what is called there."""

    file: str
    function: str
    called: str

    @property
    def is_removal(self) -> bool:
        """Tell whether something that was there before may be gone after it."""
        return self.called in {*_REMOVING, *_REPLACING, *_TRUNCATING, "remove"} or bool(
            _SQL.match(self.called)
        )


def destructive_calls(package: Path) -> Iterator[Found]:
    """Yield every such call of a package."""
    for path in sorted(package.rglob("*.py")):
        yield from _in_tree(
            ast.parse(path.read_text(encoding="utf-8")), path.relative_to(package).as_posix(), ""
        )


def _in_tree(node: ast.AST, file: str, function: str) -> Iterator[Found]:
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            inside = f"{function}.{child.name}".lstrip(".")
        elif isinstance(child, ast.Call) and (called := _called(child)):
            yield Found(file, function, called)
        elif isinstance(child, ast.Constant):
            for statement in _SQL.findall(child.value) if isinstance(child.value, str) else ():
                yield Found(file, function, " ".join(statement.lower().split()))
        yield from _in_tree(child, file, inside)


def _called(call: ast.Call) -> str | None:
    """Return the name of what may destroy something, else None."""
    function, owner = call.func, ""
    if isinstance(function, ast.Attribute):
        name = function.attr
        owner = function.value.id if isinstance(function.value, ast.Name) else "an expression"
    elif isinstance(function, ast.Name):
        name = function.id
    else:
        return None
    if name in _REPLACING:  # neither of a str nor of a struct
        is_path = len(call.args) == 1 and not call.keywords and owner not in ("", "structs", "dataclasses")
        return name if owner in _MODULES or is_path else None
    if name == "remove":  # neither of a list nor of a set
        return name if owner in _MODULES else None
    if name == "connect":
        return name if owner == "sqlite3" else None
    if name in _OPENING:
        return name if (_has_flags(call) if owner == "os" and name == "open" else _has_mode(call)) else None
    return name if name in _REMOVING | _TRUNCATING | _WRITING | _TEMPORARY else None


def _has_flags(call: ast.Call) -> bool:
    """Tell whether `os.open` may write: any flag that is not known to read only, or one in a variable."""
    given = [one for argument in call.args[1:2] for one in ast.walk(argument)]
    named = {one.attr for one in given if isinstance(one, ast.Attribute)}
    named |= {one.id for one in given if isinstance(one, ast.Name)} - {"os", "getattr"}
    named |= {one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return bool(named - _READING_FLAGS)


def _has_mode(call: ast.Call) -> bool:
    """Tell whether a file is opened to be written; a mode in a variable counts as one."""
    named = [one.value for one in call.keywords if one.arg == "mode"]
    second = call.args[1:2] if isinstance(call.func, ast.Name) else call.args
    modes = [one.value for one in (*second, *named) if isinstance(one, ast.Constant)]
    is_unknown = any(not isinstance(one, ast.Constant) for one in named)
    if isinstance(call.func, ast.Name):
        is_unknown = is_unknown or any(not isinstance(one, ast.Constant) for one in second)
    return is_unknown or any(isinstance(mode, str) and _WRITING_MODE.fullmatch(mode) for mode in modes)
