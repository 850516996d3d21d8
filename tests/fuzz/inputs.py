"""What the fuzzer feeds to the commands: sound files of every format, stores and configurations, then damaged.

Every file holds a canary where a stranger's own data can stand. Damage leaves a margin around it: it may be
removed, but not moved to a place where a name is expected.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

import stepgrade as sg
from stepgrade.store import NewRun, open_history
from tests.builders import make_step_profile
from tests.kineto_text import kineto_text
from tests.trace_builder import Run, make_trace

CANARY = "hf_canaryTOKEN0123456789"
MARGIN = 160
TOKENS = (
    b'"', b"'", b"{", b"}", b"[", b"]", b",", b":", b"\\", b"NaN", b"null", b"true", b"-", b"1e999", b"\0", b"},{",
    b"\r\n", b"[" * 3000, b'{"a":' * 1500, b"\xff\xfe", b"\\ud83d", b"9" * 400, b"0x10", b"-0.0", b"1E5",
    b'"traceEvents":[', b'"_profiler":', b"[[budget]]\n", b"a.b.c=1\n", b"\x1b[2J", b"<script>", b"]]>", b"::error::",
)  # fmt: skip
NUMBERS = (
    b"0", b"-1", b"1", b"1e-300", b"1e308", b"-1e308", b"9223372036854775807", b"9223372036854775808",
    b"18446744073709551615", b"18446744073709551616", b"1" + b"0" * 400, b"1" + b"0" * 5000, b'"x"', b"null", b"[]",
    b"{}", b"true", b"0.0000001", b"1e18", b"4294967296", b"nan", b"inf",
)  # fmt: skip
NAMES = (
    b'""', b"null", b'"kernel"', b'"cpu_op"', b'"user_annotation"', b'"python_function"', b'"ProfilerStep#3"',
    b'"ProfilerStep#' + b"9" * 4301 + b'"', b'"M"', b'"Optimizer.step#A.step"', b'"nn.Module: Block_1"', b"5",
    b'"' + b"x" * 5000 + b'"', b'"\\u0000\\u001b[31m\\u202e"', b'"<b>&\\"]]>"', b'"::stop-commands::x"',
    b'"\xf0\x9f\x98\x80|`*_"', b'"aten::mm"', b'"aten::convolution"', b'"ncclDevKernel_AllReduce"', b'"nccl:all_reduce"',
)  # fmt: skip


class Input(NamedTuple):
    """One command line with the files that it names; `out` is the format of what it prints."""

    kind: str
    argv: tuple[str, ...]
    files: dict[str, bytes]
    out: str = "terminal"
    environment: dict[str, str] = {}


def damaged(text: bytes, dice: random.Random) -> bytes:
    """Return the text with a few bytes, numbers and names changed, removed, repeated or cut off."""
    if dice.random() < 0.05:
        return text
    if dice.random() < 0.5 and text[:1] in b"{[" and CANARY.encode() in text:
        try:
            return _with_odd_values(text, dice)
        except ValueError:  # a journal is one object per line
            pass
    body = bytearray(text)
    for _ in range(dice.choice((1, 1, 1, 2, 3, 8, 30))):
        dice.choice((_flip, _insert, _remove, _repeat, _renumber, _renumber, _rename, _cut))(body, dice)
    return bytes(body)


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, 1e-300, 1e308, -1e308, 2**53, 2**63 - 1, 2**63, 2**64, 10**30, -(2**70), "", "12",
    "x" * 999, "\x00\x1b[31m\u202e", '<b>&"]]>', "::error::x", "\ud800", [], {}, [[]], {"a": None}, [1, 2, 3], ["a"],
    "ProfilerStep#" + "9" * 4301, "kernel", "cpu_op", "aten::mm", "nccl:all_reduce", "c10::BFloat16",
)  # fmt: skip


def _with_odd_values(text: bytes, dice: random.Random) -> bytes:
    """Return a JSON text that is still one, with some values and keys replaced, removed or repeated."""
    document = json.loads(text)
    for _ in range(dice.choice((1, 1, 2, 3, 8))):
        holder: Any = document
        while True:
            keys = [*holder] if isinstance(holder, dict) else [*range(len(holder))]
            keys = [
                key for key in keys if CANARY not in str(holder[key]) or isinstance(holder[key], dict | list)
            ]
            if not keys:
                break
            key = dice.choice(keys)
            inner = holder[key]
            if isinstance(inner, dict | list) and inner and dice.random() < 0.85:
                holder = inner
                continue
            if CANARY in str(inner):
                break
            chance = dice.random()
            if chance < 0.2:
                del holder[key]
            elif chance < 0.35 and isinstance(inner, int | float):
                holder[key] = inner * dice.choice((0, -1, 1e6, 1e-6, 1e300))
            elif chance < 0.45 and isinstance(holder, list):
                holder[key:key] = [inner] * dice.choice((1, 3, 50))
            else:
                holder[key] = dice.choice(VALUES)
            break
    return json.dumps(document, indent=dice.choice((None, 1))).encode()


def _place(body: bytearray, dice: random.Random) -> int:
    """Return a place that is not near the canary."""
    for _ in range(20):
        at = dice.randrange(len(body) + 1)
        low = max(0, at - MARGIN)
        if CANARY.encode()[:8] not in body[low : at + MARGIN]:
            return at
    return 0


def _flip(body: bytearray, dice: random.Random) -> None:
    at = _place(body, dice)
    if at < len(body):
        body[at] ^= 1 << dice.randrange(8)


def _insert(body: bytearray, dice: random.Random) -> None:
    at = _place(body, dice)
    body[at:at] = dice.choice((*TOKENS, bytes((dice.randrange(256),))))


def _remove(body: bytearray, dice: random.Random) -> None:
    low, high = sorted((_place(body, dice), _place(body, dice)))
    if dice.random() < 0.8:
        high = min(high, low + dice.choice((1, 3, 50, 2000)))
        if CANARY.encode()[:8] in body[max(0, high - MARGIN) : high + MARGIN]:
            return
    del body[low:high]


def _repeat(body: bytearray, dice: random.Random) -> None:
    at, low = _place(body, dice), _place(body, dice)
    piece = bytes(body[low : low + dice.choice((10, 300, 5000))])
    if CANARY.encode()[:8] not in piece and not piece.endswith(b"hf_"):
        body[at:at] = piece * dice.choice((1, 1, 3))


def _cut(body: bytearray, dice: random.Random) -> None:
    if dice.random() < 0.3:
        del body[_place(body, dice) :]


def _replace(body: bytearray, dice: random.Random, pattern: bytes, values: tuple[bytes, ...]) -> None:
    at = _place(body, dice)
    match = re.compile(pattern).search(body, at, at + 2000)
    if match and CANARY.encode()[:8] not in body[max(0, match.start() - MARGIN) : match.end() + MARGIN]:
        body[match.start() : match.end()] = dice.choice(values)


def _renumber(body: bytearray, dice: random.Random) -> None:
    _replace(body, dice, rb"-?\d+(\.\d+)?([eE][+-]?\d+)?", NUMBERS)


def _rename(body: bytearray, dice: random.Random) -> None:
    _replace(body, dice, rb'"[^"]{0,40}"', NAMES)


def packed(text: bytes, dice: random.Random) -> bytes:
    """Return the text, sometimes gzipped, sometimes with the gzip data damaged."""
    chance = dice.random()
    if chance < 0.85:
        return text
    zipped = gzip.compress(text, 1, mtime=0)
    return zipped if chance < 0.92 else damaged(zipped, dice)


@cache
def traces() -> tuple[bytes, ...]:
    """Return sound traces: on a device, on a host, of several ranks in one file, of 2021."""
    texts = []
    for run in (Run(steps=3, layers=2), Run(steps=2, layers=1)):
        document = json.loads(kineto_text(make_trace(run)))
        document["environ"] = {"HF_TOKEN": CANARY}
        document["traceEvents"][len(document["traceEvents"]) // 2]["args"]["my_secret"] = CANARY
        texts.append(json.dumps(document, indent=1).encode())
        host = {
            **document,
            "traceEvents": [e for e in document["traceEvents"] if e["cat"] in ("cpu_op", "user_annotation")],
        }
        texts.append(json.dumps(host).encode())
    small = json.loads(texts[2])["traceEvents"]
    merged = [{**e, "pid": rank, "args": {**e["args"], "rank": rank}} for rank in range(3) for e in small]
    texts.append(json.dumps({"traceEvents": merged}).encode())
    texts.append(texts[2].replace(b'"cpu_op"', b'"Operator"').replace(b'"kernel"', b'"Kernel"'))
    texts.append(json.dumps(small).encode())
    return tuple(texts)


@cache
def profiles() -> tuple[bytes, ...]:
    """Return sound profiles that are one JSON object."""
    step = json.loads(make_step_profile())
    step["my_secret"] = {"token": CANARY}
    step["samples_ms"] = [100.0 + n % 7 for n in range(30)]
    step["per_layer"] = [
        {"layer": n, "fwd_ms": 1.0, "bwd_ms": 2.0, "ops": {"qkv": 0.5}, "x": CANARY} for n in range(4)
    ]
    recorded = {
        **step,
        "stepgrade": {
            "world_size": 2,
            "device": {"name": "NVIDIA H100 80GB HBM3", "kind": "cuda"},
            "versions": {"torch": "2.13.0"},
            "config": {"model": "Llama", "batch_size": 4, "autocast": "bf16"},
            "loss": {"first": 4.0, "last": 2.0},
            "notes_coded": [{"code": "a", "text": "b"}],
            "hidden": CANARY,
        },
    }
    parity = {
        "runtime": "ours", "throughput_tok_s": 100.0, "step_time_ms": 10.0, "kernel_launches_per_step": 5,
        "ops": {"qkv": 1.0, "mlp": 2.0, "attention": 0.5}, "my_secret": CANARY,
    }  # fmt: skip
    apr = {k: v for k, v in step.items() if k != "steps"} | {
        "_profiler": "apr_training_profiler_v1",
        "steps_profiled": 10,
    }
    return tuple(json.dumps(document, indent=2).encode() for document in (step, recorded, apr, parity))


@cache
def card() -> bytes:
    """Return a sound scorecard with a canary among keys of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.json")
        path.write_bytes(profiles()[1])
        document = json.loads(sg.score(sg.load(path)).to_json())
    return json.dumps({**document, "my_secret": CANARY}).encode()


