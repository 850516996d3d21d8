"""What the progress bars of a log belong to: training, evaluation, loading, or nothing that is known.

A bar may count anything. It counts training steps if it shows a loss or a learning rate, if its description
names training or an epoch, or if it has no description and the rest of the log shows a training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal, NamedTuple

from stepgrade.model.profile import WorkKind
from stepgrade.patterns import regex

BarKind = Literal["training", "epochs", "steps", "evaluation", "checkpoint", "compile", "other", "unnamed"]
# What a log needs to show, in the words of a message.
EVIDENCE = "a loss or a learning rate with the step, or a description such as 'train' or 'Epoch 1'"
_MOST_BARS = 1000
_MOST_SHOWN = 60
_MOST_TEXT = 600  # a full bar has 3 bytes for each of up to 120 cells
_VARIES = regex(rb"[-+]?\d[\d.,:e+-]*|\s+")
# Timestamps, log levels, ranks and processes in front of a description.
_PREFIX = regex(
    rb"^(?:\s|\[(?:rank|default|\d)[^\]]{0,80}\]:?|\([^)]{0,60}pid[^)]{0,20}\)|[-\d:.,TZ/]{4,40}"
    rb"|(?:INFO|WARNING|DEBUG)\b:?)+"
)
_PERCENT = regex(rb"\s{0,9}\d{1,3}%(?: Completed)?\Z")
_RICH = bytes(range(0x80, 0xC0)) + b"\xe2 "  # a bar of lines and half lines
_NOT_OF_EVALUATION = rb"(?<![a-z])(?<!(?:val|lid|est|ion|dev)[ _/.-])"
_SHOWS_TRAINING = regex(
    _NOT_OF_EVALUATION
    + rb"(?:train(?:ing)?[ _/.-]?)?(?:loss(?:es)?(?:[_/.]\w{1,30})?\W{0,4}(?:[\d.]|nan|inf)"
    rb"|lr\W{1,4}[\d.]|learning[ _]rate\W|grad(?:ient)?[ _]norm|gnorm\b|tokens[ _]seen)",
    re.IGNORECASE,
)
_METRIC = rb"(?:loss|acc|ppl|perpl|f1\b|auc|m?iou|bleu|rouge|metric|err|mae\b|mse|rmse|map\b|psnr|dice)"
_EVALUATES = regex(
    rb"(?<![a-z])(?:val(?:id(?:at\w{1,4})?)?|eval(?:uat\w{1,4})?|test(?:ing|s)?|dev|predict\w{0,5}|sanity|"
    rb"infer\w{0,6}|prompts?|requests?|transcri\w{1,6}|benchmark\w{0,4})(?![a-z])(?![ _/.-]{0,2}"
    + _METRIC
    + rb")",
    re.IGNORECASE,
)
# Verbs other than those of training and evaluation, and what data is prepared by.
_PREPARES = regex(
    rb"(?<![a-z])(?!(?:pre-?)?train|fine|tun|validat|evaluat|test|predict|check|infer|optimi|distill|learn|runn"
    rb"|us|rank|transcri|benchmark)[a-z]{2,20}ing(?![a-z])|(?<![a-z])(?:load|map|filter|splits?|shards?|files?"
    rb"|download|upload|token(?:s|ize)?|cache|convert|preprocess)(?![a-z])",
    re.IGNORECASE,
)
_TRAINS = regex(
    rb"(?<![a-z])(?:epochs?|(?:pre-?)?train(?:ing)?|fine-?tun(?:e|ing)|distill(?:ing|ation))(?![a-z])"
    rb"(?![ _-]?(?:data|set|examples|samples))",
    re.IGNORECASE,
)
_EPOCHS = (b"epoch", b"epochs")
_STEPS = regex(rb"(?<![a-z])(?:global[ _]?)?(?:steps?|iter(?:ation)?s?|batch(?:es)?|updates?)(?![a-z])", re.I)
_PAUSES: tuple[tuple[BarKind, re.Pattern[bytes]], ...] = (
    ("checkpoint", regex(rb"(?<![a-z])(?:sav|writ|upload)ing(?![a-z])", re.I)),
    ("compile", regex(rb"(?<![a-z])(?:compil|captur|autotun)ing(?![a-z])", re.I)),
)
# In the text around bars without a description. A literal is far faster to find than a pattern.
_TEXTS = (
    b"Running training",
    b"Total optimization steps",
    b"train_runtime",
    b"train_loss",
    b"'learning_rate'",
)
_LOSS_OF_STEP = regex(
    rb"(?<![a-z])(?:epochs?|steps?|iter(?:ation)?s?|batch)\W{0,8}\d[^\r\n]{0,200}?"
    + _NOT_OF_EVALUATION
    + rb"(?:train(?:ing)?[ _/.-]?)?loss\W{0,4}(?:[\d.]|nan|inf)"
    rb"|train(?:ing)?[ _/.-]loss\W{0,4}(?:[\d.]|nan|inf)|(?<![a-z])lr\W{1,4}[\d.]"
    rb"|(?<![^\r\n])Epoch \d{1,6}/\d{1,6}\s|(?<![^\r\n])\W{0,20}epoch\W{0,3}\d{1,6}\W{0,20}[\r\n]"
    rb"|(?<![a-z])train\b[^\r\n]{0,40}?loss\W{0,4}[\d.]",
    re.IGNORECASE,
)
_LOSSES_TRIED = 64
_AROUND_BYTES = 240


class BarRun(NamedTuple):
    """A bar from its first state to its last: of which kind, where in the log, and how long it took."""

    kind: BarKind
    start: float
    end: float
    seconds: float


class ProgressBars:
    """The bars of a log by their descriptions, which differ in more than numbers."""

    def __init__(self) -> None:
        self.shown: list[str] = []
        self.shows_training: list[bool] = []  # has been drawn with a loss or the like
        self._keys: list[bytes] = []
        self._known: dict[bytes, int] = {}
        self.trains = False  # the rest of the log shows a training

    def index_of(self, before: bytes, after: bytes) -> int:
        """Return the number of a bar by the text before its counter; that after it may show a loss."""
        text = before[-_MOST_TEXT:].rstrip(_RICH)
        if text.endswith(b"|"):
            text = text[: max(text.rfind(b"|", 0, -1), 0) or -1].rstrip()
        text = _PERCENT.sub(b"", text)
        index = self._known.get(text)
        if index is None:
            key = _VARIES.sub(b" ", _PREFIX.sub(b"", text)).strip(b" :|-")
            index = self._known.get(key)
            if index is None:
                is_full = len(self._keys) >= _MOST_BARS
                index = self._keys.index(b"") if is_full and b"" in self._keys else len(self._keys)
                if index == len(self._keys):
                    name = _PREFIX.sub(b"", text).decode("utf-8", "replace").strip(" :|-")[:_MOST_SHOWN]
                    self.shown.append("".join(letter for letter in name if letter.isprintable()))
                    self.shows_training.append(False)
                    self._keys.append(b"" if is_full else key)
                self._known[self._keys[index]] = index
            if len(self._known) < 8 * _MOST_BARS:
                self._known[text] = index
        if not self.shows_training[index]:
            self.shows_training[index] = bool(_SHOWS_TRAINING.search(after) or _SHOWS_TRAINING.search(text))
        return index

    def kind(self, index: int) -> BarKind:
        """Return what a bar counts, as far as it shows."""
        key = self._keys[index]
        prepares = _PREPARES.search(key)
        if _EVALUATES.search(key) and not prepares:
            return "evaluation"
        if self.shows_training[index]:
            return "training"
        if not key:
            return "unnamed"
        if prepares:
            return next((kind for kind, words in _PAUSES if words.search(key)), "other")
        if key.lower() in _EPOCHS and not re.search(r"\d", self.shown[index]):
            return "epochs"
        return "training" if _TRAINS.search(key) else "steps" if _STEPS.search(key) else "other"

    @property
    def names(self) -> tuple[str, ...]:
        """Return the descriptions, in the order of the log."""
        return tuple(dict.fromkeys(filter(None, self.shown)))

    def look_for_training(self, text: bytes) -> None:
        """Note whether a part of the log shows a training apart from its bars."""
        if self.trains:
            return
        if any(literal in text for literal in _TEXTS):
            self.trains = True
            return
        for literal in (b"loss", b"Loss", b"lr", b"Epoch ", b"epoch "):
            at = -1
            for _ in range(_LOSSES_TRIED):
                at = text.find(literal, at + 1)
                if at < 0:
                    break
                start = max(text.rfind(b"\n", 0, at) + 1, at - _AROUND_BYTES)
                if _LOSS_OF_STEP.search(text, start, at + 40):
                    self.trains = True
                    return

    def counted(self, indices: Iterable[int], *, trains: bool) -> tuple[WorkKind, set[int]]:
        """Return the work of a log with these bars, and which of them count its steps.

        `trains` says that the rest of the log shows a training.
        """
        by_kind: dict[BarKind, set[int]] = {}
        for index in indices:
            by_kind.setdefault(self.kind(index), set()).add(index)
        if "training" in by_kind:
            return "training", by_kind["training"]
        unclear = by_kind.get("steps", set()) | by_kind.get("unnamed", set())
        if "epochs" in by_kind:
            return "training", unclear or by_kind["epochs"]
        if unclear:
            return "training" if trains else "unknown", unclear
        return "inference", by_kind.get("evaluation", set())


def runs_of(states: Iterable[list[float]], bars: ProgressBars) -> list[BarRun]:
    """Return the bars of a log from their states in order: offset, which bar, step, total, seconds."""
    runs: list[BarRun] = []
    begun: dict[float, tuple[int, float, float]] = {}  # by bar: its last run, step and total
    for at, bar, step, total, seconds in states:
        index, last, aim = begun.get(bar, (-1, 0.0, 0.0))
        if index < 0 or step < last or total != aim or seconds < runs[index].seconds:
            index = len(runs)
            runs.append(BarRun(bars.kind(int(bar)), at, at, seconds))
        runs[index] = runs[index]._replace(end=at, seconds=seconds)
        begun[bar] = index, step, total
    return runs
