"""Exit code 70 means a bug of ours: no input may lead to it. What once did, and what fuzzing found."""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.builders import make_step_profile
from tests.complexity.shapes import event, kernel, step, trace
from tests.conftest import Ran
from tests.fuzz.samples import profiles, traces

Command = Callable[..., Ran]
HEAD = b'{"_recording": 1, "layers": ["a"]}\n'
DEEP = b"[" * 100_000
LINE = b'{"steady": {"steps": 2, "wall_ms": 9.0, "tokens": 4}}\n'
JOURNALS = {
    "no steps": HEAD + b'{"steady": {"steps": 0, "wall_ms": 0, "tokens": 9}}\n',
    "no steps but time": HEAD + b'{"steady": {"steps": 0, "wall_ms": 5, "tokens": 9}}\n',
    "steps below none": HEAD + b'{"steady": {"steps": -3, "wall_ms": 5, "tokens": 9}}\n' + LINE,
    "steps without end": HEAD + b'{"steady": {"steps": 1%s, "wall_ms": 5}}\n' % (b"0" * 400) + LINE,
    "samples of every none": HEAD + b'{"steady": {"steps": 1, "wall_ms": 5, "every": 0, "samples_ms": [5]}}\n',
    "no UTF-8": HEAD + b'{"steady": {"steps": 1, "wall_ms": 5, "phases_ms": {"\xff": 1}}}\n' + LINE,
    "no UTF-8 in the head": b'{"_recording": 1, "layers": ["\xff"]}\n' + LINE,
    "deep nesting": HEAD + b'{"x": ' + DEEP + b"\n" + LINE,
    "deep nesting in the head": b'{"_recording": 1, "x": ' + DEEP + b"\n" + LINE,
    "layers without end": HEAD + b'{"steady": {"steps": 1, "wall_ms": 5, "layers_ms": [[1%s, 1, 1, 1]]}}\n' % (b"0" * 30),
    "infinite sums": HEAD + b'{"steady": {"steps": 1, "wall_ms": 1e308}}\n' * 3,
    "blank": HEAD + b"\n" * 1000,
    "only the head": HEAD,
}  # fmt: skip
CONFIGS = {
    "nested lists": b"x = " + b"[" * 5000,
    "nested tables": b"x = " + b"{a = " * 5000,
    "a long integer": b"x = " + b"1" * 5000,
    "a long integer in hexadecimal": b"[limits]\nlaunch_share = 0x" + b"f" * 5000,
    "a limit beyond 64 bits": b"[limits]\nlaunch_share = 99999999999999999999999999",
    "a share beyond 64 bits": b"[gate]\nallow = 99999999999999999999999999",
    "at most nan": b'[[budget]]\nmetric = "step_time_ms"\nat_most = nan',
    "at least inf": b'[[budget]]\nmetric = "step_time_ms"\nat_least = inf',
    "allow nan": b"[gate]\nallow = nan",
    "a limit of nan": b"[limits]\nlaunch_share = nan",
    "a key of many parts": b"a" + b".a" * 100_000 + b" = 1",
    "a table of many parts": b"[a" + b".a" * 100_000 + b"]",
    "no UTF-8": b'x = "\xff"',
    "a date for a number": b"[gate]\nallow = 2024-01-01",
    "a time for a day": b'[[waiver]]\nmetric = "step_time_ms"\nuntil = 2024-01-01T00:00:00\nreason = "x"',
    "too many budgets": b'[[budget]]\nmetric = "mfu"\n' * 5000,
    "no budgets": b"[gate]\n",
}


def answered(ran: Ran) -> Ran:
    assert ran.code in (0, 1, 2, 3), ran.err
    assert "Traceback" not in ran.err
    return ran


@pytest.mark.parametrize("journal", JOURNALS)
def test_journals(journal: str, stepgrade: Command, tmp_path: Path) -> None:
    (tmp_path / "j.jsonl").write_bytes(JOURNALS[journal])
    for to in ("terminal", "json", "html"):
        ran = answered(stepgrade("score", tmp_path / "j.jsonl", "--format", to))
        if to == "json" and ran.code == 0:
            json.loads(ran.out, parse_constant=pytest.fail)


