"""What contract v1 refuses to read, and how it says so."""

from __future__ import annotations

import math

import pytest

from stepgrade.contract import ParityProfile, StepProfilerInput, TrainingScorecard
from stepgrade.errors import BadJson

REFUSED = [
    ('{"avg_step_ms": 1e400}', "$.avg_step_ms"),
    ('{"avg_step_ms": ' + "9" * 310 + "}", "$.avg_step_ms"),
    ('{"avg_step_ms": null}', "$.avg_step_ms"),
    ('{"avg_step_ms": true}', "$.avg_step_ms"),
    ('{"avg_step_ms": "5"}', "$.avg_step_ms"),
    ('{"steps": 400.0}', "$.steps"),
    ('{"steps": 1e2}', "$.steps"),
    ('{"steps": -1}', "$.steps"),
    ('{"steps": -0}', "$.steps"),
    ('{"steps": 18446744073709551616}', "steps"),
    ('{"phases": {"a": {"total_ms": 1, "pct": 2}}}', '$.phases["a"]'),
    ('{"phases": {"a": {"total_ms": 1, "pct": 2, "avg_ms": 3}, "b": null}}', '$.phases["b"]'),
    (
        '{"per_layer": [{"layer": 0, "fwd_ms": 1, "bwd_ms": 2, "ops": {"x": 1, "y": "z"}}]}',
        '$.per_layer[0].ops["y"]',
    ),
    ('{"per_layer": [{"layer": 0, "fwd_ms": 1}]}', "$.per_layer[0]"),
    ('{"avg_step_ms": NaN}', "byte"),
    ('{"avg_step_ms": +1}', "byte"),
    ('{"avg_step_ms": .5}', "byte"),
    ('{"avg_step_ms": 1.}', "byte"),
    ('{"avg_step_ms": 01}', "byte"),
    ('{"avg_step_ms": 1,}', "byte"),
    ("{'avg_step_ms': 1}", "byte"),
    ("{} trailing", "byte"),
    ("\ufeff{}", "byte"),
    ("", "too early"),
    ("[]", "array"),
    ('{"x": ' + "[" * 100_000, "nested"),
    ('{"bottleneck": "\ud800"}', "surrogate"),
]


@pytest.mark.parametrize(("text", "told"), REFUSED, ids=[text[:40] for text, _ in REFUSED])
def test_refused_with_place_and_reason(text: str, told: str) -> None:
    with pytest.raises(BadJson) as caught:
        StepProfilerInput.from_json(text)
    assert isinstance(caught.value, ValueError)
    assert told in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_not_utf8_are_refused() -> None:
    with pytest.raises(BadJson, match="UTF-8"):
        StepProfilerInput.from_json(b'{"bottleneck": "\xff"}')


@pytest.mark.parametrize(
    ("text", "figure"),
    [
        ("5", 5.0),
        ("-0", -0.0),
        ("-0.0", -0.0),
        ("1e-400", 0.0),
        ("-1e-400", -0.0),
        ("1.0e-0", 1.0),
        ("3E+2", 300.0),
    ],
)
def test_numbers_are_read_to_the_bit(text: str, figure: float) -> None:
    read = StepProfilerInput.from_json(f'{{"gemm_pct": {text}, "bottleneck": "-0"}}')
    assert read.gemm_pct == figure
    assert math.copysign(1.0, read.gemm_pct) == math.copysign(1.0, figure)
    assert read.bottleneck == "-0"


def test_every_field_of_a_baseline_is_required() -> None:
    with pytest.raises(BadJson, match="efficiency"):
        TrainingScorecard.from_json('{"grade": "A"}')


def test_a_parity_profile_needs_its_operations() -> None:
    with pytest.raises(BadJson, match="ops"):
        ParityProfile.from_json(
            '{"runtime": "a", "throughput_tok_s": 1, "step_time_ms": 1, "kernel_launches_per_step": 1}'
        )


def test_a_key_is_found_among_many() -> None:
    ops = ", ".join(f'"op{n}": {"true" if n == 700 else n}' for n in range(1000))
    with pytest.raises(BadJson, match=r'\$\.ops\["op700"\]'):
        ParityProfile.from_json(
            f'{{"runtime": "a", "throughput_tok_s": 1, "step_time_ms": 1, "kernel_launches_per_step": 1, "ops": {{{ops}}}}}'
        )
