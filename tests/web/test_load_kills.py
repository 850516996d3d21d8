"""A short load with kills; `make load-kills` is the long one."""

from __future__ import annotations

import pytest

from tests.web.load_kills import load_with_kills

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_nothing_acknowledged_is_lost(kind: str) -> None:
    result = load_with_kills(kind, 20.0)
    print(*result.lines(), sep="\n")
    assert (result.lost, result.twice) == (0, 0)
    assert result.acknowledged > 0
    assert result.kills.total() > 0
    assert not {"500", "400", "409"} & result.errors.keys()
