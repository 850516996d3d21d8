"""Requests made from the server's own description, by schemathesis: no answer may be a bug or break the description.

`make fuzz-server` runs it; `python -m tests.web.fuzz_description 50` makes so many requests of each endpoint.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.web.live import live_server
from tests.web.scenes import fill


def main(examples: int) -> int:
    """Start a server with something in it, let schemathesis ask, and return its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "team.db"
        fill(place, runs=12)
        # Open to this machine: with a token, one of the first requests would revoke it.
        with live_server(place, "--uploads-per-minute", "100000") as server:
            command = [sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"]
            command += ["--phases", "examples,coverage,fuzzing"]
            command += [
                "--generation-with-security-parameters",
                "false",
            ]  # wrong tokens have tests of their own
            command += ["--max-examples", str(examples), "--seed", "21", "--continue-on-failure"]
            command += ["--checks", "not_a_server_error,content_type_conformance,response_schema_conformance"]
            return subprocess.run(command, check=False, cwd=folder, env=os.environ).returncode


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 50))
