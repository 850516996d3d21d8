"""What the fuzzer feeds to the commands: sound files of every format, stores and configurations, then damaged.

An input has a name: its number, after those of the inputs that its main file was made from, such as 12.400.5121.
It is the same for the same seed and name, whatever was run before it.
"""

from __future__ import annotations

import json
import random
from argparse import Action
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import NamedTuple

from stepgrade.cli.commands import COMMANDS, load_command
from stepgrade.readers.registry import BUILT_IN
from tests.fuzz import mutators
from tests.fuzz.mutators import packed
from tests.fuzz.mutators.lines import mutate_toml
from tests.fuzz.samples import (
    CANARY,
    CONFIG,
    DEVICE,
    MODEL,
    SAMPLES,
    card,
    clusters,
    journal,
    logs,
    profiles,
    store,
    traces,
)
from tests.fuzz.talk import ACCESS, TOKEN, a_request, bodies, damaged_request, good_answers, team_store

Name = tuple[int, ...]


class Input(NamedTuple):
    """One command line with the files that it names; `out` is the format of what it prints, or writes to a file.

    `main` is the first of its damaged files, as it was before it was packed: what is damaged further.
    """

    kind: str
    argv: tuple[str, ...]
    files: dict[str, bytes]
    out: str = "terminal"
    environment: dict[str, str] = {}
    main: bytes = b""
    peer: str = ""  # with whom it talks: see judging.py

    @property
    def written(self) -> str | None:
        """Return the file that the command is asked to write."""
        return self.argv[self.argv.index("-o") + 1] if "-o" in self.argv else None


class Dice(random.Random):
    """Chance from a seed; `parent` is damaged in the place of the first sound file, `main` is what came of it."""

    parent: bytes | None = None
    main: bytes | None = None


@cache
def _corpus() -> tuple[bytes, ...]:
    return (
        *(text for texts in SAMPLES.values() for text in texts()),
        CONFIG,
        MODEL,
        DEVICE,
        card(),
        journal(),
    )


def damaged(text: bytes, dice: random.Random) -> bytes:
    """Return a sound file, or what became of it before, with damage."""
    if isinstance(dice, Dice) and dice.parent is not None:
        text, dice.parent = dice.parent, None
    made = mutators.damaged(text, dice, _corpus(), SAMPLES["snapshot"]() + SAMPLES["flight_recorder"]())
    if isinstance(dice, Dice) and dice.main is None:
        dice.main = made
    return made


@cache
def formats(command: str) -> tuple[str, ...]:
    """Return the output formats of a command, such as `score` or `history list`, by its own parser."""
    name, _, action = command.partition(" ")
    parser = load_command(name)[1]
    inner = parser.actions[action] if action else parser
    found: Iterator[Action] = (one for one in inner._actions if "--format" in one.option_strings)
    option = next(found, None)
    return tuple(option.choices or ()) if option is not None else ()


def asked(command: str, dice: random.Random, *words: str) -> tuple[tuple[str, ...], str]:
    """Return words with an output format of the command, now and then into a file, and that format."""
    to = dice.choice(formats(command))
    words = (*words, "--format", to)
    if dice.random() < 0.08:
        words = (*words, "-o", "written.gz" if to == "perfetto" and dice.random() < 0.5 else "written")
    return words, to


ODD_WORDS = (
    "0", "-1", "nan", "inf", "1e308", "1e-320", "9" * 30, "", " ", "\udcff", "\u202e", "é", "x" * 3000, "main\n::error::x",
    "=", "a=b", "%", "*", "../..", "2024-02-30", "9999-99-99", "18446744073709551616",
)  # fmt: skip


