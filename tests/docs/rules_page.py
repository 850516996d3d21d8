"""docs/rules.md and a page for each area under docs/rules/, written from the rules and limits themselves."""

from __future__ import annotations

from typing import get_type_hints

from stepgrade.config.limits import Limits
from stepgrade.diagnosis.rules import AREAS
from stepgrade.diagnosis.rules.base import Rule

INTRO = """\
# Rules

What `stepgrade score` looks for, with a page for each area. These pages are written from the rules in
`src/stepgrade/diagnosis/rules/`; a test keeps them alike.

A rule looks for one problem in what is known of a run. What it finds has a claim, the numbers behind it, a
severity, what to do, how to see that it worked, and what it is worth: at most what the ledger has in the accounts
named under *Worth*, and realistically the fraction given there. Where two rules see one cause there is one
finding, and the others are listed under it. Findings come in the order of their realistic gain; doubts about the
profile itself come first, remarks (`info`) last.

Sources are the rules of other tools, by the initials of the tool: AL alloc · DL DLProf · GPF gpuprof · HF Hugging
Face's performance guide · HTA Holistic Trace Analysis · HYP Hyperloom · ME ml-engineering · NAI nsys-ai · NS Nsight
Systems · NVR nvidia-resiliency-ext · PM PyTorch's pattern matcher · REF the reference · SM SageMaker Debugger · TBP
torch-tb-profiler · TG PyTorch's tuning guide · TL TraceLens · TML TraceML · TS torchscope · XP XProf.

Every limit can be set, and every rule ignored, in a `stepgrade.toml` beside where the command runs, or in any file
given with `--config`:

```toml
[limits]
input_warning_share = 0.05

[rules]
ignore = ["tf32-matmuls"]
```
"""
DISAGREEMENTS = """\
## Where published rules disagree

Tools draw their lines differently. What is taken here, and why:

| Question | Published | Here |
| --- | --- | --- |
| When is input a problem? | 5 % (TBP, XP) · 10 % (TML, XP) · 15 % (GPF) · 20 % (XP, TML) | 5 % remark, 10 % warning, 20 % critical: all three lines are shown by the severity |
| When is communication? | 3 and 15 % (XP) · 5 % exposed (TL) · 6 % (XP) · 10 % (TBP) · 20 % (GPF, NAI) · 30 % (XP) | only what nothing hides is judged: hidden communication costs nothing. 3, 5 and 15 % |
| When is idle time? | 3 % (XP) · 10 % (XP) · 15 % (TL, NAI) | idle is not one thing: each reason has its own lines (input, copies, launches, synchronisation, host). 15 % for one reason names the bottleneck |
| When are launches? | 3 and 15 % (XP) · 10 % (GPF) · 40 % (REF) | 5, 10 and 15 %. The reference's 40 % stays where contract v1 needs it: naming `launch` from phases, where time in no phase need not be overhead |
| Low utilisation of the device? | below 50 % (TBP) · 30 and 70 % (TML) · p95 below 70 % (SM) | never a finding: it is a symptom, and the ledger holds its reasons |
| Memory nearly full? | 80 and 90 % (TML) · 90 % (TBP, GPF) · 92 and 97 % of the step's peak (TML) | 92 and 97 % of the step's peak: a mean says nothing about the next allocation |
| Who is a straggler? | 10 % (TML) · 20 % (AL) · 0.7 of the speed (NVR) · last in 60 % of the steps (GPF) | the rank that causes more than half of all waiting and is last more often than its share; judged by what of that nothing hides (3, 5 and 20 % of the step). Not by how often it is last: a rank that is late to the first collective of each step meets the others in all later ones |
| A run got slower? | 2 and 5 % (NAI) · 3 and 8 % (TML) · 7 % (TorchBench) · 10 % (asv, AL, REF) · 100 % (GAB) | no rule of this page: see the gate, which compares the change with measured noise |
| When is a kernel short? | 10 µs (TL, NAI) · shorter than its own launch (HTA) | both are shown; 10 µs decides, because recording makes launches longer |
| When is overlap good? | 70 % (TL) · below 30 % bad (NAI) | 70 % is named as good; how bad it is depends on what is exposed, which the rule above judges |
"""


def rules_pages() -> dict[str, str]:
    """Return every page by its path under docs/."""
    pages = {f"rules/{area}.md": _area(area, members) for area, members in AREAS.items()}
    return {"rules.md": "\n".join([INTRO, _list(), DISAGREEMENTS, _limits()])} | pages


def _list() -> str:
    lines = ["## All rules\n"]
    for area, members in AREAS.items():
        lines.append(f"[{area.capitalize()}](rules/{area}.md)\n")
        lines += [f"- [`{rule.name}`](rules/{area}.md#{rule.name}): {rule.sees}" for rule in members]
        lines.append("")
    return "\n".join(lines)


def _area(area: str, members: tuple[Rule, ...]) -> str:
    head = f"# Rules: {area}\n\nPart of [the rules](../rules.md), which say what the words mean.\n"
    return "\n".join([head, *(_rule(rule) for rule in members)])


def _rule(rule: Rule) -> str:
    lines = [f"## {rule.name}\n", f"{rule.sees}\n", f"- *Evidence*: {rule.evidence}."]
    fixes = {
        "": rule.fix,
        "PyTorch: ": rule.fix_pytorch,
        "JAX: ": rule.fix_jax,
        "The reference's runtime: ": rule.fix_reference,
    }
    lines += [f"- *Fix*: {runtime}{fix}" for runtime, fix in fixes.items() if fix]
    lines.append(f"- *Check*: {rule.check}")
    if rule.worth:
        accounts = ", ".join(f"`{account}`" for account in rule.worth.accounts.split("+"))
        part = f"{rule.worth.realistic:.0%} is realistic: {rule.worth.because}"
        lines.append(f"- *Worth*: up to what is in {accounts}; {part}.")
    if rule.explains:
        lines.append(f"- *Explains*: {', '.join(f'`{name}`' for name in rule.explains)}.")
    lines += [f"- *Wrong when*: {rule.wrong_when}.", f"- *Sources*: {rule.sources}.\n"]
    return "\n".join(lines)


def _limits() -> str:
    hints = get_type_hints(Limits, include_extras=True)
    rows = [
        f"| `{name}` | {getattr(Limits(), name):g} | {hints[name].__metadata__[0].description} |"
        for name in Limits.__struct_fields__
    ]
    return "\n".join(["## Limits\n", "| Limit | Default | Source |", "| --- | --- | --- |", *rows, ""])
