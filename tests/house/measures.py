"""How the code is cut, counted: the figures that test_house.py holds and docs/decisions.md shows.

`make house` prints them; `python tests/house/measures.py --write` puts them into docs/decisions.md, and
`python tests/house/measures.py CHECKOUT` measures another checkout in the same way.
"""

from __future__ import annotations

import ast
import collections
import io
import itertools
import os
import re
import resource
import subprocess
import sys
import tempfile
import tokenize
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "stepgrade"
_PER_WHAT = frozenset({"total", "per", "step", "mean", "ms", "ns", "share"})
_FIGURE = re.compile(r"(Annotated\[)?\s*float\b")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
# What these figures were at 203cf5f, before the house was rebuilt; measured by this script.
BEFORE = {
    "lines": "66,654",
    "lines of code": "51,451",
    "modules": "428",
    "modules in import cycles": "125",
    "upward imports": "8",
    "twin types": "11",
    "private helpers used once, per 1,000 lines": "8.7",
    "private or public helpers used once, per 1,000 lines": "13.7",
    "strings with flags outside cli/": "22",
    "noqa comments": "409",
    "least coverage": "91 %",
    "score of a trace: modules / functions": "128 / 760",
    "score of a log: modules / functions": "99 / 438",
    "score of a step profile: modules / functions": "91 / 436",
    "score of a memory snapshot: modules / functions": "90 / 452",
    "gate with a baseline: modules / functions": "99 / 471",
    "score of a step profile: modules imported, Python's own too": "243",
    "score of a step profile: processor time": "90 ms",
}
TABLE = re.compile(r"(?<=<!-- from make house -->\n).*?(?=<!-- end -->)", re.DOTALL)
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

_COUNT_IMPORTS = """
import sys
from stepgrade.cli import main
main(["score", sys.argv[1]])
print(len(sys.modules), file=sys.stderr)
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


def written_lines(texts: dict[Path, str]) -> int:
    """Count lines that are neither blank nor a comment."""
    lines = (line.strip() for text in texts.values() for line in text.splitlines())
    return sum(1 for line in lines if line and not line.startswith("#"))


def helpers_used_once(texts: dict[Path, str]) -> list[tuple[Path, ast.FunctionDef]]:
    """Return the functions and methods that are used once, and in their own module.

    Private ones anywhere; public ones at the top of a module whose name no other module of the package mentions.
    A function that only its decorator uses, such as a rule or an endpoint, counts as it did in a table.
    """
    names = {path: _names_in(ast.parse(text)) for path, text in texts.items()}
    everywhere = sum(names.values(), collections.Counter[str]())
    found = []
    for path, text in texts.items():
        tree, uses = ast.parse(text), names[path]
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
                continue
            if node.decorator_list:
                if node in tree.body and everywhere[node.name] == 0:
                    found.append((path, node))
                continue
            is_private = node.name.startswith("_")
            is_local = is_private or (node in tree.body and everywhere[node.name] == 1)
            if is_local and uses[node.name] == 1:
                found.append((path, node))
    return found


def _names_in(tree: ast.AST) -> collections.Counter[str]:
    """Count every use of a name: as a variable, an attribute, or in an import from another module."""
    uses: collections.Counter[str] = collections.Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            uses[node.id] += 1
        elif isinstance(node, ast.Attribute):
            uses[node.attr] += 1
        elif isinstance(node, ast.ImportFrom):
            uses.update(alias.name for alias in node.names)
    return uses


def twin_types(texts: dict[Path, str]) -> list[tuple[str, str]]:
    """Return pairs of Structs that hold the same figures, such as one for a run and one for its step.

    They share four fields or more, be it under names like total_ms and per_step_ms, at least one of them a
    figure, and these are most of both. Of a Struct and one that extends it neither is a twin.
    """
    fields: dict[str, dict[str, bool]] = {}  # by name, without units and the like; whether it is a figure
    for node in (node for text in texts.values() for node in ast.parse(text).body):
        bases = [base.id for base in getattr(node, "bases", ()) if isinstance(base, ast.Name)]
        if isinstance(node, ast.ClassDef) and "Struct" in bases:
            fields[node.name] = {
                "_".join(word for word in field.target.id.split("_") if word not in _PER_WHAT): bool(
                    _FIGURE.match(ast.unparse(field.annotation))
                )
                for field in node.body
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
            }
    found = []
    for (one, left), (other, right) in itertools.combinations(fields.items(), 2):
        shared = left.keys() & right.keys()
        is_most = len(shared) >= 0.66 * min(len(left), len(right)) and len(shared) >= 0.45 * len(left | right)
        if len(shared) >= 4 and is_most and any(left[name] or right[name] for name in shared):
            found.append((one, other))
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


def upward_imports(checkout: Path = ROOT) -> list[str]:
    """Return the imports, inside functions too, of a room in a layer above one's own."""
    pyproject = tomllib.loads((checkout / "pyproject.toml").read_text(encoding="utf-8"))
    layers = pyproject["tool"]["importlinter"]["contracts"][0]["layers"]
    depth = {room: index for index, layer in enumerate(layers) for room in re.findall(r"\w+", layer)}

    def layer(module: str) -> int | None:
        return depth.get(module.split(".")[1]) if "." in module else None

    return [
        f"{who} -> {whom}"
        for who, imported in imports_of(checkout / "src" / "stepgrade").items()
        for whom in sorted(imported)
        if (mine := layer(who)) is not None and (other := layer(whom)) is not None and other < mine
    ]


