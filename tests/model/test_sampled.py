"""Sampled steps as recordings keep them."""

from __future__ import annotations

import msgspec
import pytest

from stepgrade.model.operations import Operation
from stepgrade.model.sampled import SampledSteps


def test_stored_steps_are_read_back() -> None:
    steps = SampledSteps(steps=2, model_ms=10.0, operations=(Operation(name="aten::mm", ms=3.0),))
    assert SampledSteps.from_stored(steps.to_stored()) == steps


def test_an_operation_without_its_time_is_refused() -> None:
    """Found by the fuzzer: its figures could not be added to those of another recording."""
    stored = {"steps": 2, "model_ms": 10.0, "operations": [{"name": "aten::mm"}]}
    with pytest.raises(msgspec.ValidationError, match=r"'aten::mm': its time is missing"):
        SampledSteps.from_stored(stored)
