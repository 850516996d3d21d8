"""A log that grows: what was added is read, and a file that is cut, replaced or not there yet does no harm."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from stepgrade.cli import main
from stepgrade.errors import BadInput
from stepgrade.readers.logs.follow import Followed
from tests.readers.logs.generated import Plan, generate

LOG = generate(Plan(steps=600), "megatron")[0]


def steps_of(followed: Followed) -> float | None:
    profile = followed.look()
    return profile.log.step[-1] if profile is not None and profile.log is not None else None


def test_what_is_added_is_read_whatever_the_pieces(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(b"")
    followed = Followed(str(path))
    assert followed.look() is None
    seen = []
    for start in range(0, len(LOG), 7001):
        with path.open("ab") as file:
            file.write(LOG[start : start + 7001])
        seen.append(steps_of(followed))
    known = [step for step in seen if step is not None]
    assert known == sorted(known)
    assert known[-1] == 600.0
    assert followed.begun_again == 0
    assert followed.look() is followed.look()  # nothing new
    followed.close()


def test_a_file_that_is_cut_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(LOG)
    followed = Followed(str(path))
    assert steps_of(followed) == 600.0
    path.write_bytes(LOG[: len(LOG) // 4])
    assert (steps_of(followed) or 0.0) < 200.0
    assert followed.begun_again == 1
    followed.close()


def test_a_file_that_is_replaced_begins_again(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(LOG[: len(LOG) // 2])
    followed = Followed(str(path))
    before = steps_of(followed)
    path.rename(tmp_path / "train.log.1")
    assert steps_of(followed) == before  # between the two files
    path.write_bytes(LOG)
    assert steps_of(followed) == 600.0
    assert followed.begun_again == 1
    followed.close()


def test_what_was_never_there_or_is_gzipped_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        Followed(str(tmp_path / "nothing")).look()
    (tmp_path / "a.gz").write_bytes(b"\x1f\x8b" + bytes(100))
    with pytest.raises(BadInput, match="gzipped"):
        Followed(str(tmp_path / "a.gz")).look()


def test_in_a_pipe_there_is_a_plain_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(generate(Plan(steps=600, checkpoint_every=50), "megatron")[0])
    assert main(["watch", str(path), "--once"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert "\x1b" not in out
    for word in (
        "step 600 of 600",
        "goodput",
        "grade ungraded",
        "! Checkpoints paused training every 50 steps",
    ):
        assert word in out


def test_without_a_step_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "train.log"
    path.write_text("starting up\n")
    assert main(["watch", str(path), "--once"]) == 3
    assert "none so far" in capsys.readouterr().out


def test_in_a_terminal_lines_are_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    path = tmp_path / "train.log"
    path.write_bytes(LOG)
    terminal, looks = Terminal(), []

    def sleep(_: float) -> None:
        looks.append(1)
        if len(looks) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setattr("stepgrade.cli.watch.time.sleep", sleep)
    assert main(["watch", str(path)]) == 0
    assert terminal.getvalue().count("stepgrade watch") == 2
    assert "\x1b[J" in terminal.getvalue()


def test_names_that_a_terminal_would_act_on_are_not_sent_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "train.log"
    path.write_bytes(
        b"Model \x1b[2Jx \x07y size: 1 total parameters\nGPU: NVIDIA \x1b]0;a\x07H100 | x\n" + LOG
    )
    main(["watch", str(path), "--once"])
    main(["score", str(path)])
    assert "\x1b" not in capsys.readouterr().out
