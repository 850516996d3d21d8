"""Look into the built wheel, install it alone into a fresh environment, and run what the README promises."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NEEDED = (
    "stepgrade/py.typed",
    "stepgrade/hardware/accelerators.csv",
    "stepgrade/report/html/templates/page.html",
)
LIBRARY = "stepgrade/readers/native/"  # the compiled one, in a wheel for one platform
MOST_BYTES = 2_000_000
# A wheel with the library must be able to use it;
HAS_LIBRARY = "from stepgrade.readers.compiled import load; print(load() is not None)"
TRACE = ROOT / "examples" / "traces" / "gpt_naive.json.gz"


def check_contents(wheel: Path) -> None:
    """Exit with the file that is missing, or that has no business in the wheel."""
    names = zipfile.ZipFile(wheel).namelist()
    package = {name for name in names if name.startswith("stepgrade/")}
    sources = ROOT / "src"
    there = {
        path.relative_to(sources).as_posix() for path in (sources / "stepgrade").rglob("*") if path.is_file()
    }
    wanted = {name for name in there if "__pycache__" not in name and not name.startswith(LIBRARY)}
    libraries = {name for name in package if name.startswith(LIBRARY)}
    if len(libraries) != (not wheel.name.endswith("-py3-none-any.whl")) or wheel.stat().st_size > MOST_BYTES:
        sys.exit(f"{wheel.name}: {len(libraries)} libraries, {wheel.stat().st_size} bytes")
    package -= libraries
    if package != wanted:
        sys.exit(f"{wheel.name} and src/ differ: {sorted(package ^ wanted)[:10]}")
    strange = [name for name in names if not name.startswith("stepgrade") or "__pycache__" in name]
    missing = [name for name in NEEDED if name not in package]
    if strange or missing:
        sys.exit(f"{wheel.name}: strange {strange}, missing {missing}")


def run(*command: object) -> str:
    """Run a command in an empty directory and return what it printed."""
    with tempfile.TemporaryDirectory() as empty:
        words = [str(word) for word in command]
        ran = subprocess.run(words, capture_output=True, text=True, check=False, cwd=empty, timeout=300)
    if ran.returncode:
        sys.exit(f"{' '.join(words)}: exit code {ran.returncode}\n{ran.stdout}{ran.stderr}")
    return ran.stdout


def main(dist: Path) -> None:
    """Check every wheel of the folder."""
    (wheel,) = dist.glob("*.whl")
    check_contents(wheel)
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        scripts = Path(folder) / ("Scripts" if sys.platform == "win32" else "bin")
        python = scripts / "python"
        run(python, "-m", "pip", "--quiet", "--disable-pip-version-check", "install", wheel.resolve())
        installed = run(python, "-m", "pip", "--disable-pip-version-check", "list", "--format=freeze")
        packages = {line.partition("==")[0] for line in installed.splitlines()} - {"pip", "setuptools"}
        if packages != {"isal", "msgspec", "numpy", "stepgrade"}:
            sys.exit(f"a plain install brings {sorted(packages)}")
        if (run(python, "-c", HAS_LIBRARY).strip() == "True") == wheel.name.endswith("-any.whl"):
            sys.exit(f"{wheel.name} does not load the library it was built with")
        stepgrade = scripts / "stepgrade"
        for command in (["--version"], ["--help"], ["devices"], ["score", TRACE], ["inspect", TRACE]):
            run(stepgrade, *command)
        refused = subprocess.run(
            [stepgrade, "score", TRACE, "--format", "html"], capture_output=True, text=True, check=False
        )
        if refused.returncode != 2 or "stepgrade[html]" not in refused.stderr:
            sys.exit(f"without Jinja2 --format html says: {refused.stderr}")
    print(f"{wheel.name}: contents, a plain install and its commands are as they should be")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
