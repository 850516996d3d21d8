"""A token, a password and a key are in no output of any command: not in messages, reports or tracebacks."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stepgrade.cli.dispatch import COMMANDS
from stepgrade.errors import crash_text, without_tokens
from tests.conftest import ROOT, Ran
from tests.store.hostile_server import hostile_server

CANARY = "sg_canary0123456789SECRET"
# Each way to be odd, as bytes of the environment; what could be recognised of them is the canary.
TOKENS = {
    "plain": CANARY.encode(),
    "newline": b"sg_a\n" + CANARY.encode(),
    "carriage return": b"sg_a\r\n" + CANARY.encode(),
    "ellipsis": f"{CANARY}…".encode(),
    "not ASCII": f"{CANARY}пароль".encode(),
    "not UTF-8": CANARY.encode() + b"\xff\xfe",
    "spaces": f"{CANARY} {CANARY}".encode(),
    "quotes": f"'{CANARY}\"".encode(),
    "control": CANARY.encode() + b"\x01\x7f\x1b[31m",
    "brackets": f"{{{CANARY}}}".encode(),
    "very long": CANARY.encode() * 4000,
    "equals inside": f"{CANARY}=x".encode(),
}
RUN = str(ROOT / "examples" / "runs" / "gpt_naive.json")
SERVER = "http://127.0.0.1:9/llm"  # nobody listens there
LINES = [
    ["score", RUN, "--device", "gb10", "--save", "--history", SERVER],
    ["score", RUN, "--device", "gb10", "--format", "html"],
    ["score", RUN, "--device", "gb10", "--format", "json"],
    ["gate", RUN, "--device", "gb10", "--against", "history:main", "--history", SERVER],
    *(["history", action, "--history", SERVER] for action in ("list", "trend", "export")),
    ["history", "add", RUN, "--device", "gb10", "--history", SERVER],
    ["history", "show", "1", "--history", SERVER],
    ["history", "prune", "--keep", "1", "--yes", "--history", SERVER],
    ["history", "push", "--to", SERVER, "--history", "local.db"],
    ["history", "pull", "--from", SERVER, "--history", "local.db"],
    ["history", "outbox"],
    ["inspect", RUN],
    ["convert", RUN],
    ["open", "missing.json"],
    ["watch", "missing.log"],
    ["devices"],
    ["admin", "project", "llm", "--history", "team.db"],
    ["serve", "--history", "postgresql://me:canary@@db/runs"],
]
# One process for all lines: each is run as the command runs it, and its exit code is printed.
_EACH = """
import json, sys
from stepgrade.cli import main
for line in json.loads(sys.stdin.read()):
    print("\\nexit", main(line), *line[:2], flush=True)
