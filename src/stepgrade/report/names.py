"""Names from untrusted files as harmless text, and the words of the reports."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from stepgrade.units import MISSING

# Control characters (C0, DEL, C1), line separators, those without width, fillers that look like a blank,
# marks that change the direction of writing, and the two that are no characters, which XML refuses.
# Patterns are kept as text: compiling them takes longer than all clean names of a scorecard.
_UNPRINTABLE = (
    "[\x00-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u2800\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)
_PLAIN = bytes(range(0x20, 0x7F))
# What CI systems obey anywhere in a line: Azure's and TeamCity's commands, and GitHub's old ones.
_COMMAND = r"##(?=\w*\[)"
# What GitHub obeys at the beginning of a line.
_LINE_COMMAND = r"(?m)^([^\S\n]*)::"
_MARKDOWN = r"([\\`*_{}\[\]<>()#+!|~&])"
_BETWEEN_WORDS = tuple("_-. :/")
# No sentence of ours comes near it.
LONGEST_TEXT = 2000
_WIDE = frozenset("WF")
_NO_CELL = frozenset({"Cf", "Me", "Mn"})


def printable(name: str) -> str:
    """Return `name` on one line, with everything escaped that a terminal or CI system could act on."""
    if "##" in name:
        name = re.sub(_COMMAND, r"#\\x23", name)
    return name if name.isascii() and name.isprintable() else re.sub(_UNPRINTABLE, _spelt, name)


def without_line_commands(lines: str, spelt: str = r"\x3a:") -> str:
    """Return lines with the commands escaped that GitHub would run at the start of a line."""
    return re.sub(_LINE_COMMAND, lambda match: match[1] + spelt, lines) if "::" in lines else lines


def shortened(text: str, width: int = LONGEST_TEXT, *, at_words: bool = True) -> str:
    """Return printable text of at most `width` cells, cut in the middle, if possible between words."""
    if len(text) > 16 * width:  # a name may have megabytes, and is shown in many places
        text = f"{text[: 8 * width]}…{text[-8 * width :]}"
    text = printable(text)
    if _fits(text, width):
        return text
    front = _front(text, width // 2)
    front = _whole_words(front, text) if at_words else front
    backwards = text[: len(front) - 1 if front else None : -1]
    back = _front(backwards, width - 1 - cells(front))
    back = _whole_words(back, backwards) if at_words else back
    return f"{front}…{back[::-1]}"


def _whole_words(part: str, text: str) -> str:
    """Return the beginning of a text without the word that it cuts, unless that is most of it."""
    if text[len(part) : len(part) + 1] in _BETWEEN_WORDS:
        return part
    end = max(part.rfind(mark) for mark in _BETWEEN_WORDS) + 1
    return part[:end] if end > len(part) // 2 else part


def distinguishable(names: Sequence[str], width: int) -> list[str]:
    """Return names of at most `width` cells: of words that all have, only as many as there is room for."""
    names = [printable(name) for name in names]
    if all(_fits(name, width) for name in names) or len(set(names)) < len(names):
        return [shortened(name, width) for name in names]
    words = [re.split(r"(?<=[_\-. :/])", name) for name in names]
    first = last = 0
    least = min(map(len, words)) - 1
    while first < least and len({word[first] for word in words}) == 1:
        first += 1
    while last < least - first and len({word[-1 - last] for word in words}) == 1:
        last += 1

    def shown(first: int, last: int) -> list[str]:
        kept = ["".join(word[first : len(word) - last]).rstrip("_-. :/") for word in words]
        return [f"{'…' * bool(first)}{name}{'…' * bool(last)}" for name in kept]

    while first and all(_fits(name, width) for name in shown(first - 1, last)):
        first -= 1
    while last and all(_fits(name, width) for name in shown(first, last - 1)):
        last -= 1
    return [shortened(name, width) for name in shown(first, last)]


def cells(text: str) -> int:
    """Return how many terminal cells printable text takes."""
    if text.isascii():
        return len(text)
    return sum(_cell(character) for character in text)


def wrapped(text: str, width: int) -> list[str]:
    """Return printable text in lines of at most `width` cells, broken at spaces where it can be."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines[-1] else word
        if _fits(joined, width):
            lines[-1] = joined
        else:
            # A word in parts of at most `width` cells, but for a character that alone takes more.
            at = 0
            while at < len(word):
                part = _front(word, width, at) or word[at]
                lines.append(part)
                at += len(part)
    return [line for line in lines if line] or [""]


def _fits(text: str, width: int) -> bool:
    """Return whether text takes at most `width` cells, without reading all of a huge name."""
    return len(_front(text, width)) == len(text)


def markdown(text: str, limit: int = 200) -> str:
    """Return text that Markdown shows literally, also inside a table."""
    return re.sub(_MARKDOWN, r"\\\1", shortened(text, limit))


def json_text(document: str) -> str:
    """Return JSON with unprintable characters and CI commands escaped; inside strings that means the same."""
    if "##" in document:
        document = re.sub(_COMMAND, r"#\\u0023", document)
    # Few characters of a document are not plain; the pattern looks at those alone, for it is slow.
    others = (
        document.encode("utf-8", "surrogatepass").translate(None, _PLAIN).decode("utf-8", "surrogatepass")
    )
    return re.sub(_UNPRINTABLE, _json_escape, document) if re.search(_UNPRINTABLE, others) else document


def _spelt(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code > 0xFFFF:
        return f"\\U{code:08x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _cell(character: str) -> int:
    if unicodedata.category(character) in _NO_CELL:
        return 0
    return 2 if unicodedata.east_asian_width(character) in _WIDE else 1


def _front(text: str, width: int, start: int = 0) -> str:
    """Return the longest part of the text from `start` that fits."""
    if text.isascii():
        return text[start : start + max(width, 0)]
    end, used = start, 0
    while end < len(text) and (used := used + _cell(text[end])) <= width:
        end += 1
    return text[start:end]


BOTTLENECKS = {
    "transfer": "Copies between host and device",
    "launch": "Launching work from the host",
    "compute": "Arithmetic",
    "memory_bw": "Memory bandwidth",
    "input": "Waiting for input",
    "communication": "Communication",
    "straggler": "Waiting for a late rank",
    "host": "Host work",
    "unknown": "Not known",
}
ROOFS = {"memory": "memory bandwidth", "compute": "arithmetic", "link": "the link"}
BASES = {"data_sheet": "data sheet", "measured": "measured", "given": "given"}
GRADE_MEANINGS = {
    "A": "close to what the hardware allows",
    "B": "good, with room left",
    "C": "well below what the hardware allows",
    "D": "far below what the hardware allows",
    "F": "most of the hardware is not used",
}


def plural(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}{'s' if count != 1 else ''}"


def joined(*parts: str | None) -> str:
    """Return the known parts, with dots between."""
    return " · ".join(part for part in parts if part and part != MISSING)
