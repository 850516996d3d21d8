"""Join the fragments of this folder into CHANGELOG.md: `python changes/join.py 0.2.0`.

Entries of a release whose section is written already go to the end of their headings.
"""

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
                found[heading] += [_entry(entry) for entry in re.split(r"\n\s*\n", text.strip())]
    return found


def _entry(text: str) -> str:
    return text if text.startswith("- ") else "- " + text.replace("\n", "\n  ")


def joined(changelog: str, version: str, day: dt.date, new: dict[str, list[str]]) -> str:
    """Return the changelog with the new entries under their headings in the section of the release."""
    head, mark, rest = changelog.partition("<!-- releases -->\n")
    if not mark:
        sys.exit("CHANGELOG.md has no line <!-- releases -->")
    title, texts = f"## {version} ({day}, tag `v{version}`)", dict.fromkeys(HEADINGS, "")
    written = re.match(rf"\n(## {re.escape(version)} [^\n]*)\n(.*?)(?=\n## |\Z)", rest, re.DOTALL)
    if written:
        title, rest = written[1], rest[written.end() :]
        for heading, text in re.findall(
            r"^### (\w+)\n(.*?)(?=^### |\Z)", written[2], re.DOTALL | re.MULTILINE
        ):
            texts[heading] = text.strip()
    sections = []
    for heading, text in texts.items():
        entries = "\n".join(filter(None, [text, *new.get(heading, [])]))
        if entries:
            sections.append(f"\n### {heading}\n\n{entries}\n")
    return f"{head}{mark}\n{title}\n{''.join(sections)}{rest}"


def main(version: str) -> None:
    """Write the section, set the version and remove the fragments."""
    root = HERE.parent
    changelog = root / "CHANGELOG.md"
    text = changelog.read_text(encoding="utf-8")
    day = dt.datetime.now(dt.UTC).date()
    changelog.write_text(joined(text, version, day, fragments()), encoding="utf-8")
    number = root / "src" / "stepgrade" / "_version.py"
    text = re.sub(r'__version__ = ".*"', f'__version__ = "{version}"', number.read_text(encoding="utf-8"))
    number.write_text(text, encoding="utf-8")
    for path in HERE.glob("[0-9]*.md"):
        path.unlink()


if __name__ == "__main__":
    if len(sys.argv) != 2 or not re.fullmatch(r"\d+\.\d+\.\d+", sys.argv[1]):
        sys.exit(f"usage: {sys.argv[0]} VERSION")
    main(sys.argv[1])