@cache
def journal() -> bytes:
    """Return a sound journal."""
    head = {"_recording": 1, "layers": ["a", "b"], "tokens_per_step": 128, "stepgrade": {"hidden": CANARY}}
    sums = {
        "steps": 5,
        "wall_ms": 50.0,
        "phases_ms": {"forward": 20.0},
        "layers_ms": [[0, 1.0, 2.0, 0.0]],
        "samples_ms": [10.0] * 5,
    }
    lines = [head, {"warmup": sums}, *({"steady": sums, "recorded_steps": n, "x": CANARY} for n in range(3))]
    return b"\n".join(map(msgspec.json.encode, lines)) + b"\n"


@cache
def logs() -> tuple[bytes, ...]:
    """Return sound logs: plain text around a profile, and one that quotes it."""
    profile = json.loads(profiles()[0])
    text = json.dumps(
        {"_profiler": "step_profiler_v2", **{k: v for k, v in profile.items() if k != "_profiler"}}
    )
    plain = f"epoch 1 loss 3.2\nexport HF_TOKEN={CANARY} \n" + "step\n" * 60 + text + "\ndone\n"
    quoted = json.dumps({"stdout": plain, "env": {"TOKEN": CANARY}})
    return plain.encode(), quoted.encode()


@cache
def store() -> bytes:
    """Return a history of a dozen runs."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "p.json")
        path.write_bytes(profiles()[1])
        card = sg.score(sg.load(path))
        with open_history(str(Path(folder, "history.db"))) as history:
            for number in range(12):
                history.add(
                    NewRun(card=card, branch="main" if number % 3 else "dev", labels={"n": str(number)})
                )
        return Path(folder, "history.db").read_bytes()


CONFIG = f"""# token {CANARY}
[gate]
allow = 0.02
detect = 0.1
cannot_tell = "pass"
fail_on = ["grade:F"]

