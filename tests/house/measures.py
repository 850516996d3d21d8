"""How the code is cut, counted: the figures that test_house.py holds and docs/decisions.md tells.

`python tests/house/measures.py` prints them; `make house` does the same.
"""

from __future__ import annotations

import ast
import collections
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stepgrade"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
_NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
_COUNT_CALLS = """
import sys
seen, package = set(), sys.argv[1]
def note(frame, event, _):
    code = frame.f_code
    is_function = code.co_flags & 1 and not code.co_name.startswith("<")  # no class body, no comprehension
    if event == "call" and is_function and code.co_filename.startswith(package):
        seen.add((code.co_filename, code.co_firstlineno))
from stepgrade.cli import main
sys.setprofile(note)
try:
    main(sys.argv[2:])
finally:
    sys.setprofile(None)
print(len({name for name, _ in seen}), len(seen), file=sys.stderr)
"""


def sources(package: Path = PACKAGE) -> dict[Path, str]:
    """Return the text of every module."""
    return {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}


def lines_of_code(text: str) -> int:
    """Count lines that hold code: no blank ones, no comments, no docstrings."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                code.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(code)


def helpers_used_once(texts: dict[Path, str]) -> list[tuple[Path, ast.FunctionDef]]:
    """Return private functions and methods that one place alone refers to, in their own module."""
    found = []
    for path, text in texts.items():
        tree = ast.parse(text)
        uses = collections.Counter(
            node.id if isinstance(node, ast.Name) else node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Name | ast.Attribute)
        )
        found += [
            (path, node)
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef)
            and node.name.startswith("_")
            and not node.name.startswith("__")
            and not node.decorator_list
            and uses[node.name] == 1
        ]
    return found


def body_lines(function: ast.FunctionDef) -> int:
    """Return the lines of a function's body without its docstring."""
    body = function.body
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and len(body) > 1:
        body = body[1:]
    return (body[-1].end_lineno or 0) - body[0].lineno + 1


def strings_with_flags(texts: dict[Path, str], package: Path = PACKAGE) -> list[str]:
    """Return the places outside cli/ whose strings name a flag of the command line."""
    found = []
    for path, text in texts.items():
        if path.relative_to(package).parts[0] == "cli":
            continue
        found += [
            f"{path.relative_to(package)}:{node.lineno}"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.search(node.value)
        ]
    return found


def imports_of(package: Path = PACKAGE) -> dict[str, set[str]]:
    """Return which of our modules each module imports: at once, inside functions, or for type checkers.

    Importing a module of another package also imports that package's `__init__`.
    """
    root = package.parent
    paths = {".".join(path.relative_to(root).with_suffix("").parts): path for path in package.rglob("*.py")}
    paths = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        direct: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                direct.update(alias.name for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"relative import in {name}"
                names = {f"{node.module}.{alias.name}" for alias in node.names}
                direct.update(full if full in paths else str(node.module) for full in names)
        packages = {
            ".".join(parts[:n]) for one in direct for parts in [one.split(".")] for n in range(2, len(parts))
        }
        own = {".".join(name.split(".")[:n]) for n in range(2, name.count(".") + 2)}
        found[name] = ((direct | (packages - own)) & set(paths)) - {name}
    return found


def modules_in_cycles(imports: dict[str, set[str]]) -> list[str]:
    """Return the modules that import themselves, by way of others."""

    def reaches_itself(start: str) -> bool:
        reached: set[str] = set()
        ahead = [start]
        while ahead and start not in reached:
            new = imports[ahead.pop()] - reached
            reached |= new
            ahead += new
        return start in reached

    return sorted(name for name in imports if reaches_itself(name))


def crossed(*arguments: str, checkout: Path = ROOT) -> tuple[int, int]:
    """Return how many modules and functions of ours one command goes through."""
    package = str(checkout / "src" / "stepgrade")
    ran = subprocess.run(
        [sys.executable, "-c", _COUNT_CALLS, package, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=checkout,
        env={"PYTHONPATH": str(checkout / "src"), "PATH": "/usr/bin:/bin"},
    )
    modules, functions = ran.stderr.split("\n")[-2].split()
    return int(modules), int(functions)


def main(checkout: Path = ROOT) -> None:
    """Print the figures."""
    package = checkout / "src" / "stepgrade"
    texts = sources(package)
    code = sum(lines_of_code(text) for text in texts.values())
    once = helpers_used_once(texts)
    short = [node for _, node in once if body_lines(node) <= 3]
    rows = {
        "modules": len(texts),
        "lines": sum(text.count("\n") for text in texts.values()),
        "lines of code": code,
        "private helpers used once": len(once),
        "  per 1,000 lines of code": round(len(once) / code * 1000, 1),
        "  of at most three lines, per 1,000": round(len(short) / code * 1000, 1),
        "modules in import cycles": len(modules_in_cycles(imports_of(package))),
        "strings with flags outside cli/": len(strings_with_flags(texts, package)),
        "score of a trace: modules, functions": crossed(
            "score", "examples/traces/gpt_naive.json.gz", checkout=checkout
        ),
        "gate with a baseline: modules, functions": crossed(
            "gate",
            "examples/runs/gpt_naive.json",
            "--baseline",
            "examples/runs/gpt_fused.json",
            checkout=checkout,
        ),
    }
    for name, figure in rows.items():
        print(f"{name:42}{figure}")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT)
