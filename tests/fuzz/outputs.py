"""What reads each output format: an output that its own parser refuses is wrong."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser

from tests.fuzz.mutators.wire import BYTES, split

_VOID = frozenset(
    [
        "br",
        "hr",
        "img",
        "input",
        "link",
        "meta",
        "col",
        "path",
        "line",
        "rect",
        "circle",
        "use",
        "stop",
        "source",
        "wbr",
    ]
)


class _Balanced(HTMLParser):
    """Raises ValueError for an HTML page whose tags do not close in their order, or that runs a foreign script."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if any(name.startswith("on") for name, _ in attrs):
            raise ValueError(f"<{tag}> has an event handler")
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in _VOID:
            return
        if not self.open or self.open.pop() != tag:
            raise ValueError(f"</{tag}> closes nothing")


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _check_json(text: str) -> None:
    json.loads(text, parse_constant=_refuse_constant)


def _check_lines(text: str) -> None:
    for line in text.splitlines():
        _check_json(line)


def _check_html(text: str) -> None:
    page = _Balanced()
    page.feed(text)
    page.close()
    if page.open:
        raise ValueError(f"<{page.open[-1]}> is not closed")


def _check_text(text: str) -> None:
    if any(sign in text for sign in "\x1b\x00\x9b\u202e"):
        raise ValueError("control characters")
    if re.search(r"(?m)^\s*::|##\w*\[", text):
        raise ValueError("a command to a CI system")


def _check_github(text: str) -> None:
    if any(sign in text for sign in "\x1b\x00\x9b\u202e"):
        raise ValueError("control characters")


def _check_perfetto(text: str) -> None:
    """Hold a timeline to protobuf's wire format: packets, their events, names in UTF-8, no number past 64 bits."""
    for packet in split(text.encode("utf-8", "surrogateescape")):
        if (packet.number, packet.kind) != (1, BYTES):
            raise ValueError(f"field {packet.number} is no packet")
        for field in split(packet.content):
            if field.number == 11:  # an event
                for inner in split(field.content):
                    if inner.number == 23:
                        inner.content.decode()
            elif field.number == 60:  # a track
                for inner in split(field.content):
                    if inner.number == 2:
                        inner.content.decode()


# What reads each output format; a format without a row fails test_registry.py.
CHECKS: dict[str, Callable[[str], object]] = {
    "json": _check_json,
    "sarif": _check_json,
    "lines": _check_lines,
    "junit": ET.fromstring,
    "badge": ET.fromstring,
    "html": _check_html,
    "terminal": _check_text,
    "markdown": _check_text,
    "github": _check_github,
    "perfetto": _check_perfetto,
}


def check_output(text: str, to: str) -> None:
    """Raise ValueError, or what the parser raises, when a real parser refuses the output."""
    CHECKS[to](text)
