"""docs/api.md and docs/config.md, written from the code itself."""

from __future__ import annotations

import inspect
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

`import stepgrade as sg`. Everything public is listed here; modules below `stepgrade` may change without notice
([releasing.md](releasing.md)). Generated from the code.

```python
import stepgrade as sg

profile = sg.load("examples/traces/gpt_naive.json.gz")
before = sg.load("examples/traces/gpt_fused.json.gz")
card = sg.score(profile, setup=sg.Setup(peak_tflops=0.0858), baseline=before)
print(card.grade, card.bottleneck, [finding.rule for finding in card.findings])
print(sg.render(card, to="markdown"))
```

Every deliberate error is a `StepgradeError` with `problem`, `where`, `hint` and `exit_code`:

```text
{errors}
```
"""
CONFIG = """\
# stepgrade.toml

A project's settings in one file: `./stepgrade.toml`, or the file given with `--config`. An unknown name is refused
with the nearest known one. This page is generated from the code, and a test keeps the two in step.

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

[files]
readable_by = "group"

[limits]
input_warning_share = 0.05

[rules]
ignore = ["tf32-matmuls"]
```
"""
RUN = """\
## `[run]`

The device, the model and how it is trained, so that nobody types them twice: each key is an option of the command line
with `_` for `-`. Every command that takes the option uses it, and every other one ignores it. A flag wins over an
environment variable (`STEPGRADE_RUN_BATCH=4` for `batch`), that over the file, and the file over what is detected in
the run. `model` and `device_file` are relative to the file that names them. In Python, give a `Setup` instead.

| key | value | meaning |
|---|---|---|
"""
_TABLES = {
    "[gate]": (GateTable, {
        "allow": "a change up to this share is never a regression",
        "detect": "the smallest change that the gate must notice; with more noise it cannot tell",
        "run_noise": "how much identical runs differ, when there are too few to measure it",
        "cannot_tell": "the verdict when the noise is too large",
        "fail_on": "grades that fail, such as `grade:D`",
        "allow_different": "parts of the fingerprint that may differ",
    }),
    "[[budget]]": (Budget, {
        "metric": "`step_time_ms`, `throughput_tok_s`, `peak_memory_bytes`, …, `op:NAME`, `layer:NAME`",
        "device": "for which devices, as a pattern",
        "allow": "instead of the gate's",
        "detect": "instead of the gate's",
        "direction": "which change counts; `worse` knows which way is worse",
        "at_most": "an absolute bound",
        "at_least": "an absolute bound",
    }),
    "[[waiver]]": (Waiver, {
        "metric": "what may fail, as a pattern",
        "until": "the last day on which it may",
        "reason": "why; shown in every report",
        "device": "for which devices, as a pattern",
    }),
    "[[dialect]]": (DialectTable, {
        "name": "what the framework is called in notes",
        "contains": "text that is in every step line, and in few others",
        "fields": "the text before each number, by what the number means ([logs.md](logs.md))",
        "line": "instead of fields: the line as it is printed, with `{name}` for each number and `{}` for any text",
        "mean": "what printed times are the mean of: the step, the steps since the last line, all steps so far",
    }),
    "[files]": (FilesTable, {
        "readable_by": "who may read and write a new history, recording or journal, as far as the umask allows: with "
        '`"group"` and a umask of 002 the group may do both, with 022 it may read',
    }),
}  # fmt: skip


_DESCRIBED = {
    "Scorecard": "contract.md#fields-of-a-v2-scorecard",
    "WhatIf": "contract.md#fields-of-a-what-if",
}


def reference_pages() -> dict[str, str]:
    """Return the pages by their names under docs/."""
    tree = inspect.cleandoc((errors.__doc__ or "").split("\n\n")[1])
    api = [API.format(errors=tree), *(_entry(name) for name in sg.__all__ if name != "__version__")]
    config = [CONFIG, _run(), *(_table(name, *about) for name, about in _TABLES.items()), _limits()]
    return {"api.md": "\n".join(api), "config.md": "\n".join(config)}


def _run() -> str:
    rows = []
    for key, option in run_keys().items():
        takes = (
            "true or false"
            if option.nargs == 0
            else {int: "whole number", float: "number"}.get(option.type, "text")
        )
        if option.choices and option.metavar is None:
            takes = " or ".join(f'`"{choice}"`' for choice in option.choices)
        rows.append(f"| `{key}` | {takes} | {option.help} |\n")
    return RUN + "".join(rows)


def _entry(name: str) -> str:
    value = getattr(sg, name)
    lines = [f"## `{name}`\n", inspect.getdoc(value) or ""]
    if isinstance(value, type):
        if issubclass(value, msgspec.Struct):
            fields = ", ".join(f"`{field.name}`" for field in structs.fields(value))
            described = f"[described here]({_DESCRIBED[name]})" if name in _DESCRIBED else fields
            lines.append(f"\nFields: {described}.")
        lines += [f"\n- `{name}.{method}{signature}`: {text}" for method, signature, text in _methods(value)]
    else:
        lines.append(f"\n```text\n{name}{_signature(value)}\n```")
    return "\n".join(lines).rstrip() + "\n"


def _methods(kind: type) -> Iterator[tuple[str, str, str]]:
    """Yield the public methods and properties of ours, inherited ones too, by name."""
    ours = [parent for parent in reversed(kind.__mro__) if parent.__module__.startswith("stepgrade")]
    members = {name: value for parent in ours for name, value in vars(parent).items()}
    for name, value in sorted(members.items(), key=lambda member: member[0]):
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            yield name, "", _first_line(value.fget)
        elif isinstance(value, types.FunctionType | classmethod):
            yield name, _signature(getattr(kind, name)), _first_line(getattr(kind, name))


def _first_line(value: object) -> str:
    return (inspect.getdoc(value) or "").split("\n")[0]


def _signature(function: Callable[..., object]) -> str:
    """Return parameters and result, one parameter a line where they are many."""
    signature = inspect.signature(function)
    parameters = [part for name, part in signature.parameters.items() if name != "self"]
    shown = [_parameter(part) for part in parameters]
    keyword_only = [place for place, part in enumerate(parameters) if part.kind is part.KEYWORD_ONLY]
    if keyword_only and not any(part.kind is part.VAR_POSITIONAL for part in parameters):
        shown.insert(keyword_only[0], "*")
    result = str(signature.return_annotation)
    line = f"({', '.join(shown)}) -> {result}"
    return line if len(line) < 90 else "(\n" + "".join(f"    {text},\n" for text in shown) + f") -> {result}"


def _parameter(part: inspect.Parameter) -> str:
    """Return a parameter as the code has it: annotations are texts, defaults are values."""
    shown = f"{part.replace(annotation=part.empty, default=part.empty)!s}: {part.annotation}"
    if part.default is part.empty:
        return shown
    value = (
        f"{type(part.default).__name__}()" if isinstance(part.default, msgspec.Struct) else repr(part.default)
    )
    return f"{shown} = {value}"


def _table(name: str, kind: type[msgspec.Struct], meanings: dict[str, str]) -> str:
    hints = typing.get_type_hints(kind)
    rows = [f"## `{name}`\n", "| key | type | default | meaning |", "|---|---|---|---|"]
    for field in structs.fields(kind):
        value = field.default
        if value is msgspec.NODEFAULT and not field.required:
            value = field.default_factory()
        default = "required" if field.required else f"`{msgspec.json.encode(value).decode()}`"
        rows.append(
            f"| `{field.encode_name}` | {_type(hints[field.name])} | {default} | {meanings[field.name]} |"
        )
    return "\n".join(rows) + "\n"


def _type(hint: object) -> str:
    choices = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(f'`"{choice}"`' for choice in choices)
    if typing.get_origin(hint) is tuple:
        return "list of texts"
    kinds = {float: "number", str: "text", int: "whole number", type(None): ""}
    parts = choices if isinstance(hint, types.UnionType) else (hint,)
    return next(
        kinds.get(part, getattr(part, "__name__", str(part))) for part in parts if part is not type(None)
    )


def _limits() -> str:
    rules = "`ignore`: names of rules to skip ([rules.md](rules.md))."
    rows = [f"## `[rules]`\n\n{rules}\n", "## `[limits]`\n", "| key | default | source |", "|---|---|---|"]
    hints = typing.get_type_hints(Limits, include_extras=True)
    for field in structs.fields(Limits):
        source = next(mark.description for mark in typing.get_args(hints[field.name])[1:])
        rows.append(f"| `{field.name}` | {field.default:g} | {source} |")
    return "\n".join(rows) + "\n"
