"""Whatever can be done to a model without the recorder can be done with it, in the middle of a run."""

from __future__ import annotations

import asyncio
import copy
import gc
import inspect
import io
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint

import stepgrade as sg
from stepgrade.record import Recorder
from stepgrade.record.script import ScriptRecorder


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.norm(torch.relu(self.linear(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block(), Block()])
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


X = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))


def saved(model: nn.Module, _optimizer: object) -> Tensor:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)(X)


def saved_activation(model: nn.Module, _optimizer: object) -> Tensor:
    seen: list[Tensor] = []
    with torch.no_grad():
        handle = model.blocks[1].register_forward_hook(lambda _m, _a, output: seen.append(output))
    model(X)
    handle.remove()
    file = io.BytesIO()
    torch.save(seen[0], file)  # warns of a tensor's hooks
    return seen[0]


def hook_after_in_place(model: nn.Module, _optimizer: object) -> Tensor:
    """A hook that the script puts on a block's output after it changed it in place sees its own gradient."""
    seen: list[Tensor] = []
    hidden = model.blocks[0](X)
    hidden.mul_(3.0)
    hidden.register_hook(seen.append)
    model.head(model.blocks[1](hidden)).sum().backward()
    return seen[0]


def averaged(model: nn.Module, _optimizer: object) -> Tensor:
    average = AveragedModel(model)
    average.update_parameters(model)
    return average(X)


def compiled_module(model: nn.Module, _optimizer: object) -> Tensor:
    copied = copy.deepcopy(model)
    copied.compile(backend="eager", fullgraph=True)
    copied(X).sum().backward()
    return copied(X)


def per_sample_gradients(model: nn.Module, _optimizer: object) -> Tensor:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (x,)).sum()

    found = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(weights, X)
    return found["blocks.0.linear.weight"]


def gradient_penalty(model: nn.Module, _optimizer: object) -> Tensor:
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    slope.square().sum().backward()
    return slope


def scheduled(model: nn.Module, optimizer: torch.optim.Optimizer) -> Tensor:
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    optimizer.step()
    scheduler.step()  # warns when `optimizer.step` was wrapped after it was made
    return model(X)


def pruned(model: nn.Module, _optimizer: object) -> Tensor:
    copied = copy.deepcopy(model)
    torch.nn.utils.parametrizations.spectral_norm(copied.head)
    torch.nn.utils.prune.l1_unstructured(copied.blocks[0].linear, "weight", 0.5)
    copied(X).sum().backward()
    return copied.blocks[0].linear.weight


def normed(model: nn.Module, _optimizer: object) -> Tensor:
    copied = copy.deepcopy(model)
    torch.nn.utils.parametrizations.weight_norm(copied.blocks[0].linear)
    nn.utils.parametrize.register_parametrization(copied.head, "weight", nn.Identity())
    copied(X).sum().backward()
    copied = copy.deepcopy(copied)
    nn.utils.parametrize.remove_parametrizations(copied.head, "weight")
    return copied(X)


def quantized(model: nn.Module, _optimizer: object) -> Tensor:
    return torch.ao.quantization.quantize_dynamic(model.eval(), {nn.Linear}, dtype=torch.qint8)(X)


def ensemble(model: nn.Module, _optimizer: object) -> Tensor:
    weights, buffers = torch.func.stack_module_state([model, copy.deepcopy(model)])
    base = copy.deepcopy(model).to("meta")
    return torch.func.vmap(
        lambda weights, buffers, x: torch.func.functional_call(base, (weights, buffers), (x,)), (0, 0, None)
    )(weights, buffers, X)


def hooked(model: nn.Module, _optimizer: object) -> list[str]:
    """Hooks of all kinds, of the script's own and of all modules, in their order."""
    seen: list[str] = []
    every = torch.nn.modules.module
    handles = [
        model.register_forward_pre_hook(lambda *_: seen.append("before")),
        model.register_forward_hook(lambda *_: seen.append("after")),
        model.blocks[0].register_full_backward_hook(lambda *_: seen.append("backward")),
        model.blocks[1].register_full_backward_pre_hook(lambda *_: seen.append("before backward")),
        every.register_module_forward_hook(lambda module, *_: seen.append(type(module).__name__)),
        torch.autograd.graph.register_multi_grad_hook(
            list(model.parameters()), lambda gradients: seen.append(str(len(gradients)))
        ),
    ]
    model(X).sum().backward()
    for handle in handles:
        handle.remove()
    return seen


class Interrupted(BaseException):
    pass


