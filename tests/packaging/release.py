"""Install the built wheel and sdist into an empty environment of every Python at hand, and run them there.

`make release-check` builds both first. A Python is at hand when `python3.X` starts; 3.11 is the oldest that is supported.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from wheel import ROOT, TRACE, check_contents, run

MINORS = range(11, 20)


def pythons() -> dict[str, str]:
    """Return every supported Python that starts, by its version."""
    found: dict[str, str] = {}
    for command in [sys.executable, *(shutil.which(f"python3.{minor}") for minor in MINORS)]:
        if command is None:
            continue
        asked = [command, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"]
        ran = subprocess.run(asked, capture_output=True, text=True, check=False)
        if ran.returncode == 0 and int(ran.stdout.split(".")[1]) in MINORS:
            found.setdefault(ran.stdout.strip(), command)
    return found


def check(python: str, archive: Path, version: str) -> None:
    """Exit with what fails after an install of one archive by one Python."""
    with tempfile.TemporaryDirectory() as folder:
        run(python, "-m", "venv", folder)
        scripts = Path(folder) / "bin"
        run(
            scripts / "python",
            "-m",
            "pip",
            "--quiet",
            "--disable-pip-version-check",
            "install",
            archive.resolve(),
        )
        if (found := run(scripts / "stepgrade", "--version").strip()) != f"stepgrade {version}":
            sys.exit(f"{archive.name} calls itself {found!r}")
        for words in (["--help"], ["score", "--help"], ["devices"], ["score", TRACE], ["inspect", TRACE]):
            run(scripts / "stepgrade", *words)


def main(dist: Path) -> None:
    """Check every archive with every Python, and that the changelog and the tag name the version."""
    text = (ROOT / "src" / "stepgrade" / "_version.py").read_text(encoding="utf-8")
    version = re.search(r'"(\d+\.\d+\.\d+)"', text)
    if version is None or f"## {version[1]} (" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"):
        sys.exit("CHANGELOG.md has no section of this version: make changelog VERSION=…")
    waiting = sorted(path.name for path in (ROOT / "changes").glob("[0-9]*.md"))
    if waiting:
        sys.exit(f"not in the changelog yet: {', '.join(waiting)}")
    archives = [*dist.glob("*.whl"), *dist.glob("*.tar.gz")]
    check_contents(next(path for path in archives if path.suffix == ".whl"))
    for name, python in pythons().items():
        for archive in archives:
            check(python, archive, version[1])
            print(f"Python {name}: {archive.name} installs and runs")
    print(f"ready: tag v{version[1]}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
