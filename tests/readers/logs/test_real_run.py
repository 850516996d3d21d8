"""A real training with torch whose checkpoints take their time, and which is killed and resumed once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.loading import load

pytest.importorskip("torch")
SCRIPT = """
import json, os, sys, time
import torch
torch.set_num_threads(1)
log, truth_path, checkpoint, stop_at = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
truth = json.load(open(truth_path)) if os.path.exists(truth_path) else {"checkpoint_s": 0.0, "lost_s": 0.0, "last": None}
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
step = 0
out = open(log, "a")
def say(text):
    out.write(text + "\\n"); out.flush()
if os.path.exists(checkpoint):
    saved = torch.load(checkpoint)
    model.load_state_dict(saved["model"]); step = saved["step"]
    say(f"resuming from checkpoint at step {step}")
begun, since_saved = time.time(), 0.0
while step < 400:
    step += 1
    before = time.time()
    x = torch.randn(64, 256)
    loss = ((model(x) - x) ** 2).mean()
    loss.backward(); optimizer.step(); optimizer.zero_grad()
    time.sleep(0.004)
    since_saved += time.time() - before
    if step % 5 == 0:
        say(json.dumps({"step": step, "loss": loss.item(), "timestamp": time.time()}))
        truth["last"] = time.time()
    if step % 100 == 0 and step < 400:
        before = time.time()
        torch.save({"model": model.state_dict(), "step": step}, checkpoint)
        time.sleep(1.0)
        say(f"saved checkpoint at step {step}")
        truth["checkpoint_s"] += time.time() - before
        since_saved = 0.0
    if step == stop_at:
        truth["lost_s"] += since_saved
        json.dump(truth, open(truth_path, "w"))
        os._exit(1)
json.dump(truth, open(truth_path, "w"))
"""


def test_planted_checkpoints_and_a_planted_restart_are_found(tmp_path: Path) -> None:
    script, log, truth_path = tmp_path / "train.py", tmp_path / "train.log", tmp_path / "truth.json"
    script.write_text(SCRIPT)
    arguments = [str(log), str(truth_path), str(tmp_path / "checkpoint.pt")]
    subprocess.run([sys.executable, str(script), *arguments, "250"], check=False, timeout=300)
    broke = json.loads(truth_path.read_text())["last"]
    subprocess.run([sys.executable, str(script), *arguments, "0"], check=True, timeout=300)
    truth = json.loads(truth_path.read_text())
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    resumed = next(
        line["timestamp"]
        for line, before in zip(lines[1:], lines, strict=False)
        if line["step"] < before["step"]
    )
    card = sg.score(load(log))
    assert card.goodput is not None
    found = {"checkpoint": card.goodput.checkpoint, "restart": card.goodput.restart}
    seconds = {name: share * card.goodput.wall_s for name, share in found.items()}
    assert seconds["checkpoint"] == pytest.approx(truth["checkpoint_s"], rel=0.15)
    # Until the first line after it, of which five steps are work, and the steps that were done again.
    assert seconds["restart"] == pytest.approx(resumed - broke + truth["lost_s"], rel=0.15)
    assert {"slow-checkpoints", "run-restarts"} <= {finding.rule for finding in card.findings}