def _run_options(dice: random.Random) -> list[str]:
    """Return options that make a run gradable, or an odd value for one."""
    words = []
    if dice.random() < 0.5:
        words += ["--device", dice.choice(("h100-sxm5-80gb", "rtx-4060-laptop"))]
    if dice.random() < 0.5:
        words += ["--tokens-per-step", dice.choice(("4096", "1e300", "0.5"))]
    if dice.random() < 0.1:
        flags = (
            "--throughput --peak-bw --peak-tflops --flops-per-token --bytes-per-token --link --world-size "
            "--tokens-per-step"
        )
        words += [dice.choice(flags.split()), dice.choice(ODD_WORDS)]
    return words


def _of_any_file(kind: str, text: bytes, dice: random.Random) -> Input:
    """Return a file for one of the commands that take any."""
    name = "t.json"
    command = dice.choice(
        ("score", "score", "score", "inspect", "convert", "gate", "what-if", "parity", "history add")
    )
    argv, to = asked(command, dice) if command != "history add" else ((), "terminal")
    files = {name: text, "b.json": card(), "p.json": profiles()[1]}
    if command == "what-if":
        argv += tuple(_changes(dice))
    elif command == "gate":
        argv += ("--baseline", "b.json")
    elif command == "parity":
        argv = ("p.json", *argv) if dice.random() < 0.5 else (*argv, "p.json")
    elif command == "score":
        argv += tuple(_run_options(dice))
        if dice.random() < 0.1:
            argv += ("--steps", dice.choice(("0-1", "1-2", "5", "0-999999999")))
    elif command == "history add":
        argv += ("--history", "h.db", *_run_options(dice))
    return Input(kind, (*command.split(), name, *argv), files, to)


def _of_trace(dice: random.Random) -> Input:
    return _of_any_file("trace", packed(damaged(dice.choice(traces()), dice), dice), dice)


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
    """Return ranks in files of their own, or in one: some are damaged, and some wait for each other."""
    ranks = dice.choice((*clusters(), *clusters(), (traces()[2],) * dice.choice((1, 2, 3))))
    share = dice.choice((0.3, 1.0))
    files = {
        f"runs/rank{n}.json": packed(damaged(text, dice), dice) if n == 0 or dice.random() < share else text
        for n, text in enumerate(ranks)
    }
    if dice.random() < 0.3:
        files["runs/other.json"] = damaged(profiles()[0], dice)
    command = dice.choice(("score", "score", "score", "what-if"))
    words, to = asked(command, dice)
    return Input(
        "ranks", (command, "runs", *words, *(_changes(dice) if command == "what-if" else ())), files, to
    )


def _of_profile(dice: random.Random) -> Input:
    text = packed(damaged(dice.choice(profiles()), dice), dice)
    if dice.random() < 0.15:
        words = ("--contract", "v1", "--throughput", "100", *_run_options(dice))
        return Input("profile", ("score", "p.json", *words), {"p.json": text})
    if dice.random() < 0.2:
        words, to = asked("score", dice, *_run_options(dice), "--save", "--history", "h.db")
        odd = ("--branch", dice.choice(ODD_WORDS), "--label", "a=" + dice.choice(ODD_WORDS), "--commit")
        return Input(
            "profile", ("score", "p.json", *words, *odd, dice.choice(ODD_WORDS)), {"p.json": text}, to
        )
    return _of_any_file("profile", text, dice)


def _of_baseline(dice: random.Random) -> Input:
    command = dice.choice(("gate", "gate", "score"))
    words, to = asked(command, dice, "--baseline", "b.json")
    files = {"p.json": profiles()[1], "b.json": packed(damaged(card(), dice), dice)}
    return Input("baseline", (command, "p.json", *words), files, to)


def _of_parity(dice: random.Random) -> Input:
    ours, theirs = (damaged(dice.choice((*profiles(), traces()[2])), dice) for _ in range(2))
    words, to = asked("parity", dice)
    if dice.random() < 0.1:
        words, to = ("--contract", "v1"), "terminal"
    return Input("parity", ("parity", "a.json", "b.json", *words), {"a.json": ours, "b.json": theirs}, to)


