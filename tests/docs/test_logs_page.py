"""docs/logs.md has a table of the dialects, written from their descriptions."""

from __future__ import annotations

import re

import pytest

from stepgrade.readers.logs.dialect import Dialect
from stepgrade.readers.logs.frameworks import DIALECTS
from stepgrade.readers.logs.own import NAMES
from tests.conftest import ROOT

PAGE = ROOT / "docs" / "logs.md"
TABLE = re.compile(r"(?<=^<!-- dialects -->\n).*?(?=^<!-- end -->$)", re.MULTILINE | re.DOTALL)
TELLS = {
    "step_s": "step time",
    "interval_s": "step time",
    "steps_s": "step time",
    "elapsed_s": "step time (differences)",
    "tok_s": "tokens/s",
    "tok_s_device": "tokens/s per device",
    "samples_s": "samples/s",
    "samples_s_device": "samples/s per device",
    "tokens": "tokens",
    "step_tokens": "tokens",
    "samples": "samples",
    "step_samples": "batch",
    "tflops_device": "TFLOP/s per device",
    "mfu": "MFU",
    "memory_bytes": "memory",
    "loss": "loss",
}


def row(dialect: Dialect) -> str:
    told = dict.fromkeys(TELLS[field.means] for field in dialect.fields if field.means in TELLS)
    anchor = dialect.anchor.decode().strip().replace("|", "\\|")
    return f"| {dialect.framework} | `{anchor}` | {', '.join(told)} | {dialect.mean} | {dialect.convention or ''} |\n"


def test_the_table_is_written_from_the_dialects(pytestconfig: pytest.Config) -> None:
    text = PAGE.read_text(encoding="utf-8")
    head = "| framework | found by | gives | times are per | MFU counted as |\n|---|---|---|---|---|\n"
    real = TABLE.sub(lambda _: head + "".join(row(each) for each in DIALECTS if each.fields), text)
    if pytestconfig.getoption("--update-golden"):
        PAGE.write_text(real, encoding="utf-8")
        text = real
    assert text == real


def test_every_name_of_ones_own_dialect_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    unnamed = {"eval_s", "seq", "interval_ms", "elapsed_ms"}
    assert {name for name in NAMES if f"`{name}`" not in text} == unnamed
