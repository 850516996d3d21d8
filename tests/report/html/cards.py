"""Scorecards for pages: from bundled runs, with everything in them, with next to nothing, huge, and hostile."""

from __future__ import annotations

from datetime import date
from functools import cache
from typing import Any

import msgspec

import stepgrade as sg
from stepgrade.config import Budget, Config, GateTable, Waiver
from stepgrade.gating.run import gate
from stepgrade.model import LayerStep, Ledger, Note, Profile, Source, Span
from stepgrade.model.ceiling import Roof
from stepgrade.model.comparison import Check, GateReport, PartChange, Shift
from stepgrade.model.ledger import ACCOUNTS
from stepgrade.model.memory import Holder, Memory, OutOfMemory, PeakPlace
from stepgrade.model.operations import ModuleStep, Operation
from stepgrade.model.profile import RankRow
from stepgrade.model.scorecard import Finding, Scorecard, StepStats
from stepgrade.model.step_view import Lane, LaneKind, StepView, StepWait
from stepgrade.timeline.timeline import PHASES
from tests.builders import make_ops, make_profile
from tests.conftest import ROOT

# Every way out of an element, an attribute, a script and a line that we know of.
CANARY = "window.pwned=1"
HOSTILE = (
    f"<script>{CANARY}</script>",
    f"</script><script>{CANARY}</script>",
    f"<img src=x onerror={CANARY}>",
    f'"><svg onload={CANARY}>',
    f"' onfocus='{CANARY}' autofocus='",
    f"<!--<script>{CANARY}//-->",
    f"</title></style><script>{CANARY}</script>",
    f"javascript:{CANARY}",
    "{{ 7 * 7 }}{% raw %}",
    "&lt;b&gt; &amp; `code`",
    "\u202egnp.exe \u05e9\u05dc\u05d5\u05dd",
    "🔥🧨 emoji 👩‍💻",
    "line\nbreak\u2028\x00\x1b[31m",
    "x" * 10_000,
)


def noted(texts: tuple[str, ...]) -> tuple[Note, ...]:
    """Return a note of each text."""
    return tuple(Note("made_up", text) for text in texts)


@cache
def bundled_card() -> sg.Scorecard:
    """Return the card of a bundled trace against another: layers, roofs, steps, a waterfall."""
    baseline = sg.load(ROOT / "examples" / "traces" / "gpt_fused.json.gz")
    profile = sg.load(ROOT / "examples" / "traces" / "gpt_naive.json.gz")
    return sg.score(profile, peak_bw_gb_s=32.05, bytes_per_token=391_000, baseline=baseline)


@cache
def step_profile_card() -> sg.Scorecard:
    """Return the card of a bundled step profile: sixty steps, no shapes."""
    profile = sg.load(ROOT / "examples" / "runs" / "gpt_naive.json")
    baseline = sg.load_baseline(ROOT / "examples" / "runs" / "gpt_fused.json")
    return sg.score(profile, peak_bw_gb_s=32.05, bytes_per_token=391_000, baseline=baseline)


@cache
def gate_report() -> GateReport:
    """Return the gate's answer about a bundled trace against another."""
    names = ("gpt_naive", "gpt_fused")
    now, before = (sg.load(ROOT / "examples" / "traces" / f"{name}.json.gz") for name in names)
    waiver = Waiver(metric="launches*", until=date(2999, 1, 1), reason="the new attention")
    config = Config(
        gate=GateTable(run_noise=0.02),
        budgets=(
            Budget(metric="step_time_ms", allow=0.05, at_most=2000.0),
            Budget(metric="efficiency", at_least=0.2),
        ),
        waivers=(waiver,),
    )
    return gate([now], baseline=[before], config=config, today=date(2026, 1, 1))


@cache
def unmeasured_gate() -> GateReport:
    """Return the gate's answer about runs that are not comparable."""
    now, before = make_profile(tokens_per_step=1.0), make_profile(tokens_per_step=2.0)
    return gate([now], baseline=[before], today=date(2026, 1, 1))


def hostile_gate(names: tuple[str, ...] = HOSTILE) -> GateReport:
    """Return an answer with hostile names everywhere."""
    report = gate_report()
    checks = tuple(
        Check(metric=name, status="waived", text=name, waiver=name, change=report.changes[0])
        for name in names
    )
    shifts = tuple(Shift(kind="operation", name=name, before=1.0, now=None) for name in names)
    parts = tuple(PartChange(kind="operation", name=name, change=report.changes[0]) for name in names)
    return msgspec.structs.replace(
        report,
        source=names[0],
        baseline=names[1],
        checks=checks,
        shifts=shifts,
        parts=parts,
        differences=noted(names),
        reasons=noted(names),
        notes=noted(names),
    )


@cache
def parity_report() -> sg.ParityReport:
    """Return the comparison of two bundled profiles."""
    runs = ROOT / "examples" / "runs"
    return sg.parity(sg.load(runs / "parity_naive.json"), sg.load(runs / "parity_fused.json"))


