"""Colours that stand beside each other differ for readers with each common kind of colour blindness."""

from __future__ import annotations

import itertools
import re

import pytest

from stepgrade.model import ledger
from stepgrade.report.html import page

# Machado, Oliveira and Fernandes 2009, severity 1.0; they act on linear RGB.
SIGHT = {
    "usual": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
# Two colours this far apart in CIE Lab are told apart at a glance, side by side.
LEAST_DIFFERENCE = 12.0
ACCOUNTS = tuple(account.colour for account in ledger.ACCOUNTS.values())
GROUPS = (
    ACCOUNTS,
    ("slower", "faster", "c-other"),
    ("c-compute", "c-other", "c-input"),
    ("reached", "allowed"),
)


def palettes() -> dict[str, dict[str, str]]:
    """Return the variables of the style sheet, light and dark."""
    blocks = re.findall(
        r"(?::root|:root\[data-theme=\"dark\"\]) \{\s*(--page[^}]*)\}", page.asset("report.css")
    )
    found = [dict(re.findall(r"--([\w-]+): (#\w{6});", block)) for block in blocks]
    return {"light": found[0], "dark": found[0] | found[1]}


def lab(colour: str, sight: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    r, g, b = (min(1.0, max(0.0, sum(w * c for w, c in zip(row, linear, strict=True)))) for row in sight)
    x = (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505
    y = 0.2126 * r + 0.7152 * g + 0.0722 * b
    z = (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089
    fx, fy, fz = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in (x, y, z))
    return 116 * fy - 16, 500 * (fx - fy), 200 * (fy - fz)


def difference(one: str, other: str, sight: str) -> float:
    pairs = zip(lab(one, SIGHT[sight]), lab(other, SIGHT[sight]), strict=True)
    return sum((a - b) ** 2 for a, b in pairs) ** 0.5


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("sight", SIGHT)
@pytest.mark.parametrize("names", GROUPS, ids=lambda names: names[0])
def test_colours_differ(theme: str, sight: str, names: tuple[str, ...]) -> None:
    palette = palettes()[theme]
    near = {
        (one, other): round(difference(palette[one], palette[other], sight), 1)
        for one, other in itertools.combinations(names, 2)
        if difference(palette[one], palette[other], sight) < LEAST_DIFFERENCE
    }
    assert near == {}


def test_notebooks_use_the_page_s_colours() -> None:
    light = palettes()["light"]
    assert list(page.account_colours().values()) == [light[name] for name in ACCOUNTS]


def luminance(colour: str) -> float:
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("account", ledger.ACCOUNTS.values(), ids=list(ledger.ACCOUNTS))
def test_labels_on_bars_are_readable(theme: str, account: ledger.Account) -> None:
    palette = palettes()[theme]
    ink = palette[account.label_colour]
    dark, bright = sorted((luminance(ink), luminance(palette[account.colour])))
    assert (bright + 0.05) / (dark + 0.05) >= 4.5
