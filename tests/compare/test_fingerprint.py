"""Comparable or not, and the difference in words."""

from __future__ import annotations

import pytest

import stepgrade as sg
from stepgrade.compare.fingerprint import FIELDS, allowed_fields, differences, digest_of
from stepgrade.errors import EXIT_NOT_MEASURED, BadOption
from stepgrade.model.notes import texts_of
from stepgrade.model.scorecard import Fingerprint
from tests.builders import make_profile

H100 = Fingerprint(device="h100", batch=32, versions={"cuda": "12.4", "torch": "2.6"})


@pytest.mark.parametrize(
    ("other", "word"),
    [
        (Fingerprint(device="a100"), "device: h100 now, a100 in the baseline"),
        (Fingerprint(batch=1), "batch: 32 now, 1 in the baseline"),
        (Fingerprint(versions={"torch": "2.5"}), "versions of torch: 2.6 now, 2.5 in the baseline"),
    ],
)
def test_what_differs_is_said(other: Fingerprint, word: str) -> None:
    assert texts_of(differences(H100, other)) == (word,)
    assert differences(H100, other, FIELDS) == ()


def test_the_unknown_is_no_difference() -> None:
    assert differences(H100, Fingerprint()) == ()
    assert differences(None, H100) == ()
    assert differences(H100, Fingerprint(versions={"driver": "1"})) == ()


def test_digests_tell_fingerprints_apart() -> None:
    same = Fingerprint(versions={"torch": "2.6", "cuda": "12.4"}, batch=32, device="h100")
    assert digest_of(same) == digest_of(H100)
    assert len({digest_of(one) for one in (H100, Fingerprint(), Fingerprint(batch=1))}) == 3


def test_allowed_fields() -> None:
    assert allowed_fields(["device,batch", "versions"]) == {"device", "batch", "versions"}
    assert allowed_fields(["all"]) == set(FIELDS)
    with pytest.raises(BadOption, match="colour"):
        allowed_fields(["colour"])


def test_steps_that_hold_as_much_on_average_are_alike() -> None:
    """Batches of several sizes, or a shorter last one, never add up to the same twice."""
    before = Fingerprint(samples_per_step=62.5)
    assert not differences(Fingerprint(samples_per_step=62.9), before)
    (found,) = differences(Fingerprint(samples_per_step=4096.0), before)
    assert found.text == "samples_per_step: 4,096 now, 62.5 in the baseline"


def test_samples_count_where_there_are_no_tokens() -> None:
    images = sg.score(make_profile(samples_per_step=64.0))
    tokens = sg.score(make_profile(samples_per_step=64.0, tokens_per_step=1024.0))
    assert images.fingerprint.samples_per_step == 64.0
    assert tokens.fingerprint.samples_per_step is None
    more = make_profile(samples_per_step=128.0, mean_step_ms=190.0)
    assert sg.gate(more, baseline=[images]).exit_code == EXIT_NOT_MEASURED
