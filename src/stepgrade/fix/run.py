"""Record a script, try what its findings suggest in turns with the unchanged script, and judge."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from statistics import stdev
from typing import Any

from msgspec import Struct, structs

from stepgrade.errors import NotMeasured
from stepgrade.fix.changes import CHANGES, ScriptChange, Seen, Way, cores_here
from stepgrade.fix.copies import Original, original_in
from stepgrade.fix.edit import CannotEdit, Edit, diff_of, edited, source_text
from stepgrade.fix.judge import Base, Sameness, check_base, gain_of, same_work, step_ms
from stepgrade.fix.trial import WARMUP, Bench, Trial, TrialPlan
from stepgrade.grading import score
from stepgrade.loading import load
from stepgrade.model.fix import BaseRun, FixReport, Gain, Predicted, Together, Try, Verdict
from stepgrade.model.notes import Note
from stepgrade.model.scorecard import Scorecard
from stepgrade.record.guard import guarded_folder
from stepgrade.record.launch import command_line, turns
from stepgrade.statistics import mean, median
from stepgrade.units import show_share

LEAST_ROUNDS, MOST_ROUNDS = 3, 12
_RECORDED_STEPS, _RECORDED_S = 60, 20.0
_MEASURED_S = 4.0  # of steps in a trial
_LEAST_MEASURED, _MOST_MEASURED = 10, 200
_FOR_TOGETHER = 0.35  # of the budget
_MOST_TIMES_RECORDED, _GRACE_S = 5.0, 30.0  # a trial that takes longer than this is ended
_COPIED = "trials run in a copy of this folder, without its .git and caches, and with no input"
Say = Callable[[str], None]


class _Candidate(Struct, kw_only=True):
    """A change that is being tried, and its rounds so far."""

    change: ScriptChange
    settings: dict[str, Any]
    edited: dict[str, str] | None = None
    base_ms: list[float] = []
    ms: list[float] = []
    sameness: Sameness | None = None
    verdict: Verdict | None = None
    why: str = ""

    @property
    def gain(self) -> Gain | None:
        """Return what it gained so far, once there are enough rounds."""
        return gain_of(self.base_ms, self.ms) if len(self.ms) >= LEAST_ROUNDS else None

    def leave_open(self) -> None:
        """Say that the rounds did not decide, and what would."""
        self.verdict = "cannot_tell"
        rounds = f"{len(self.ms)} round{'s' if len(self.ms) > 1 else ''} did not decide"
        ended = rounds if self.ms else "the budget ended before a round did"
        self.why = f"{ended}; a larger budget or a quieter machine would tell"


class Tried(Struct, frozen=True, kw_only=True):
    """What the trials of one command share."""

    bench: Bench
    plan: TrialPlan
    base: Base
    base_ms: list[float]
    processor_ms: list[float]
    least_gain: float
    trial_s: float  # that a trial takes
    say: Say

    def try_all(self, candidates: Sequence[_Candidate], card: Scorecard, until: float, ends: float) -> None:
        """Try changes, the most promising ones first, as many at once as there is time for.

        What nothing was accepted of is tried until the end.
        """
        queue = sorted(candidates, key=lambda each: each.change.promise(card), reverse=True)
        while queue and time.monotonic() < until:
            fit = max(1, int((until - time.monotonic()) / (LEAST_ROUNDS * self.trial_s)) - 1)
            self.in_turns(queue[:fit], until)
            queue = queue[fit:]
        if not any(each.verdict == "accepted" for each in candidates):
            self.in_turns(candidates, ends)
        for each in candidates:
            if each.verdict is None:
                each.leave_open()

    def in_turns(self, candidates: Sequence[_Candidate], until: float) -> None:
        """Run the unchanged script and each undecided candidate once a round, while a round fits."""
        waiting = [one for one in candidates if one.verdict is None]
        if time.monotonic() + (1 + len(waiting)) * self.trial_s > until:
            return
        for number, is_backwards in turns(MOST_ROUNDS, until):
            waiting = [one for one in candidates if one.verdict is None and len(one.ms) < MOST_ROUNDS]
            if not waiting:
                break
            order: list[_Candidate | None] = [None, *waiting]
            self.take_turn(number, order[::-1] if is_backwards else order)

    def take_turn(self, number: int, order: Sequence[_Candidate | None]) -> None:
        """Run one round, and judge what is decided by it; None is the unchanged script."""
        times: dict[int, float] = {}
        for one in order:
            name = "the unchanged script" if one is None else one.change.name
            self.say(f"round {number} of at most {MOST_ROUNDS}: {name}")
            trial = self.run({} if one is None else one.settings, None if one is None else one.edited)
            if one is None:
                check_base(trial)
                self.base_ms.append(step_ms(trial))
                self.processor_ms.append(trial.ranks[0].processor_ms)
            elif self.is_same(one, trial):
                times[id(one)] = step_ms(trial)
        for one in order:
            if one is not None and one.verdict is None:
                one.base_ms.append(self.base_ms[-1])
                one.ms.append(times[id(one)])
                self.decide(one)

    def run(self, settings: dict[str, Any], texts: dict[str, str] | None = None) -> Trial:
        """Run one trial."""
        return self.bench.run(structs.replace(self.plan, settings=settings), texts)

    def is_same(self, one: _Candidate, trial: Trial) -> bool:
        """Judge the work of a trial, and reject the candidate if it differs."""
        found = same_work(
            self.base,
            trial,
            one.change.equality,
            counts_alike=one.change.counts_alike,
            redraws=one.change.redraws,
        )
        if one.sameness is None or found.problem is not None:
            one.sameness = found
        if one.settings and trial.ranks and not trial.ranks[0].applied:
            one.verdict, one.why = "does_not_apply", "the script never made the call in the trial"
        elif found.problem is not None:
            one.verdict, one.why = "rejected", f"not the same work: {found.problem}"
        elif not found.is_known:
            one.verdict, one.why = (
                "cannot_tell",
                "no finite losses were seen: nothing shows that the work is the same",
            )
        return one.verdict is None

    def decide(self, one: _Candidate) -> None:
        """Accept or reject a candidate if its interval decides."""
        gain = one.gain
        if gain is None:
            return
        if gain.low > self.least_gain:
            one.verdict, one.why = "accepted", "faster, and the same work"
            if one.sameness is not None and one.sameness.is_redrawn:
                one.why += "; random augmentation of the same samples draws other numbers"
        elif gain.high < self.least_gain:
            one.verdict = "rejected"
            one.why = "slower" if gain.high < 0.0 else f"saves less than {show_share(self.least_gain)}"


def try_fixes(
    command: Sequence[str],
    *,
    as_module: bool = False,
    budget_s: float = 600.0,
    allow: Collection[str] = (),
    least_gain: float = 0.02,
    say: Say = lambda _: None,
) -> FixReport:
    """Try the changes that a recording of the command suggests; the command's own files stay as they are.

    Raise NotMeasured when the command does not train, or too briefly.
    """
    began = time.monotonic()
    words, folder = tuple(command_line(command, as_module=as_module)), os.getcwd()
    words = tuple(
        os.path.abspath(word) if word.endswith(".py") and os.path.isfile(word) else word for word in words
    )
    original = original_in(folder)
    before = original.stamps()
    with guarded_folder() as scratch:
        bench = Bench(words=words, original=original, scratch=scratch, most_s=budget_s)
        say("recording the unchanged script")
        seen, plan = look(bench)
        candidates, tries, ways = choose(seen, original, frozenset(allow))
        bench = structs.replace(bench, most_s=_MOST_TIMES_RECORDED * (time.monotonic() - began) + _GRACE_S)
        say("the unchanged script, twice, and once with another seed")
        one, other = bench.run(plan), bench.run(plan)
        seeded = bench.run(structs.replace(plan, other_seed=True)) if candidates else None
        base = Base(one=one, other=other, seeded=seeded)
        base.check()
        tried = Tried(
            bench=bench,
            plan=plan,
            base=base,
            base_ms=[step_ms(one), step_ms(other)],
            processor_ms=[trial.ranks[0].processor_ms for trial in (one, other)],
            least_gain=least_gain,
            trial_s=one.seconds,
            say=say,
        )
        ends = began + budget_s
        tried.try_all(candidates, seen.card, ends - _FOR_TOGETHER * budget_s, ends)
        tries = [*(_outcome(each, seen, ways[each.change.name], original) for each in candidates), *tries]
        together, texts = _together(
            tried, [each for each in candidates if each.verdict == "accepted"], ways, ends
        )
    written = sorted(name for name, stamp in original.stamps().items() if before.get(name) != stamp)
    notes = [Note("wrote_here", f"trials wrote {name} in the folder itself") for name in written[:3]]
    if not base.repeats:
        notes.append(
            Note(
                "not_repeatable",
                "two runs of the unchanged script differ in their bits; exact changes may differ as much",
            )
        )
    return FixReport(
        command=tuple(command),
        base=BaseRun(
            step_ms=median(tried.base_ms),
            processor_ms=median(tried.processor_ms),
            steps=len(one.ranks[0].steps),
            trials=len(tried.base_ms),
            noise=stdev(tried.base_ms) / mean(tried.base_ms),
            grade=seen.card.grade,
            bottleneck=seen.card.bottleneck,
            is_repeatable=base.repeats,
        ),
        tries=tuple(tries),
        together=together,
        seconds=time.monotonic() - began,
        edits=texts,
        notes=tuple(notes),
    )


def look(bench: Bench) -> tuple[Seen, TrialPlan]:
    """Record the script briefly; return what was seen, and how many steps a trial takes.

    All of a short script, some seconds' worth of a long one.
    """
    plan = TrialPlan(steps=_RECORDED_STEPS, seconds=_RECORDED_S, least_steps=2 * WARMUP + 4, is_recorded=True)
    trial = bench.run(plan)
    said = f": {trial.said}" if trial.said else ""
    if trial.code is None:
        raise NotMeasured(f"the script {trial.said}", supply="a larger {budget}")
    if not trial.ranks or not trial.recording:
        text = f"no step of a torch optimizer was seen; the script ended with code {trial.code}{said}"
        raise NotMeasured(text, hint=_COPIED)
    if trial.code:
        hint = f"if it runs without stepgrade: {_COPIED}"
        raise NotMeasured(f"the script ends with code {trial.code}{said}", hint=hint)
    witness = trial.ranks[0]
    natural = len(witness.steps) if witness.how == "ended" else None
    if natural is not None and natural < WARMUP + 3:
        raise NotMeasured(
            f"the script takes {natural} steps; {WARMUP + 3} are needed", hint="let it train longer"
        )
    card: Scorecard = score(load(*trial.recording))
    seen = Seen(card=card, witness=witness, cores=max(1, cores_here() // witness.world_size))
    wanted = math.ceil(_MEASURED_S * 1e3 / witness.step_ms)
    steps = WARMUP + min(_MOST_MEASURED, max(_LEAST_MEASURED, wanted))
    # Room for one more, so that a script that ends there does so by itself.
    return seen, TrialPlan(steps=steps if natural is None or natural > 2 * steps else natural + 1)


def choose(
    seen: Seen, original: Original, allow: frozenset[str]
) -> tuple[list[_Candidate], list[Try], dict[str, Way]]:
    """Return the changes to try, what is said of those that cannot be tried, and the ways."""
    candidates, others, ways = list[_Candidate](), list[Try](), dict[str, Way]()
    for change in CHANGES:
        if not change.is_chosen(seen.card):
            continue
        way = change.way(seen)
        if isinstance(way, Way):
            ways[change.name] = way
            if change.allow in ("", *allow):
                settings = {way.patch: way.settings} if way.patch else {}
                texts = None if way.patch else _texts(original, [way])[0]
                if settings or texts:
                    candidates.append(_Candidate(change=change, settings=settings, edited=texts))
                    continue
                way = "it is in a file that is not edited"
        asked = change.asked_by(seen.card)
        if isinstance(way, str):
            if asked:
                others.append(_try(change, seen, "does_not_apply", way, where=asked[0].where))
        elif way is None:
            others.append(_try(change, seen, "not_tried", asked[0].remedy, where=asked[0].where))
        else:
            why = f"it changes the {change.allow}, which you have not allowed"
            others.append(_try(change, seen, "not_tried", why, how=way.how))
    return candidates, others, ways


def _try(change: ScriptChange, seen: Seen, verdict: Verdict, why: str, **more: Any) -> Try:
    found = change.asked_by(seen.card)
    predicted = (
        Predicted(low=max(one.gain_low for one in found), high=max(one.gain_high for one in found))
        if found
        else None
    )
    return Try(
        change=change.name,
        what=change.what,
        applies=verdict != "does_not_apply",
        verdict=verdict,
        why=why,
        breaks=change.breaks,
        predicted=predicted,
        **more,
    )


def _outcome(one: _Candidate, seen: Seen, way: Way, original: Original) -> Try:
    """Return what came of a candidate."""
    site = way.edits[0].site if way.edits else None
    texts = _texts(original, [way])[0]
    sameness = one.sameness
    return _try(
        one.change,
        seen,
        one.verdict or "cannot_tell",
        one.why,
        how=way.how,
        where=None if site is None else f"{os.path.relpath(site.file, original.folder)}:{site.line}",
        measured=one.gain,
        same_work=None if sameness is None or not sameness.is_known else sameness.problem is None,
        loss=None if sameness is None else sameness.loss,
        diff=_diff(original.folder, texts),
    )


def _texts(original: Original, ways: Sequence[Way]) -> tuple[dict[str, str], list[Way]]:
    """Return the new text of each file that edits change, and the ways that could be written."""
    texts, done = dict[str, str](), list[Way]()
    kept: dict[str, list[Edit]] = {}
    for way in ways:
        files = {edit.site.file for edit in way.edits}
        names = {os.path.relpath(path, original.folder): path for path in files}
        if not files or any(
            not path.startswith(original.folder + os.sep)
            or os.path.realpath(path) != path
            or name.split(os.sep)[0] in original.linked
            or not os.access(path, os.W_OK)
            for name, path in names.items()
        ):
            continue  # it is not of this folder, or a trial of the edit would write to it
        edits = {
            name: [*kept.get(name, ()), *(edit for edit in way.edits if edit.site.file == path)]
            for name, path in names.items()
        }
        try:  # from the pristine text each time, so that lines stay where they were seen
            texts |= {name: edited(source_text(path), edits[name]) for name, path in names.items()}
        except CannotEdit:
            continue
        kept |= edits
        done.append(way)
    return texts, done


def _diff(folder: str, texts: dict[str, str]) -> str | None:
    diffs = [
        diff_of(source_text(os.path.join(folder, name)), text, name) for name, text in sorted(texts.items())
    ]
    return "".join(diffs) or None


def _together(
    tried: Tried, accepted: Sequence[_Candidate], ways: dict[str, Way], until: float
) -> tuple[Together | None, dict[str, str]]:
    """Measure the accepted changes at once, drop what does not help there, and run the edited script."""
    if not accepted:
        return None, {}
    kept, dropped, original = list(accepted), list[str](), tried.bench.original
    joined = _joined(kept, ways, original)
    if len(kept) > 1:
        tried.in_turns([joined], until)
        for one in sorted(kept, key=lambda each: each.gain.gain if each.gain else 0.0)[:-1]:
            rest = _joined([each for each in kept if each is not one], ways, original)
            tried.in_turns([rest], until)
            is_as_good = (
                rest.verdict == "accepted"
                and bool(rest.ms)
                and mean(rest.ms) <= mean(joined.ms or [math.inf])
            )
            if is_as_good or joined.verdict != "accepted":
                kept.remove(one)
                dropped.append(one.change.name)
                joined = rest
    else:
        joined = kept[0]
    gain = joined.gain
    if gain is None or joined.verdict != "accepted":
        return None, {}
    texts, done = _texts(original, [ways[one.change.name] for one in kept])
    names = tuple(one.change.name for one in kept if ways[one.change.name] in done)
    written: Gain | None = None
    if texts:
        as_written = structs.replace(_joined(kept, ways, original), settings={}, edited=texts)
        tried.say("the edited script, without any change at run time")
        tried.in_turns([as_written], until)
        written = as_written.gain if as_written.verdict == "accepted" else None
    together = Together(
        changes=tuple(one.change.name for one in kept),
        step_ms=mean(joined.ms),
        measured=gain,
        same_work=joined.sameness is not None and joined.sameness.problem is None,
        dropped=tuple(dropped),
        diff=_diff(original.folder, texts),
        written=written,
        written_changes=names if written is not None else (),
    )
    return together, texts if written is not None else {}


def _joined(candidates: Sequence[_Candidate], ways: dict[str, Way], original: Original) -> _Candidate:
    """Return several changes as one; its results may differ as much as those of the least exact one."""
    order = ("exact", "rounding", "tolerance")
    settings: dict[str, Any] = {}
    for one in candidates:
        for patch, value in one.settings.items():
            before = settings.get(patch)
            if isinstance(value, dict) and isinstance(before, dict):  # keywords of one call too
                keywords = {**before.get("keywords", {}), **value.get("keywords", {})}
                settings[patch] = before | value | ({"keywords": keywords} if keywords else {})
            else:
                settings[patch] = value
    loosest = max((one.change for one in candidates), key=lambda change: order.index(change.equality))
    name = " + ".join(one.change.name for one in candidates)
    alike = all(one.change.counts_alike for one in candidates)
    redraws = any(one.change.redraws for one in candidates)
    rewriting = [ways[one.change.name] for one in candidates if one.edited]
    return _Candidate(
        change=structs.replace(loosest, name=name, counts_alike=alike, redraws=redraws),
        settings=settings,
        edited=_texts(original, rewriting)[0] or None,
    )
