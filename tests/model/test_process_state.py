"""Used as a library, stepgrade leaves the process as it is: its settings are those of whoever calls."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

from tests.fuzz.samples import SAMPLES

_USE = """
import csv, decimal, gc, locale, logging, os, random, resource, signal, socket, sys, threading, warnings
from pathlib import Path
import numpy as np

def state():
    mask = os.umask(0)
    os.umask(mask)
    limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "directory": os.getcwd(), "environment": dict(os.environ), "umask": mask,
        "limits": {name: resource.getrlimit(getattr(resource, name)) for name in limits},
        "signals": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "timer": signal.getitimer(signal.ITIMER_REAL), "recursion": sys.getrecursionlimit(),
        "switching": sys.getswitchinterval(), "digits": sys.get_int_max_str_digits(),
        "hooks": (sys.excepthook, threading.excepthook, sys.unraisablehook, sys.gettrace(), sys.getprofile()),
        "streams": (sys.stdin, sys.stdout, sys.stderr), "path": list(sys.path), "meta": list(sys.meta_path),
        "garbage": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count()),
        "csv": csv.field_size_limit(), "locale": locale.setlocale(locale.LC_ALL), "decimal": repr(decimal.getcontext()),
        "warnings": list(warnings.filters), "showing": warnings.showwarning, "numpy": np.geterr(),
        "random": random.getstate(), "random of numpy": str(np.random.get_state()),
        "logging": (logging.root.level, list(logging.root.handlers), logging.root.manager.disable),
        "sockets": socket.getdefaulttimeout(), "threads": threading.enumerate(),
        "files": sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else [],
        "written": sorted(map(str, Path().rglob("*"))),
    }

before = state()
import stepgrade as sg
for source in sys.argv[1:]:
    try:
        card = sg.score(source)
    except sg.StepgradeError:
        continue
    for form in ("terminal", "markdown", "json", "html"):
        sg.render(card, to=form)
    sg.Scorecard.from_json(card.to_json())
after = state()
changed = {name: (before[name], after[name]) for name in before if before[name] != after[name]}
sys.exit("\\n".join(f"{name}: {old} -> {new}" for name, (old, new) in changed.items()) or 0)
"""


def test_a_process_is_left_as_it_was(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    sources = []
    for kind, make in SAMPLES.items():
        for number, content in enumerate(make()):
            sources.append(tmp_path / f"{kind}-{number}")
            sources[-1].write_bytes(content)
    command = [sys.executable, "-c", textwrap.dedent(_USE), *map(str, sources)]
    ran = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=600, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
