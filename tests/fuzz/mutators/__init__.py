"""Damage to files by their structure: `damaged` finds out what a file is and changes what it is made of."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from tests.fuzz.mutators.containers import packed
from tests.fuzz.mutators.databases import MAGIC, mutate_database
from tests.fuzz.mutators.havoc import CANARY, damaged_bytes, damaged_text, spliced
from tests.fuzz.mutators.lines import mutate_lines, mutate_toml
from tests.fuzz.mutators.pickles import mutate_pickle, mutate_pickled_value
from tests.fuzz.mutators.trees import mutate_json, mutate_json_lines
from tests.fuzz.mutators.wire import is_message, mutate_protobuf, mutate_tfevents, mutate_wandb

__all__ = ["CANARY", "damaged", "damaged_bytes", "mutator_of", "packed"]

Mutator = Callable[[bytes, random.Random, bytes], bytes]
_MOST_BYTES = 1 << 22


def _by_database(data: bytes, dice: random.Random, donor: bytes) -> bytes:
    return mutate_database(data, dice)


def mutator_of(data: bytes) -> tuple[str, Mutator]:
    """Return what a file is made of, and what changes that."""
    head = data.lstrip()[:1]
    if data.startswith(MAGIC):
        return "rows and pages of SQLite", _by_database
    if data[:1] == b"\x80":
        return "opcodes of a pickle", mutate_pickle
    if data.startswith(b":W&B"):
        return "records of W&B", mutate_wandb
    if len(data) > 16 and data[4:8] == bytes(4) and int.from_bytes(data[:8], "little") + 16 <= len(data):
        return "records of TensorBoard", mutate_tfevents
    if head in (b"{", b"["):
        if head == b"[" and b" = " in data[:400] and b"\n" in data[:100]:
            return "lines of TOML", mutate_toml
        return "values of JSON", mutate_json
    if b"\0" in data[:4096] or (data and not data[:1].isascii()):
        return "fields of protobuf", mutate_protobuf
    if is_message(data):
        return "fields of protobuf", mutate_protobuf
    if b"\n[" in data[:400] and b" = " in data[:400]:
        return "lines of TOML", mutate_toml
    return "lines", mutate_lines


def damaged(
    text: bytes, dice: random.Random, corpus: Sequence[bytes] = (), sound: Sequence[bytes] = ()
) -> bytes:
    """Return a file after one to three changes, most by what it is made of; now and then as it is.

    `corpus` has files of which pieces are taken; `sound` those of our own, which may be unpickled.
    """
    if dice.random() < 0.04:
        return text
    is_text = b"\0" not in text[:4096]
    for number in range(dice.choice((1, 1, 1, 2, 2, 3))):
        text = text[:_MOST_BYTES]  # children of children grow thirtyfold each time
        donor = corpus[dice.randrange(len(corpus))] if corpus and dice.random() < 0.5 else text
        chance = dice.random()
        if chance < 0.2:
            text = damaged_text(text, dice) if is_text else damaged_bytes(text, dice)
        elif chance < 0.23:
            text = spliced(text, donor, dice)
        elif chance < 0.45 and number == 0 and text[:1] == b"\x80" and text in sound:
            text = mutate_pickled_value(text, dice)
        else:
            text = _by_structure(text, dice, donor)
    return text[:_MOST_BYTES]


def _by_structure(text: bytes, dice: random.Random, donor: bytes) -> bytes:
    try:
        return mutator_of(text)[1](text, dice, donor)
    except (ValueError, IndexError, RecursionError):
        pass
    try:
        return mutate_json_lines(text, dice, donor)
    except (ValueError, IndexError, RecursionError):
        return mutate_lines(text, dice, donor) if b"\0" not in text[:4096] else damaged_bytes(text, dice)
