"""What `record` does beside recording: stop, write a page, keep, compare, repeat, take turns."""

from __future__ import annotations

from pathlib import Path

import stepgrade as sg
from stepgrade.compare.repeats import repeats_of
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
    assert "kept as run 1" in ran.err
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
