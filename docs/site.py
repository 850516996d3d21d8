"""Collect the pages of the site: the README as its first page, docs/, and the pages that both link to.

Links are rewritten for the site. A broken link stops the build; a link to a file that is not a page becomes
plain text. `make docs` runs this, then the builder.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
OUTSIDE_DOCS = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}


def pages() -> dict[Path, Path]:
    """Return the path of each page in the repository, and on the site."""
    docs = {
        path.relative_to(ROOT): path.relative_to(ROOT / "docs")
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.name != "index.md" or path.parent.name != "docs"
    }
    return {
        Path("docs/index.md"): Path("pages.md"),
        **{Path(a): Path(b) for a, b in OUTSIDE_DOCS.items()},
        **docs,
    }


def moved(text: str, page: Path, paths: dict[Path, Path]) -> str:
    """Return a page's text with its links rewritten for the site; raise ValueError for a broken link."""

    def link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        path, _, part = target.partition("#")
        if ":" in path or not path:
            return match[0]
        linked = Path(os.path.normpath(page.parent / path))
        if not (ROOT / linked).exists():
            raise ValueError(f"{page}: broken link to {target}")
        if linked.suffix == ".md" and linked in paths:
            relative = os.path.relpath(paths[linked], paths[page].parent)
            return f"{mark}[{words}]({Path(relative).as_posix()}{'#' if part else ''}{part})"
        if mark:
            relative = os.path.relpath(linked.relative_to("docs"), paths[page].parent)
            return f"![{words}]({Path(relative).as_posix()})"
        return words

    parts, at = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(link, text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, LINK.sub(link, text[at:])])


def build(into: Path) -> None:
    """Write all pages and their images to a folder, which is emptied first."""
    shutil.rmtree(into, ignore_errors=True)
    paths = pages()
    for page, path in paths.items():
        text = moved((ROOT / page).read_text(encoding="utf-8"), page, paths)
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", into / "images")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
