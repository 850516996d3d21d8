"""Put the pages of the site together: the README as its first, docs/, and what both link to.

Links are made to fit where pages lie on the site. One that leads nowhere stops the build; one to a file that
is no page becomes its name. `make docs` runs this, then the builder.
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
BESIDE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
}


def pages() -> dict[Path, Path]:
    """Return where each page lies in the repository, and where on the site."""
    docs = {
        path.relative_to(ROOT): path.relative_to(ROOT / "docs")
        for path in sorted((ROOT / "docs").rglob("*.md"))
        if path.name != "index.md" or path.parent.name != "docs"
    }
    return {Path("docs/index.md"): Path("pages.md"), **{Path(a): Path(b) for a, b in BESIDE.items()}, **docs}


def moved(text: str, page: Path, places: dict[Path, Path]) -> str:
    """Return a page's text with its links as they are on the site; raise ValueError for one to nowhere."""

    def link(match: re.Match[str]) -> str:
        mark, words, target = match.groups()
        path, _, part = target.partition("#")
        if ":" in path or not path:
            return match[0]
        there = Path(os.path.normpath(page.parent / path))
        if not (ROOT / there).exists():
            raise ValueError(f"{page}: the link to {target} leads nowhere")
        if there.suffix == ".md" and there in places:
            lies = os.path.relpath(places[there], places[page].parent)
            return f"{mark}[{words}]({Path(lies).as_posix()}{'#' if part else ''}{part})"
        if mark:
            lies = os.path.relpath(there.relative_to("docs"), places[page].parent)
            return f"![{words}]({Path(lies).as_posix()})"
        return words

    parts, at = [], 0
    for code in CODE.finditer(text):
        parts += [LINK.sub(link, text[at : code.start()]), code[0]]
        at = code.end()
    return "".join([*parts, LINK.sub(link, text[at:])])


def build(into: Path) -> None:
    """Write all pages and their images to a folder, which is emptied first."""
    shutil.rmtree(into, ignore_errors=True)
    places = pages()
    for page, place in places.items():
        text = moved((ROOT / page).read_text(encoding="utf-8"), page, places)
        (into / place).parent.mkdir(parents=True, exist_ok=True)
        (into / place).write_text(text, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "images", into / "images")


if __name__ == "__main__":
    build(Path(sys.argv[1]))
