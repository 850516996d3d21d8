"""The line that says how far a command is ends nothing when its terminal goes away."""

from __future__ import annotations

import os
import pty
import sys
import time

import pytest

from stepgrade.cli.streams import progress_line


def test_a_terminal_that_is_gone_is_not_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    main, terminal = pty.openpty()
    stream = os.fdopen(terminal, "w")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(time, "monotonic", iter(range(0, 1000, 10)).__next__)
    with progress_line() as line:
        assert line is not None
        line.show_steps(1)
        assert b"recording: step 1" in os.read(main, 100)
        os.close(main)  # as when the connection to another machine breaks
        line.show_steps(2)
    with pytest.raises(OSError, match="Input/output error"):
        stream.close()