@cache
def bare_card() -> sg.Scorecard:
    """Return the card of a source that knows a step time and nothing else."""
    return sg.score(make_profile(phases=()))


@cache
def memory_card() -> sg.Scorecard:
    """Return the card of a recording of memory alone."""
    memory = Memory(
        peak_bytes=4e9,
        categories={"weights": 3e9, "other": 1e9},
        holders=(Holder(bytes=3e9, op="aten::empty", where="train.py:3", category="weights"),),
    )
    why = Note("memory_only", "A memory recording contains allocations, not step times.", fatal=True)
    return sg.score(make_profile(phases=(), steps=None, mean_step_ms=None, memory=memory, warnings=(why,)))


def changed(card: sg.Scorecard, **fields: Any) -> sg.Scorecard:
    """Return a card with some fields replaced."""
    return msgspec.structs.replace(card, **fields)


def make_finding(number: int = 1, **fields: Any) -> Finding:
    """Return a finding with a gain."""
    defaults: dict[str, Any] = {
        "rule": f"rule-{number}",
        "severity": ("critical", "warning", "info")[number % 3],
        "claim": f"Claim {number}: the device waits 21.0 % of the step.",
        "evidence": {"waiting_share": 0.21, "wait_ms": 8.75, "operation": "gemm"},
        "remedy": "Do less of it.",
        "gain_low": 0.1,
        "gain_high": 0.2,
        "check": "Run again with --steps 3-7.",
    }
    return Finding(**(defaults | fields))


def full_card(ranks: int = 8, ops: int = 60) -> sg.Scorecard:
    """Return a card in which every section has something to show."""
    card = bundled_card()
    operations = tuple(_operation(place, ops) for place in range(ops))
    return changed(
        card,
        operations=operations,
        findings=tuple(make_finding(number) for number in range(5)),
        ranks=tuple(_rank(rank) for rank in range(ranks)),
        roofs=_roofs(),
        fitness=noted(("Only 2 of 4 steps are steady.",)),
        typical_step=Span(file=0, start_ns=1_700_000_000_000_000_000, dur_ns=5_000_000),
        views=tuple(make_view(rank) for rank in range(min(ranks, 3))),
        modules=tuple(
            ModuleStep(
                name=f"Block_{place}",
                parent=None if place == 0 else (place - 1) // 3,
                fwd_ms=30.0 / 3 ** (place > 0),
                bwd_ms=60.0 / 3 ** (place > 0),
                recompute_ms=0.0,
                share=0.9 / 3 ** (place > 0),
                memory_bytes=3e9 / 3 ** (place > 0) - 2e9 * (place == 3),
                ops={"aten::mm": 3.0},
                kernels={"aten::mm": {"sm90_xmma_gemm": 2.0, "splitKreduce": 0.9}},
            )
            for place in range(4)
        ),
        steps=StepStats(count=60, median_ms=100.0, samples_ms=(*(100.0 + n % 7 for n in range(59)), 300.0)),
    )


def _operation(place: int, count: int) -> Operation:
    ms = 10.0 * 0.9**place if count < 1000 else 1000.0 / (place + 1)
    return Operation(
        name=f"op_{place:06d}",
        kind=("gemm", "elementwise", "attention", "norm")[place % 4],
        ms=ms,
        share=ms / 5000.0,
        calls=float(place % 13 + 1),
        flops=1e9 * (place + 1) if place % 3 else None,
        bytes=1e7 * (place % 9 + 1) if place % 3 else None,
        longest=Span(file=0, start_ns=1_700_000_000_000_000_000 + place * 1000, dur_ns=400)
        if place % 2
        else None,
    )


def _rank(rank: int) -> RankRow:
    slow = 0.1 if rank == 1 else 0.0
    ledger = Ledger(
        compute=0.7 - slow, exposed_communication=0.2, exposed_copy=0.0, idle_input=0.0,
        idle_host=0.1 + slow, idle_sync=0.0, unattributed=0.0,
    )  # fmt: skip
    return RankRow(rank=rank, ledger=ledger, step_ms=100.0 + rank % 5, wait_ms=0.5 if rank == 1 else 8.0)


def _roofs() -> tuple[Roof, ...]:
    def roof(kind: str, per_s: float, basis: str, shown: str) -> Roof:
        return Roof(kind=kind, per_s=per_s, basis=basis, shown=shown, source="a sheet")  # type: ignore[arg-type]

    return (
        roof("compute", 989e12, "data_sheet", "989 TFLOP/s bf16"),
        roof("compute", 794e12, "measured", "794 TFLOP/s bf16"),
        roof("memory", 3.35e12, "data_sheet", "3350 GB/s"),
    )


