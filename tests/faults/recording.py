"""The recorder beside a training: whatever fails of ours, the training ends as it would without us."""

from __future__ import annotations

import inspect
import os
import sys
from contextlib import redirect_stdout
from typing import Any

from tests.faults.harness import Place, Scenario

# The first step of an optimizer would import torch's compiler, which takes longer than everything else.
_WITHOUT_COMPILER = """import sys, types, torch
torch._dynamo = sys.modules["torch._dynamo"] = types.ModuleType("torch._dynamo")
torch._dynamo.disable = lambda function, *_, **__: function
torch._dynamo.graph_break = lambda *_: None
"""
_STEPS, _CODE = 6, 7  # an exit code that none of ours is


def train(watched: bool, path: str) -> int:
    """Train a small model for some steps and print what came of it."""
    import torch

    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = None
    if watched:
        from stepgrade.record import start_recording

        recorder = start_recording(model, optimizer, path=path, flush_seconds=0.0, warmup=1)
    for step in range(_STEPS):
        loss = model(torch.full((4, 8), 1.0 + step)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(loss.item().hex())
    if recorder is not None:
        recorder.close()
    print([parameter.sum().item().hex() for parameter in model.parameters()])
    return 0


def _plain(place: Place) -> None:
    """Write down what the training prints without us, and a script of it."""
    with (place.given / "plain").open("w") as said, redirect_stdout(said):
        train(False, "")
    source = inspect.getsource(train).replace(
        "def train(watched: bool, path: str)", "def train(watched, path)"
    )
    script = f"{_WITHOUT_COMPILER}_STEPS = {_STEPS}\n{source}\ntrain(False, '')\nsys.exit({_CODE})\n"
    (place.given / "train.py").write_text(script)


def _recorded(place: Place) -> int:
    return train(True, str(place.here / "r" / "run.json"))


def _record(place: Place) -> int:
    """Become `stepgrade record`; imports do not look into the directory where calls fail."""
    words = ["record", "--quiet", "-o", "r/run.json", str(place.given / "train.py")]
    (place.here / "r").mkdir(exist_ok=True)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "stepgrade", *words])  # noqa: S606  this interpreter


def _recordings(place: Place) -> Any:
    """Return how many steps are recorded, wherever; raise when that cannot be read, or the training was harmed."""
    from stepgrade.loading import load

    printed, plain = place.here.parent / "out", (place.given / "plain").read_text()
    assert not printed.exists() or plain.startswith(printed.read_text()), (
        "the training printed something else"
    )
    found = [*(place.here / "r").glob("run*.json"), *(place.here / "tmp").glob("run*.json")]
    return max((load(str(path)).recorded_steps or 0 for path in found), default=0)


def _is_part(_: int, after: int, now: Any) -> bool:
    return isinstance(now, int) and 0 <= now <= after


def recorders() -> list[Scenario]:
    """Return a training that is watched from Python, and one under the command."""
    shared: dict[str, Any] = {"is_optional": True, "between": _is_part, "needs": ("torch",)}
    ours = ("r", "r/run*.json", "tmp/*")
    return [
        Scenario(
            "the recorder beside a training",
            _plain,
            _recorded,
            _recordings,
            ours,
            says=("run.json",),
            **shared,
        ),
        Scenario("record", _plain, _record, _recordings, ours, is_program=True, exits=(_CODE,), **shared),
    ]
