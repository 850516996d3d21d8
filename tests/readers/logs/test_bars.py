"""Progress bars: which count training steps, and where the time of the others goes."""

from __future__ import annotations

from pathlib import Path

import pytest

import stepgrade as sg
from stepgrade.cli import main
from stepgrade.readers.logs.bars import ProgressBars, runs_of
from stepgrade.readers.logs.follow import Followed
from stepgrade.readers.logs.scan import LogScanner
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource

SHARDS = "Loading checkpoint shards: 100%|###| 4/4 [00:08<00:00,  2.10s/it]\n"


def bar(description: str, steps: int, step_s: float, postfix: str = "") -> str:
    """Return all states of a bar, as tqdm draws them."""
    states = []
    for step in range(1, steps + 1):
        elapsed = int(step * step_s)
        clock = f"{elapsed // 60:02}:{elapsed % 60:02}"
        percent = f"{100 * step // steps:3}%|{'█' * (10 * step // steps):10}|"
        states.append(f"\r{description}{percent} {step}/{steps} [{clock}<00:01, {step_s:5.2f}s/it{postfix}]")
    return "".join(states) + "\n"


def read(text: str) -> sg.Profile:
    found = read_source(ByteSource(text.encode())).log
    assert isinstance(found, sg.Profile)
    return found


OF_STEPS = {
    "a loss": bar("", 40, 2.0, ", loss=2.31"),
    "a loss under a name of its own": bar("my loop: ", 40, 2.0, ", train_loss=2.31"),
    "a learning rate": bar("Steps: ", 40, 2.0, ", lr=1e-4"),
    "a loss in the description": bar("Epoch 1, loss 2.3000: ", 40, 2.0),
    "an epoch": bar("Epoch 0: ", 40, 2.0, ", v_num=0"),
    "an epoch and two losses": bar("Epoch 3 train_loss 2.1 val_loss 2.3: ", 40, 2.0),
    "training": bar("Training: ", 40, 2.0),
    "training after a timestamp": bar("[rank0]: 2026-03-04 10:00:00 INFO train: ", 40, 2.0),
    "a loss printed with the epoch": bar("", 40, 2.0) + "epoch 1 | loss 2.31\n",
    "a trainer's dict": "{'loss': 2.3, 'learning_rate': 1e-05, 'epoch': 0.1}\n" + bar("", 40, 2.0),
    "a trainer's header": "***** Running training *****\n" + bar("", 40, 2.0),
    "batches in epochs": bar("Iteration: ", 40, 2.0) + "\rEpoch:  50%|# | 1/2 [01:20<01:20, 80.00s/it]\n",
}
OF_OTHERS = (
    "Loading checkpoint shards",
    "Loading safetensors checkpoint shards",
    "Capturing CUDA graphs (decode, FULL)",
    "Downloading shards",
    "Fetching 5 files",
    "Map (num_proc=4)",
    "Tokenizing train dataset",
    "Generating train split",
    "Generating validation split",
    "Filter",
    "Adding EOS to train dataset",
    "Packing eval dataset",
    "Computing checksums",
    "frobnication",
    "train_data",
    "Saving model",
)
OF_EVALUATION = (
    "Validation DataLoader 0",
    "Sanity Checking DataLoader 0",
    "Testing DataLoader 0",
    "Predicting DataLoader 0",
    "Evaluating",
    "eval",
    "Epoch 3 [val]",
    "Processed prompts",
)


@pytest.mark.parametrize("name", OF_STEPS)
def test_a_training_is_known_by_what_it_shows(name: str) -> None:
    profile = read(SHARDS + OF_STEPS[name])
    assert profile.work == "training"
    assert profile.mean_step_ms == pytest.approx(2000.0, rel=0.03)
    assert profile.recorded_steps == 40
    assert '"work":"training"' in sg.score(profile).to_json().replace(" ", "")


@pytest.mark.parametrize("description", OF_OTHERS)
def test_a_bar_without_evidence_is_no_training(description: str) -> None:
    with pytest.raises(sg.StepgradeError) as caught:
        read(bar(f"{description}: ", 40, 2.0))
    assert f"shows no training step, only progress bars of '{description}'" in str(caught.value)
    assert "a loss" in str(caught.value)


@pytest.mark.parametrize("postfix", ["", ", loss=2.3"])
@pytest.mark.parametrize("description", OF_EVALUATION)
def test_an_evaluation_alone_is_inference(description: str, postfix: str) -> None:
    profile = read(SHARDS + bar(f"{description}: ", 40, 2.0, postfix))
    card = sg.score(profile)
    assert profile.work == card.work == "inference"
    assert profile.mean_step_ms == pytest.approx(2000.0, rel=0.03)
    assert card.goodput is None
    assert card.grade == "ungraded"
    assert not card.findings


