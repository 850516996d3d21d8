"""The pairs themselves: each edit applies once, and both scripts of a pair are programs that differ."""

from __future__ import annotations

import ast

import pytest

from tests.pairs.table import PAIRS, SCRIPTS, Pair


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_fix_applies_to_the_script(pair: Pair) -> None:
    texts = pair.texts()
    assert ast.dump(ast.parse(texts["faulty"])) != ast.dump(ast.parse(texts["fixed"]))
    assert pair.rules


def test_every_script_has_a_row() -> None:
    assert sorted(pair.name for pair in PAIRS) == sorted(path.stem for path in SCRIPTS.glob("*.py"))
