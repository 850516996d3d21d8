"""docs/rules.md, written from the rules and limits themselves."""

from __future__ import annotations

from itertools import groupby
from typing import get_type_hints

from stepgrade.analysis.limits import Limits
from stepgrade.analysis.rules import RULES
from stepgrade.analysis.rules.base import Rule

INTRO = """\
# Rules

What `stepgrade score` looks for, area by area. This page is written from the rules in
`src/stepgrade/analysis/rules/`; a test keeps them alike.

A rule is one question asked of the facts. What it finds has a claim, the numbers behind it, a severity, what to
do, how to see that it worked, and what it is worth: at most what the ledger holds in the accounts named under
*Worth*, and realistically the fraction given there. Where two rules see one cause there is one finding, and the
others are listed under it. Findings stand in the order of their realistic gain; doubts about the profile itself
come first, remarks (`info`) last.

Sources are the rules of other tools, by the initials of the tool: AL alloc · DL DLProf · GPF gpuprof · HF Hugging
Face's performance guide · HTA Holistic Trace Analysis · HYP Hyperloom · ME ml-engineering · NAI nsys-ai · NS Nsight
Systems · NVR nvidia-resiliency-ext · PM PyTorch's pattern matcher · REF the reference · SM SageMaker Debugger · TBP
torch-tb-profiler · TG PyTorch's tuning guide · TL TraceLens · TML TraceML · TS torchscope · XP XProf.

Every limit can be set, and every rule silenced, in a `stepgrade.toml` beside where the command runs, or in any file
given with `--config`:

```toml
[limits]
input_warning_share = 0.05

[rules]
ignore = ["tf32-matmuls"]
```
"""
_RUNTIMES = {"general": "", "pytorch": "PyTorch: ", "jax": "JAX: ", "reference": "The reference's runtime: "}


def rules_page() -> str:
    """Return the whole page."""
    parts = [INTRO]
    for area, members in groupby(RULES, key=lambda rule: rule.area):
        parts.append(f"## {area.capitalize()}\n")
        parts += [_rule(rule) for rule in members]
    return "\n".join([*parts, _limits()])


def _rule(rule: Rule) -> str:
    lines = [f"### `{rule.name}`\n", f"{rule.sees}\n", f"- *Evidence*: {rule.evidence}."]
    lines += [f"- *Fix*: {_RUNTIMES[runtime]}{text}" for runtime, text in rule.fix.items()]
    lines.append(f"- *Check*: {rule.check}")
    if rule.account:
        accounts = ", ".join(f"`{account}`" for account in rule.account.split("+"))
        lines.append(
            f"- *Worth*: up to what is in {accounts}; {rule.realistic:.0%} is realistic: {rule.because}."
        )
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