def test_a_bar_without_a_description_is_unknown_work() -> None:
    profile = read(SHARDS + bar("", 40, 2.0))
    assert profile.work == "unknown"
    card = sg.score(profile, device="h100-sxm5-80gb", throughput_tok_s=1000.0)
    assert card.grade == "ungraded"
    assert card.goodput is None
    (why,) = (note for note in card.ungraded_because if note.code == "work_unknown")
    assert "nothing shows that the steps are of a training: print a loss" in why.text
    assert "work_unknown" not in {note.code for note in card.notes}
    trained = sg.score(profile, work="training")
    assert trained.goodput is not None
    assert "work_unknown" not in {note.code for note in trained.ungraded_because}


def test_what_the_command_says_is_one_line_and_a_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.log"
    path.write_text(SHARDS)
    assert main(["score", str(path)]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert "only progress bars of 'Loading checkpoint shards'" in output.err


def test_a_run_that_crashed_while_loading_is_one_that_crashed() -> None:
    with pytest.raises(sg.StepgradeError, match="the output of a run that crashed"):
        read(SHARDS + "Traceback (most recent call last):\n  File 'a.py', line 1\nRuntimeError: x\n")


def test_a_server_is_watched_without_steps(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(SHARDS + bar("Capturing CUDA graphs: ", 51, 1.0))
    followed = Followed(str(path))
    assert followed.look() is None
    followed.close()


@pytest.mark.parametrize(
    ("lines", "work"),
    [
        ("Epoch 1/2\n", "training"),
        ("", "inference"),
    ],
)
def test_keras_trains_in_epochs_and_evaluates_without(lines: str, work: str) -> None:
    state = "50/50 ━━━━━━━━━━━━━━━━━━━━ 5s 100ms/step - accuracy: 0.5 - loss: 0.3000\n"
    profile = read((lines + state) * 2)
    assert profile.work == work
    assert profile.mean_step_ms == pytest.approx(100.0)


@pytest.mark.parametrize(("rest", "work"), [(", loss: 2.3", "training"), ("", "unknown")])
def test_a_plain_loop_needs_evidence_too(rest: str, work: str) -> None:
    log = "".join(f"iteration {step}: took 35.2 ms{rest}\n" for step in range(1, 30))
    profile = read(log)
    assert profile.work == work
    assert profile.mean_step_ms == pytest.approx(35.2)


def test_endlessly_many_descriptions_take_no_memory() -> None:
    letters = "abcdefghij"
    texts = ["".join(letters[int(digit)] for digit in str(number)) for number in range(5000)]
    scanner = LogScanner()
    scanner.feed("".join(f"{text}: 10%|# | 1/10 [00:01<00:09, 1.00s/it]\n" for text in texts).encode())
    assert len(scanner.result().bars.shown) <= 1001


def test_descriptions_that_differ_in_numbers_are_one_bar() -> None:
    bars = ProgressBars()
    indices = {
        bars.index_of(f"Epoch {epoch}/9, loss {epoch / 7:.3f}:  10%|# |".encode(), b"") for epoch in range(9)
    }
    assert len(indices) == 1


def lightning(
    epochs: int = 3, *, within: bool = False, redraws: bool = False
) -> tuple[str, dict[str, float]]:
    """Return a log without timestamps as Lightning draws it, and the seconds that went into what."""
    log = SHARDS + bar("Sanity Checking DataLoader 0: ", 2, 2.0)
    for epoch in range(epochs):
        train, validation = bar(f"Epoch {epoch}: ", 40, 2.0), bar("Validation DataLoader 0: ", 10, 2.0)
        if within:  # after half of the steps, whose bar goes on and includes it
            states = train.split("\r")
            late = [f"\r{state}" for state in bar(f"Epoch {epoch}: ", 50, 2.0).split("\r")[31:]]
            late = [text.replace(f"{n}/50", f"{n - 10}/40") for n, text in enumerate(late, 31)]
            train, validation = "\r".join(states[:21]) + "\n" + validation + "".join(late), ""
        log += train + validation
        if redraws:
            log += f"\rEpoch {epoch}: 100%|███| 40/40 [01:40<00:00,  2.50s/it]\n"
    spent = {"startup": 12.0, "evaluation": 20.0 * epochs, "productive": 80.0 * epochs}
    return log + bar("Testing DataLoader 0: ", 15, 2.0), spent | {"evaluation": 20.0 * epochs + 30.0}


@pytest.mark.parametrize(("within", "redraws"), [(False, False), (False, True), (True, False)])
def test_the_time_of_other_bars_has_its_accounts(within: bool, redraws: bool) -> None:
    log, spent = lightning(within=within, redraws=redraws)
    profile = read(log)
    card = sg.score(profile)
    assert profile.mean_step_ms == pytest.approx(2000.0, rel=0.03)
    assert card.goodput is not None
    assert card.goodput.wall_s == pytest.approx(sum(spent.values()), rel=0.01)
    for account, seconds in spent.items():
        found = getattr(card.goodput, account) * card.goodput.wall_s
        assert found == pytest.approx(seconds, abs=3.0), account
    (finding,) = (finding for finding in card.findings if finding.rule == "long-evaluations")
    assert finding.evidence["pauses"] == (4.0 if within else 3.0)  # what follows the last step is one
    assert finding.evidence["seconds"] == pytest.approx(90.0, abs=3.0)


@pytest.mark.parametrize(
    ("description", "after", "kind"),
    [
        (b"Training", b"", "training"),
        (b"", b"", "unnamed"),
        (b"", b", loss=2.31]", "training"),
        (b"whatever", b", lr=1e-4]", "training"),
        (b"Validation", b", loss=2.31]", "evaluation"),
        (b"Tokenizing test set", b"", "other"),  # prepares, and does not evaluate
        (b"Saving checkpoint", b"", "checkpoint"),
        (b"Capturing CUDA graphs", b"", "compile"),
        (b"Epoch", b"", "epochs"),
        (b"Epoch 3", b"", "training"),
        (b"Batches", b"", "steps"),
        (b"squiggle", b"", "other"),
    ],
)
def test_what_a_bar_counts(description: bytes, after: bytes, kind: str) -> None:
    bars = ProgressBars()
    assert bars.kind(bars.index_of(description + b":  40%|####      | ", after)) == kind


def test_bars_that_differ_in_numbers_only_are_one() -> None:
    bars = ProgressBars()
    first, again, other = (
        bars.index_of(text + b":  50%|#####     | ", b"")
        for text in (b"Shard 1 of 8", b"Shard 2 of 8", b"File 2 of 8")
    )
    assert (first, again, other) == (0, 0, 1)
    assert bars.names == ("Shard 1 of 8", "File 2 of 8")
    assert bars.index_of(b"Shard 3 of 8:  50%|#####     | ", b", loss=2.1]") == 0
    assert bars.shows_training == [True, False]


def test_beyond_a_thousand_bars_the_rest_are_one_without_a_name() -> None:
    bars = ProgressBars()
    names = [
        f"{chr(97 + n // 676)}{chr(97 + n // 26 % 26)}{chr(97 + n % 26)} work".encode() for n in range(1003)
    ]
    indices = [bars.index_of(name + b": ", b"") for name in names]
    assert indices == [*range(1001), 1000, 1000]
    assert bars.index_of(names[999] + b": ", b"") == 999
    assert bars.kind(1000) == "unnamed"


@pytest.mark.parametrize(
    ("kinds", "trains", "work", "counted"),
    [
        (["Training", "Batches", "Epoch"], False, "training", {0}),
        (["Epoch", "Batches", "Validation"], False, "training", {1}),
        (["Epoch", "Validation"], False, "training", {0}),
        (["Batches", "Loading"], True, "training", {0}),
        (["Batches", "Loading"], False, "unknown", {0}),
        (["Validation", "Loading"], True, "inference", {0}),
        (["Loading"], True, "inference", set()),
    ],
)
def test_which_bars_count_the_steps(kinds: list[str], trains: bool, work: str, counted: set[int]) -> None:
    bars = ProgressBars()
    indices = [bars.index_of(kind.encode() + b": ", b"") for kind in kinds]
    assert bars.counted(indices, trains=trains) == (work, counted)


def test_a_bar_that_starts_again_is_another_run() -> None:
    bars = ProgressBars()
    one, two = (bars.index_of(text + b": ", b"") for text in (b"Saving", b"Training"))
    states = [
        *([0, one, 1, 4, 1.0], [10, two, 1, 9, 1.0], [20, one, 4, 4, 5.0], [30, one, 4, 4, 6.0]),
        [40, one, 1, 4, 7.0],  # an earlier step
        [50, one, 2, 8, 8.0],  # another total
        [60, one, 3, 8, 2.0],  # an earlier time
        [70, two, 2, 9, 3.0],
    ]
    found = [(run.start, run.end, run.seconds) for run in runs_of(states, bars)]
    assert found == [(0, 30, 6.0), (10, 70, 3.0), (40, 40, 7.0), (50, 50, 8.0), (60, 60, 2.0)]


@pytest.mark.parametrize(
    ("text", "trains"),
    [
        (b"epoch 1 | loss 2.31\n", True),
        (b"step 5: loss=2.31\n", True),
        (b"loss is a function\n", False),
        (b"lr scheduler made\n", False),
    ],
)
def test_a_loss_of_a_step_shows_a_training(text: bytes, trains: bool) -> None:
    bars = ProgressBars()
    bars.look_for_training(b"hello\n" + text)
    assert bars.trains is trains
