"""Trials of a real training: each change reaches the call that it is for, and work that is left out is seen."""

from __future__ import annotations

import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from stepgrade.errors import NotMeasured
from stepgrade.fix.copies import original_in
from stepgrade.fix.judge import Base, Sameness, check_base, losses_of, same_work
from stepgrade.fix.trial import Bench, Trial, TrialPlan
from tests.conftest import ROOT
from tests.waiting import running, wait_for

pytest.importorskip("torch")
HERE = Path(__file__).parent
STEPS = 16
TRAINING = (HERE / "training.py").read_text()


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder, scratch = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("scratch")
    shutil.copy(HERE / "training.py", folder / "train.py")
    (folder / "data.txt").write_text("mine")
    words = (sys.executable, str(folder / "train.py"), "--rate", "0.01")
    yield Bench(words=words, original=original_in(str(folder)), scratch=str(scratch), most_s=600.0)
    assert sorted(path.name for path in folder.iterdir()) == [
        "data.txt",
        "train.py",
    ]  # whatever the trials wrote is gone
    assert not list(scratch.glob("trial-*/project*"))


@pytest.fixture(scope="module")
def base(bench: Bench) -> Base:
    one, other, seeded = (bench.run(TrialPlan(steps=STEPS, other_seed=seed)) for seed in (False, False, True))
    assert [len(trial.ranks[0].steps) for trial in (one, other, seeded)] == [STEPS] * 3
    return Base(one=one, other=other, seeded=seeded)


def with_setting(bench: Bench, **settings: Any) -> Trial:
    return bench.run(TrialPlan(steps=STEPS, settings=settings))


def test_the_unchanged_training_repeats_and_another_seed_does_not(base: Base) -> None:
    assert base.repeats
    assert base.seeded is not None
    assert losses_of(base.seeded.ranks[0]) != losses_of(base.one.ranks[0])
    assert 0.0 < base.band("tolerance") < math.inf


def test_the_witness_sees_what_the_script_calls(bench: Bench, base: Base) -> None:
    seen = base.one.ranks[0]
    text = TRAINING.splitlines()
    for site in seen.sites:
        if site.file:
            assert site.call in text[site.line - 1], site
            assert site.file == str(Path(bench.original.folder, "train.py"))  # not the copy's
    calls = {site.call for site in seen.sites}
    assert calls == {
        "DataLoader",
        "AdamW",
        "zero_grad",
        "checkpoint",
        "set_detect_anomaly",
        "set_num_threads",
        "collect",
        "model",
    }
    assert seen.batches == {"Points": STEPS}
    assert {step.backwards for step in seen.steps} == {1}
    assert seen.how == "stopped"


def test_a_training_that_ends_by_itself_leaves_its_files(bench: Bench) -> None:
    trial = bench.run(TrialPlan(steps=1000))
    assert trial.files == {"model.pt"}
    assert trial.ranks[0].how == "ended"
    assert len(trial.ranks[0].steps) == 24


# A compiler whose output is 5 % too large.
WRONG_COMPILER = "wrong = lambda graph, _: lambda *given: tuple(each * 1.05 for each in graph(*given))\n"
EXACT: dict[str, Any] = {
    "loader": {"keywords": {"num_workers": 2, "prefetch_factor": 4}},
    "zero_grad": True,
    "checkpointing": True,
    "anomaly": True,
    "collecting": True,
}


@pytest.mark.parametrize("name", [*EXACT, "cached"])
def test_an_exact_change_leaves_every_bit(bench: Bench, base: Base, name: str) -> None:
    site = next(site for site in base.one.ranks[0].sites if site.call == "DataLoader")
    setting = EXACT.get(name, {"cached": True})
    setting = setting | {"place": site.place} if isinstance(setting, dict) else setting
    trial = with_setting(bench, **{"loader" if name == "cached" else name: setting})
    assert trial.ranks[0].applied
    found = same_work(base, trial, "exact", counts_alike=name != "checkpointing")
    assert found.problem is None
    assert found.is_known


def test_workers_that_stay_shuffle_otherwise(bench: Bench, base: Base) -> None:
    """Which is why they are no part of the change: the second epoch draws one number less."""
    site = next(site for site in base.one.ranks[0].sites if site.call == "DataLoader")
    keywords = {"num_workers": 2, "persistent_workers": True}
    found = same_work(base, with_setting(bench, loader={"place": site.place, "keywords": keywords}), "exact")
    assert found.problem == "other samples were asked for"


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": {"keywords": {"fused": True}}},
        {"threads": 2},
        {"model": {"channels_last": True}},
    ],
    ids=str,
)
def test_a_change_of_rounding_is_the_same_work(bench: Bench, base: Base, settings: dict[str, Any]) -> None:
    if "optimizer" in settings:
        site = next(site for site in base.one.ranks[0].sites if site.call == "AdamW")
        settings = {"optimizer": settings["optimizer"] | {"place": site.place}}
    trial = with_setting(bench, **settings)
    assert trial.ranks[0].applied
    assert same_work(base, trial, "rounding").problem is None


