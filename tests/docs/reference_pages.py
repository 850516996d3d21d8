"""docs/api.md and docs/config.md, written from the code itself."""

from __future__ import annotations

import inspect
import textwrap
import types
import typing
from collections.abc import Callable, Iterator

import msgspec
from msgspec import structs

import stepgrade as sg
from stepgrade import errors
from stepgrade.cli.run_defaults import run_keys
from stepgrade.config import Budget, DialectTable, FilesTable, GateTable, Waiver
from stepgrade.config.limits import Limits

API = """\
# Python

Everything in `stepgrade.__all__`, generated from the code; modules below `stepgrade` may change without notice
([releasing.md](releasing.md)). `help(sg.NAME)` shows types, and the fields and methods of results.
{results} have `to_dict()` and `to_json()`.

```python
import stepgrade as sg

profile = sg.load("examples/traces/gpt_naive.json.gz")
before = sg.load("examples/traces/gpt_fused.json.gz")
card = sg.score(profile, setup=sg.Setup(peak_tflops=0.0858), baseline=before)
print(card.grade, card.bottleneck, [finding.rule for finding in card.findings])
print(sg.render(card, to="markdown"))
```
"""
ERRORS = """\
## Errors

A `StepgradeError` has `problem`, `where`, `hint` and `exit_code`.

```text
{errors}
```
"""
# What the page lists, in the order in which people need it.
SECTIONS = {
    "Read and grade a run": (
        "load", "score", "render", "inspect", "what_if", "convert", "load_config", "register_cost",
        "Profile", "Scorecard", "Finding", "Setup", "Config", "AssumedChange", "WhatIf", "Inspection", "Trace",
        "Cost",
    ),
    "Compare runs": ("gate", "load_baseline", "parity", "Baseline", "GateReport", "ParityReport"),
    "Keep a history": ("history", "Runs", "History", "NewRun", "Selection"),
    "Plan a run": (
        "devices", "estimate", "plan", "plan_each", "Plan", "Parallelism", "Cluster", "PlanRequest", "Anchor",
        "Estimate", "PlanTable", "PlanMatrix", "DeviceTable",
    ),
    "Record a run": ("start_recording", "Recorder"),
}  # fmt: skip
# Types that users construct: their fields are listed. Fields of results are in contract.md.
_GIVEN = frozenset({
    "Anchor", "AssumedChange", "Cluster", "Config", "Cost", "NewRun", "Parallelism", "Plan", "PlanRequest",
    "Selection", "Setup",
})  # fmt: skip
_METHODS = frozenset({"Baseline", "Recorder", "Runs", "Scorecard"})
CONFIG = """\
# stepgrade.toml

A project's settings: `./stepgrade.toml`, or the file given with `--config`. Unknown keys are refused. Generated from the code.

```toml
[run]
device = "h100-sxm5-80gb"
model = "config.json"
batch = 2
seq = 8192
world_size = 8
data_parallel = "fsdp"

[gate]
allow = 0.01
fail_on = ["grade:D"]

[[budget]]
metric = "step_time_ms"
device = "h100-*"
allow = 0.02

[[waiver]]
metric = "peak_memory_bytes"
until = 2027-01-31
reason = "the larger vocabulary"

[rules]
ignore = ["tf32-matmuls"]
```
"""
RUN = """\
## `[run]`

Command-line options to set once, with `_` for `-`; commands without the option ignore it. Precedence: flag, environment
variable (`STEPGRADE_RUN_BATCH=4` for `batch`), this file, what the run shows. `model` and `device_file` are relative to this
file. In Python, pass a `Setup` instead.

| key | meaning |
|---|---|
"""
LIMITS = """\
## `[limits]`

Thresholds of the [rules](rules.md) and their defaults. Comments give the source, or our reason.

```toml
[limits]
"""
_TABLES = {
    "[gate]": (GateTable, {
        "allow": "changes up to this share never fail",
        "detect": "the smallest change the gate must detect; with more noise it cannot tell",
        "run_noise": "how much identical runs differ, if there are too few to measure",
        "cannot_tell": "verdict if the noise is too large",
        "probably_slower": "verdict for a slowdown that is probable (95 %) but not sure (99 %)",
        "fail_on": "grades that fail, such as `grade:D`",
        "allow_different": "fingerprint fields that may differ",
    }),
    "[[budget]]": (Budget, {
        "metric": "`step_time_ms`, `throughput_tok_s`, `peak_memory_bytes`, …, `op:NAME`, `layer:NAME`",
        "device": "device pattern",
        "allow": "instead of the gate's",
        "detect": "instead of the gate's",
        "direction": "which change counts",
        "at_most": "absolute bound",
        "at_least": "absolute bound",
    }),
    "[[waiver]]": (Waiver, {
        "metric": "metric pattern",
        "until": "last day",
        "reason": "shown in every report",
        "device": "device pattern",
    }),
    "[[dialect]]": (DialectTable, {
        "name": "the framework's name in notes",
        "contains": "text in every step line, and in few others",
        "fields": "the text before each number ([logs.md](logs.md))",
        "line": "instead of `fields`: a template, with `{name}` for each number and `{}` for any text",
        "mean": "what printed times average: one `step`, the `interval` since the last line, or all so far (`running`)",
    }),
    "[files]": (FilesTable, {
        "readable_by": "who may read and write new histories, recordings and journals: `owner`, `group` or `all`, within the umask",
    }),
}  # fmt: skip