def raising(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Errors in hooks, in forward and in backward, which the script catches before it goes on."""
    caught = []

    def refuse(*_: object) -> None:
        raise Interrupted("the script's own")

    for place in (
        model.register_forward_pre_hook,
        model.blocks[1].register_forward_hook,
        model.blocks[1].register_full_backward_hook,
        optimizer.register_step_pre_hook,
        optimizer.register_step_post_hook,
    ):
        handle = place(refuse)
        try:
            model(X).sum().backward()
            optimizer.step()
        except Interrupted as error:
            caught.append(f"{error}, {error.__traceback__.tb_frame.f_code.co_name}")
        handle.remove()
    return caught


def anomalies(model: nn.Module, _optimizer: object) -> str:
    with torch.autograd.set_detect_anomaly(True):
        x = (X * 0.0).requires_grad_()
        (model(x).sum() * torch.sqrt(x.sum())).backward()
    return "no anomaly"


def dispatched(model: nn.Module, _optimizer: object) -> list[str]:
    """What a mode sees that looks at every operation."""
    seen: list[str] = []

    class Look(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(str(func))
            return func(*args, **(kwargs or {}))

    with Look():
        model(X).sum().backward()
    return seen


def packed(model: nn.Module, _optimizer: object) -> Tensor:
    """Activations that are kept elsewhere, and a reentrant checkpoint around them."""
    kept: list[Tensor] = []

    def keep(tensor: Tensor) -> int:
        kept.append(tensor.clone())
        return len(kept) - 1

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda place: kept[place]):
        model(X).sum().backward()
    x = X.clone().requires_grad_()
    checkpoint(model, x, use_reentrant=True).sum().backward()
    return x.grad


class OwnCall(nn.Module):
    """A model that has a `__call__` of its own, as some libraries do."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def __call__(self, *args: object) -> object:
        return super().__call__(*args), "its own"

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def own_call(model: nn.Module, _optimizer: object) -> str:
    given, words = OwnCall(model)(X)
    given.sum().backward()
    return words


def wrapped_by_the_script(model: nn.Module, _optimizer: object) -> list[str]:
    """A script that wraps what every module's call goes through, as tracers do."""
    seen: list[str] = []
    before = nn.Module.__call__

    def call(self: nn.Module, *args: object, **kwargs: object) -> object:
        seen.append(type(self).__name__)
        return before(self, *args, **kwargs)

    nn.Module.__call__ = call
    try:
        model(X)
    finally:
        nn.Module.__call__ = before
    return seen


def across_processes(model: nn.Module, _optimizer: object) -> int:
    """A forked process that trains on a model in shared memory, as Hogwild does."""
    shared = copy.deepcopy(model).share_memory()

    def train() -> None:
        optimizer = torch.optim.SGD(shared.parameters(), 1e-3)
        for _ in range(3):
            shared(X).sum().backward()
            optimizer.step()

    process = torch.multiprocessing.get_context("fork").Process(target=train)
    process.start()
    process.join(60)
    return process.exitcode


def in_a_loop(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[int]:
    """Steps in tasks of asyncio, and in a generator that is closed half way."""

    async def step(number: int) -> int:
        model(X).sum().backward()
        await asyncio.sleep(0)
        optimizer.step()
        return number

    async def several() -> list[int]:
        return await asyncio.gather(*(step(number) for number in range(3)))

    def steps() -> Iterator[int]:
        with torch.enable_grad():
            for number in range(9):
                model(X).sum().backward()
                yield number
                optimizer.step()

    begun = steps()
    found = [*asyncio.run(several()), next(begun), next(begun)]
    begun.close()
    return found


def flops_of(model: nn.Module) -> dict[str, object]:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        model(X).sum().backward()
    return {
        name: {str(op): count for op, count in found.items()} for name, found in counter.flop_counts.items()
    }


def inferred(model: nn.Module) -> Tensor:
    with torch.inference_mode():
        return model(X).clone()


def lazy(_model: nn.Module, _optimizer: object) -> Tensor:
    """A model whose weights have their shapes only after the first call, trained for itself."""
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1))
    model(X)  # its shapes are known from here on
    for parameter in model.parameters():
        nn.init.constant_(parameter, 0.5)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(2):
        model(X).sum().backward()
        optimizer.step()
    return model(X)


def functional_loss(model: nn.Module) -> Callable[[dict[str, Tensor]], Tensor]:
    return lambda weights: torch.func.functional_call(model, weights, (X,)).sum()


def in_a_thread(model: nn.Module, _optimizer: object) -> Tensor:
    given = []
    thread = threading.Thread(target=lambda: given.append(copy.deepcopy(model)(X)))
    thread.start()
    thread.join()
    return given[0]


