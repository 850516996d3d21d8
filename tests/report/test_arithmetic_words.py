"""A rate of arithmetic is shown where enough was counted, and missing roofs name what would supply them."""

from __future__ import annotations

import html
import re

import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.model.scorecard import Arithmetic
from tests.conftest import ROOT

TRACE = sg.load(ROOT / "examples" / "traces" / "gpt_fused.json.gz")


def page(card: sg.Scorecard) -> str:
    pytest.importorskip("jinja2")
    return html.unescape(re.sub(r"<script.*?</script>", "", sg.render(card, to="html"), flags=re.DOTALL))


@pytest.mark.parametrize(
    ("known", "is_shown"), [(0.0, False), (0.004, False), (0.49, False), (0.51, True), (None, True)]
)
def test_a_rate_counted_from_next_to_nothing_is_not_shown(known: float | None, is_shown: bool) -> None:
    done = Arithmetic(
        achieved_flops_s=7.773e9, peak_flops_s=None, share=None, dtype="fp32", known_share=known
    )
    card = structs.replace(sg.score(TRACE), arithmetic=done, mfu=None)
    for text in (sg.render(card), sg.render(card, to="markdown"), page(card)):
        assert ("7.77 GFLOP/s" in text) == is_shown
        assert "shapes of 0 %" not in text


@pytest.mark.parametrize(
    ("setup", "says", "never"),
    [
        (sg.Setup(), "there are no roofs: give device", "bandwidth is not known"),
        (sg.Setup(peak_tflops=0.0858), "no memory roof: give peak_bw_gb_s", "give device."),
        (sg.Setup(peak_bw_gb_s=20.0), "no compute roof: give peak_tflops", "give device."),
        (sg.Setup(peak_bw_gb_s=20.0, peak_tflops=0.0858), "The diamond is the step", "no roof"),
        (sg.Setup(device="rtx-4090"), "The diamond is the step", "no roof"),
    ],
)
def test_roofs_that_are_given_are_not_asked_for(setup: sg.Setup, says: str, never: str) -> None:
    text = page(sg.score(TRACE, setup=setup))
    assert says in text
    assert never not in text
