"""Join the fragments of this folder into CHANGELOG.md: `python changes/join.py 0.2.0`."""

from __future__ import annotations

import datetime as dt
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
HEADINGS = ("Breaking", "Deprecated", "Changed", "Added", "Fixed")


def fragments(folder: Path = HERE) -> dict[str, list[str]]:
    """Return the texts of the fragments by heading; exit with the name of one that has no known heading."""
    found: dict[str, list[str]] = {heading: [] for heading in HEADINGS}
    for path in sorted(folder.glob("[0-9]*.md")):
        for part in re.split(
            rf"^(?=(?:{'|'.join(HEADINGS)})$)", path.read_text(encoding="utf-8"), flags=re.MULTILINE
        ):
            heading, _, text = part.strip().partition("\n")
            if heading and heading not in HEADINGS:
                sys.exit(f"{path.name}: the first line must be one of {', '.join(HEADINGS)}")
            if text.strip():
                found[heading] += re.split(r"\n\s*\n", text.strip())
    return found


def section(version: str, day: dt.date, texts: dict[str, list[str]]) -> str:
    """Return the changelog's section of a release."""
    lines = [f"## {version} ({day})"]
    for heading, entries in texts.items():
        if entries:
            lines += ["", f"### {heading}", ""]
            lines += [
                entry if entry.startswith("- ") else "- " + entry.replace("\n", "\n  ") for entry in entries
            ]
    return "\n".join(lines) + "\n"


def main(version: str) -> None:
    """Write the section, set the version and remove the fragments."""
    root = HERE.parent
    changelog = root / "CHANGELOG.md"
    head, mark, rest = changelog.read_text(encoding="utf-8").partition("<!-- releases -->\n")
    if not mark:
        sys.exit("CHANGELOG.md has no line <!-- releases -->")
    new = section(version, dt.datetime.now(dt.UTC).date(), fragments())
    changelog.write_text(f"{head}{mark}\n{new}{rest}", encoding="utf-8")
    number = root / "src" / "stepgrade" / "_version.py"
    text = re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', number.read_text(encoding="utf-8"))
    number.write_text(text, encoding="utf-8")
    for path in HERE.glob("[0-9]*.md"):
        path.unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit(f"usage: {sys.argv[0]} VERSION")
    main(sys.argv[1])
