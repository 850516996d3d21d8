"""Where work comes from: the tree of modules adds up, agrees with the layers, and lines are the user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.model import Profile
from tests.conftest import ROOT

TRACE = ROOT / "examples" / "traces" / "gpt_naive.json.gz"


@pytest.fixture(scope="module")
def profile() -> Profile:
    return sg.load(TRACE)


def test_modules_add_up(profile: Profile) -> None:
    """What a module takes is what it does itself and what the modules in it take."""
    inside = [0.0] * len(profile.modules)
    total = [m.fwd_ms + m.bwd_ms + m.recompute_ms for m in profile.modules]
    for place, module in enumerate(profile.modules):
        assert module.parent is None or module.parent < place
        if module.parent is not None:
            inside[module.parent] += total[place]
    for place, module in enumerate(profile.modules):
        assert inside[place] + sum(module.ops.values()) == pytest.approx(total[place], rel=1e-9)


def test_modules_agree_with_the_layers(profile: Profile) -> None:
    """Layers are found by other code, from the same frames: a block has the same time in both."""
    modules = {module.name: module for module in profile.modules}
    assert len(profile.layers) == 6
    for layer in profile.layers:
        module = modules[layer.name or ""]
        assert module.fwd_ms == pytest.approx(layer.fwd_ms)
        assert module.bwd_ms == pytest.approx(layer.bwd_ms)


def test_an_operation_names_the_kind_of_module_that_it_is_in(profile: Profile) -> None:
    modules = {op.name: op.module for op in profile.operations}
    assert modules["aten::_softmax"] == "GPT.Block.Attention"
    assert modules["aten::bmm"] == "GPT.Block.Attention"
    assert modules["aten::embedding"] == "GPT.Embedding"


def test_the_card_has_the_modules_of_a_step_that_can_be_seen(profile: Profile) -> None:
    card = sg.score(profile)
    root = card.modules[0]
    assert root.parent is None
    assert root.share == max(module.share for module in card.modules)
    assert min(module.share for module in card.modules) >= 0.0005
    for module in card.modules[1:]:
        assert module.parent is not None
        assert module.share <= card.modules[module.parent].share + 1e-12
    decoded = json.loads(card.to_json())
    assert decoded["modules"][1]["parent"] == 0
    assert decoded["operations"][0]["module"] == "GPT.Block.Linear"


def test_without_module_frames_there_are_none(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    ops = [
        {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": n * 10, "dur": 5}
        for n in range(40)
    ]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": ops}))
    found = sg.load(path)
    assert found.modules == ()
    assert {op.module for op in found.operations} == {None}


SCRIPT = """
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):  # the line of Inner
        return self.second(torch.relu(self.first(x)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Inner() for _ in range(3))

    def forward(self, x):
        for block in self.blocks:
            x = x + torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return x


def train(path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with torch.profiler.profile(with_stack=True, with_modules=True, record_shapes=True,
                                schedule=torch.profiler.schedule(wait=1, warmup=1, active=4),
                                on_trace_ready=lambda p: p.export_chrome_trace(path)) as profiler:
        for _ in range(6):
            loss = model(torch.randn(64, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()
"""


def test_a_real_run_with_stacks_and_checkpointing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every depth has its time, recomputed work stands where it stood, and lines are those of the script."""
    pytest.importorskip("torch")
    (tmp_path / "net.py").write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    import net  # type: ignore[import-not-found]  # written above

    net.train(str(tmp_path / "trace.json"))
    found = sg.load(tmp_path / "trace.json")
    names = [module.name for module in found.modules]
    assert names.count("Net_0") == 1
    blocks = [module for module in found.modules if module.name.startswith("Inner")]
    assert len(blocks) == 3
    for block in blocks:
        assert block.parent == names.index("Net_0")
        assert min(block.fwd_ms, block.bwd_ms, block.recompute_ms) > 0.0
    line = 1 + SCRIPT.splitlines().index("    def forward(self, x):  # the line of Inner")
    places = {op.name: (op.where or "", op.module) for op in found.operations}
    assert places["aten::addmm"][0].endswith(f"net.py:{line}")
    assert places["aten::addmm"][1] == "Net.Inner.Linear"
    # Of the backward pass as well: the line of the forward operation that made it.
    assert places["aten::mm"][0].endswith(f"net.py:{line}")


def _trace_with_memory(path: Path) -> Path:
    """Write three steps of a network of two modules: what each launches and what it allocates is known."""
    events: list[dict[str, object]] = []

    def add(category: str, name: str, ts: float, dur: float, **args: object) -> None:
        device = category == "kernel"
        where = {"pid": 0 if device else 1, "tid": 7 if device else 1}
        events.append({"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "args": args} | where)

    def allocate(ts: float, size: int, address: int, total: int) -> None:
        args = {
            "Bytes": size,
            "Addr": address,
            "Device Type": 1,
            "Device Id": 0,
            "Total Allocated": total,
            "Total Reserved": 1 << 30,
        }
        events.append({"ph": "i", "s": "t", "name": "[memory]", "ts": ts, "pid": 1, "tid": 1, "args": args})

    for step in range(5):
        at = step * 1000.0
        add("user_annotation", f"ProfilerStep#{step}", at, 990)
        add("python_function", "nn.Module: Net_0", at + 10, 400, **{"Python id": 1, "Python parent id": 0})
        for place, name in enumerate(("First_0", "Second_0")):
            begin, number = at + 20 + 180 * place, step * 10 + 2 * place
            ids = {"Python id": 2 + place, "Python parent id": 1}
            add("python_function", f"nn.Module: {name}", begin, 170, **ids)
            add("cpu_op", "aten::mm", begin + 5, 150, **{"External id": number + 1})
            allocate(begin + 7, 4096 * (place + 1), 4096 * (number + 1), 4096 * (place + 1))
            for kernel in range(2):
                launch = begin + 20 + 40 * kernel
                args = {"correlation": number + kernel, "device": 0, "stream": 7, "External id": number + 1}
                add("cuda_runtime", "cudaLaunchKernel", launch, 5, correlation=number + kernel)
                add("kernel", ("gemm", "reduce")[kernel], launch + 10, 30 - 20 * kernel, **args)
        allocate(at + 600, -4096, 4096 * (step * 10 + 1), 8192)
        allocate(at + 610, -8192, 4096 * (step * 10 + 3), 0)
    document = {"schemaVersion": 1, "profile_memory": 1, "with_modules": 1, "traceEvents": events}
    path.write_text(json.dumps(document))
    return path


def test_modules_have_their_kernels_and_what_they_leave_allocated(tmp_path: Path) -> None:
    profile = sg.load(_trace_with_memory(tmp_path / "trace.json"))
    modules = {module.name: module for module in profile.modules}
    assert (profile.steps or 0) > 1
    assert modules["Net_0"].kernels == {}
    for name in ("First_0", "Second_0"):
        assert modules[name].ops == {"aten::mm": pytest.approx(0.04)}
        kernels = modules[name].kernels["aten::mm"]
        assert kernels == {"gemm": pytest.approx(0.03), "reduce": pytest.approx(0.01)}
    held = {name: module.memory_bytes for name, module in modules.items()}
    assert held == {"Net_0": 12288.0, "First_0": 4096.0, "Second_0": 8192.0}
    document = json.loads(sg.score(profile).to_json())["modules"]
    assert [row["memory_bytes"] for row in document] == [12288.0, 4096.0, 8192.0]
    assert document[1]["kernels"]["aten::mm"] == {"gemm": pytest.approx(0.03), "reduce": pytest.approx(0.01)}


def test_memory_that_was_not_recorded_is_not_known(profile: Profile) -> None:
    assert {module.memory_bytes for module in profile.modules} == {None}