_DESCRIBED = {
    "Scorecard": "contract.md#fields-of-a-v2-scorecard",
    "Finding": "contract.md#findings",
    "WhatIf": "contract.md#fields-of-a-what-if",
    "Estimate": "contract.md#fields-of-an-estimates-memory",
    "PlanTable": "contract.md#fields-of-a-plan",
    "PlanMatrix": "contract.md#fields-of-plans-side-by-side",
}


def reference_pages() -> dict[str, str]:
    """Return the pages by their names under docs/."""
    tree = inspect.cleandoc((errors.__doc__ or "").split("\n\n")[1])
    results = [f"`{name}`" for name in sg.__all__ if hasattr(getattr(sg, name), "to_json")]
    api = [API.format(results=f"{', '.join(results[:-1])} and {results[-1]}")]
    for section, names in SECTIONS.items():
        api += [f"## {section}\n", *(_entry(name) for name in names)]
    config = [CONFIG, _run(), *(_table(name, *about) for name, about in _TABLES.items()), _limits()]
    return {"api.md": "\n".join([*api, ERRORS.format(errors=tree)]), "config.md": "\n".join(config)}


def _run() -> str:
    rows = []
    for key, option in run_keys().items():
        meaning, bracket, default = (option.help or "").partition(" (default")
        if option.choices and option.metavar is None:
            meaning = f"{meaning}: {', '.join(f'`{choice}`' for choice in option.choices)}"
        rows.append(f"| `{key}` | {meaning}{bracket}{default} |\n")
    return RUN + "".join(rows)


def _entry(name: str) -> str:
    value = getattr(sg, name)
    text = inspect.getdoc(value) or ""
    if not isinstance(value, type):
        return f"### `{name}`\n\n```text\n{name}{_signature(value)}\n```\n\n{text}\n"
    lines = [f"### `{name}`\n", text]
    if name in _DESCRIBED:
        lines.append(f"\n[Fields]({_DESCRIBED[name]}).")
    elif name in _GIVEN:
        lines.append(f"\nFields: {', '.join(f'`{field.name}`' for field in structs.fields(value))}.")
    if name in _METHODS:
        lines += ["", *(f"- `{method}{signature}`: {text}" for method, signature, text in _methods(value))]
    return "\n".join(lines).rstrip() + "\n"


def _methods(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield the public methods and properties by name, without those of a parent that has its own entry."""
    listed = {getattr(sg, name) for name in sg.__all__ if isinstance(getattr(sg, name), type)}
    parents = [parent for parent in reversed(kind.__mro__) if parent.__module__.startswith("stepgrade")]
    inherited = {name for parent in parents if parent in listed - {kind} for name in vars(parent)}
    members = {name: value for parent in parents for name, value in vars(parent).items()}
    for name, value in sorted(members.items(), key=lambda member: member[0]):
        if name.startswith("_") or name in inherited or name in ("to_dict", "to_json"):
            continue
        if isinstance(value, property):
            yield name, "", _first_line(value.fget)
        elif isinstance(value, types.FunctionType | classmethod):
            yield name, _signature(getattr(kind, name)), _first_line(getattr(kind, name))


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").split("\n")[0].removeprefix("Return ").removeprefix("Yield ")


def _signature(function: Callable[..., object]) -> str:
    """Return parameters with their defaults, without types, and the type of the result."""
    signature = inspect.signature(function)
    parameters = [
        part.replace(annotation=part.empty) for name, part in signature.parameters.items() if name != "self"
    ]
    shown = str(inspect.Signature(parameters))
    for struct in (part.default for part in parameters if isinstance(part.default, msgspec.Struct)):
        shown = shown.replace(repr(struct), f"{type(struct).__name__}()")
    result = "" if signature.return_annotation == "None" else f" -> {signature.return_annotation}"
    return "\n    ".join(textwrap.wrap(f"{shown}{result}", 108, break_long_words=False))


def _table(name: str, kind: type[msgspec.Struct], meanings: dict[str, str]) -> str:
    hints = typing.get_type_hints(kind)
    rows = [f"## `{name}`\n", "| key | default | meaning |", "|---|---|---|"]
    for field in structs.fields(kind):
        value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        default = "required" if field.required else "unset"
        if value is not None and not field.required:
            default = f"`{msgspec.json.encode(value).decode()}`"
        hint, meaning = hints[field.name], meanings[field.name]
        if typing.get_origin(hint) is typing.Literal and "`" not in meaning:
            meaning = f"{meaning}: {', '.join(f'`{choice}`' for choice in typing.get_args(hint))}"
        rows.append(f"| `{field.encode_name}` | {default} | {meaning} |")
    return "\n".join(rows) + "\n"


def _limits() -> str:
    rules = "`ignore`: names of rules to skip ([rules.md](rules.md))."
    lines = [f"## `[rules]`\n\n{rules}\n\n{LIMITS}".rstrip()]
    hints = typing.get_type_hints(Limits, include_extras=True)
    for field in structs.fields(Limits):
        source = next(mark.description for mark in typing.get_args(hints[field.name])[1:])
        reason = source.removeprefix("ours").removeprefix(": ").removeprefix("; ").removeprefix(", ")
        setting = f"{field.name} = {field.default:.12g}"
        lines.append(f"{setting:<36}# {reason}" if reason else setting)
    return "\n".join(lines) + "\n```\n"