[[budget]]
metric = "step_time_ms"
device = "*"
at_most = 500.0

[[budget]]
metric = "op:q*"
allow = 0.1

[[waiver]]
metric = "step_time_ms"
until = 2030-01-01
reason = "known"

[limits]
unexplained_share = 0.1

[rules]
ignore = []
""".encode()
DEVICE = b"""name = "Mine"
peak_bw_gb_s = 1000.0
memory_gb = 80.0

[peak_tflops]
bf16 = 500.0
"""
MODEL = json.dumps(
    {
        "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "head_dim": 128,
        "tie_word_embeddings": False, "_name_or_path": CANARY,
    },
    indent=1,
).encode()  # fmt: skip
ODD_WORDS = (
    "0", "-1", "nan", "inf", "1e308", "1e-320", "9" * 30, "", " ", "\udcff", "\u202e", "é", "x" * 3000, "main\n::error::x",
    "=", "a=b", "%", "*", "../..", "2024-02-30", "9999-99-99", "18446744073709551616",
)  # fmt: skip


def _formats(dice: random.Random, *extra: str) -> str:
    return dice.choice(("terminal", "json", "markdown", "html", "json", "html", *extra))


def _run_options(dice: random.Random) -> list[str]:
    """Return options that make a run gradable, or an odd value for one."""
    words = []
    if dice.random() < 0.5:
        words += ["--device", dice.choice(("h100-sxm5-80gb", "rtx-4060-laptop"))]
    if dice.random() < 0.5:
        words += ["--tokens-per-step", dice.choice(("4096", "1e300", "0.5"))]
    if dice.random() < 0.1:
        flag = dice.choice(
            (
                "--throughput",
                "--peak-bw",
                "--peak-tflops",
                "--flops-per-token",
                "--bytes-per-token",
                "--link",
                "--world-size",
                "--tokens-per-step",
            )
        )
        words += [flag, dice.choice(ODD_WORDS)]
    return words


def _of_trace(dice: random.Random) -> Input:
    text = packed(damaged(dice.choice(traces()), dice), dice)
    command = dice.choice(("score", "score", "inspect", "convert", "gate"))
    if command == "gate":
        to = dice.choice(("junit", "sarif", "html", "json", "badge", "github"))
        return Input(
            "trace",
            ("gate", "t.json", "--baseline", "b.json", "--format", to),
            {"t.json": text, "b.json": card()},
            to,
        )
    if command == "convert":
        return Input("trace", ("convert", "t.json"), {"t.json": text}, "json")
    to = _formats(dice) if command == "score" else dice.choice(("terminal", "json", "markdown"))
    words = _run_options(dice) if command == "score" else []
    if dice.random() < 0.1:
        words += ["--steps", dice.choice(("0-1", "1-2", "5", "0-999999999"))]
    return Input("trace", (command, "t.json", "--format", to, *words), {"t.json": text}, to)


def _of_ranks(dice: random.Random) -> Input:
    files = {
        f"runs/rank{n}.json": packed(damaged(traces()[2], dice), dice) for n in range(dice.choice((1, 2, 3)))
    }
    files["runs/other.json"] = damaged(profiles()[0], dice)
    to = _formats(dice)
    return Input("ranks", ("score", "runs", "--format", to), files, to)


def _of_profile(dice: random.Random) -> Input:
    text = packed(damaged(dice.choice(profiles()), dice), dice)
    command = dice.choice(("score", "score", "inspect", "convert", "v1"))
    if command == "v1":
        return Input(
            "profile",
            ("score", "p.json", "--contract", "v1", "--throughput", "100", *_run_options(dice)),
            {"p.json": text},
        )
    if command == "convert":
        return Input("profile", ("convert", "p.json"), {"p.json": text}, "json")
    to = _formats(dice) if command == "score" else dice.choice(("terminal", "json", "markdown"))
    words = _run_options(dice) if command == "score" else []
    if dice.random() < 0.2 and command == "score":
        words += [
            "--save",
            "--branch",
            dice.choice(ODD_WORDS),
            "--label",
            "a=" + dice.choice(ODD_WORDS),
            "--commit",
            dice.choice(ODD_WORDS),
            "--history",
            "h.db",
        ]
    return Input("profile", (command, "p.json", "--format", to, *words), {"p.json": text}, to)


def _of_baseline(dice: random.Random) -> Input:
    text = packed(damaged(card(), dice), dice)
    to = dice.choice(("terminal", "junit", "sarif", "html", "json", "badge", "github", "markdown"))
    argv = ("gate", "p.json", "--baseline", "b.json", "--format", to)
    if dice.random() < 0.3:
        to = _formats(dice)
        argv = ("score", "p.json", "--baseline", "b.json", "--format", to)
    return Input("baseline", argv, {"p.json": profiles()[1], "b.json": text}, to)


def _of_parity(dice: random.Random) -> Input:
    ours, theirs = (damaged(dice.choice((*profiles(), traces()[2])), dice) for _ in range(2))
    to = dice.choice(("terminal", "json", "markdown", "html"))
    words = ("--contract", "v1") if dice.random() < 0.1 else ("--format", to)
    return Input(
        "parity",
        ("parity", "a.json", "b.json", *words),
        {"a.json": ours, "b.json": theirs},
        to if words[0] == "--format" else "terminal",
    )


def _of_journal(dice: random.Random) -> Input:
    to = _formats(dice)
    return Input(
        "journal",
        ("score", "j.jsonl", "--format", to, *_run_options(dice)),
        {"j.jsonl": packed(damaged(journal(), dice), dice)},
        to,
    )


def _of_log(dice: random.Random) -> Input:
    to = _formats(dice)
    text = packed(damaged(dice.choice(logs()), dice), dice)
    return Input("log", ("score", "run.log", "--format", to), {"run.log": text}, to)


def _of_named_format(dice: random.Random) -> Input:
    text = damaged(
        dice.choice((*profiles(), *traces()[:3], *logs(), journal(), card(), CONFIG, store()[:6000])), dice
    )
    name = dice.choice(("kineto", "journal", "scorecard", "parity_profile", "step_profile", "log", "nothing"))
    to = dice.choice(("terminal", "json"))
    return Input(
        "forced format", ("score", "f", "--input-format", name, "--format", to), {"f": packed(text, dice)}, to
    )


def _of_store(dice: random.Random) -> Input:
    body = bytearray(store())
    for _ in range(dice.choice((1, 2, 5, 40))):
        at = dice.randrange(len(body))
        if dice.random() < 0.5:
            body[at] = dice.randrange(256)
        else:
            piece = dice.choice((dice.randbytes(40), b"\xff" * 300, b"\0" * 4096))
            body[at : at + len(piece)] = piece
    if dice.random() < 0.1:
        del body[dice.randrange(len(body)) :]
    place = ("--history", "h.db")
    argv, to = dice.choice(
        (
            (("history", "list", *place), "terminal"),
            (("history", "trend", *place), "terminal"),
            (("history", "show", str(dice.randrange(14)), "--format", "json", *place), "json"),
            (("history", "show", "3", *place), "terminal"),
            (("history", "export", *place), "lines"),
            (("history", "add", "p.json", *place), "terminal"),
            (("gate", "p.json", "--against", "history:main", "--format", "json", *place), "json"),
            (("gate", "p.json", "--against", "history:main", "--format", "html", *place), "html"),
        )
    )
    return Input("store", argv, {"h.db": bytes(body), "p.json": profiles()[1]}, to)


def _of_config(dice: random.Random) -> Input:
    text = damaged(CONFIG, dice)
    if dice.random() < 0.05:
        text += dice.choice(
            (
                b"x = " + b"[" * 2000,
                b"a" + b".a" * 20000 + b"=1\n",
                b"b=0x" + b"f" * 9000,
                b"c=" + b"1" * 5000,
            )
        )
    to = dice.choice(("terminal", "junit", "sarif", "html", "json"))
    argv = ("gate", "p.json", "--baseline", "b.json", "--budgets", "c.toml", "--format", to)
    if dice.random() < 0.3:
        to = _formats(dice)
        argv = ("score", "p.json", "--config", "c.toml", "--format", to)
    return Input("configuration", argv, {"p.json": profiles()[1], "b.json": card(), "c.toml": text}, to)


def _of_device(dice: random.Random) -> Input:
    to = dice.choice(("terminal", "json"))
    if dice.random() < 0.5:
        argv = ("score", "p.json", "--device-file", "d.toml", "--tokens-per-step", "4096", "--format", to)
        return Input("device file", argv, {"p.json": profiles()[0], "d.toml": damaged(DEVICE, dice)}, to)
    argv = (
        "estimate",
        "--model",
        "config.json",
        "--device",
        "h100-sxm5-80gb",
        "--batch",
        "4",
        "--seq",
        "2048",
        "--format",
        to,
    )
    if dice.random() < 0.2:
        flag = dice.choice(
            (
                "--batch",
                "--seq",
                "--micro-batches",
                "--rank",
                "--world-size",
                "--packed-seq",
                "--tensor-parallel",
            )
        )
        argv += (flag, dice.choice(ODD_WORDS))
    return Input("model config", argv, {"config.json": damaged(MODEL, dice)}, to)


def _of_words(dice: random.Random) -> Input:
    """Return a command line with odd words and an odd environment over sound files."""
    files = {"p.json": profiles()[1], "h.db": store(), "é\udcff.json": profiles()[0]}
    odd = dice.choice(ODD_WORDS)
    argv, to = dice.choice(
        (
            (("history", "trend", odd, "--history", "h.db"), "terminal"),
            (("history", "list", "--branch", odd, "--history", "h.db"), "terminal"),
            (("history", "show", odd, "--history", "h.db"), "terminal"),
            (
                ("gate", "p.json", "--against", "history:" + odd, "--history", "h.db", "--format", "json"),
                "json",
            ),
            (("score", "é\udcff.json", "--format", "json"), "json"),
            (("score", "é\udcff.json", "--save", "--branch", odd, "--history", "h.db"), "terminal"),
            (("score", "p.json", "--steps", odd), "terminal"),
            (("score", "p.json", "--allow-different", odd), "terminal"),
            (("score", odd), "terminal"),
            (("gate", "p.json", "--fail-on", odd), "terminal"),
            (("devices", odd), "terminal"),
            (("devices", "--filter", odd), "terminal"),
            ((odd,), "terminal"),
            (("score", "p.json"), "terminal"),
            (("score", "--help"), "terminal"),
        )
    )
    environment = (
        {"COLUMNS": dice.choice(("", "0", "-5", "1", "17", "9" * 30, "²", "x", "80"))}
        if dice.random() < 0.6
        else {}
    )
    return Input("words", argv, files, to, environment)


KINDS: dict[str, tuple[int, Callable[[random.Random], Input]]] = {
    "trace": (24, _of_trace),
    "ranks": (5, _of_ranks),
    "profile": (14, _of_profile),
    "baseline": (8, _of_baseline),
    "parity": (8, _of_parity),
    "journal": (7, _of_journal),
    "log": (7, _of_log),
    "forced format": (5, _of_named_format),
    "store": (9, _of_store),
    "configuration": (6, _of_config),
    "device file": (5, _of_device),
    "words": (4, _of_words),
}
_WEIGHTS = [weight for weight, _ in KINDS.values()]


def make_input(seed: int, number: int) -> Input:
    """Return the input of that number: the same for the same seed."""
    dice = random.Random(f"{seed}:{number}")
    _, make = dice.choices([*KINDS.values()], _WEIGHTS)[0]
    return make(dice)


def prepare() -> dict[str, Any]:
    """Make all sound files once, before the first process is forked."""
    return {
        "traces": len(traces()),
        "profiles": len(profiles()),
        "others": [card(), journal(), logs(), store()] and 4,
    }
