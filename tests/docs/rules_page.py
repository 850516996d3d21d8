"""docs/rules.md and a page for each area under docs/rules/, written from the rules."""

from __future__ import annotations

from stepgrade.diagnosis.rule import Rule
from stepgrade.diagnosis.rules import AREAS
from stepgrade.model.ledger import ALL_ACCOUNTS

INTRO = """\
# Rules

What `stepgrade score` looks for. Generated from `src/stepgrade/diagnosis/rules/`.

A finding has a claim, the numbers behind it (*evidence*; shares are of the step), a severity, a fix, a check and a gain.
*Worth* is the realistic share of the gain, with the reason, and the ledger accounts that limit it. Rules that see the same
cause are merged into one finding. Findings are ordered by realistic gain, but a fix of the bottleneck goes before those
that gain little more (less than 1/0.7 of it, as far as replays may be off); doubts about the profile come first, remarks
(`info`) last.

Sources, in parentheses, are rules of other tools: AL alloc · DL DLProf · FR PyTorch's Flight Recorder analyzer · GPF gpuprof · HF Hugging
Face's performance guide · HTA Holistic Trace Analysis · HYP Hyperloom · ME ml-engineering · MEM published memory
measurements ([memory.md](memory.md#accuracy)) · NAI nsys-ai · NS Nsight Systems · NVR nvidia-resiliency-ext · PM PyTorch's
pattern matcher · REF the reference · SM SageMaker Debugger · TBP torch-tb-profiler · TG PyTorch's tuning guide · TL
TraceLens · TML TraceML · TS torchscope · XP XProf.

Set limits and ignore rules in `stepgrade.toml`, or in a file given with `--config`; [config.md](config.md#limits) lists
every limit with its default and source.

```toml
[limits]
input_warning_share = 0.05

[rules]
ignore = ["tf32-matmuls"]
```
"""
DISAGREEMENTS = """\
## Where published rules disagree

| Question | Published | Here |
| --- | --- | --- |
| When is input a problem? | 5 % (TBP, XP) · 10 % (TML, XP) · 15 % (GPF) · 20 % (XP, TML) | 5 % remark, 10 % warning, 20 % critical |
| Communication? | 3 and 15 % (XP) · 5 % exposed (TL) · 6 % (XP) · 10 % (TBP) · 20 % (GPF, NAI) · 30 % (XP) | only exposed communication counts: 3, 5 and 15 % |
| Idle time? | 3 % (XP) · 10 % (XP) · 15 % (TL, NAI) | each reason has its own limits (input, copies, launches, synchronisation, host); 15 % for one reason names the bottleneck |
| Launches? | 3 and 15 % (XP) · 10 % (GPF) · 40 % (REF) | 5, 10 and 15 %; the reference's 40 % only where contract v1 names `launch` from phases |
| Low device utilisation? | below 50 % (TBP) · 30 and 70 % (TML) · p95 below 70 % (SM) | never a finding: a symptom, whose reasons are in the ledger |
| Memory nearly full? | 80 and 90 % (TML) · 90 % (TBP, GPF) · 92 and 97 % of the step's peak (TML) | 92 and 97 % of the step's peak: a mean says nothing about the next allocation |
| Who is a straggler? | 10 % (TML) · 20 % (AL) · 0.7 of the speed (NVR) · last in 60 % of the steps (GPF) | the rank that causes more than half of all waiting and is last more often than its share, judged by the exposed part (3, 5 and 20 % of the step); not by how often it is last, since a rank late to a step's first collective is on time for the others |
| A run got slower? | 2 and 5 % (NAI) · 3 and 8 % (TML) · 7 % (TorchBench) · 10 % (asv, AL, REF) · 100 % (GAB) | not a rule: the gate compares the change with measured noise |
| When is a kernel short? | 10 µs (TL, NAI) · shorter than its own launch (HTA) | both are shown; 10 µs decides, because recording lengthens launches |
| When is overlap good? | 70 % (TL) · below 30 % bad (NAI) | 70 % is good; severity depends on what is exposed |
"""


def rules_pages() -> dict[str, str]:
    """Return every page by its path under docs/."""
    pages = {f"rules/{area}.md": _area(area, members) for area, members in AREAS.items()}
    return {"rules.md": "\n".join([INTRO, _list(), DISAGREEMENTS])} | pages


def _list() -> str:
    lines = ["## All rules\n", "| Area | Rules |", "| --- | --- |"]
    for area, members in AREAS.items():
        links = ", ".join(f"[`{rule.name}`](rules/{area}.md#{rule.name})" for rule in members)
        lines.append(f"| [{area}](rules/{area}.md) | {links} |")
    return "\n".join(lines) + "\n"


def _area(area: str, members: tuple[Rule, ...]) -> str:
    head = f"# Rules: {area}\n\n[Terms and sources](../rules.md)\n"
    explained = {rule.explains: rule.name for rule in reversed(members)}  # the first of those with one list
    return "\n".join([head, *(_rule(rule, explained[rule.explains]) for rule in members)])


def _rule(rule: Rule, same_as: str) -> str:
    lines = [f"## {rule.name}\n", f"{rule.sees} ({rule.sources})\n", f"- *Evidence*: {rule.evidence}."]
    fixes = {
        "": rule.fix,
        "*PyTorch*: ": rule.fix_pytorch,
        "*JAX*: ": rule.fix_jax,
        "*The reference's runtime*: ": rule.fix_reference,
    }
    lines.append("- *Fix*: " + " ".join(f"{runtime}{fix}" for runtime, fix in fixes.items() if fix))
    lines.append(f"- *Check*: {rule.check}")
    if rule.worth:
        named = rule.worth.accounts.split("+")
        accounts = (
            "any account" if rule.worth.accounts == ALL_ACCOUNTS else ", ".join(f"`{name}`" for name in named)
        )
        lines.append(f"- *Worth*: {rule.worth.realistic:.0%} ({accounts}): {rule.worth.because}.")
    if rule.explains:
        is_repeated = same_as != rule.name and len(rule.explains) > 5
        names = f"as `{same_as}`" if is_repeated else ", ".join(f"`{name}`" for name in rule.explains)
        lines.append(f"- *Explains*: {names}.")
    if rule.wrong_when != "never":
        lines.append(f"- *Wrong when*: {rule.wrong_when}.")
    return "\n".join(lines) + "\n"