DONE: dict[str, Callable[[nn.Module, torch.optim.Optimizer], object]] = {
    "torch.save": saved,
    "torch.save of an activation": saved_activation,
    "a hook after a change in place": hook_after_in_place,
    "pickle": lambda model, _: pickle.loads(pickle.dumps(model))(X),  # noqa: S301  ours
    "pickle of a bound call": lambda model, _: pickle.loads(pickle.dumps(model.__call__))(X),  # noqa: S301
    "pickle of the optimizer": lambda _, optimizer: pickle.dumps(optimizer),
    "pickle of torch's functions": lambda *_: pickle.dumps(
        [torch.autograd.backward, torch.distributed.all_reduce, torch.optim.Optimizer.zero_grad]
    ),
    "deepcopy": lambda model, _: copy.deepcopy(model)(X),
    "deepcopy of both": lambda model, optimizer: copy.deepcopy((model, optimizer))[0](X),
    "AveragedModel": averaged,
    "torch.jit.script": lambda model, _: torch.jit.script(model)(X),
    "torch.jit.trace": lambda model, _: torch.jit.trace(model, X)(X),
    "torch.export": lambda model, _: torch.export.export(model, (X,)).module()(X),
    "torch.export, strict": lambda model, _: torch.export.export(model, (X,), strict=True).module()(X),
    "torch.fx": lambda model, _: torch.fx.symbolic_trace(model)(X),
    "torch.compile": lambda model, _: torch.compile(model, backend="eager", fullgraph=True)(X),
    "module.compile": compiled_module,
    "a compiled optimizer": lambda _, optimizer: torch.compile(optimizer.step, backend="eager")(),
    "functional_call": lambda model, _: torch.func.functional_call(
        model, dict(model.named_parameters()), (X,)
    ),
    "per-sample gradients": per_sample_gradients,
    "forward mode": lambda model, _: torch.func.jvp(model, (X,), (X,))[1],
    "a Hessian": lambda model, _: torch.autograd.functional.hessian(lambda x: model(x).sum(), X[:1]),
    "a gradient penalty": gradient_penalty,
    "checkpointing": lambda model, _: checkpoint(model, X, use_reentrant=False).sum().backward(),
    "half precision": lambda model, _: copy.deepcopy(model).bfloat16()(X.bfloat16()),
    "a copy on meta": lambda model, _: copy.deepcopy(model).to("meta")(X.to("meta")).shape,
    "DataParallel": lambda model, _: nn.DataParallel(model)(X),
    "parametrizations": pruned,
    "a schedule": scheduled,
    "a closure": lambda model, optimizer: optimizer.step(lambda: model(X).sum()),
    "the optimizer's own step": lambda _, optimizer: (
        optimizer.step.__func__ is type(optimizer).step,
        sorted(vars(optimizer)),
    ),
    "weight norm": normed,
    "quantization": quantized,
    "an ensemble": ensemble,
    "hooks in their order": hooked,
    "errors in hooks": raising,
    "detection of anomalies": anomalies,
    "a dispatch mode": dispatched,
    "saved tensors elsewhere": packed,
    "a call of its own": own_call,
    "a script that wraps calls": wrapped_by_the_script,
    "a forked process that trains": across_processes,
    "asyncio and generators": in_a_loop,
    "a thread": in_a_thread,
    "a lazy model": lazy,
    "gradients of a function": lambda model, _: torch.func.grad(functional_loss(model))(
        {name: parameter.detach() for name, parameter in model.named_parameters()}
    )["head.weight"],
    "a shallow copy": lambda model, _: copy.copy(model)(X),
    "FLOPs by torch's own counter": lambda model, _: flops_of(model),
    "inference mode": lambda model, _: inferred(model),
    "signatures": lambda model, _: [
        str(inspect.signature(function))
        for function in (model.__call__, torch.autograd.backward, torch.optim.Optimizer.zero_grad)
    ],
    "sources": lambda *_: [
        inspect.getsource(function)
        for function in (nn.Module.__call__, torch.autograd.backward, torch.optim.Optimizer.zero_grad)
    ],
    "gradcheck": lambda model, _: torch.autograd.gradcheck(
        copy.deepcopy(model).double(), (X[:1].double().requires_grad_(),)
    ),
    "what a model holds": lambda model, _: [sorted(vars(part)) for part in model.modules()],
    "hooks of a module": lambda model, _: [len(part._forward_hooks) for part in model.modules()],
}


