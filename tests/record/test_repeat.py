"""What `record` does beside recording: stop, write a page, keep, compare, repeat, take turns."""

from __future__ import annotations

from pathlib import Path

import stepgrade as sg
from stepgrade.compare.runs import repeats_of
from tests.record.test_processes import run

SCRIPT = """
import sys, time, torch
from torch import nn

torch.set_num_threads(1)
model = nn.Linear(16, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(12):
    model(torch.randn(8, 16)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(float(sys.argv[1]))
print("trained", step + 1)
"""


def test_one_run_is_stopped_shown_kept_and_compared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ("--steps", "9", "--html", "card.html", "--save", "--history", "h.db")
    ran = run("stepgrade", "record", *options, "-o", "run.json", "train.py", "0", cwd=tmp_path)
    assert (ran.code, ran.out) == (0, "trained 12\n"), ran.err
    profile = sg.load(tmp_path / "run.json")
    assert (profile.recorded_steps, profile.samples_per_step) == (9, 8)
    assert "samples/s" in (tmp_path / "card.html").read_text()
    assert "saved as run 1" in ran.err
    listed = run("stepgrade", "history", "list", "--history", "h.db", cwd=tmp_path)
    assert "samples/s" in listed.out
    again = run(
        "stepgrade", "record", "--baseline", "run.json", "-o", "2.json", "train.py", "0", cwd=tmp_path
    )
    assert "Against run.json" in again.err


def test_repeated_runs_show_their_noise(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    ran = run("stepgrade", "record", "--repeat", "2", "-o", "run.json", "train.py", "0.002", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.out.count("trained 12") == 2
    assert "Identical runs differ by" in ran.out
    files = sorted(path.name for path in tmp_path.glob("run*.json"))
    assert files == ["run.1.json", "run.2.json"]
    repeats = repeats_of([sg.score(sg.load(tmp_path / name)) for name in files])
    assert repeats.noise_share > 0.0
    assert repeats_of([sg.score(sg.load(tmp_path / files[0]))]).noise_share is None


def test_two_commands_take_turns_and_are_compared(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ("stepgrade", "record", "--repeat", "2", "--versus", "train.py 0", "-o", "run.json")
    ran = run(*command, "train.py", "0.2", cwd=tmp_path)
    said = [line for line in ran.err.splitlines() if "of command" in line]
    assert [line[-1] for line in said] == ["a", "b"] * 2
    assert ran.code == 1, ran.out + ran.err  # a hundred times as slow
    assert "step time" in ran.out


def test_options_that_make_no_sense_are_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    for options in (("--steps", "0"), ("--repeat", "0"), ("--repeat", "2", "--baseline", "x.json")):
        ran = run("stepgrade", "record", *options, "train.py", cwd=tmp_path)
        assert ran.code == 2, ran.err


def test_repeated_runs_are_what_the_gate_compares_the_next_one_with(tmp_path: Path) -> None:
    """Five identical runs in the history: as fast a one passes, one that takes many times as long does not."""
    (tmp_path / "train.py").write_text(SCRIPT)
    kept = ("--save", "--branch", "main", "--history", "h.db")
    ran = run("stepgrade", "record", "--repeat", "5", *kept, "-o", "a.json", "train.py", "0.02", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert ran.out.count("trained 12") == 5
    listed = run("stepgrade", "history", "list", "--history", "h.db", cwd=tmp_path)
    assert listed.out.count("samples/s") >= 5, listed.out
    slow = run("stepgrade", "record", "-o", "slow.json", "--quiet", "train.py", "0.4", cwd=tmp_path)
    assert slow.code == 0, slow.err
    against = ("--against", "history:main", "--history", "h.db")
    assert run("stepgrade", "gate", "slow.json", *against, cwd=tmp_path).code == 1
    same = run("stepgrade", "gate", "a.3.json", *against, cwd=tmp_path)
    assert same.code in (0, 3), (
        same.out + same.err
    )  # a busy machine may not let it be told, but it did not fail


def test_two_ways_to_train_are_compared_in_turns(tmp_path: Path) -> None:
    """A script, and the same as a module that waits less."""
    (tmp_path / "train.py").write_text(SCRIPT)
    command = ("stepgrade", "record", "--repeat", "2", "--versus", "-m train 0", "-o", "run.json")
    ran = run(*command, "train.py", "0.3", cwd=tmp_path)
    assert ran.code == 1, ran.out + ran.err
    names = sorted(path.name for path in tmp_path.glob("run.*.json"))
    assert names == ["run.a1.json", "run.a2.json", "run.b1.json", "run.b2.json"]
