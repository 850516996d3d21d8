"""The figures of many more commands than the golden JSON holds in full, each field as a digest.

Inputs are drawn by seed: traces of wild runs, logs with interruptions, clusters, histories, and combinations of the
planner's options. Only numbers, codes and names count, also those within sentences, so that other words change
nothing here. `pytest tests/golden_json/test_wide.py --update-golden` rewrites the digests: a digest that changes is a
figure that changed. `python -m tests.golden_json.test_wide CASE` prints what a case's digests are made of.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import random
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepgrade.cli import main
from stepgrade.protobuf import values
from tests.builders import make_step_profile
from tests.cluster import Planned, write_ranks
from tests.fuzz.samples import SAMPLES
from tests.hardware import model_configs
from tests.kineto_text import kineto_text
from tests.readers.logs.generated import DIALECTS, Plan, generate
from tests.wild_runs import Wild, trace_of
from tests.wild_table import FACTORS, NAMED, can_be_told

EXPECTED = Path(__file__).parent / "wide.json"
DEVICES = ("h100-sxm5-80gb", "a100-sxm4-80gb", "mi300x", "h200-sxm-141gb")


class Case(NamedTuple):
    """A command, what writes its input files into the current folder, and what runs before it."""

    argv: tuple[str, ...]
    write: Callable[[], None]
    before: tuple[tuple[str, ...], ...] = ()


def _drawn_run(seed: int) -> Wild:
    """Return a small run of any kind with up to three faults."""
    chance = random.Random(seed)
    run = Wild(
        seed=seed,
        rocm=chance.random() < 0.3,
        layers=chance.randint(2, 4),
        layer_us=chance.choice((40, 200, 900)),
        steps=chance.randint(3, 5),
        micro=chance.choice((1, 1, 2)),
        jitter=chance.choice((0.0, 0.03, 0.3)),
        graph=chance.random() < 0.15,
        copy_stream=chance.random() < 0.3,
        modules=chance.random() < 0.7,
        shapes=chance.random() < 0.7,
        cpu=chance.random() < 0.15,
    )
    names = [name for name in sorted(NAMED) if can_be_told(run, name)]
    faults = chance.sample(names, min(len(names), chance.randint(0, 3)))
    sizes = {
        name: chance.uniform(1.5, 5.0) if name in FACTORS else chance.uniform(0.2, 6.0) for name in faults
    }
    return Wild(**{**run.__dict__, "faults": sizes})


def _write_wild(*seeds: int) -> Callable[[], None]:
    def write() -> None:
        for seed in seeds:
            Path(f"wild{seed}.json").write_bytes(kineto_text(trace_of(_drawn_run(seed))))

    return write


def _write_compiled(seed: int) -> Callable[[], None]:
    def write() -> None:
        _write_wild(seed)()
        Path("compile.log").write_bytes(SAMPLES["torch_trace"]()[0])

    return write


def _write_cluster(plan: Planned) -> Callable[[], None]:
    return lambda: write_ranks(Path("ranks"), plan)


def _write_log(seed: int) -> Callable[[], None]:
    chance = random.Random(seed)
    plan = Plan(
        steps=chance.randint(60, 400), every=chance.choice((1, 1, 5, 10)), step_s=chance.uniform(0.1, 4.0),
        noise=chance.choice((0.0, 0.01, 0.1)), seed=seed,
        checkpoint_every=chance.choice((None, 40, 100)), checkpoint_s=chance.uniform(2.0, 60.0),
        evaluate_every=chance.choice((None, 50, 90)), evaluate_s=chance.uniform(1.0, 90.0),
        slow_every=chance.choice((None, None, 25)), slow_s=chance.uniform(0.5, 9.0),
        drift=chance.choice((0.0, 0.0, 0.2)), breaks_at=chance.choice((None, None, 55)), resumes_at=40,
        startup_s=chance.choice((0.0, 30.0)), first_s=chance.choice((0.0, 20.0)), tail_s=chance.choice((0.0, 45.0)),
    )  # fmt: skip
    return lambda: (
        Path("train.log").write_bytes(generate(plan, sorted(DIALECTS)[seed % len(DIALECTS)])[0]) and None
    )


def _write_bytes(content: Callable[[], bytes]) -> Callable[[], None]:
    return lambda: Path("input").write_bytes(content()) and None


def _write_models() -> None:
    for name, (config, _) in model_configs.PARAMETERS.items():
        Path(f"{name}.json").write_text(json.dumps(config))


def _write_history(*, noise: float, jump: float, config: str = "") -> Callable[[], None]:
    """Write twelve earlier runs, the last four of them slower by `jump`, one now, and the settings of the gate."""

    def write() -> None:
        for number in range(13):
            chance = random.Random(f"{noise} {jump} {number}")
            slower = (1.0 + jump) if number > 7 else 1.0
            run_ms = 100.0 * slower * (1.0 + chance.gauss(0.0, noise))
            times = [run_ms * (1.0 + chance.gauss(0.0, 0.006)) for _ in range(30)]
            ops = {"gemm": 1000.0 * slower, "attention": 300.0 + 10.0 * number}
            text = make_step_profile(steps=30, step_ms=sum(times) / 30, samples_ms=times, ops=ops)
            Path(f"run{number}.json").write_text(text)
        Path("stepgrade.toml").write_text(config)

    return write


def _adds(count: int) -> tuple[tuple[str, ...], ...]:
    return tuple(
        ("history", "add", f"run{number}.json", "--branch", "main", "--commit", f"{number:040x}")
        for number in range(count)
    )


# Each with the options that the estimate knows; a combination that it refuses is kept as its exit code.
OPTIONS: dict[str, tuple[str, ...]] = {
    "--batch": ("1", "2", "8"),
    "--seq": ("512", "2048", "8192"),
    "--device": DEVICES,
    "--dtype": ("bf16", "fp16", "fp32"),
    "--method": ("full", "full", "lora", "qlora"),
    "--rank": ("8", "64"),
    "--lora-targets": ("all", "attention", "q,v"),
    "--optimizer": ("adamw", "adamw-fp32", "adamw-bf16", "adamw-8bit", "sgd", "sgd-momentum", "muon"),
    "--micro-batches": ("1", "4"),
    "--packed-seq": ("256",),
    "--checkpointing": ("none", "selective", "op", "op-all", "every-second", "full"),
    "--loss": ("upcast", "plain", "parallel", "megatron", "compiled", "chunked", "chunked-head", "fused"),
    "--dequantise": ("fused", "unfused"),
    "--convention": ("causal-exact", "palm", "nanogpt", "mosaic", "torchtitan", "full-exact", "6n", "llmq"),
    "--world-size": ("1", "8", "16", "64"),
    "--data-parallel": ("ddp", "zero1", "zero2", "zero3", "fsdp", "fsdp-no-reshard"),
    "--tensor-parallel": ("1", "1", "2", "4"),
    "--pipeline-parallel": ("1", "1", "2"),
    "--expert-parallel": ("1", "1", "2"),
    "--context-parallel": ("1", "1", "2"),
    "--kernels": ("transformers", "eager", "eager-unfused", "compiled", "te"),
    "--weights": ("master", "bf16", "fp32", "megatron"),
    "--attention": ("flash", "written-out"),
    "--quantisation": ("nf4", "nf4-double", "gptq-4"),
    "--offload": ("none", "none", "optimizer", "parameters", "activations"),
    "--allocator": ("default", "expandable"),
    "--lengths": ("fixed", "variable"),
    "--throughput": ("5000",),
}


def _estimate(seed: int) -> Case:
    chance = random.Random(seed)
    needed = [(name, chance.choice(OPTIONS[name])) for name in ("--batch", "--seq", "--device")]
    others = chance.sample([name for name in OPTIONS if name not in dict(needed)], chance.randint(2, 7))
    given = [*needed, *((name, chance.choice(OPTIONS[name])) for name in others)]
    model = chance.choice(sorted(model_configs.PARAMETERS))
    return Case(
        ("estimate", "--model", f"{model}.json", *(word for row in given for word in row)), _write_models
    )


def _plan(seed: int) -> Case:
    chance = random.Random(seed)
    model = chance.choice(sorted(model_configs.PARAMETERS))
    devices = chance.choice((8, 16, 64, 256))
    argv = ("plan", "--model", f"{model}.json", "--device", chance.choice(DEVICES), "--devices", str(devices),
            "--global-batch", str(devices * chance.choice((1, 4))), "--seq", chance.choice(("2048", "8192")),
            "--network", chance.choice(("12.5", "50")), "--top", "5")  # fmt: skip
    return Case(argv, _write_models)


BUDGETS = """
[gate]
allow = 0.02
detect = 0.05
[[budget]]
metric = "step_time_ms"
allow = 0.03
at_most = 104.0
[[budget]]
metric = "op:att*"
direction = "both"
allow = 0.01
[[waiver]]
metric = "wall_coverage"
until = 2020-01-31
reason = "long over"
"""
AGAINST = ("--against", "history:main")
CLUSTERS = {
    "even": Planned(world=8, tensor=2, pipeline=2),
    "host": Planned(world=16, tensor=4, pipeline=2, slow_host=1),
    "stage": Planned(world=8, tensor=2, pipeline=2, slow_stage=1),
    "wandering": Planned(world=8, tensor=2, pipeline=1, wandering=True),
    "two": Planned(world=2, tensor=2, pipeline=1, steps=6, slow_rank=1),
    "half": Planned(world=8, tensor=4, pipeline=1, slow_ranks=range(2, 5)),
    "link": Planned(world=8, tensor=1, pipeline=2, slow_link=1, seed=4),
}


def _cases() -> Iterator[tuple[str, Case]]:
    yield from _of_traces()
    yield from _of_other_sources()
    yield from _of_the_gate()
    yield from ((f"estimate-{seed}", _estimate(seed)) for seed in range(110))
    yield from ((f"plan-{seed}", _plan(seed)) for seed in range(10))
    yield "devices", Case(("devices",), lambda: None)


def _of_traces() -> Iterator[tuple[str, Case]]:
    for seed in range(28, 52):
        name, write = f"wild{seed}.json", _write_wild(seed)
        yield f"score-wild-{seed}", Case(("score", name), write)
    for seed in range(28, 34):
        argv = ("score", f"wild{seed}.json", "compile.log")
        yield f"compiled-wild-{seed}", Case(argv, _write_compiled(seed))
    for seed in range(28):
        name, write = f"wild{seed}.json", _write_wild(seed)
        on = ("--device", DEVICES[seed % 4], "--tokens-per-step", "4096") if seed % 2 else ()
        yield f"score-wild-{seed}", Case(("score", name, *on), write)
        yield f"convert-wild-{seed}", Case(("convert", name), write)
        yield f"whatif-wild-{seed}", Case(("whatif", name), write)
        if seed % 3 == 0:
            yield f"tracks-wild-{seed}", Case(("score", name, "--format", "perfetto"), write)
    for seed, change in enumerate(
        (("--faster", "gemm=2x"), ("--without", "communication"), ("--without", "data"), ("--launches", "0"),
         ("--link", "4x"), ("--faster", "attention=3x", "--launches", "20"), ("--steps", "6-7"))
    ):  # fmt: skip
        yield f"whatif-change-{seed}", Case(("whatif", f"wild{seed}.json", *change), _write_wild(seed))
        yield (
            f"parity-{seed}",
            Case(("parity", f"wild{seed}.json", f"wild{seed + 7}.json"), _write_wild(seed, seed + 7)),
        )
        yield f"steps-{seed}", Case(("score", f"wild{seed}.json", "--steps", "6-7"), _write_wild(seed))
        baseline = (
            "score",
            f"wild{seed}.json",
            "--baseline",
            f"wild{seed + 7}.json",
            "--allow-different",
            "precision",
        )
        yield f"baseline-{seed}", Case(baseline, _write_wild(seed, seed + 7))
    for name, plan in CLUSTERS.items():
        yield f"score-ranks-{name}", Case(("score", "ranks"), _write_cluster(plan))
        yield f"whatif-ranks-{name}", Case(("whatif", "ranks", "--link", "2x"), _write_cluster(plan))
        yield f"convert-ranks-{name}", Case(("convert", "ranks"), _write_cluster(plan))


def _of_other_sources() -> Iterator[tuple[str, Case]]:
    for seed in range(36):
        yield f"score-log-{seed}", Case(("score", "train.log"), _write_log(seed))
        yield f"convert-log-{seed}", Case(("convert", "train.log"), _write_log(seed))
    for kind, made in SAMPLES.items():
        for number in range(SAMPLE_COUNTS[kind]):
            write = _write_bytes(lambda made=made, number=number: made()[number])
            for command in ("score", "convert", "inspect"):
                yield f"{command}-{kind}-{number}", Case((command, "input"), write)


def _of_the_gate() -> Iterator[tuple[str, Case]]:
    for name, (noise, jump, config) in {
        "quiet": (0.001, 0.0, ""), "noisy": (0.02, 0.0, ""), "jump": (0.003, 0.08, ""), "small": (0.003, 0.02, ""),
        "budgets": (0.004, 0.05, BUDGETS), "faster": (0.004, -0.1, BUDGETS),
    }.items():  # fmt: skip
        write = _write_history(noise=noise, jump=jump, config=config)
        yield f"gate-{name}", Case(("gate", "run12.json", *AGAINST), write, _adds(8))
        yield f"gate-all-{name}", Case(("gate", "run12.json", *AGAINST), write, _adds(12))
        yield f"gate-few-{name}", Case(("gate", "run12.json", *AGAINST, "--run-noise", "1%"), write, _adds(2))
        repeat = (
            "gate",
            "run12.json",
            "--repeat",
            "run11.json",
            "--baseline",
            "run0.json",
            "--baseline",
            "run1.json",
        )
        yield f"gate-repeat-{name}", Case(repeat, write)
        for metric in ("step_time_ms", "wall_coverage"):
            argv = ("history", "trend", metric, "--branch", "main")
            yield f"trend-{metric}-{name}", Case(argv, write, _adds(13))
        yield f"export-{name}", Case(("history", "export"), write, _adds(2))
        yield f"list-{name}", Case(("history", "list", "--limit", "5"), write, _adds(13))


# Written down, so that a test's name does not wait for its input to be made.
SAMPLE_COUNTS = {
    "kineto": 8, "nsys": 1, "rocprof": 4, "xplane": 3, "xla_trace": 2, "snapshot": 2, "memory_timeline": 2,
    "flight_recorder": 2, "torch_trace": 1, "journal": 1, "scorecard": 1, "parity_profile": 1, "step_profile": 4,
    "metrics": 5, "log": 6,
}  # fmt: skip
CASES = dict(_cases())
LEFT_OUT = {"added_at", "date", "id", "run", "path", "file", "files", "uuid", "when", "stepgrade", "version"}


def figures(value: Any) -> Any:
    """Return the numbers, codes and names in a JSON value: of a sentence, the numbers that it states."""
    if isinstance(value, dict):
        return {key: figures(inner) for key, inner in value.items() if key not in LEFT_OUT}
    if isinstance(value, list):
        return [figures(inner) for inner in value]
    if isinstance(value, str):
        return re.findall(r"\d+(?:\.\d+)?", value) if " " in value else value
    if isinstance(value, float):
        return f"{0.0 if abs(value) < 1e-9 else value:.6g}"  # what is left of a sum may be 1e-16 or 0
    return value


def figures_of(case: Case) -> dict[str, Any]:
    """Run the case in the current folder and return its exit code and figures, by the fields of its JSON."""
    case.write()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for command in case.before:
            assert main(list(command)) == 0
        out = Path("out.json")
        has_format = "--format" in case.argv or case.argv[0] == "convert" or case.argv[1:2] == ("export",)
        code = main([*case.argv, *(() if has_format else ("--format", "json")), "-o", str(out)])
    found = {"exit code": code}
    if "perfetto" in case.argv:
        found["packets"] = list(_packets(out.read_bytes()))
    elif out.exists():
        text = out.read_text(encoding="utf-8")
        by_line = case.argv[1:2] in (("list",), ("export",))
        rows = [json.loads(line) for line in text.splitlines()] if by_line else json.loads(text)
        found |= rows if isinstance(rows, dict) else {"rows": rows}
    filled = {
        name: value for name, value in found.items() if value not in (None, [], {}) and name not in LEFT_OUT
    }
    return {name: figures(value) for name, value in filled.items()}


def _packets(trace: bytes) -> Iterator[tuple[int, ...]]:
    """Yield the time of each packet of a Perfetto trace, and the numbers of its event: its type and its track."""
    timestamp, track_event = 8, 11
    for _, _, packet in values(memoryview(trace)):
        fields = list(values(packet)) if isinstance(packet, memoryview) else []
        time = [value for number, _, value in fields if number == timestamp]
        events = [value for number, _, value in fields if number == track_event]
        inside = [pair for event in events for pair in values(event)]
        yield (*time, *(value for _, _, value in inside if isinstance(value, int)))


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:6]


def write_expected(kept: dict[str, dict[str, str]]) -> None:
    rows = (f"{json.dumps(name)}: {json.dumps(kept[name])}" for name in sorted(kept))
    EXPECTED.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


@pytest.mark.parametrize("name", CASES)
def test_figures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    for variable in ("GITHUB_STEP_SUMMARY", "GITHUB_SHA", "GITHUB_REF_NAME", "GITHUB_HEAD_REF", "CI"):
        monkeypatch.delenv(variable, raising=False)
    found = figures_of(CASES[name])
    digests = {field: digest(value) for field, value in found.items()}
    kept = json.loads(EXPECTED.read_text(encoding="utf-8")) if EXPECTED.exists() else {}
    if request.config.getoption("--update-golden"):
        kept = {key: value for key, value in kept.items() if key in CASES}
        kept[name] = digests
        write_expected(kept)
    expected = kept[name]
    changed = {
        field: found.get(field) for field in expected | digests if expected.get(field) != digests.get(field)
    }
    assert changed == {}


def test_no_case_is_left_over() -> None:
    assert set(json.loads(EXPECTED.read_text(encoding="utf-8"))) == set(CASES)
    assert {kind: len(made()) for kind, made in SAMPLES.items()} == SAMPLE_COUNTS


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        print(json.dumps(figures_of(CASES[sys.argv[1]]), indent=1))