def crossed(*arguments: str, checkout: Path = ROOT) -> tuple[int, int]:
    """Return how many modules and functions of ours one command goes through."""
    package = str(checkout / "src" / "stepgrade")
    ran = subprocess.run(
        [sys.executable, "-c", _COUNT_CALLS, package, *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=checkout,
        env={
            "PYTHONPATH": str(checkout / "src"),
            "PATH": "/usr/bin:/bin",
            "STEPGRADE_CACHE": tempfile.gettempdir(),
        },
    )
    modules, functions = ran.stderr.split("\n")[-2].split()
    return int(modules), int(functions)


def start_up(checkout: Path = ROOT) -> str:
    """Return the least processor time of `score` of a small profile, of seven."""
    times = []
    for _ in range(7):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(
            [sys.executable, "-m", "stepgrade", "score", str(ROOT / "examples/runs/gpt_naive.json")],
            capture_output=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(checkout / "src")},
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return f"{min(times) * 1e3:.0f} ms"


def static_rows(checkout: Path = ROOT) -> dict[str, str]:
    """Return what is counted in the source alone."""
    package = checkout / "src" / "stepgrade"
    texts = sources(package)
    code = sum(lines_of_code(text) for text in texts.values())
    once = helpers_used_once(texts)
    private = [node for _, node in once if node.name.startswith("_")]
    written = written_lines(texts)
    floor = re.search(r"LEAST_COVERAGE := (\S+)", (checkout / "Makefile").read_text(encoding="utf-8"))
    return {
        "lines": f"{sum(text.count(chr(10)) for text in texts.values()):,}",
        "lines of code": f"{code:,}",
        "modules": f"{len(texts)}",
        "modules in import cycles": f"{len(modules_in_cycles(imports_of(package)))}",
        "upward imports": f"{len(upward_imports(checkout))}",
        "twin types": f"{len(twin_types(sources(package / 'model')))}",
        "private helpers used once, per 1,000 lines": f"{len(private) / written * 1000:.1f}",
        "private or public helpers used once, per 1,000 lines": f"{len(once) / written * 1000:.1f}",
        "strings with flags outside cli/": f"{len(strings_with_flags(texts, package))}",
        "noqa comments": f"{sum(text.count('# noqa') for text in texts.values())}",
        "least coverage": f"{floor[1] if floor else '?'} %",
    }


def run_rows(checkout: Path = ROOT) -> dict[str, str]:
    """Return what is counted while commands run, on files of this checkout."""
    examples = ROOT / "examples"
    old, new = (str(examples / "runs" / f"gpt_{kind}.json") for kind in ("fused", "naive"))
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder, "snapshot.pickle")
        snapshot.write_bytes(_snapshot())
        ways = {
            "score of a trace": ("score", str(examples / "traces" / "gpt_naive.json.gz")),
            "score of a log": ("score", str(examples / "titan.log")),
            "score of a step profile": ("score", new),
            "score of a memory snapshot": ("score", str(snapshot)),
            "gate with a baseline": ("gate", new, "--baseline", old),
        }
        counts = {name: crossed(*words, checkout=checkout) for name, words in ways.items()}
    rows = {f"{name}: modules / functions": f"{a} / {b}" for name, (a, b) in counts.items()}
    imported = subprocess.run(
        [sys.executable, "-c", _COUNT_IMPORTS, new],
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(checkout / "src"), "PATH": "/usr/bin:/bin"},
    )
    rows["score of a step profile: modules imported, Python's own too"] = imported.stderr.split("\n")[-2]
    return rows | {"score of a step profile: processor time": start_up(checkout)}


def _snapshot() -> bytes:
    sys.path.insert(0, str(ROOT))
    from tests.fuzz import samples

    return samples.snapshots()[0]


def table(now: dict[str, str]) -> str:
    """Return the figures as Markdown, beside those of before."""
    rows = [f"| {name} | {BEFORE.get(name, '')} | {figure} |\n" for name, figure in now.items()]
    return "".join(["| | before (203cf5f) | now |\n", "|---|---|---|\n", *rows])


def main() -> None:
    """Print the figures of this checkout or of another, and with --write put them into docs/decisions.md."""
    arguments = [each for each in sys.argv[1:] if each != "--write"]
    checkout = Path(arguments[0]).resolve() if arguments else ROOT
    now = static_rows(checkout) | run_rows(checkout)
    for name, figure in now.items():
        print(f"{name:64}{BEFORE.get(name, ''):>14}{figure:>14}")
    if "--write" in sys.argv:
        page = ROOT / "docs" / "decisions.md"
        page.write_text(TABLE.sub(lambda _: table(now), page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
