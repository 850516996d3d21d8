"""A grade needs steps of the run and a ceiling that limits them; else the card has a bound and the reason."""

from __future__ import annotations

import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.model.ledger import Ledger
from stepgrade.model.operations import Operation
from stepgrade.model.profile import Profile, Recorded
from tests.diagnosis.test_rules import GEMMS, TRACE, trace

A100 = sg.Setup(device="a100-sxm4-80gb")
PEAK = 312e12  # FLOP/s in bf16, of NVIDIA's data sheet


def graded(operations: tuple[Operation, ...], share: float = 0.3, **known: object) -> Profile:
    """Return a training step of 100 ms whose arithmetic reaches this share of the A100's peak."""
    run = trace(ops=operations, matmul_dtype="bf16")
    figures = {"work": "training", "matmul_flops": share * PEAK * 0.1, "matmul_known_share": 1.0}
    return structs.replace(run, source=TRACE, **{**figures, **known})


def reasons(card: sg.Scorecard) -> str:
    return " ".join(map(str, card.ungraded_because))


def test_work_in_products_is_graded_by_its_arithmetic() -> None:
    card = sg.score(graded((*GEMMS, Operation(name="aten::add", ms=5.0, kind="elementwise"))), setup=A100)
    assert card.grade == "C", reasons(card)


def test_work_that_moves_memory_is_not_graded_by_its_arithmetic() -> None:
    lookups = Operation(name="fbgemm::lookup", ms=60.0, kind="embedding")
    product = Operation(name="aten::mm", ms=20.0, kind="gemm")
    card = sg.score(graded((lookups, product), share=0.03), setup=A100)
    assert card.grade == "ungraded"
    assert "moves memory" in reasons(card)
    assert "counted arithmetic is" not in reasons(card)


def test_on_a_processor_the_time_of_small_operations_is_no_memory_traffic() -> None:
    norm, product = (Operation(name=f"aten::{kind}", ms=30.0, kind=kind) for kind in ("norm", "gemm"))
    run = graded((norm, structs.replace(product, ms=20.0)), recorded=Recorded(processor="a CPU"))
    assert "moves memory" not in reasons(sg.score(run, setup=A100))


def test_a_single_replayed_operation_is_not_graded() -> None:
    card = sg.score(graded((Operation(name="aten::mm", ms=90.0, kind="gemm"),)), setup=A100)
    assert card.grade == "ungraded"
    assert "single operation" in reasons(card)


@pytest.mark.parametrize(("steps", "is_graded"), [(1, False), (5, True)])
def test_one_step_with_the_start_of_the_loader_is_not_graded(steps: int, *, is_graded: bool) -> None:
    run = graded((*GEMMS, Operation(name="aten::add", ms=5.0, kind="elementwise")))
    assert run.activity is not None
    assert run.ledger is not None
    activity = structs.replace(run.activity, loader="_MultiProcessingDataLoaderIter")
    waits = Ledger(compute=0.5e8, idle_input=0.5e8)
    run = structs.replace(run, activity=activity, steps=steps, ledger=waits, samples_ms=(100.0,) * steps)
    card = sg.score(run, setup=A100)
    assert (card.grade != "ungraded") == is_graded, reasons(card)
