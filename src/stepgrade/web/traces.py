"""Profiles that are sent to be scored: in a process of their own, with little time, memory and no rights."""

from __future__ import annotations

import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec

from stepgrade.model.scorecard import Scorecard
from stepgrade.web.access import Refused
from stepgrade.web.settings import ServerSettings

_MOST_OUTPUT = 32 << 20
_SCORE = """
import sys
import stepgrade as sg
path, device, most = sys.argv[1], sys.argv[2] or None, int(sys.argv[3])
profile = sg.load(path, max_bytes=most)
sys.stdout.write(sg.score(profile, setup=sg.Setup(device=device) if device else None).to_json())
"""


def score_upload(body: bytes, settings: ServerSettings, device: str | None) -> Scorecard:
    """Return the scorecard of a profile; raise Refused when it cannot be read, or takes too much."""
    if device is not None and not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,60}", device):
        raise Refused(400, "there is no such device")
    most = settings.most_trace_bytes * 20  # once unpacked

    def limits() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (int(settings.most_trace_s), int(settings.most_trace_s)))
        resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_OUTPUT, _MOST_OUTPUT))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    with tempfile.TemporaryDirectory(prefix="stepgrade-trace-") as folder:
        path, card = Path(folder) / "profile", Path(folder) / "card"
        path.write_bytes(body)
        try:
            with card.open("wb") as written:  # a file, for a pipe knows no limit of size
                subprocess.run(  # noqa: S603  our own program
                    [sys.executable, "-I", "-c", _SCORE, str(path), device or "", str(most)],
                    stdin=subprocess.DEVNULL,
                    stdout=written,
                    stderr=subprocess.DEVNULL,
                    cwd=folder,
                    env={"PATH": os.defpath, "HOME": folder},
                    preexec_fn=limits,
                    timeout=settings.most_trace_s,
                    check=False,
                )
        except subprocess.TimeoutExpired:
            raise Refused(422, "scoring it takes too long here") from None
        answer = card.read_bytes()
    try:
        return Scorecard.from_json(answer)
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeError, TypeError):
        raise Refused(422, "it cannot be scored: try stepgrade inspect") from None