def train_and(
    do: Callable[[nn.Module, torch.optim.Optimizer], object],
) -> tuple[object, list[str], list[Tensor]]:
    """Return what the thing gives or raises in the middle of a training, its warnings, and the weights."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def step() -> None:
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):
        step()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            given = do(model, optimizer)
        except Exception as error:  # noqa: BLE001  compared, whatever it is
            given = f"{type(error).__name__}: {error}"
    model.zero_grad()
    for _ in range(3):
        step()
    return given, sorted({str(warning.message) for warning in warned}), list(model.parameters())


@pytest.fixture(params=["script", "watch"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., object]]:
    """Yield a way to start recording, as `stepgrade record` or one line in the loop does."""
    started: list[Recorder] = []

    def start(model: nn.Module | None = None) -> Recorder:
        if request.param == "script":
            recorder = ScriptRecorder(path=tmp_path / "run.json").start()
        else:
            recorder = sg.start_recording(model or Net(), path=tmp_path / "run.json")
        started.append(recorder)
        return recorder

    yield start
    for recorder in started:
        recorder.close()


class Around(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def can_be_nested(depth: int) -> bool:
    model: nn.Module = nn.Linear(8, 8)
    for _ in range(depth):
        model = Around(model)
    try:
        model(X)
    except RecursionError:
        return False
    return True


def test_modules_can_be_nested_as_deep_as_without(recording: Callable[..., Recorder]) -> None:
    limit = sys.getrecursionlimit()
    deepest = max(depth for depth in range(0, limit, 10) if can_be_nested(depth))
    recorder = recording()
    assert can_be_nested(deepest)
    recorder.close()
    assert sys.getrecursionlimit() == limit


def test_a_lazy_model_is_recorded_from_its_first_step_on(
    recording: Callable[..., Recorder], tmp_path: Path
) -> None:
    blocks = (nn.Sequential(nn.LazyLinear(8), nn.ReLU()) for _ in range(3))
    model = nn.Sequential(*blocks, nn.LazyLinear(1))
    recorder = recording(model)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    for _ in range(6):
        model(X).sum().backward()
        optimizer.step()
        if not isinstance(recorder, ScriptRecorder):
            recorder.step()
    recorder.close()
    profile = sg.load(tmp_path / "run.json")
    assert profile.recorded_steps == 6
    assert profile.samples_per_step == len(X)
    assert not any(note.code == "recorder_failed" for note in profile.notes)


@pytest.mark.parametrize("thing", DONE)
def test_it_can_be_done_with_the_recorder_as_without(
    recording: Callable[..., Recorder], thing: str, caplog: pytest.LogCaptureFixture
) -> None:
    train_and(DONE[thing])  # torch says some things only once
    given, warned, weights = train_and(DONE[thing])
    recorder = recording()
    given_recorded, warned_recorded, weights_recorded = train_and(DONE[thing])
    assert not any(note.code == "recorder_failed" for note in recorder.notes), caplog.text
    assert warned_recorded == warned
    assert type(given_recorded) is type(given), (given, given_recorded)
    if isinstance(given, Tensor):
        assert torch.equal(given, given_recorded)
    elif not isinstance(given, bytes):
        assert given_recorded == given
    assert all(map(torch.equal, weights, weights_recorded))


def test_a_checkpoint_loads_where_stepgrade_is_not_installed(tmp_path: Path) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with ScriptRecorder(path=tmp_path / "run.json"):
        for _ in range(3):
            model(X[None]).sum().backward()
            optimizer.step()
        torch.save({"model": model, "optimizer": optimizer}, tmp_path / "whole.pt")
    code = """if True:
        import sys
        sys.modules["stepgrade"] = None
        import torch
        found = torch.load(sys.argv[1], weights_only=False)
        found["model"](torch.ones(1, 4, 8)).sum().backward()
        found["optimizer"].step()
        print("stepgrade" in open(sys.argv[1], "rb").read().decode("latin1"))
    """
    ran = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "whole.pt"],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert (ran.stdout, ran.returncode) == ("False\n", 0), ran.stderr


def test_a_model_that_the_script_drops_is_freed(recording: Callable[..., Recorder]) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    recording(model)
    for _ in range(3):
        model(X).sum().backward()
        optimizer.step()
    gone = weakref.ref(model), weakref.ref(model.blocks[0].linear.weight), weakref.ref(optimizer)
    del model, optimizer
    gc.collect()
    assert [each() for each in gone] == [None, None, None]


def test_a_forked_process_leaves_its_parents_recording_alone(tmp_path: Path) -> None:
    def step() -> None:
        model(X).sum().backward()
        optimizer.step()

    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with sg.start_recording(model, optimizer, path=tmp_path / "run.json", flush_seconds=0) as recorder:
        step()
        child = os.fork()
        if child == 0:
            for _ in range(50):
                step()
            recorder.close()
            os._exit(7 if Recorder._active is None else 8)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        step()
    assert sg.load(tmp_path / "run.json").recorded_steps == 2
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_an_error_of_ours_ends_the_recording_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with ScriptRecorder(path=tmp_path / "run.json") as recorder:
        for step in range(9):
            if step == 5:
                monkeypatch.setattr(recorder._recording.timeline, "now", lambda: 1 // 0)
            model(X).sum().backward()
            optimizer.step()
    assert sg.load(tmp_path / "run.json").recorded_steps == 5
    assert [note.code for note in recorder.notes] == ["recorder_failed"]


def test_an_error_that_a_signal_raises_inside_our_code_is_the_scripts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A time limit by SIGALRM may strike anywhere: the script gets it, and recording goes on."""

    raised = [0]

    def time_is_up(*_: object) -> None:
        raised[0] += 1
        raise TimeoutError("the script's own")

    left, now = [0], time.perf_counter_ns  # looks at the clock until the signal comes

    def strike() -> int:
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGALRM)
        return now()

    monkeypatch.setattr(time, "perf_counter_ns", strike)
    before = signal.signal(signal.SIGALRM, time_is_up)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    caught = 0
    try:
        with ScriptRecorder(path=tmp_path / "run.json", ops_every=0) as recorder:
            for step in range(20):
                left[0] = step  # a bit later each time
                try:
                    model(X).sum().backward()
                    optimizer.step()
                except TimeoutError:
                    caught += 1
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caught == raised[0] > 5
    assert not recorder.notes
    assert sg.load(tmp_path / "run.json").recorded_steps >= 20 - caught


