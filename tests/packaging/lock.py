"""Print every installed distribution at its version: `make lock` writes it, CI installs by it."""

from __future__ import annotations

import re
from importlib.metadata import distributions

HEADER = "# What CI's checks last passed with; written by `make lock`, given to pip as a constraint."
# What comes with the virtual environment itself, and the project.
NOT_LOCKED = {"pip", "setuptools", "wheel", "stepgrade"}


def pins() -> list[str]:
    """Return name==version of what is installed; a local part such as +cpu is another build of the same."""
    found = {}
    for distribution in distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        found[name] = distribution.version.partition("+")[0]
    return [f"{name}=={found[name]}" for name in sorted(found) if name not in NOT_LOCKED]


if __name__ == "__main__":
    print("\n".join([HEADER, *pins()]))