def _of_named_format(dice: random.Random) -> Input:
    sound = (*(text for texts in SAMPLES.values() for text in texts()), CONFIG, store()[:6000])
    text = damaged(dice.choice(sound), dice)
    name = dice.choice((*BUILT_IN, "nothing"))
    words, to = asked("score", dice, "--input-format", name)
    return Input("forced format", ("score", "f", *words), {"f": packed(text, dice)}, to)


def _of_store(dice: random.Random) -> Input:
    place = ("--history", "h.db")
    action = dice.choice(("list", "trend", "show", "export", "add", "prune", "gate", "gate", "admin"))
    files = {"h.db": damaged(store(), dice), "p.json": profiles()[1]}
    if dice.random() < 0.1:  # a journal of somebody's beside it
        files[dice.choice(("h.db-wal", "h.db-journal", "h.db-shm"))] = dice.choice(
            (b"", dice.randbytes(600), store()[:5000])
        )
    if action == "gate":
        words, to = asked("gate", dice, "--against", "history:main")
        return Input("store", ("gate", "p.json", *words, *place), files, to)
    if action == "admin":
        odd = dice.choice(
            (("tokens",), ("token", "--name", "x"), ("revoke", "1"), ("project", "p"), ("backup", "copy.db"))
        )
        return Input("store", ("admin", *odd, *place), files)
    given = {"show": (str(dice.randrange(14)),), "add": ("p.json",), "prune": ("--keep", "2", "--yes")}.get(
        action, ()
    )
    if action == "trend" and dice.random() < 0.5:
        given = (dice.choice(("throughput_tok_s", "step_time_ms", "x", "mfu")),)
    words, to = ((), "lines" if action == "export" else "terminal")
    if formats(f"history {action}"):
        words, to = asked(f"history {action}", dice)
        to = "lines" if (action, to) == ("list", "json") else to
    return Input("store", ("history", action, *given, *words, *place), files, to)


def _of_config(dice: random.Random) -> Input:
    text = mutate_toml(CONFIG, dice) if dice.random() < 0.4 else damaged(CONFIG, dice)
    if dice.random() < 0.05:
        big = (
            b"x = " + b"[" * 2000,
            b"a" + b".a" * 20000 + b"=1\n",
            b"b=0x" + b"f" * 9000,
            b"c=" + b"1" * 5000,
        )
        text += dice.choice(big)
    files = {"p.json": profiles()[1], "b.json": card(), "c.toml": text}
    command = dice.choice(("gate", "gate", "score"))
    words, to = asked(
        command,
        dice,
        *(("--baseline", "b.json", "--budgets") if command == "gate" else ("--config",)),
        "c.toml",
    )
    if dice.random() < 0.2:  # found by its name
        words, files["stepgrade.toml"] = words[:1] if command == "score" else words[:2], text
        words, to = (*words, "b.json")[:2] if command == "gate" else (), "terminal"
    return Input("configuration", (command, "p.json", *words), files, to)


def _of_device(dice: random.Random) -> Input:
    if dice.random() < 0.5:
        words, to = asked("score", dice, "--device-file", "d.toml", "--tokens-per-step", "4096")
        return Input(
            "device file",
            ("score", "p.json", *words),
            {"p.json": profiles()[0], "d.toml": damaged(DEVICE, dice)},
            to,
        )
    words, to = asked(
        "estimate",
        dice,
        "--model",
        "config.json",
        "--device",
        "h100-sxm5-80gb",
        "--batch",
        "4",
        "--seq",
        "2048",
    )
    if dice.random() < 0.2:
        flags = "--batch --seq --micro-batches --rank --world-size --packed-seq --tensor-parallel"
        words = (*words, dice.choice(flags.split()), dice.choice(ODD_WORDS))
    return Input("model config", ("estimate", *words), {"config.json": damaged(MODEL, dice)}, to)


