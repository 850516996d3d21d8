"""Every field of the JSON of every command, on one input of every kind, held to what is in `expected/`.

A change of a number, a word or a field shows here. `pytest tests/golden_json --update-golden` rewrites the files;
the diff is then reviewed line by line, and a number that changes is a defect named in the changelog.
"""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stepgrade.cli import main
from tests.golden_json.inputs import write_inputs
from tests.samples import shared

EXPECTED = Path(__file__).parent / "expected"
SAMPLES = EXPECTED / "samples.json"
DIGITS = 6
H100 = ("--device", "h100-sxm5-80gb")
PLAN = ("--model", "llama-3-8b.json", *H100, "--seq", "8192")


class Case(NamedTuple):
    """A command whose JSON and exit code are kept, and what runs before it."""

    argv: tuple[str, ...]
    before: tuple[tuple[str, ...], ...] = ()


def _keep(number: int) -> tuple[str, ...]:
    when = ("--branch", "main", "--commit", f"{number:040x}")
    return ("history", "add", f"earlier{number}.json", *when)


KEPT = tuple(_keep(number) for number in range(8))
AGAINST = ("--against", "history:main")
SCORED = (
    *("device.json", "graph.json", "inference.json", "host.json", "three_ranks.json", "everything.json"),
    *("well.json", "faulty.json", "straggler", "slow_link", "gpt_naive.json.gz", "gpt_fused.json.gz"),
    *("step_profile.json", "recorded.json", "apr.json", "sampled.json", "parity.json", "journal.jsonl"),
    *("run_gpt_naive.json", "run_gpt_fused.json", "torchtitan.log", "megatron.log", "jsonl.log"),
    *(
        "deepspeed.log",
        "metrics.csv",
        "events.out.tfevents.1",
        "trainer_state.json",
        "run.wandb",
        "mlflow.db",
    ),
    *(
        "compile.log",
        "snapshot.pickle",
        "timeline.json",
        "hang",
        "nsys.sqlite",
        "rocprof.json",
        "rocprof_csv",
    ),
    *("rocpd.db", "run.rpd", "xla_cpu.xplane.pb", "xla_gpu.xplane.pb", "xla_tpu.xplane.pb", "xla.trace.json"),
)
CASES = {
    **{f"score-{name}": Case(("score", name)) for name in SCORED},
    "score-on-a-device": Case(("score", "faulty.json", *H100, "--tokens-per-step", "8192")),
    "score-with-a-model": Case(
        ("score", "slower.json", *H100, "--model", "llama-3-8b.json", "--batch", "1", "--seq", "2048")
    ),
    "score-with-a-peak": Case(("score", "gpt_naive.json.gz", "--peak-tflops", "0.0858")),
    "score-against-a-baseline": Case(("score", "slower.json", "--baseline", "same.json")),
    "score-trace-against-a-baseline": Case(("score", "faulty.json", "--baseline", "well.json")),
    "score-trace-with-its-log": Case(("score", "everything.json", "compile.log")),
    **{
        f"inspect-{name}": Case(("inspect", name))
        for name in (
            *("device.json", "straggler", "sampled.json", "torchtitan.log", "snapshot.pickle", "hang"),
            *("nsys.sqlite", "rocpd.db", "xla_tpu.xplane.pb", "step_profile.json"),
        )
    },
    "parity-runs": Case(("parity", "run_gpt_naive.json", "run_gpt_fused.json")),
    "parity-profiles": Case(("parity", "run_parity_naive.json", "run_parity_fused.json")),
    "parity-traces": Case(("parity", "gpt_naive.json.gz", "gpt_fused.json.gz")),
    "parity-devices": Case(("parity", "well.json", "faulty.json")),
    "gate-passes": Case(("gate", "same.json", *AGAINST), KEPT),
    "gate-fails": Case(("gate", "slower.json", *AGAINST), KEPT),
    "gate-few-runs": Case(("gate", "slower.json", *AGAINST), KEPT[:3]),
    "gate-against-a-baseline": Case(("gate", "slower.json", "--baseline", "same.json", "--run-noise", "2%")),
    "gate-first-run": Case(("gate", "same.json", *AGAINST, "--save")),
    "whatif-unasked": Case(("whatif", "faulty.json")),
    "whatif-without": Case(("whatif", "faulty.json", "--without", "communication", "--without", "data")),
    "whatif-faster": Case(("whatif", "device.json", "--faster", "gemm=2x", "--launches", "0")),
    "whatif-ranks": Case(("whatif", "straggler", "--link", "2x")),
    "whatif-on-a-host": Case(("whatif", "gpt_naive.json.gz", "--faster", "softmax=2x")),
    "estimate-full": Case(("estimate", *PLAN, "--batch", "2")),
    "estimate-qlora": Case(("estimate", *PLAN, "--batch", "4", "--method", "qlora")),
    "estimate-small": Case(
        ("estimate", "--model", "qwen2.5-coder-1.5b.json", "--device", "a100-sxm4-80gb", "--batch", "8", "--seq", "1024")
    ),
    "plan-64": Case(("plan", *PLAN, "--devices", "64", "--global-batch", "512")),
    "plan-8": Case(("plan", *PLAN, "--devices", "8", "--global-batch", "64", "--trainer", "torchtitan")),
}  # fmt: skip


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with every input."""
    folder = tmp_path_factory.mktemp("golden_inputs")
    write_inputs(folder)
    return folder


@pytest.fixture
def _in_inputs(inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run in a folder with the inputs and nothing else: no history, no repository."""
    here = tmp_path / "run"
    shutil.copytree(inputs, here, copy_function=lambda source, target: Path(target).symlink_to(source))
    monkeypatch.chdir(here)
    for name in ("GITHUB_STEP_SUMMARY", "GITHUB_SHA", "GITHUB_REF_NAME", "GITHUB_HEAD_REF", "CI"):
        monkeypatch.delenv(name, raising=False)