def hostile_card(names: tuple[str, ...] = HOSTILE) -> sg.Scorecard:
    """Return a card in which every name that a file can hold is hostile."""
    evil = "".join(names[:8])
    source = Source(format="kineto", files=names, producer=evil)
    layers = tuple(
        LayerStep(layer=place, name=name, fwd_ms=1.0, bwd_ms=2.0) for place, name in enumerate(names)
    )
    ops = tuple(
        Operation(name=name, ms=50.0 - place, kind=name, calls=3.0, flops=1e9, bytes=1e6,
                  longest=Span(file=place, start_ns=5, dur_ns=7)).per_step(10)
        for place, name in enumerate(names)
    )  # fmt: skip
    profile = make_profile(
        source=source,
        layers=layers,
        operations=ops,
        notes=noted(names),
        warnings=noted(names),
        samples_ms=(1.0, 2.0, 3.0),
    )
    card = sg.score(profile, throughput_tok_s=10.0, peak_bw_gb_s=1.0, bytes_per_token=1e6)
    phases = {name: next(iter(card.phases.values())) for name in names}
    findings = tuple(
        make_finding(place, claim=name, remedy=name, check=name, rule=name, evidence={name: name})
        for place, name in enumerate(names)
    )
    return changed(
        card, phases=phases, findings=findings, recommendations=names, bottleneck=evil, bottleneck_evidence=names,
        baseline=evil, ungraded_because=noted(names),
        memory=Memory(
            peak_bytes=1e9, categories={"weights": 6e8, "other": 4e8}, peak_at=PeakPlace(op=evil, layer=evil, where=evil),
            holders=tuple(Holder(bytes=1e8, op=name, where=name, category=name) for name in names),
            out_of_memory=OutOfMemory(asked_bytes=1e9, where=evil),
        ),
        modules=tuple(
            ModuleStep(name=name, parent=place - 1 if place else None, fwd_ms=9.0, bwd_ms=9.0, recompute_ms=0.0, share=0.2,
                       ops={name: 3.0}, kernels={name: dict.fromkeys(names, 0.2)}, memory_bytes=-5e6)
            for place, name in enumerate(names)
        ),
        views=tuple(make_view(rank, names) for rank in range(2)),
    )  # fmt: skip


def make_view(rank: int, names: tuple[str, ...] = ("forward", "backward")) -> StepView:
    """Return a step that is drawn, a slice for each name on every lane."""
    count = len(names)

    def lane(kind: LaneKind, looks: tuple[str, ...]) -> Lane:
        return Lane(
            kind=kind, name=names[0], start_ns=tuple(range(0, count * 1_000_000, 1_000_000)), dur_ns=(900_000,) * count,
            label=names, look=tuple(looks[place % len(looks)] for place in range(count)), count=(1, *(7,) * (count - 1)),
        )  # fmt: skip

    lanes = (
        lane("ledger", tuple(ACCOUNTS)),
        lane("phases", PHASES),
        lane("stream", ("gemm", "copy", "communication", "norm")),
        lane("thread", ("other", "wait")),
    )
    waits = tuple(
        StepWait(start_ns=place * 1_000_000 + 100_000, dur_ns=700_000, late=late, name=name)
        for place, (name, late) in enumerate(zip(names, (1, 99) * count, strict=False))
        if rank != 1
    )
    return StepView(
        rank=rank,
        number=4,
        at_ns=10**18 + rank * 200_000,
        dur_ns=count * 1_000_000,
        lanes=lanes,
        waits=waits,
    )


def with_other_steps() -> Scorecard:
    """Return a card with three steps that are drawn."""
    first = make_view(1)
    others = ((9, 5_000_000), (3, 1_500_000))
    views = (
        first,
        *(msgspec.structs.replace(first, number=number, dur_ns=length) for number, length in others),
    )
    return changed(full_card(), views=views)


def hostile_parity(names: tuple[str, ...] = HOSTILE) -> sg.ParityReport:
    """Return a comparison of runtimes and operations with hostile names."""

    def side(factor: float, runtime: str, extra: str) -> Profile:
        ops = make_ops(**{name: 10.0 * factor + place for place, name in enumerate((*names, extra))})
        return make_profile(operations=ops, runtime=runtime)

    return sg.parity(side(1.0, names[0], "only <b>ours"), side(2.0, names[3], "only <i>theirs"))


def huge_card() -> sg.Scorecard:
    """Return a card of 100,000 operations, 512 ranks, 500 layers and 100,000 steps."""
    card = full_card(ranks=512, ops=100_000)
    layer = card.layers[0]
    return changed(
        card,
        layers=tuple(msgspec.structs.replace(layer, layer=place) for place in range(500)),
        steps=StepStats(
            count=100_000, median_ms=103.0, samples_ms=tuple(100.0 + n % 7 for n in range(100_000))
        ),
    )


def as_analysis(card: Scorecard) -> Scorecard:
    """Return the card as the analysis's own class, as a program without the notebook's would have it."""
    return Scorecard(**{name: getattr(card, name) for name in Scorecard.__struct_fields__})