def _of_words(dice: random.Random) -> Input:
    """Return a command line with odd words and an odd environment over sound files."""
    files = {"p.json": profiles()[1], "h.db": store(), "é\udcff.json": profiles()[0]}
    odd, place = dice.choice(ODD_WORDS), ("--history", "h.db")
    argv, to = dice.choice(
        (
            (("history", "trend", odd, *place), "terminal"),
            (("history", "list", "--branch", odd, *place), "terminal"),
            (("history", "list", "--label", f"{odd}=x", *place), "terminal"),
            (("history", "show", odd, *place), "terminal"),
            (("gate", "p.json", "--against", "history:" + odd, *place, "--format", "json"), "json"),
            (("score", "é\udcff.json", "--format", "json"), "json"),
            (("score", "é\udcff.json", "--save", "--branch", odd, *place), "terminal"),
            (("score", "p.json", "--steps", odd), "terminal"),
            (("score", "p.json", "--allow-different", odd), "terminal"),
            (("score", "p.json", "--engine", odd), "terminal"),
            (("score", odd), "terminal"),
            (("gate", "p.json", "--fail-on", odd), "terminal"),
            (("devices", odd), "terminal"),
            (("devices", "--filter", odd), "terminal"),
            ((odd,), "terminal"),
            (("score", "p.json"), "terminal"),
            (("score", "--help"), "terminal"),
        )
    )
    environment = {}
    if dice.random() < 0.6:
        environment["COLUMNS"] = dice.choice(("", "0", "-5", "1", "17", "9" * 30, "²", "x", "80"))
    return Input("words", argv, files, to, environment)


def _of_reader(name: str, dice: random.Random) -> Input:
    """Return a damaged file of one reader, for every command that takes any file."""
    return _of_any_file(name, packed(damaged(dice.choice(SAMPLES[name]()), dice), dice), dice)


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
    words, to = asked(command, dice)
    return Input("foreign", (command, "f", *words), {"f": packed(dice.choice(HEADS) + rest, dice)}, to)


def _of_directory(dice: random.Random) -> Input:
    """Return a directory that is one run: of TensorBoard, of W&B or of MLflow, or a log beside a trace."""
    table, events, state, wandb, _ = SAMPLES["metrics"]()
    values = b"".join(b"%d 2.5 %d\n" % (1_700_000_000_000 + 500 * step, step) for step in range(1, 60))
    which = dice.randrange(6)
    files = {}
    if which == 0:
        files = {"runs/events.out.tfevents.1": damaged(events, dice), "runs/events.out.tfevents.2": events}
    elif which == 1:
        files = {"runs/run.wandb": damaged(wandb, dice)}
    elif which == 2:
        files = {
            "runs/meta.yaml": b"status: 3\n",
            "runs/metrics/train/loss": damaged(values, dice),
            "runs/params/batch_size": damaged(b"8", dice),
            "runs/params/api_key": CANARY.encode(),
        }
    elif which == 3:
        files = {"runs/a.csv": damaged(table, dice), "runs/trainer_state.json": damaged(state, dice)}
    else:
        words, to = asked("score", dice)
        both = {"a": damaged(dice.choice(logs()[2:]), dice), "b": damaged(traces()[2], dice)}
        return Input("directory", ("score", "a", "b", *words), both, to)
    command = dice.choice(("score", "inspect"))
    words, to = asked(command, dice)
    return Input("directory", (command, "runs", *words), files, to)


def _of_watch(dice: random.Random) -> Input:
    text = damaged(dice.choice((*logs(), journal(), profiles()[1])), dice)
    return Input("watch", ("watch", "run.log", "--once", *_run_options(dice)), {"run.log": text})


