"""No command, helper process or step of the action runs code that lies in the working directory."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from stepgrade.cli import dispatch
from tests.builders import make_step_profile
from tests.conftest import ROOT
from tests.fuzz.samples import CONFIG, MODEL, SAMPLES, profiles, store, training_logs
from tests.kineto_text import kineto_text
from tests.trace_builder import Run, make_trace

# What our commands, pip and the interpreter's start import by name.
TRAPS = sorted(
    {
        name
        for name in sys.stdlib_module_names
        if not name.startswith("_") and name not in ("antigravity", "this")
    }
    | {
        "msgspec",
        "numpy",
        "isal",
        "pip",
        "setuptools",
        "sitecustomize",
        "usercustomize",
        "psycopg",
        "torch",
        "stepgrade",
        # What readers of other formats, trackers and stores are made of, whether we ever import it or not.
        "google",
        "jax",
        "mlflow",
        "pandas",
        "polars",
        "pyarrow",
        "tensorboard",
        "tensorflow",
        "wandb",
        "yaml",
        "zstandard",
    }
)
COMMANDS = {
    "score": ["score", "run.json"],
    "serve, refused after its imports": ["serve", "--no-browser", "--host", "192.0.2.1"],
    "admin": ["admin", "tokens", "--history", "new.db"],
    "mcp until its input ends": ["mcp", "--root", "."],
    "score a trace as JSON": ["score", "trace.json", "--format", "json"],
    "score as HTML": ["score", "trace.json", "--format", "html"],
    "score with a configuration": ["score", "run.json", "--config", "stepgrade.toml"],
    "score and keep": ["score", "run.json", "--save", "--history", "new.db"],
    "score by contract v1": [
        "score",
        "run.json",
        "--contract",
        "v1",
        "--throughput",
        "100",
        "--peak-bw",
        "100",
    ],
    "score with helper processes": ["score", "large.json.gz"],
    "inspect": ["inspect", "trace.json"],
    "convert": ["convert", "trace.json"],
    "parity": ["parity", "run.json", "run.json"],
    "gate": ["gate", "run.json", "--against", "history:main", "--history", "h.db", "--format", "sarif"],
    "history": ["history", "list", "--history", "h.db"],
    "history export": ["history", "export", "--history", "h.db"],
    "estimate": [
        "estimate",
        "--model",
        "config.json",
        "--device",
        "h100-sxm5-80gb",
        "--batch",
        "1",
        "--seq",
        "128",
    ],
    "history add": ["history", "add", "run.json", "--history", "added.db"],
    "history trend": ["history", "trend", "--history", "h.db"],
    "history prune": ["history", "prune", "--keep", "50", "--yes", "--history", "h.db"],
    "gate with repeats": [
        "gate",
        "run.json",
        "--baseline",
        "run.json",
        "--repeat",
        "run.json",
        "--format",
        "html",
    ],
    "completion": ["completion", "zsh"],
    "plan": [
        "plan",
        "--model",
        "config.json",
        "--device",
        "h100-sxm5-80gb",
        "--devices",
        "8",
        "--global-batch",
        "64",
        "--seq",
        "2048",
    ],
    "what-if": ["what-if", "trace.json"],
    "open, for a moment": ["open", "trace.json", "--no-browser", "--minutes", "0.01"],
    "watch": ["watch", "train.log", "--once"],
    "watch a journal": ["watch", "journal0", "--once"],
    "score a log beside a trace": ["score", "train.log", "trace.json"],
    "score a directory": ["score", "mlruns"],
    **{f"score {name} {place}": ["score", f"{name}{place}"] for name in SAMPLES for place in range(2)},
    "devices": ["devices"],
    "devices detected": ["devices", "--detect"],
    "help": ["--help"],
}


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a working directory with files to read, in which every module that could be imported is a trap."""
    folder = tmp_path_factory.mktemp("checkout")
    for name in TRAPS:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'SPRUNG')!r}, 'a').write('{name} ')\n")
    (folder / "stepgrade-9.9.dist-info").mkdir()
    (folder / "stepgrade-9.9.dist-info" / "entry_points.txt").write_text(
        "[stepgrade.readers]\nx = pip:READER\n"
    )
    text = kineto_text(make_trace(Run(steps=3, layers=1)))
    (folder / "trace.json").write_bytes(text)
    document = json.loads(text)
    dice = random.Random(0)
    # Larger than 7.2 MB packed, a trace is worth a second process.
    document["traceEvents"] += [
        {"ph": "i", "name": "x", "args": {"x": dice.randbytes(3000).hex()}} for _ in range(2500)
    ]
    (folder / "large.json.gz").write_bytes(gzip.compress(json.dumps(document).encode(), 1))
    (folder / "run.json").write_bytes(make_step_profile().encode())
    (folder / "h.db").write_bytes(store())
    (folder / "config.json").write_bytes(MODEL)
    (folder / "stepgrade.toml").write_bytes(CONFIG)
    (folder / "train.log").write_bytes(training_logs()[0])
    for name, sound in SAMPLES.items():
        for place in range(2):
            (folder / f"{name}{place}").write_bytes(sound()[-1 - place % len(sound())])
    (folder / "mlruns" / "1" / "a" / "metrics").mkdir(parents=True)
    (folder / "mlruns" / "1" / "a" / "meta.yaml").write_text("status: 3\n")
    (folder / "mlruns" / "1" / "a" / "metrics" / "loss").write_text("1 2 3\n")
    assert profiles()
    return folder


