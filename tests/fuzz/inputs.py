"""What the fuzzer feeds to the commands: sound files of every format, stores and configurations, then damaged.

Damage leaves a margin around the canary: it may be removed, but not moved to a place where a name is expected.
"""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, NamedTuple

from stepgrade.readers.registry import BUILT_IN
from tests.fuzz.samples import (
    CANARY,
    CONFIG,
    DEVICE,
    MODEL,
    SAMPLES,
    card,
    journal,
    logs,
    profiles,
    store,
    traces,
)

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
                holder[key] = deepcopy(dice.choice(VALUES))  # which later damage may change
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
    command = dice.choice(("score", "score", "inspect", "convert", "gate", "whatif"))
    if command == "whatif":
        to = dice.choice(("terminal", "json", "markdown"))
        return Input("trace", ("whatif", "t.json", "--format", to, *_changes(dice)), {"t.json": text}, to)
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


def _changes(dice: random.Random) -> list[str]:
    """Return changes of a step: none, sound ones, or an odd word for one."""
    words = []
    if dice.random() < 0.4:
        words += ["--faster", dice.choice(("gemm=2x", "*=3x", "host=1.5", "communication=0.5x", "input=9"))]
    if dice.random() < 0.3:
        words += ["--without", dice.choice(("sync", "data", "communication", "aten::*", "k", *ODD_WORDS))]
    if dice.random() < 0.2:
        words += dice.choice((["--launches", "0"], ["--launches", dice.choice(ODD_WORDS)], ["--link", "2x"]))
    return words


def _of_ranks(dice: random.Random) -> Input:
    files = {
        f"runs/rank{n}.json": packed(damaged(traces()[2], dice), dice) for n in range(dice.choice((1, 2, 3)))
    }
    files["runs/other.json"] = damaged(profiles()[0], dice)
    if dice.random() < 0.2:
        return Input("ranks", ("whatif", "runs", "--format", "json", *_changes(dice)), files, "json")
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
    sound = (*(text for texts in SAMPLES.values() for text in texts()), CONFIG, store()[:6000])
    text = damaged(dice.choice(sound), dice)
    name = dice.choice((*BUILT_IN, "nothing"))
    to = dice.choice(("terminal", "json"))
    return Input(
        "forced format", ("score", "f", "--input-format", name, "--format", to), {"f": packed(text, dice)}, to
    )


def _of_store(dice: random.Random) -> Input:
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
    return Input("store", argv, {"h.db": damaged_bytes(store(), dice), "p.json": profiles()[1]}, to)


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


def damaged_bytes(data: bytes, dice: random.Random, most: int = 40) -> bytes:
    """Return a binary file with some bytes changed, runs of bytes or pages overwritten, or its end cut off."""
    body = bytearray(data)
    for _ in range(dice.choice((1, 2, 5, most))):
        at = dice.randrange(len(body))
        if dice.random() < 0.5:
            body[at] = dice.randrange(256)
        else:
            piece = dice.choice((dice.randbytes(40), b"\xff" * 300, b"\0" * 4096))
            body[at : at + len(piece)] = piece
    if dice.random() < 0.1:
        del body[dice.randrange(len(body)) :]
    return bytes(body)


def _of_reader(name: str, dice: random.Random) -> Input:
    """Return a damaged file of one reader, for every command that takes any file."""
    sound = dice.choice(SAMPLES[name]())
    text = damaged_bytes(sound, dice) if b"\0" in sound[:4096] else damaged(sound, dice)
    command = dice.choice(("score", "score", "inspect", "convert", "parity", "gate"))
    to = "json"
    if command in ("score", "inspect"):
        to = _formats(dice) if command == "score" else dice.choice(("terminal", "json", "markdown"))
        argv: tuple[str, ...] = (
            command,
            "f",
            "--format",
            to,
            *(_run_options(dice) if command == "score" else ()),
        )
    elif command == "convert":
        argv = ("convert", "f")
    else:
        to = dice.choice(("json", "html", "terminal"))
        argv = (command, "f", *(("--baseline",) if command == "gate" else ()), "g", "--format", to)
    return Input(name, argv, {"f": packed(text, dice), "g": profiles()[1]}, to)