class TestNewModels:
    """A script that goes on with another model or optimizer is followed."""

    def train(self, model: nn.Module, steps: int, optimizer: torch.optim.Optimizer | None = None) -> None:
        optimizer = optimizer or torch.optim.SGD(model.parameters(), 1e-3)
        torch.optim.lr_scheduler.StepLR(optimizer, 3)  # a cycle: it is not freed at once
        for _ in range(steps):
            model(X).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    def test_folds(self, tmp_path: Path) -> None:
        kept = []
        with ScriptRecorder(path=tmp_path / "run.json"):
            for _ in range(5):
                kept.append(Net())
                self.train(kept[-1], 5)
        profile = sg.load(tmp_path / "run.json")
        assert profile.recorded_steps == 25
        assert [layer.name for layer in profile.layers] == ["blocks.0", "blocks.1", "blocks.2"]
        assert len(profile.samples_ms) == profile.steps == 22

    def test_stages_with_one_model(self, tmp_path: Path) -> None:
        model = Net()
        first = torch.optim.SGD(model.parameters(), 1e-3)
        second = torch.optim.AdamW(model.parameters(), 1e-3)
        with ScriptRecorder(path=tmp_path / "run.json"):
            for optimizer in (first, second, first):
                self.train(model, 6, optimizer)
        assert sg.load(tmp_path / "run.json").recorded_steps == 18

    @pytest.mark.parametrize("critics", [1, 5])
    def test_two_optimizers_that_take_turns(self, tmp_path: Path, critics: int) -> None:
        generator, critic = Net(), nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
        both = [torch.optim.SGD(model.parameters(), 1e-3) for model in (generator, critic)]
        with ScriptRecorder(path=tmp_path / "run.json"):
            for _ in range(6):
                for _ in range(critics):
                    critic(generator(X).detach()).sum().backward()
                    both[1].step()
                critic(generator(X)).sum().backward()
                both[0].step()
                for optimizer in both:
                    optimizer.zero_grad()
        assert sg.load(tmp_path / "run.json").recorded_steps == 6 * critics

    def test_one_that_is_not_watched_is_told(self, tmp_path: Path) -> None:
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        with sg.start_recording(model, optimizer, path=tmp_path / "run.json"):
            self.train(model, 4, optimizer)
            self.train(model, 4)
        profile = sg.load(tmp_path / "run.json")
        assert profile.recorded_steps == 4
        assert any(note.code == "unwatched_steps" for note in profile.notes)


def test_a_loop_that_looks_without_gradients_in_every_step_is_recorded(tmp_path: Path) -> None:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    with ScriptRecorder(path=tmp_path / "run.json"):
        for _ in range(12):
            with torch.no_grad():
                model(X)  # as one chooses an action
            model(X).sum().backward()
            optimizer.step()
    profile = sg.load(tmp_path / "run.json")
    assert profile.recorded_steps == 12
    assert "rollout" in {phase.name for phase in profile.phases}
    assert not any(note.code == "evaluation_steps" for note in profile.notes)
