"""Build the compiled library of lane/ into wheels and editable installs, if there is a Rust compiler.

Without a compiler, or with STEPGRADE_PURE=1, the package is pure Python. STEPGRADE_PURE=0 makes a missing or
failing compiler an error. `python hatch_build.py` builds into src/.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # run by itself
    BuildHookInterface = object

ROOT = Path(__file__).resolve().parent
FOLDER = "stepgrade/readers/native"
NAME = "lane" + {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
# The oldest macOS that Rust builds for on this processor.
_MACOS = {"arm64": "11.0", "x86_64": "10.12"}
_PROCESSORS = {"amd64": "x86_64", "arm64": "aarch64"}


class NotBuilt(Exception):
    """Why there is no library."""


def build(target: Path, *flags: str) -> None:
    """Compile the library to `target`; raise NotBuilt."""
    compiler = os.environ.get("RUSTC") or shutil.which("rustc")
    if compiler is None:
        raise NotBuilt("there is no rustc")
    try:
        about = subprocess.run([compiler, "-vV"], capture_output=True, text=True, check=True).stdout  # noqa: S603
    except (OSError, subprocess.CalledProcessError) as error:
        raise NotBuilt(f"{compiler} does not run: {error}") from error
    host = re.search(r"^host: (\S+)", about, re.MULTILINE)
    machine = platform.machine().lower()
    if host is None or not host[1].startswith(_PROCESSORS.get(machine, machine)) or sys.maxsize < 2**32:
        raise NotBuilt(f"rustc does not build for this Python ({machine})")
    if "musl" in host[1]:
        flags = (*flags, "-C", "target-feature=-crt-static")
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{target.name}.{os.getpid()}")  # the old one may be in use
    command = [
        *(compiler, "--edition", "2021", "--crate-name", "lane", "--crate-type", "cdylib"),
        *("-C", "opt-level=3", "-C", "strip=symbols"),
        *("--remap-path-prefix", f"{ROOT}=.", *flags, "-o", str(draft), str(ROOT / "lane" / "lib.rs")),
    ]
    environment = {"MACOSX_DEPLOYMENT_TARGET": _MACOS.get(machine, "11.0"), **os.environ}
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    if ran.returncode:
        raise NotBuilt(f"rustc failed:\n{ran.stderr}")
    draft.replace(target)


def tag() -> str:
    """Return the tag of a wheel with the library, which uses nothing of Python: one serves all versions."""
    name = sysconfig.get_platform()
    if sys.platform == "darwin":
        machine = platform.machine()
        name = f"macosx_{_MACOS.get(machine, '11.0')}_{machine}"
    return "py3-none-" + re.sub(r"[-.]", "_", name)


def build_unless_pure(target: Path) -> str | None:
    """Build the library unless it is not wanted; return why there is none."""
    wanted = os.environ.get("STEPGRADE_PURE", "")
    if wanted not in {"", "0"}:
        return "STEPGRADE_PURE is set"
    try:
        build(target)
    except NotBuilt as error:
        if wanted == "0":
            raise
        return str(error)
    return None


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc]  # hatchling is there only when it builds
    """Add the library to a wheel; an editable install gets it in src/."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before hatchling collects the files."""
        if version == "editable":
            target = ROOT / "src" / FOLDER / NAME
        else:
            self._folder = tempfile.TemporaryDirectory()
            target = Path(self._folder.name) / NAME
        problem = build_unless_pure(target)
        if problem:
            self.app.display_info(f"Without the compiled library: {problem}")
            return
        if version != "editable":
            build_data["force_include"][str(target)] = f"{FOLDER}/{NAME}"
            build_data["pure_python"] = False
            build_data["tag"] = tag()

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was built for the wheel."""
        if version != "editable":
            self._folder.cleanup()


if __name__ == "__main__":
    missing = build_unless_pure(ROOT / "src" / FOLDER / NAME)
    print(f"Without the compiled library: {missing}" if missing else f"Built src/{FOLDER}/{NAME}")  # noqa: T201
