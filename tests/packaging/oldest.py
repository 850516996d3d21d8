"""Print the requirements of the core at the oldest versions that pyproject.toml allows, and the test tools."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def oldest(requirement: str) -> str:
    """Return `name>=1.2,<3; marker` as `name==1.2; marker`."""
    return re.sub(r">=([^,;]*)(?:,<[^;]*)?", r"==\1", requirement, count=1)


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    pinned = [oldest(text) for text in (*project["dependencies"], *extras["html"], *extras["postgres"])]
    names = {re.split(r"[\[=<>;]", text)[0] for text in pinned} | {"pandas"}  # which asks for a newer numpy
    print(
        "\n".join(
            [*pinned, *(text for text in extras["test"] if re.split(r"[\[=<>;]", text)[0] not in names)]
        )
    )
