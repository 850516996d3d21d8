"""Names from strangers' files as harmless text: nothing in them reaches a terminal or a page as code."""

from __future__ import annotations

import re
import unicodedata

# Control characters (C0, DEL, C1), line separators, invisible ones, marks that change the direction of
# writing, and the two that are no characters, which XML refuses.
# Patterns are kept as text: compiling them takes longer than all clean names of a scorecard.
_UNPRINTABLE = (
    "[\x00-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f"
    "\ufeff\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
# What CI systems obey wherever it stands in a line: Azure's and TeamCity's commands, and GitHub's old ones.
_COMMAND = r"##(?=\w*\[)"
# What GitHub obeys at the beginning of a line.
_LINE_COMMAND = r"(?m)^([^\S\n]*)::"
_MARKDOWN = r"([\\`*_{}\[\]<>()#+!|~&])"
# No sentence of ours comes near it.
LONGEST_TEXT = 2000
_WIDE = frozenset("WF")
_NO_CELL = frozenset({"Cf", "Me", "Mn"})


def printable(name: str) -> str:
    """Return `name` on one line, with everything spelt out that could act on a terminal or on a CI system."""
    if "##" in name:
        name = re.sub(_COMMAND, r"#\\x23", name)
    return name if name.isprintable() else re.sub(_UNPRINTABLE, _spelt, name)


def without_line_commands(lines: str, spelt: str = r"\x3a:") -> str:
    """Return a text of many lines in which no name at the beginning of a line commands a CI system."""
    return re.sub(_LINE_COMMAND, lambda match: match[1] + spelt, lines) if "::" in lines else lines


def shortened(text: str, width: int = LONGEST_TEXT) -> str:
    """Return printable text of at most `width` cells, cut in the middle."""
    text = printable(text)
    if _fits(text, width):
        return text
    front, back = _front(text, (width - 1 + 1) // 2), _front(text[::-1], (width - 1) // 2)
    return f"{front}…{back[::-1]}"


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
    """Tell whether text takes at most `width` cells; a name of megabytes is looked at no further."""
    return len(_front(text, width)) == len(text)


def markdown(text: str, limit: int = 200) -> str:
    """Return text that Markdown shows as it is, also inside a table."""
    return re.sub(_MARKDOWN, r"\\\1", shortened(text, limit))


def json_text(document: str) -> str:
    """Return JSON with unprintable characters and CI commands escaped; inside strings that means the same."""
    if "##" in document:
        document = re.sub(_COMMAND, r"#\\u0023", document)
    return document if document.isprintable() else re.sub(_UNPRINTABLE, _json_escape, document)


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
    """Return as much of the text from `start` on as fits."""
    if text.isascii():
        return text[start : start + max(width, 0)]
    end, used = start, 0
    while end < len(text) and (used := used + _cell(text[end])) <= width:
        end += 1
    return text[start:end]