def _of_dialect(dice: random.Random) -> Input:
    """Return a log that is read with a template of its own."""
    template = dice.choice(
        (
            "step={step} took {step_ms}",
            "step={step} {} {step_ms}",
            "{} {step} took {step_ms} {} {loss}",
            "{step} {step_ms} | | | !",
            "step={step}{loss}",
        )
    )
    text = f'[[dialect]]\nname = "own"\ncontains = "step="\nline = \'{template}\'\n'.encode()
    line = b"step=1 took 2.5 " + dice.choice((b"|", b"a", b"0", b"a ", b"01")) * 200
    log = damaged(b"".join(b"%s\nstep=%d took 100.5\n" % (line, n) for n in range(40)), dice)
    config = damaged(text, dice) if dice.random() < 0.3 else text
    argv = (dice.choice(("score", "watch")), "run.log", "--config", "c.toml")
    files = {"run.log": log, "c.toml": config}
    return Input("dialect", (*argv, *(("--once",) if argv[0] == "watch" else ())), files)


def _of_plan(dice: random.Random) -> Input:
    """Return a plan of many devices, or an estimate beside the peak of a run that was measured."""
    files = {"config.json": MODEL if dice.random() < 0.5 else damaged(MODEL, dice)}
    command = dice.choice(("plan", "estimate"))
    words, to = asked(command, dice, "--model", "config.json", "--device", "h100-sxm5-80gb", "--seq", "2048")
    if command == "estimate":
        peaks = (b'{"memory": {"peak_bytes": 17179869184}}', b'{"memory": {"reserved_bytes": 9e10}}')
        files["a"] = damaged(dice.choice((*peaks, *profiles()[:2], *SAMPLES["snapshot"]())), dice)
        return Input("plan", ("estimate", *words, "--batch", "4", "--anchor", "a"), files, to)
    odd = ("0", "7", "1e3", "1000000000", "9" * 30, "nan", "-1")
    counts = [dice.choice(odd if dice.random() < 0.2 else ("8", "64", "512", "4096")) for _ in range(2)]
    argv = ("plan", *words, "--devices", counts[0], "--global-batch", counts[1])
    if dice.random() < 0.3:
        argv += (dice.choice(("--per-node", "--network", "--top", "--rank")), dice.choice(ODD_WORDS))
    return Input("plan", argv, files, to)


def _of_repeats(dice: random.Random) -> Input:
    """Return runs that are compared with several others: repeats, and recordings of several ranks."""
    files = {f"{name}.json": damaged(profiles()[4], dice) for name in "abc"}
    if dice.random() < 0.5:
        words, to = asked("gate", dice, "--repeat", "b.json", "--baseline", "g.json", "--baseline", "c.json")
        return Input("repeats", ("gate", "a.json", *words), {**files, "g.json": card()}, to)
    recorded = {
        f"runs/{name}": text.replace(b'"rank": 0', b'"rank": %d' % n)
        for n, (name, text) in enumerate(files.items())
    }
    words, to = asked("score", dice)
    return Input("repeats", ("score", "runs", *words), recorded, to)


def _of_client(dice: random.Random) -> Input:
    """Return a command that asks a hostile server, now and then with a run in the outbox."""
    there, label = ("--history", "{server}"), ("--label", "run=new-4711")
    action = dice.choice(
        ["list", "show", "trend", "export", "add", "push", "push", "pull", "save", "gate", "outbox", "box"]
    )
    files = {"p.json": profiles()[1], "h.db": store()}
    to = "lines" if action == "export" else "terminal"
    argv: tuple[str, ...]
    if action in ("list", "show", "trend"):
        words, to = asked(f"history {action}", dice, *(("3",) if action == "show" else ()), *there)
        argv, to = ("history", action, *words), "lines" if (action, to) == ("list", "json") else to
    elif action == "gate":
        words, to = asked("gate", dice, "--against", "history:main", *there)
        argv = ("gate", "p.json", *words)
    elif action == "save":
        words, to = asked("score", dice, "--save", *label, *there)
        argv = ("score", "p.json", *words)
    elif action in ("push", "pull"):
        argv = ("history", action, "--to" if action == "push" else "--from", "{server}", "--history", "h.db")
    elif action in ("outbox", "box"):  # one that somebody brought along
        waiting = {"server": "http://127.0.0.1/mine", "key": "k", "body": bodies()["RunUpload"], "code": "x"}
        for number in range(dice.choice((1, 3))):
            files[f"box/run-{number:020}-k.json"] = damaged(json.dumps(waiting).encode(), dice)
        argv = (
            "history",
            *(("outbox",) if action == "outbox" else ("push", "--to", "{server}")),
            "--outbox",
            "box",
        )
    else:
        argv = ("history", action, *(("p.json", *label) if action == "add" else ()), *there)
    peer = f"client:{dice.random()}" + (" a run waits" if dice.random() < 0.3 else "")
    odd = (f"sg_a\n{CANARY}", f"sg_…{CANARY}", f"{CANARY}\x7f", f" {CANARY} ", "")
    token = dice.choice((TOKEN, TOKEN, TOKEN, TOKEN, TOKEN, *odd))
    return Input("client", argv, files, to, {"STEPGRADE_TOKEN": token}, peer=peer)


