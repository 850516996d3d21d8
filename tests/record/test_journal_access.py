"""Who may read a recording and its journal: their owner, unless the project says otherwise."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from stepgrade.record.journal import Journal


@pytest.mark.parametrize(
    ("readable_by", "umask", "mode"),
    [("owner", 0o000, 0o600), ("group", 0o002, 0o660), ("group", 0o022, 0o640), ("all", 0o022, 0o644)],
)
def test_a_journal_and_the_recording_in_its_place(
    tmp_path: Path, readable_by: str, umask: int, mode: int
) -> None:
    journal = Journal(tmp_path / "run.json", readable_by)
    before = os.umask(umask)
    try:
        journal.write({"_recording": 1}, {"steady": {}})
        assert stat.S_IMODE(journal.path.stat().st_mode) == mode
        journal.append({"steady": {}})
        assert stat.S_IMODE(journal.finish(b"{}").stat().st_mode) == mode
    finally:
        os.umask(before)


def test_a_file_that_is_there_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text("old")
    path.chmod(0o644)
    Journal(path).write({"_recording": 1}, {"steady": {}})
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