HEADS = (
    b"SQLite format 3\0", b"PK\x03\x04", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x80\x04\x95", b"\x7fELF", b"\n\x10/host:CPU",
    b"GGUF", b"\x89HDF\r\n", b"%PDF-", b"<!doctype html>", b"\xff\xfe{", b"[", b"[[1,2],", b'[{"ph": ', b'{"traceEvents":[]}',
    b"import os\n", b"# x\n", b"step,loss\n1,2\n", b"BZh91AY&SY", b"\xfd7zXZ\0", b"NVR\0", b"memray", b"version https://git-lfs",
    b'{"nodes":', b'{"nbformat":', b'{"log_history":', b'{"verdict":', b" " * 70000, b"\n" * 70000, b"\0" * 70000,
)  # fmt: skip


def _of_stranger(dice: random.Random) -> Input:
    """Return a file that begins like one of another program."""
    rest = dice.choice(
        (b"", dice.randbytes(300), damaged(dice.choice(profiles()), dice), b"step 1 loss 2\n" * 5000)
    )
    command = dice.choice(("score", "inspect", "convert"))
    return Input("foreign", (command, "f"), {"f": packed(dice.choice(HEADS) + rest, dice)}, "terminal")


def _of_directory(dice: random.Random) -> Input:
    """Return a directory that is one run: of TensorBoard, of W&B or of MLflow, or a log beside a trace."""
    to = _formats(dice)
    table, events, state, wandb, _ = SAMPLES["metrics"]()
    values = b"".join(b"%d 2.5 %d\n" % (1_700_000_000_000 + 500 * step, step) for step in range(1, 60))
    store = {
        "runs/meta.yaml": b"status: 3\n",
        "runs/metrics/train/loss": damaged(values, dice),
        "runs/params/batch_size": damaged(b"8", dice),
        "runs/params/api_key": CANARY.encode(),
    }
    files = dice.choice(
        (
            {"runs/events.out.tfevents.1": damaged_bytes(events, dice), "runs/events.out.tfevents.2": events},
            {"runs/run.wandb": damaged_bytes(wandb, dice)},
            store,
            {"runs/a.csv": damaged(table, dice), "runs/trainer_state.json": damaged(state, dice)},
        )
    )
    if dice.random() < 0.3:
        both = {"a": damaged(dice.choice(logs()[2:]), dice), "b": damaged(traces()[2], dice)}
        return Input("directory", ("score", "a", "b", "--format", to), both, to)
    command = dice.choice(("score", "inspect")) if to != "html" else "score"
    return Input("directory", (command, "runs", "--format", to), files, to)


def _of_watch(dice: random.Random) -> Input:
    text = damaged(dice.choice((*logs(), journal(), profiles()[1])), dice)
    return Input("watch", ("watch", "run.log", "--once", *_run_options(dice)), {"run.log": text})


def _of_dialect(dice: random.Random) -> Input:
    """Return a log that is read with a pattern of its own, of which some are hard."""
    hard = dice.choice(
        (
            r"step=(?P<step>\d+) took (?P<step_ms>[\d.]+)",
            r"step=(?P<step>((\|+))+)z",
            r"step=(?P<step>(?:a|a)*)z",
            r"(?P<step>.*)\|.*\|.*\|.*\|.*!",
            r"(?P<step>(?:\w+\s?){2,})$",
            r"(?P<step>\d+){3}(?:0|1|[01])*x",
        )
    )
    text = f'[[dialect]]\nname = "own"\ncontains = "step="\npattern = \'{hard}\'\n'.encode()
    line = b"step=1 took 2.5 " + dice.choice((b"|", b"a", b"0", b"a ", b"01")) * 200
    log = damaged(b"".join(b"%s\nstep=%d took 100.5\n" % (line, n) for n in range(40)), dice)
    config = damaged(text, dice) if dice.random() < 0.3 else text
    argv = (dice.choice(("score", "watch")), "run.log", "--config", "c.toml")
    return Input(
        "dialect", (*argv, *(("--once",) if argv[0] == "watch" else ())), {"run.log": log, "c.toml": config}
    )


