"""What a rule is: the figures or the function that show one problem, and the words around its finding."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from msgspec import Struct, structs

from stepgrade.diagnosis.context import LIKE_CUDA, RuleContext, Runtime
from stepgrade.model.activity import HostLine
from stepgrade.model.ledger import ACCOUNTS, ALL_ACCOUNTS
from stepgrade.model.profile import RECORDER
from stepgrade.model.scorecard import Finding, Severity
from stepgrade.patterns import regex
from stepgrade.replay.promises import Promise
from stepgrade.units import show_count, show_ms, show_share

Evidence = dict[str, float | str | None]  # of a rule; None is left out of its finding


class Found(Struct, frozen=True):
    """What a rule found; `share` is the share of the step that the problem costs."""

    claim: str
    evidence: Evidence
    share: float = 0.0
    severity: Severity | None = None  # by default what the rule's levels say of the share
    gain: float | None = None  # the share that a fix can save, where that is not all of it
    remedy: str | None = None  # instead of the rule's own
    check: str | None = None  # instead of the rule's own
    warning: str | None = None  # code of the reader's warning that this finding repeats
    line: HostLine | None = None  # line of the user's code where the time goes


class Worth(NamedTuple):
    """What a fix can gain: at most what the ledger has in these accounts, realistically a part of it."""

    accounts: str  # joined by +
    realistic: float
    because: str
    change: str = ""  # the parts of a replay that it changes, joined by +; by default those of the accounts


class Remedy(NamedTuple):
    """What to do in runs of one kind."""

    kind: str
    when: Callable[[RuleContext], bool]
    text: str


on_amd = partial(Remedy, "on AMD's devices", lambda context: context.platform == "rocm")
in_inference = partial(Remedy, "inference", lambda context: context.work == "inference")


class Rule(Struct, frozen=True, kw_only=True):
    """One rule: how it finds a problem, what to do about it, and when it is wrong.

    Figures alone decide most rules: they have a claim and `figures`. As a decorator a rule takes the function
    that finds its problem instead.
    """

    area: str  # its page under docs/rules/
    name: str = ""  # that of its variable or function
    sees: str
    evidence: str
    fix: str
    fix_pytorch: str | None = None
    fix_jax: str | None = None
    fix_reference: str | None = None
    fix_where: tuple[Remedy, ...] = ()  # for some runs; the first that applies
    wrong_when: str
    check: str
    sources: str
    levels: str = ""  # which limits grade the share: `launch` for `launch_info_share` and so on
    severity: Severity | None = None  # by default what the levels say of the share
    worth: Worth | None = None  # None if the problem costs no time by itself
    explains: tuple[str, ...] = ()  # rules that see the same cause from another side
    find: Callable[..., Found | None] | None = None
    needs: str = ""  # what the function gets beside the context; a run without it is not looked at
    claim: str = ""  # with names of figures in braces
    figures: dict[str, str] = {}  # in the evidence, and in `RuleContext.figures`
    least: dict[str, str] = {}  # figures that must reach a limit; the first must not be 0
    saved: float = 1.0  # part of the first share among the figures that a fix can save

    def __call__(self, find: Callable[..., Found | None]) -> Rule:
        """Return the rule with the function that finds its problem."""
        return structs.replace(self, find=find)

    def by_figures(self, context: RuleContext) -> Found | None:
        """Return what the figures show; None if one of them is below its limit."""
        figures = {
            name: sum(context.figures[part] for part in figure.split("+"))
            for name, figure in self.figures.items()
        }
        if not next(iter(figures.values())):
            return None
        if any(figures[name] < getattr(context.limits, limit) for name, limit in self.least.items()):
            return None
        claim = self.claim.format_map({name: _shown(name, value) for name, value in figures.items()})
        share = next((value for name, value in figures.items() if name.endswith("share")), 0.0)
        return Found(claim, {**figures}, share * self.saved)

    def finding(self, context: RuleContext) -> Finding | None:
        """Apply the rule; the gain it promises is at most what the ledger has."""
        needed = (attrgetter(self.needs)(context),) if self.needs else ()
        if None in needed:
            return None
        found = self.find(context, *needed) if self.find else self.by_figures(context)
        if found is None:
            return None
        severity = found.severity or self.severity or context.severity(self.levels, found.share)
        remedy = self.remedy(context, found)
        if severity is None or not remedy:  # a problem that this run can do nothing about is not worth a line
            return None
        high = part = 0.0
        if self.worth is not None:
            known = context.account(*self.worth.accounts.split("+")) if context.ledger else 1.0
            high, part = (
                min(found.share if found.gain is None else found.gain, 1.0, known),
                self.worth.realistic,
            )
        claim, line = found.claim, found.line
        evidence = {name: value for name, value in found.evidence.items() if value is not None}
        if line is not None:
            claim, evidence = (
                f"{claim.removesuffix('.')}: {line.shown}.",
                evidence | {"function": line.function},
            )
        named = evidence.get("operation")
        return Finding(
            rule=self.name,
            severity=severity,
            claim=claim,
            evidence=evidence,
            remedy=remedy,
            where=line.where
            if line is not None
            else next((op.where for op in context.operations if op.name == named), None),
            gain_low=max(0.0, high * part),
            gain_high=max(0.0, high),
            check=found.check or self.check,
            area=self.area,
            gain_basis=self.worth.because if self.worth else "",
            account=self.worth.accounts if self.worth else None,
            warning=found.warning,
        )

    def promise(self, context: RuleContext, finding: Finding) -> Promise | None:
        """Return what a fix gains by the replay, else by the ledger; None if it costs no time by itself."""
        if self.worth is None or finding.gain_high <= 0.0:
            return None
        accounts, held = self.worth.accounts, finding.gain_high
        if context.ledger is None or (accounts == ALL_ACCOUNTS and not self.worth.change):
            return Promise(finding.gain_low, held, "measured", held=held, accounts=frozenset(ACCOUNTS))
        named = finding.evidence.get("operation")
        change = named if accounts == "compute" and not self.worth.change and named else self.worth.change
        return context.promises.promise(accounts.split("+"), held, self.worth.realistic, str(change))

    def remedy(self, context: RuleContext, found: Found) -> str:
        """Return the first remedy that can be followed in this run; empty if there is none."""
        if context.runtime is Runtime.REFERENCE:
            return found.remedy or self.fix_reference or self.fix
        for_runtime = {Runtime.PYTORCH: self.fix_pytorch, Runtime.JAX: self.fix_jax}.get(context.runtime)
        special = (remedy.text for remedy in self.fix_where if remedy.when(context))
        remedies = (found.remedy, *special, for_runtime, self.fix)
        return next((usable for text in remedies if text and (usable := fitting(text, context))), "")


def _shown(name: str, value: float) -> str:
    """Return a figure in words, by the unit in its name."""
    if name.endswith("share"):
        return show_share(value)
    if name.endswith("_ms"):
        return show_ms(value)
    return show_ms(value * 1e3) if name == "seconds" else show_count(round(value))


_PARTS = regex(r"(?<=[.;])\s+(?=\S)")


class Need(NamedTuple):
    """Words in a remedy, and when it can be followed."""

    what: str
    words: re.Pattern[str]
    is_met: Callable[[RuleContext], bool]


# Profilers that do not have the settings of PyTorch's profiler.
_OTHER_PROFILERS = frozenset({"nsys", "rocprof", "xplane", "xla_trace"})

_FUSED_UPDATES = ("aten::_fused_ad", "aten::_fused_sgd")

NEEDS = (
    Need(
        "PyTorch's profiler",
        regex(r"with_stack|CPU and CUDA activities"),
        lambda context: context.profile.source.format not in _OTHER_PROFILERS,
    ),
    Need(
        "a device that torch.cuda drives",
        regex(
            r"torch\.cuda|CUDA|cuda|nccl|NCCL|expandable_segments|tensor cores|sdpa_kernel|Flash|Liger"
            r"|TunableOp"
        ),
        lambda context: context.platform in LIKE_CUDA,
    ),
    Need(
        "graphs of kernels",
        regex(r"reduce-overhead|\bgraphs?\b(?! break)"),
        lambda context: context.platform in LIKE_CUDA and not context.replays_graphs,
    ),
    Need(
        "an accelerator",
        regex(r"pin_memory|pinned|non_blocking|\b(the|on|each) devices?\b|[Ll]aunch"),
        lambda context: context.platform != "cpu",
    ),
    Need(
        "a DataLoader, as far as our recorder saw",
        regex(r"DataLoader"),
        lambda context: context.profile.source.producer != RECORDER or "input" in context.phases.shares,
    ),
    Need(
        "an optimizer that is not fused yet",
        regex(r"fused=True|a fused optimizer"),
        lambda context: (
            not (
                any(op.name.startswith(_FUSED_UPDATES) for op in context.operations)
                or (context.activity.optimizer is not None and context.activity.optimizer.fused)
            )
        ),
    ),
    Need(
        "arithmetic in bf16",
        regex(r"bfloat16|\bbf16\b"),
        lambda context: context.can_compute_in("bf16") is not False,
    ),
    Need(
        "arithmetic in tf32",
        regex(r"\btf32\b|float32_matmul_precision|tensorfloat32"),
        lambda context: context.can_compute_in("tf32") is not False,
    ),
    Need(
        "a training step",
        regex(
            r"optimizer|backward|[Gg]radient|GradScaler|zero_grad|no_sync|\bDDP\b|bucket_cap|\bZeRO"
            r"|the loss\b"
            r"|[Aa]ctivation checkpoint|checkpoint fewer|checkpoint every|frozen|training loop|epoch"
        ),
        lambda context: context.work != "inference",
    ),
    Need("tables that are not FBGEMM's yet", regex(r"FBGEMM"), lambda context: not context.uses("fbgemm")),
    Need(
        "shapes that were not recorded",
        regex(r"record_shapes|[Rr]ecord \w*\s?shapes|operations with shapes"),
        lambda context: not context.has_recorded("shapes"),
    ),
    Need(
        "stacks that were not recorded",
        regex(r"with_stack"),
        lambda context: context.profile.source.producer != RECORDER and not context.has_recorded("stacks"),
    ),
    Need(
        "operations that are not compiled yet",
        regex(r"torch\.compile(?!\(mode)"),
        lambda context: not context.is_compiled,
    ),
    Need(
        "optimizer state that is not sharded yet",
        regex(r"\b[Ss]hard(ed|ing)?\b.*\b(state|optimizer)|ZeroRedundancyOptimizer|\bZeRO"),
        lambda context: context.parallelism != "fsdp",
    ),
    Need(
        "parameters in shards",
        regex(r"FSDP|reshard_after_forward"),
        lambda context: context.parallelism in {None, "fsdp", "data"},
    ),
)


def fitting(text: str, context: RuleContext) -> str:
    """Return the sentences of a remedy that can be followed in this run; empty if there are none."""
    kept = [
        part
        for part in _PARTS.split(text)
        if all(need.is_met(context) or not need.words.search(part) for need in NEEDS)
    ]
    whole = " ".join(kept).rstrip(";").removesuffix(".")
    if not whole:
        return ""
    is_word = whole.split(" ", 1)[0].isalpha()  # no name of a function or a setting
    return f"{whole[0].upper() if is_word else whole[0]}{whole[1:]}."