@pytest.mark.parametrize("config", CONFIGS)
def test_configurations(config: str, stepgrade: Command, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(make_step_profile())
    (tmp_path / "c.toml").write_bytes(CONFIGS[config])
    for words in (
        ["score", tmp_path / "p.json", "--config"],
        ["gate", tmp_path / "p.json", "--baseline", tmp_path / "p.json", "--budgets"],
    ):
        ran = answered(stepgrade(*words, tmp_path / "c.toml"))
        if config != "no budgets":
            assert ran.code == 2
            assert "c.toml" in ran.err
    device = answered(stepgrade("score", tmp_path / "p.json", "--device-file", tmp_path / "c.toml"))
    assert device.code == 2


def test_a_shared_class_that_takes_no_time(stepgrade: Command, tmp_path: Path) -> None:
    for ours, theirs in ((0.0, 1.0), (1.0, 0.0), (0.0, 0.0)):
        for name, ms in (("a.json", ours), ("b.json", theirs)):
            document = {
                "runtime": name,
                "throughput_tok_s": 1.0,
                "step_time_ms": 9.0,
                "kernel_launches_per_step": 3,
                "ops": {"aten::mm": ms, "qkv": ms, "mlp": 1.0},
            }
            (tmp_path / name).write_text(json.dumps(document))
        for to in ("terminal", "json", "markdown", "html"):
            answered(stepgrade("parity", tmp_path / "a.json", tmp_path / "b.json", "--format", to))


@pytest.mark.parametrize("digits", [19, 30, 4301, 100_000])
def test_steps_with_many_digits(digits: int, stepgrade: Command, tmp_path: Path) -> None:
    rows = [
        {**step(1, 0, 90), "name": "ProfilerStep#" + "9" * digits},
        *kernel("k", 2, 1),
        step(2, 100, 90),
        *kernel("k", 102, 2),
    ]
    (tmp_path / "t.json").write_bytes(trace(rows)["f"])
    answered(stepgrade("score", tmp_path / "t.json"))
    answered(stepgrade("score", tmp_path / "t.json", "--steps", "1-9"))


def test_bytes_that_overflow_when_added_up(stepgrade: Command, tmp_path: Path) -> None:
    rows = [step(1, 0, 900)]
    for number in range(4):
        rows.append(
            event("cuda_runtime", "cudaMemcpyAsync", number * 10, 2, args={"correlation": number + 1})
        )
        args = {"correlation": number + 1, "device": 0, "stream": 7, "bytes": 2**62}
        rows.append(event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", number * 10 + 3, 4, args=args))
    (tmp_path / "t.json").write_bytes(trace(rows)["f"])
    ran = answered(stepgrade("score", tmp_path / "t.json", "--format", "json"))
    assert "-4611686018427387904" not in ran.out


def test_a_device_of_any_number(stepgrade: Command, tmp_path: Path) -> None:
    rows = [
        step(1, 0, 90),
        *kernel("k", 2, 1, device=2**31 - 1),
        step(2, 100, 90),
        *kernel("k", 102, 2, device=2**31 - 1),
    ]
    (tmp_path / "t.json").write_bytes(trace(rows)["f"])
    assert answered(stepgrade("score", tmp_path / "t.json")).code == 0


@pytest.mark.parametrize("columns", ["9" * 30, "9" * 5000, "-5", "0", "1", "²", "x"])
def test_absurd_columns(
    columns: str, stepgrade: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    (tmp_path / "p.json").write_text(make_step_profile())
    for words in (["score", tmp_path / "p.json"], ["score", "--help"], ["--help"], ["devices"]):
        assert answered(stepgrade(*words)).code == 0


@pytest.mark.parametrize("word", ["\udcff", "a\udcffb", "\u202e", "x" * 5000, "a\nb"])
def test_words_that_are_no_text(word: str, stepgrade: Command, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(make_step_profile())
    place = ["--history", tmp_path / "h.db"]
    for words in (
        ["score", path, "--save", "--branch", word, *place],
        ["score", path, "--save", "--commit", word, *place],
        ["score", path, "--save", "--label", f"a={word}", *place],
        ["score", path, "--save", "--label", f"{word}=a", *place],
        ["history", "list", "--branch", word, *place],
        ["history", "list", "--label", f"a={word}", *place],
        ["history", "export", *place],
        ["gate", path, "--against", f"history:{word}", *place],
        ["gate", path, "--against", f"history:{word}", "--format", "json", *place],
        ["gate", path, "--against", f"history:{word}", "--format", "html", *place],
    ):
        answered(stepgrade(*words))


def test_file_names_that_are_no_text(stepgrade: Command, tmp_path: Path) -> None:
    try:
        path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.json"))
        path.write_text(make_step_profile())
    except OSError:
        pytest.skip("this file system takes no such names")
    for to in ("terminal", "json", "markdown", "html"):
        assert answered(stepgrade("score", path, "--format", to)).code == 0
    answered(stepgrade("convert", path))
    answered(stepgrade("score", path, "--save", "--history", tmp_path / "h.db"))
    answered(stepgrade("gate", path, "--baseline", path, "--format", "junit"))
    answered(stepgrade("score", path, "--config", path))


def test_ranks_in_files_whose_names_are_no_text(stepgrade: Command, tmp_path: Path) -> None:
    """Seen in fuzzing: what a worker is told could not carry such a name."""
    folder = tmp_path / "runs"
    folder.mkdir()
    try:
        for rank in range(2):
            path = Path(os.fsdecode(os.fsencode(folder) + b"/rank%d-\xff.json" % rank))
            path.write_bytes(traces()[2].replace(b'"rank": 0', b'"rank": %d' % rank))
    except OSError:
        pytest.skip("this file system takes no such names")
    for words in ([], ["--no-cache"], ["--engine", "pool"], ["--format", "perfetto", "-o", tmp_path / "t"]):
        assert answered(stepgrade("score", folder, *words)).code == 0


def test_ranks_in_an_archive_whose_names_are_no_text(stepgrade: Command, tmp_path: Path) -> None:
    path = tmp_path / "runs.tar"
    with tarfile.open(path, "w") as archive:
        for rank in range(2):
            text = traces()[2].replace(b'"rank": 0', b'"rank": %d' % rank)
            entry = tarfile.TarInfo(f"rank{rank}-\udcff.json")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text))
    assert answered(stepgrade("score", path)).code == 0


def test_a_zip_whose_files_begin_before_it(stepgrade: Command, tmp_path: Path) -> None:
    """Seen in fuzzing: zipfile seeks to a negative place, which is an OSError."""
    path = tmp_path / "runs.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rank0.json", traces()[2])
    data = bytearray(path.read_bytes())
    end = data.rfind(b"PK\x05\x06")
    data[end + 16 : end + 20] = (1 << 20).to_bytes(4, "little")  # where the list is
    path.write_bytes(data)
    ran = answered(stepgrade("score", path))
    assert (ran.code, "the archive is damaged" in ran.err) == (2, True)


def test_a_branch_that_is_no_text(
    stepgrade: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = subprocess.run(["git", "init", "-q", tmp_path / "repo"], check=False)
    if made.returncode:
        pytest.skip("git is not installed")
    (tmp_path / "repo" / ".git" / "HEAD").write_bytes(b"ref: refs/heads/\xff\xfe\n")
    for name in (
        "GITHUB_HEAD_REF",
        "GITHUB_REF_NAME",
        "CI_COMMIT_REF_NAME",
        "GIT_BRANCH",
        "BUILDKITE_BRANCH",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path / "repo")
    Path("p.json").write_text(make_step_profile())
    assert answered(stepgrade("score", "p.json", "--save", "--history", "h.db")).code == 0
    answered(stepgrade("history", "list", "--history", "h.db"))


ABSURD = (0, -1, 1e-320, 1e300, 1.7e308, -1e308, 10**400, -(10**400))


@pytest.mark.parametrize("figure", ABSURD)
def test_absurd_figures_of_sampled_steps(figure: float, stepgrade: Command, tmp_path: Path) -> None:
    """Seen in fuzzing: a class that takes no time in one run, and a ledger beyond any number."""
    sound = json.loads(profiles()[4])
    (tmp_path / "sound.json").write_text(json.dumps(sound))
    for place in ("busy_ms", "model_ms", "steps", "parts", "avg_step_ms", "steps of the run", "phase"):
        damaged = json.loads(profiles()[4])
        sampled = damaged["stepgrade"]["sampled"]
        if place == "parts":
            for part in sampled["activity"]["parts"]:
                part["ms"] = figure
        elif place == "steps of the run":
            damaged["steps"] = int(max(-1, min(figure, 2**62)))
        elif place == "phase":
            damaged["phases"]["forward"]["total_ms"] = figure
        elif place == "avg_step_ms":
            damaged[place] = figure
        else:
            sampled[place] = int(figure) if place == "steps" else figure
        path = tmp_path / "damaged.json"
        path.write_text(json.dumps(damaged))
        for to in ("terminal", "json", "html"):
            answered(stepgrade("score", path, "--format", to))
            answered(stepgrade("parity", path, tmp_path / "sound.json", "--format", to))
            answered(stepgrade("parity", tmp_path / "sound.json", path, "--format", to))


@pytest.mark.parametrize("zero", [(1 << 63) - 1, (1 << 63) - 10_000, 1 << 62, -5])
def test_a_date_that_no_clock_shows(zero: int, stepgrade: Command, tmp_path: Path) -> None:
    """Collectives are laid on the clock that ranks share: their times are added to the file's date."""
    rows = [
        row
        for i in range(3)
        for row in (step(i, i * 100, 90), *kernel("ncclDevKernel_AllReduce", i * 100 + 9, i))
    ]
    path = tmp_path / "t.json"
    path.write_bytes(trace(rows, baseTimeNanoseconds=zero)["f"])
    answered(stepgrade("score", path))