"""


def run_all(lines: list[list[str]], folder: Path, **environment: bytes) -> str:
    """Run commands in a process with such an environment, and return all that it wrote."""
    given = {os.fsencode(name): os.fsencode(value) for name, value in os.environ.items()}
    given |= {name.encode(): value for name, value in environment.items()}

    ran = subprocess.run(
        [sys.executable, "-P", "-c", _EACH],
        input=json.dumps(lines).encode(),
        env=given,
        cwd=folder,
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert ran.returncode == 0, ran.stderr.decode(errors="replace")
    for path in folder.rglob("*"):
        if path.is_file():
            assert b"canary" not in path.read_bytes(), path
            assert "canary" not in path.name
    return (ran.stdout + ran.stderr).decode(errors="replace")


@pytest.mark.parametrize("kind", TOKENS)
def test_no_command_shows_the_token(kind: str, tmp_path: Path) -> None:
    lines = LINES + ([[name, "--help"] for name in COMMANDS] if kind in ("plain", "not UTF-8") else [])
    said = run_all(lines, tmp_path, STEPGRADE_TOKEN=TOKENS[kind], STEPGRADE_OUTBOX=bytes(tmp_path / "outbox"))
    assert "canary" not in said
    assert "Traceback" not in said
    codes = [line.split()[1] for line in said.splitlines() if line.startswith("exit ")]
    assert len(codes) == len(lines)
    assert set(codes) <= {"0", "1", "2", "3"}
    if kind != "plain":
        assert re.search(r"STEPGRADE_TOKEN: (not a token|is longer)", said)  # the variable is named


def test_the_token_of_the_report_is_one_line(tmp_path: Path) -> None:
    """`STEPGRADE_TOKEN=$'sg_a\\nSECRET'` ended in a traceback with the whole token."""
    said = run_all([["history", "list", "--history", SERVER]], tmp_path, STEPGRADE_TOKEN=b"sg_a\nSECRET")
    assert "SECRET" not in said
    assert len(said.split("\n")) == 4  # the message, and a blank line before the exit code
    assert "exit 2" in said


SECRETS = {
    "STEPGRADE_TOKEN": CANARY,
    "PGPASSWORD": "canary-of-the-database",
    "AWS_SECRET_ACCESS_KEY": "canary/of+the/bucket",
    "WANDB_API_KEY": "canary0of0wandb",
    "HTTPS_PROXY": "http://me:canary%40proxy@proxy.example:3128",
    "STEPGRADE_HISTORY": "postgresql://me:canary-password@db.example/runs",
}


@pytest.mark.parametrize("show", ["{}", "{!r}", "{!a}"])
@pytest.mark.parametrize("odd", ["", "\n", "\udcff", "…", "'\"", "\\"])
def test_a_crash_shows_no_secret_of_the_environment(
    show: str, odd: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {name: value if "://" in value else value + odd + value for name, value in SECRETS.items()}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    text = "\n".join(f"File x.py, ValueError: {show.format(value)}" for value in values.values())
    text += "\n" + "\n".join(repr(os.fsencode(value)) for value in values.values())
    hidden = crash_text(text)
    assert "canary" not in hidden
    assert "File x.py, ValueError: " in hidden


def test_a_bug_shows_no_token(tmp_path: Path) -> None:
    """The real way: an error that nobody foresaw, raised with the token in it."""
    code = (
        "import os, sys, stepgrade.cli.inspect as command\n"
        "def broken(args): raise KeyError('Bearer ' + os.environ['STEPGRADE_TOKEN'])\n"
        "command.run = broken\n"
        "from stepgrade.cli import main\n"
        "sys.exit(main(['inspect', 'x']))\n"
    )
    for token in (b"sg_a\nSECRET", CANARY.encode() + b"\xff"):
        ran = subprocess.run(
            [sys.executable, "-P", "-c", code],
            env={**os.environb, b"STEPGRADE_TOKEN": token},
            cwd=tmp_path,
            capture_output=True,
            check=False,
            timeout=120,
        )
        assert ran.returncode == 70
        assert b"Traceback" in ran.stderr
        assert b"SECRET" not in ran.stderr
        assert b"canary" not in ran.stderr


def test_words_that_are_no_secrets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STEPGRADE_TOKEN", "main")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "disabled-here")
    assert without_tokens("branch main, disabled-here") == "branch main, disabled-here"
    assert crash_text("branch main, disabled-here") == "branch main, disabled-here"


@pytest.mark.parametrize(
    "toml",
    [
        'history = "{url}"',
        '[history]\nurl = "{url}"',
        '[server]\nurl = "{url}"\ntoken = "x"',
        '[gate]\nhistory = "{url}"',
        '[gate]\nagainst = "{url}"',
        '[files]\noutbox = "{url}"',
        "",
    ],
)
def test_no_file_of_a_checkout_names_where_the_token_goes(
    toml: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stepgrade: Callable[..., Ran]
) -> None:
    """Neither stepgrade.toml nor anything else that a pull request can bring redirects the token."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("STEPGRADE_TOKEN", CANARY)
    with hostile_server() as server:
        port = server.url.split(":")[2].split("/")[0]
        files = {
            "stepgrade.toml": toml.format(url=server.url),
            ".env": f"STEPGRADE_HISTORY={server.url}\nHTTPS_PROXY=http://127.0.0.1:{port}\n",
            ".netrc": f"machine 127.0.0.1 login a password {server.url}\n",
            ".git/config": f'[http]\nproxy = http://127.0.0.1:{port}\n[remote "origin"]\nurl = {server.url}\n',
            ".git/HEAD": "ref: refs/heads/main\n",
            ".stepgrade/config": server.url,
            ".stepgrade/outbox/run-1.json": json.dumps({"server": server.url, "key": "k", "body": {}}),
        }
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        codes = [
            stepgrade("score", RUN, "--device", "gb10", "--save").code,
            stepgrade("gate", RUN, "--device", "gb10", "--against", "history:main", "--save").code,
            stepgrade("history", "list").code,
            stepgrade("history", "push", "--to", SERVER).code,
        ]
        assert server.seen == []
    assert set(codes) <= {0, 1, 2, 3}
    assert codes[0] == (2 if toml else 0)  # what it does not know in the file it refuses