def run(folder: Path, words: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONSAFEPATH")}
    if os.environ.get("PYTHONPATH"):
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    return subprocess.run(
        words,
        cwd=folder,
        env={**environment, **more},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,  # however busy the machine is
        check=False,
    )


def sprung(folder: Path) -> str:
    mark = folder / "SPRUNG"
    names = mark.read_text() if mark.exists() else ""
    mark.unlink(missing_ok=True)
    return names


def test_a_trap_can_spring(trapped: Path) -> None:
    run(trapped, [sys.executable, "-c", "import msgspec"])
    assert "msgspec" in sprung(trapped)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_imports_from_the_working_directory(trapped: Path, command: str) -> None:
    # As the installed script starts it: its own folder is first on the path, not the current one.
    start = "import sys; from stepgrade.cli import main; sys.exit(main())"
    ran = run(trapped, [sys.executable, "-P", "-c", start, *COMMANDS[command]])
    assert ran.returncode in (0, 1, 2, 3), ran.stderr
    assert "Traceback" not in ran.stderr
    assert sprung(trapped) == ""


def test_every_command_is_among_them() -> None:
    tried = {words[0] for words in COMMANDS.values()}
    assert set(dispatch.COMMANDS) - tried == {"record", "fix"}, "which run a script of the user's"


def test_a_recording_imports_from_the_scripts_folder_only(trapped: Path) -> None:
    """As Python runs a script: its folder is on the path, the working directory is not; what is ours is ours."""
    pytest.importorskip("torch", reason="torch is not installed")
    folder = trapped / "scripts"
    folder.mkdir(exist_ok=True)
    for name in ("msgspec", "stepgrade"):
        (folder / f"{name}.py").write_text(
            f"open({str(trapped / 'SPRUNG')!r}, 'a').write('beside {name} ')\n"
        )
    (folder / "train.py").write_text(
        "import torch\nm = torch.nn.Linear(4, 4)\no = torch.optim.SGD(m.parameters(), 0.1)\n"
        "for _ in range(8):\n    m(torch.ones(2, 4)).sum().backward()\n    o.step()\n"
    )
    start = "import sys; from stepgrade.cli import main; sys.exit(main())"
    words = ["record", "-o", "r.json", "--html", "r.html", "--save", "--history", "r.db", "scripts/train.py"]
    ran = run(trapped, [sys.executable, "-P", "-c", start, *words])
    assert ran.returncode == 0, ran.stderr
    assert "recorded 8 steps" in ran.stderr
    assert (trapped / "r.html").exists()
    assert sprung(trapped) == ""


def test_as_a_module_nothing_of_ours_is_imported_from_there_either(tmp_path: Path) -> None:
    """`python -m` itself looks into the current directory first; once it has found us, nothing more does."""
    for name in ("msgspec", "numpy", "json", "argparse", "gc", "tomllib", "sqlite3", "zlib"):
        (tmp_path / f"{name}.py").write_text("open('SPRUNG', 'a').write(__name__)\n")
    (tmp_path / "run.json").write_text(make_step_profile())
    ran = run(tmp_path, [sys.executable, "-m", "stepgrade", "score", "run.json", "--save"])
    assert ran.returncode == 0, ran.stderr
    assert sprung(tmp_path) == ""


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_a_checkouts_own_git_settings_run_nothing(tmp_path: Path) -> None:
    trap = tmp_path / "trap.sh"
    trap.write_text(f"#!/bin/sh\necho $0 >> {tmp_path / 'SPRUNG'}\n")
    trap.chmod(trap.stat().st_mode | stat.S_IXUSR)
    subprocess.run(["git", "init", "-q", "-b", "main", tmp_path], check=True)
    (tmp_path / "run.json").write_text(make_step_profile())
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", tmp_path, "add", "run.json"], check=True)
    subprocess.run(["git", "-C", tmp_path, *identity, "commit", "-qm", "x"], check=True)
    (tmp_path / ".git" / "config").write_text(
        f"[core]\n\tfsmonitor = {trap}\n\thooksPath = {tmp_path}\n\tpager = {trap}\n\tsshCommand = {trap}\n\teditor = {trap}\n"
        f"[pager]\n\trev-parse = {trap}\n\tsymbolic-ref = {trap}\n"
        f"[alias]\n\trev-parse = !{trap}\n\tsymbolic-ref = !{trap}\n[diff]\n\texternal = {trap}\n"
    )
    for name in ("reference-transaction", "post-checkout", "post-index-change"):
        shutil.copy(trap, tmp_path / name)
    shutil.copy(trap, tmp_path / "git")  # a program of that name in the checkout is not git
    ci = dict.fromkeys(
        ("GITHUB_SHA", "GITHUB_REF_NAME", "GITHUB_HEAD_REF", "CI_COMMIT_SHA", "GIT_COMMIT", "GIT_BRANCH"), ""
    )
    words = [sys.executable, "-P", "-m", "stepgrade", "score", "run.json", "--save"]
    ran = run(tmp_path, words, PATH=os.pathsep.join((".", "", os.environ["PATH"])), **ci)
    assert ran.returncode == 0, ran.stderr
    assert sprung(tmp_path) == ""
    listed = run(tmp_path, [sys.executable, "-P", "-m", "stepgrade", "history", "list"])
    assert "main" in listed.stdout


def test_the_actions_steps_run_nothing_of_the_checkout(trapped: Path, tmp_path: Path) -> None:
    """Each `run:` of action.yml as a shell would run it, in a checkout full of traps."""
    steps = re.findall(r"^ {6}run: (.+)$", (ROOT / "action.yml").read_text(), re.MULTILINE)
    assert len(steps) >= 2
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    script = bin_folder / "stepgrade"
    script.write_text(
        f"#!{sys.executable} -P\nimport sys\nfrom stepgrade.cli import main\nsys.exit(main())\n"
    )
    script.chmod(0o755)
    (bin_folder / "python3").symlink_to(sys.executable)
    for step in steps:
        if "pip install" in step:
            assert not re.search(r"python3?(?! -I)( -\w+)* -m pip", step), "pip must be started isolated"
            step = re.sub(r"pip install .*", "pip --version", step)  # noqa: PLW2901  nothing is installed by a test
        environment = {
            "GITHUB_ACTION_PATH": str(ROOT),
            "STEPGRADE_SOURCE": "run.json",
            "STEPGRADE_OPTIONS": "--fail-on\ngrade:F",
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
        }
        ran = run(trapped, ["bash", "-c", step], **environment)
        assert "Traceback" not in ran.stderr
        assert sprung(trapped) == "", step


@pytest.mark.parametrize(
    "link", ["stepgrade-reports", "stepgrade-reports/gate.md", "stepgrade-reports/grade.svg"]
)
def test_the_action_writes_through_no_link_of_the_checkout(tmp_path: Path, link: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    victim = tmp_path / "elsewhere" / "gate.md"
    victim.write_text("important")
    place = tmp_path / link
    place.parent.mkdir(exist_ok=True)
    place.symlink_to(victim.parent if link == "stepgrade-reports" else victim)
    ran = run(tmp_path, ["bash", str(ROOT / "action" / "gate.sh")], STEPGRADE_SOURCE="run.json")
    assert (ran.returncode, "is a link" in ran.stderr) == (2, True), ran.stderr
    assert victim.read_text() == "important"
    assert [*victim.parent.iterdir()] == [victim]


def test_the_actions_history_is_no_argument(tmp_path: Path) -> None:
    """It may hold a password, and arguments are seen by every process of the machine."""
    seen = tmp_path / "seen"
    program = tmp_path / "stepgrade"
    program.write_text(f'#!/bin/sh\necho "$@" > "{seen}"; echo "$STEPGRADE_HISTORY" >> "{seen}"\n')
    program.chmod(0o755)
    url = "postgresql://me:hunter2@h/db"
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    said = {"STEPGRADE_SOURCE": "run.json", "STEPGRADE_HISTORY": url, "PATH": path}
    ran = run(tmp_path, ["bash", str(ROOT / "action" / "gate.sh")], **said)
    assert ran.returncode == 0, ran.stderr
    arguments, history = seen.read_text().splitlines()
    assert "hunter2" not in arguments
    assert history == url