def cheat(bench: Bench, base: Base, old: str, new: str) -> Sameness:
    """Run a training in which something is left out, and compare it as loosely as anything is compared."""
    assert TRAINING.count(old) == 1
    trial = bench.run(TrialPlan(steps=STEPS), {"train.py": TRAINING.replace(old, new)})
    return same_work(base, trial, "tolerance")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("            loss.backward()\n", "            (loss.backward() if x[0, 1] > 0 else None)\n"),  # a backward skipped
        ("        optimizer.step()\n", "        x.mean().item() > 0.05 and optimizer.step()\n"),  # an update skipped
        ("batch_size=8", "batch_size=4"),  # fewer samples
        ("for x, y in loader:", "for x, y in [next(iter(loader))] * 12:"),  # one batch again and again
        ("shuffle=True", "shuffle=False"),  # other samples
        ("model = Net()", "model = Net()\nmodel.first.requires_grad_(False)"),  # frozen by accident
        ("x, use_reentrant=False", "x * 0.9, use_reentrant=False"),  # another input
        ("mse_loss(model(x), y)", "mse_loss(model(x), y) * 0.5"),  # another loss
        ("lr=args.rate", "lr=args.rate / 20"),  # hardly trained
        ("loss = nn", "loss = float('nan') * nn"),  # nothing to compare
        ("lr=args.rate", "lr=args.rate, weight_decay=30.0"),  # another optimizer
        ("gc.collect()", "gc.collect(); raise SystemExit(3)"),  # an early end
        ("if step % 5 == 0:", "if False:"),  # no evaluation
        ("shuffle=True", "shuffle=True, generator=torch.Generator().manual_seed(4)"),  # another order
        ("torch.manual_seed(3)", "torch.manual_seed(4)"),  # another seed
        ("model = Net()", "model = Net().bfloat16()\nmodel.register_forward_pre_hook(lambda _, x: (x[0].bfloat16(),))"),
        ("model = Net()", WRONG_COMPILER + "model = Net()\nmodel.compile(backend=wrong)"),
        ("            loss.backward()\n", "            loss.detach().requires_grad_().backward()\n"),  # of nothing
        ("return torch.sin(torch.arange(32.0) * (index % 40))", "return torch.zeros(32)"),  # constant samples
    ],
)  # fmt: skip
def test_a_change_that_leaves_work_out_is_not_the_same_work(
    bench: Bench, base: Base, old: str, new: str
) -> None:
    found = cheat(bench, base, old, new)
    assert found.problem is not None or not found.is_known


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found by their environments")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_what_is_interrupted_leaves_no_process_and_no_file(tmp_path: Path, number: int) -> None:
    """The folder is as before, and everything that was started is gone, in whatever group it is."""
    folder = tmp_path / "work"
    folder.mkdir()
    apart = f"subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', {str(tmp_path)!r}], start_new_session=True)"
    slow = f"import subprocess, sys\n{apart}\n" + TRAINING.replace(
        "gc.collect()", "import time; time.sleep(0.2)"
    )
    (folder / "train.py").write_text(slow)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    # Under nohup, or in the background of a shell, some signals are ignored.
    command = [
        *("env", "--default-signal"),
        *(sys.executable, "-m", "stepgrade", "fix", "--budget", "5m", "train.py"),
    ]
    fix = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_for(lambda: list(tmp_path.glob("stepgrade-*/trial-*")))
    time.sleep(1.0)
    fix.send_signal(number)
    fix.communicate()
    assert fix.returncode != 0
    wait_for(lambda: not list(tmp_path.glob("stepgrade-*")) and not running(str(tmp_path)))
    assert [path.name for path in folder.iterdir()] == ["train.py"]
    assert (folder / "train.py").read_text() == slow


def test_the_flops_of_a_step_are_counted(base: Base) -> None:
    flops = {trial.ranks[0].flops for trial in (base.one, base.other)}
    # Forward twice, since it is checkpointed; the gradient of the inputs of the first layer is not needed.
    assert flops == {2.0 * 8 * (32 * 64 * 3 + 64 * 1 * 3)}


def test_a_trial_that_does_not_end_is_ended(bench: Bench, base: Base) -> None:
    hung = TRAINING.replace("        gc.collect()\n", "        import time; time.sleep(1000)\n")
    trial = structs.replace(bench, most_s=8.0).run(TrialPlan(steps=STEPS), {"train.py": hung})
    assert (trial.code, trial.said) == (None, "did not end within 8 s")
    assert same_work(base, trial, "exact").problem == "did not end within 8 s"
    with pytest.raises(NotMeasured, match="the unchanged script did not end within 8 s"):
        check_base(trial)


def test_an_installed_package_of_the_folder_is_that_of_the_copy(tmp_path: Path) -> None:
    """An editable install names the original folder; an edit of it must be tried all the same."""
    work, scratch, installed = tmp_path / "work", tmp_path / "scratch", tmp_path / "installed"
    for each in (work / "src" / "mine", scratch, installed):
        each.mkdir(parents=True)
    model = "import torch\ndef make(parameters):\n    return torch.optim.SGD(parameters, lr=0.1)\n"
    (work / "src" / "mine" / "__init__.py").write_text(model)
    (work / "train.py").write_text(
        f"import site; site.addsitedir({str(installed)!r})\nimport torch, mine\nmodel = torch.nn.Linear(4, 1)\n"
        "optimizer = mine.make(model.parameters())\nfor _ in range(9):\n    model(torch.ones(2, 4)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    (installed / "mine.pth").write_text(f"{work / 'src'}\n")
    bench = Bench(
        words=(sys.executable, "train.py"),
        original=original_in(str(work)),
        scratch=str(scratch),
        most_s=100.0,
    )
    trial = bench.run(TrialPlan(steps=8))
    assert [site.file for site in trial.ranks[0].sites if site.call == "SGD"] == [
        str(work / "src/mine/__init__.py")
    ]
    edited = bench.run(TrialPlan(steps=8), {"src/mine/__init__.py": model.replace("lr=0.1", "lr=0.2")})
    assert edited.ranks[0].weights != trial.ranks[0].weights
