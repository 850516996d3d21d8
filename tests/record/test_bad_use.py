"""What goes wrong with recording is told in clear words, and the training goes on."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import stepgrade as sg
from stepgrade.errors import NotMeasured
from tests.record.harm.running import unwatched
from tests.record.loop import Loop, gpt


def record(path: Path, loop: Loop, **options: object) -> sg.Profile:
    with sg.Recorder(
        loop.model, optimizer=loop.optimizer, dataloader=loop.loader, path=path, **options
    ) as recorder:
        loop.run(recorder.step)
    return sg.load(path)


class TestBadUse:
    """Clear words, and the training goes on."""

    def test_two_recorders(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        loop = Loop()
        with sg.Recorder(loop.model, path=tmp_path / "one.json") as first:
            with sg.Recorder(loop.model, path=tmp_path / "two.json") as second:
                losses = loop.run(lambda loss: (first.step(loss), second.step(loss)))
        assert len(losses) == 8
        assert "another recorder is running" in caplog.text
        assert sg.load(tmp_path / "one.json").recorded_steps == 8
        assert not (tmp_path / "two.json").exists()
        with pytest.raises(NotMeasured):
            second.profile()

    def test_step_never_called(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        loop = Loop()
        with sg.Recorder(loop.model, path=tmp_path / "run.json"):
            assert len(loop.run()) == 8
        assert "no step was recorded: call `step()`" in caplog.text
        assert not list(tmp_path.iterdir())

    def test_no_repeated_blocks(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        with sg.Recorder(model, path=tmp_path / "run.json") as recorder:
            for _ in range(5):
                model(torch.ones(2, 4)).sum().backward()
                recorder.step()
        assert "no repeated blocks" in caplog.text
        profile = sg.load(tmp_path / "run.json")
        assert (profile.layers, profile.tokens_per_step) == ((), None)

    def test_layers_that_are_not_there(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        record(tmp_path / "run.json", Loop(), layers=["model.layers.*"])
        assert "GPT has no module called ['model.layers.*']" in caplog.text

    def test_a_loader_that_cannot_be_hooked(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        with sg.Recorder(dataloader=[1, 2], path=tmp_path / "run.json") as recorder:
            recorder.step()
        assert "rec.batches(loader)" in caplog.text

    def test_a_path_that_cannot_be_written(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
    ) -> None:
        (tmp_path / "file").write_text("in the way")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        loop = Loop()
        with sg.Recorder(loop.model, path=tmp_path / "file" / "run.json", flush_seconds=0) as recorder:
            assert len(loop.run(recorder.step)) == 8
        assert "cannot be written" in caplog.text
        assert recorder.path == tmp_path / "run.json"
        assert sg.load(recorder.path).recorded_steps == 8
        assert (tmp_path / "file").read_text() == "in the way"

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
    def test_a_device_that_is_full(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        loop = Loop()
        with sg.Recorder(loop.model, path="/dev/full", flush_seconds=0) as recorder:
            assert len(loop.run(recorder.step)) == 8
        assert "/dev/full cannot be written; the profile is in" in caplog.text
        assert Path("/dev/full").is_char_device()
        assert sg.load(tmp_path / "full").recorded_steps == 8

    def test_nowhere_to_write_at_all(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "file"))
        with sg.Recorder(path=tmp_path / "file" / "run.json") as recorder:
            recorder.step()
        assert "`profile()` returns what was measured" in caplog.text
        assert recorder.profile().recorded_steps == 1

    def test_a_journal_that_cannot_be_looked_at_for_a_while(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
    ) -> None:
        loop, exists, asked = Loop(), Path.exists, []

        def refuse(path: Path) -> bool:
            asked.append(path)
            if len(asked) < 3:
                raise PermissionError(13, "Permission denied")
            return exists(path)

        with sg.Recorder(loop.model, path=tmp_path / "run.json", flush_seconds=0) as recorder:
            monkeypatch.setattr(Path, "exists", refuse)
            assert len(loop.run(recorder.step)) == 8
        assert "run.json cannot be written (Permission denied); stepgrade will try again" in caplog.text
        assert sg.load(tmp_path / "run.json").recorded_steps == 8

    def test_a_profiler_that_cannot_start(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch
    ) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise RuntimeError("Resource temporarily unavailable")

        monkeypatch.setattr(torch.autograd.profiler, "_prepare_profiler", refuse)
        loop = Loop()
        with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
            assert len(loop.run(recorder.step)) == 8
        assert "no step can be sampled: Resource temporarily unavailable" in caplog.text
        assert caplog.text.count("no step can be sampled") == 1
        assert sg.load(tmp_path / "run.json").recorded_steps == 8

    def test_an_exception_in_the_loop_comes_through_and_the_steps_before_it_are_there(
        self, tmp_path: Path
    ) -> None:
        loop = Loop(steps=8)

        def fail_late(loss: torch.Tensor) -> None:
            recorder.step(loss)
            if recorder.steps == 5:
                raise RuntimeError("out of memory")

        with pytest.raises(RuntimeError, match="out of memory"):
            with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
                loop.run(fail_late)
        assert sg.load(tmp_path / "run.json").recorded_steps == 5

    def test_a_forward_that_fails_and_is_tried_again(self, tmp_path: Path) -> None:
        loop = Loop(steps=8)
        with sg.Recorder(loop.model, path=tmp_path / "run.json") as recorder:
            for ids, targets in loop.loader:
                with pytest.raises(IndexError):
                    loop.model(ids + 1000)
                gpt.loss_of(loop.model(ids), targets).backward()
                recorder.step()
        profile = sg.load(tmp_path / "run.json")
        assert profile.wall_coverage <= 1.0
        assert {phase.name for phase in profile.phases} >= {"forward", "backward"}

    def test_words_are_logged_not_warned(self) -> None:
        assert logging.getLogger("stepgrade.record").level == logging.NOTSET


def test_a_machine_without_a_temporary_folder(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("print('ran')")
    command = f"ulimit -f 0; exec {sys.executable} -m stepgrade record train.py"
    ran = subprocess.run(
        ["sh", "-c", command], cwd=tmp_path, env=unwatched(), capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "no temporary files" in ran.stderr
    assert "set TMPDIR" in ran.stderr
    assert ran.stderr.count("\n") == 1
