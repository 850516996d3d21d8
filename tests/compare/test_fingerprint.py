"""Comparable or not, and the difference in words."""

from __future__ import annotations

import pytest

from stepgrade.compare.fingerprint import FIELDS, allowed_fields, differences, digest_of
from stepgrade.errors import BadOption
from stepgrade.model import Fingerprint
from stepgrade.model.notes import texts_of

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