def rounded(value: Any) -> Any:
    """Return JSON with its numbers at as many digits as are kept."""
    if isinstance(value, dict):
        return {key: rounded(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [rounded(inner) for inner in value]
    return float(f"{value:.{DIGITS + 2}g}") if isinstance(value, float) else value


def differences(expected: Any, found: Any, where: str = "") -> Iterator[str]:
    """Yield each place in which two JSON values differ; numbers are compared to six digits."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in dict.fromkeys([*expected, *found]):
            if key not in found or key not in expected:
                yield f"{where}.{key}: {'is gone' if key in expected else 'is new'}"
            else:
                yield from differences(expected[key], found[key], f"{where}.{key}")
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{where}: {len(found)} instead of {len(expected)} entries"
        for number, (left, right) in enumerate(zip(expected, found, strict=False)):
            yield from differences(left, right, f"{where}[{number}]")
    elif not _is_same(expected, found):
        yield f"{where}: {found!r} instead of {expected!r}"


def _is_same(expected: Any, found: Any) -> bool:
    numbers = (int, float)
    if (
        isinstance(expected, numbers)
        and isinstance(found, numbers)
        and bool not in (type(expected), type(found))
    ):
        return math.isclose(expected, found, rel_tol=10.0**-DIGITS, abs_tol=1e-12)
    return type(expected) is type(found) and bool(expected == found)


@pytest.mark.usefixtures("_in_inputs")
@pytest.mark.parametrize("name", CASES)
def test_all_of_the_json(
    name: str, capfd: pytest.CaptureFixture[str], request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    for command in case.before:
        assert main(list(command)) == 0
    capfd.readouterr()
    code = main([*case.argv, "--format", "json"])
    out, err = capfd.readouterr()
    assert out, err
    found = {"exit_code": code, "json": json.loads(out)}
    path = EXPECTED / f"{name}.json"
    if request.config.getoption("--update-golden"):
        path.write_text(json.dumps(rounded(found), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    expected = json.loads(path.read_text(encoding="utf-8"))
    assert list(differences(expected, found)) == []


def test_no_case_is_left_over() -> None:
    assert {path.stem for path in EXPECTED.glob("*.json")} - {SAMPLES.stem} == set(CASES)


def test_every_command_with_json_has_a_case() -> None:
    commands = {case.argv[0] for case in CASES.values()}
    assert {"score", "parity", "gate", "plan", "estimate", "whatif", "inspect"} <= commands


def real_files() -> list[str]:
    """Return the real profiles, logs and snapshots that are beside this clone, by their path among the samples."""
    folder = shared("samples")
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "INDEX.tsv")
    return sorted(str(path.relative_to(folder)) for path in found if "history" not in path.parts)


def digests(document: dict[str, Any]) -> dict[str, str]:
    """Return a digest of each field that is not empty: all is compared, and nothing of other people's is kept."""
    filled = {name: value for name, value in document.items() if value not in (None, [], {})}
    texts = {name: json.dumps(_shortened(value), sort_keys=True) for name, value in filled.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest()[:8] for name, text in texts.items()}


def _shortened(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_shortened(inner) for inner in value]
    return f"{value:.{DIGITS}g}" if isinstance(value, float) else value


@pytest.mark.samples
def test_every_real_file_is_pinned(request: pytest.FixtureRequest) -> None:
    kept = json.loads(SAMPLES.read_text(encoding="utf-8"))
    if request.config.getoption("--update-golden"):
        kept = {
            name: kept.get(name, {}) for name in real_files()
        }  # which the next test fills, when run again
        write_samples(kept)
    assert sorted(kept) == real_files()


def write_samples(kept: dict[str, dict[str, str]]) -> None:
    text = ",\n".join(f"{json.dumps(key)}: {json.dumps(kept[key])}" for key in sorted(kept))
    SAMPLES.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")


@pytest.mark.samples
@pytest.mark.parametrize("name", json.loads(SAMPLES.read_text(encoding="utf-8")))
def test_every_field_of_real_files(
    name: str,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(shared("samples"))
    code = main(["score", name, "--format", "json"])
    out = capfd.readouterr().out
    found = {"exit_code": str(code), **(digests(json.loads(out)) if out else {})}
    kept = json.loads(SAMPLES.read_text(encoding="utf-8"))
    if request.config.getoption("--update-golden"):
        kept[name] = found
        write_samples(kept)
    assert found == kept[name]


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        ({"a": 1.0}, {"a": 1.00001}),
        ({"a": 1.0}, {}),
        ({}, {"a": None}),
        ([1], [1, 2]),
        ({"a": None}, {"a": 0}),
        ({"a": True}, {"a": 1}),
        ({"a": "1"}, {"a": 1}),
        ({"a": [{"b": 2.0}]}, {"a": [{"b": -2.0}]}),
        (0.0, 1e-9),
    ],
)
def test_a_difference_is_noticed(expected: Any, found: Any) -> None:
    assert list(differences(expected, found))