def _of_plan(dice: random.Random) -> Input:
    """Return a plan of many devices, or an estimate beside the peak of a run that was measured."""
    to = dice.choice(("terminal", "json", "markdown"))
    files = {"config.json": MODEL if dice.random() < 0.5 else damaged(MODEL, dice)}
    common = ("--model", "config.json", "--device", "h100-sxm5-80gb", "--seq", "2048", "--format", to)
    if dice.random() < 0.5:
        argv: tuple[str, ...] = ("estimate", *common, "--batch", "4", "--anchor", "a")
        peaks = (b'{"memory": {"peak_bytes": 17179869184}}', b'{"memory": {"reserved_bytes": 9e10}}')
        files["a"] = damaged(dice.choice((*peaks, *profiles()[:2], *SAMPLES["snapshot"]())), dice)
        return Input("plan", argv, files, to)
    odd = ("0", "7", "1e3", "1000000000", "9" * 30, "nan", "-1")
    counts = [dice.choice(odd if dice.random() < 0.2 else ("8", "64", "512", "4096")) for _ in range(2)]
    argv = ("plan", *common, "--devices", counts[0], "--global-batch", counts[1])
    if dice.random() < 0.3:
        argv += (dice.choice(("--per-node", "--network", "--top", "--rank")), dice.choice(ODD_WORDS))
    return Input("plan", argv, files, to)


def _of_repeats(dice: random.Random) -> Input:
    """Return runs that are compared with several others: repeats, and recordings of several ranks."""
    to = dice.choice(("terminal", "json", "html", "junit", "sarif"))
    files = {f"{name}.json": damaged(profiles()[4], dice) for name in "abc"}
    if dice.random() < 0.5:
        argv: tuple[str, ...] = (
            "gate",
            "a.json",
            "--repeat",
            "b.json",
            "--baseline",
            "g.json",
            "--baseline",
            "c.json",
        )
        return Input("repeats", (*argv, "--format", to), {**files, "g.json": card()}, to)
    to = _formats(dice)
    recorded = {
        f"runs/{name}": text.replace(b'"rank": 0', b'"rank": %d' % n)
        for n, (name, text) in enumerate(files.items())
    }
    return Input("repeats", ("score", "runs", "--format", to), recorded, to)


# Readers that have kinds of their own below; any other is fuzzed by its row in SAMPLES alone.
_OWN_KINDS = ("kineto", "journal", "scorecard", "parity_profile", "step_profile", "log")
KINDS: dict[str, tuple[int, Callable[[random.Random], Input]]] = {
    "trace": (22, _of_trace),
    "ranks": (5, _of_ranks),
    "profile": (14, _of_profile),
    "baseline": (8, _of_baseline),
    "parity": (8, _of_parity),
    "journal": (6, _of_journal),
    "log": (6, _of_log),
    "forced format": (5, _of_named_format),
    "store": (8, _of_store),
    "configuration": (5, _of_config),
    "device file": (4, _of_device),
    "words": (4, _of_words),
    "foreign": (2, _of_stranger),
    "repeats": (4, _of_repeats),
    "directory": (5, _of_directory),
    "watch": (2, _of_watch),
    "dialect": (1, _of_dialect),
    "plan": (2, _of_plan),
    **{name: (1 if name in _OWN_KINDS else 6, partial(_of_reader, name)) for name in SAMPLES},
}
_WEIGHTS = [weight for weight, _ in KINDS.values()]


def make_input(seed: int, number: int) -> Input:
    """Return the input of that number: the same for the same seed."""
    dice = random.Random(f"{seed}:{number}")
    _, make = dice.choices([*KINDS.values()], _WEIGHTS)[0]
    return make(dice)


def prepare() -> int:
    """Make all sound files once, before the first process is forked, and return how many there are."""
    return sum(len(sound()) for sound in SAMPLES.values()) + len((store(),))