def _of_server(dice: random.Random) -> Input:
    """Return requests to the server, asked within the process."""
    asks = {}
    for number in range(dice.choice((1, 2, 4, 6))):
        asks[f"{number}{'cut' if dice.random() < 0.03 else ''}"] = a_request(dice, damaged)
    access = dice.choices([*ACCESS], (12, 5, 3, 1))[0]
    return Input("server", ("serve",), asks, peer=f"server:{access}")


def _of_http(dice: random.Random) -> Input:
    """Return bytes to a real server's socket."""
    asks = {}
    for number in range(dice.choice((2, 5, 8))):
        raw = a_request(dice, damaged)
        if dice.random() < 0.8:
            asks[str(number)] = damaged_request(raw, dice)
        elif raw.startswith((b"GET /api", b"GET /p/", b"POST /api")) and raw.count(b"content-length") < 2:
            asks[f"{number}whole"] = raw
    return Input("server over HTTP", ("serve",), asks, peer="http")


# Readers that have kinds of their own below, or more to read than others; all are fuzzed by their row in SAMPLES.
_WEIGHTS = {"kineto": 1, "scorecard": 1, "parity_profile": 1, "step_profile": 1, "log": 8}
KINDS: dict[str, tuple[int, Callable[[random.Random], Input]]] = {
    "trace": (20, _of_trace),
    "ranks": (4, _of_ranks),
    "profile": (10, _of_profile),
    "baseline": (7, _of_baseline),
    "parity": (6, _of_parity),
    "forced format": (5, _of_named_format),
    "store": (9, _of_store),
    "configuration": (5, _of_config),
    "device file": (4, _of_device),
    "words": (4, _of_words),
    "foreign": (2, _of_stranger),
    "repeats": (4, _of_repeats),
    "directory": (5, _of_directory),
    "watch": (2, _of_watch),
    "dialect": (1, _of_dialect),
    "plan": (2, _of_plan),
    "client": (10, _of_client),
    "server": (10, _of_server),
    "server over HTTP": (1, _of_http),
    **{name: (_WEIGHTS.get(name, 6), partial(_of_reader, name)) for name in SAMPLES},
}


def kind_of(seed: int, number: int) -> str:
    """Return the kind of the input of that number."""
    weights = [weight for weight, _ in KINDS.values()]
    return random.Random(f"{seed}:{number}:kind").choices([*KINDS], weights)[0]


def make_input(seed: int, *name: int) -> Input:
    """Return the input of that name: the same for the same seed."""
    _, make = KINDS[kind_of(seed, name[0])]
    parent = None
    for number in name:
        dice = Dice(f"{seed}:{number}")
        dice.parent = parent
        item = make(dice)
        parent = dice.main
    return item._replace(main=parent or b"")


def prepare() -> int:
    """Make all sound files once, before the first process is forked, and return how many there are."""
    for name in COMMANDS:
        if name != "record":
            load_command(name)
    team_store()
    return len(_corpus()) + len((store(),)) + len(good_answers())
