"""What logs do to their readers: colours, ranks, restarts, clocks, several runs, cut lines, odd numbers."""

from __future__ import annotations

import math

import pytest

import stepgrade as sg
from stepgrade.readers.logs.scan import LogScanner
from stepgrade.readers.logs.values import clock_of, duration, number, plain
from stepgrade.readers.registry import read_source
from stepgrade.readers.source import ByteSource
from tests.readers.logs.generated import Plan, generate


def read(text: str | bytes) -> sg.Profile:
    found = read_source(ByteSource(text.encode() if isinstance(text, str) else text)).log
    assert isinstance(found, sg.Profile)
    return found


def nanochat(step: int, ms: float, *, loss: str = "3.1", tokens: int = 524_288) -> str:
    rate = f"{tokens / ms * 1e3:,.0f}"
    return f"step {step:05d}/00500 (1.00%) | loss: {loss} | dt: {ms:.2f}ms | tok/sec: {rate} | mfu: 49.69\n"


def steps(count: int, ms: float = 500.0) -> str:
    return "".join(nanochat(step, ms + step % 3) for step in range(count))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"812,305", 812_305.0),
        (b"1,234,567.5", 1_234_567.5),
        (b"0,315", 0.315),
        (b"3,14", 3.14),
        (b"1.073e+04", 10_730.0),
        (b"-100.00", -100.0),
        (b"1e999", math.inf),
        (b"inf", math.inf),
    ],
)
def test_numbers_of_every_writing(text: bytes, value: float) -> None:
    assert number(text) == pytest.approx(value)


def test_what_is_no_number_is_nan() -> None:
    assert math.isnan(number(b"nan"))
    assert math.isnan(number(b"..,,"))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (b"1:25:51", 5151.0),
        (b"02:03", 123.0),
        (b"12m 6s", 726.0),
        (b"32s", 32.0),
        (b"1 day, 2:03:04", 93_784.0),
    ],
)
def test_durations_of_every_writing(text: bytes, seconds: float) -> None:
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("earlier", "later", "seconds"),
    [
        (b"[2026-03-01 08:00:00,250] x", b"[2026-03-01 08:00:01,750] x", 1.5),
        (b"2026-03-01T23:59:59Z", b"2026-03-02T00:00:01Z", 2.0),
        (b"2026-03-01T10:00:00+02:00", b"2026-03-01T10:00:00+01:00", 3600.0),
        (b"I0826 21:17:13.735100 12 x", b"I0826 21:17:14.735100 12 x", 1.0),
        (b"03/01/2026 10:00:00", b"03/01/2026 10:00:07", 7.0),
        (b"10:00:00 a", b"10:00:05 a", 5.0),
    ],
)
def test_clocks_of_every_writing(earlier: bytes, later: bytes, seconds: float) -> None:
    assert clock_of(later) - clock_of(earlier) == pytest.approx(seconds)


def test_a_date_that_is_none_is_no_clock() -> None:
    assert math.isnan(clock_of(b"2026-99-99 10:00:00"))


def test_colours_and_cursor_codes_are_taken_out() -> None:
    assert plain(b"\x1b[31mstep: \x1b[38;2;1;2;3m10\x1b[39m \x1b[A\x1b]0;title\x07x") == b"step: 10 x"


def test_colours_make_no_difference() -> None:
    log, _ = generate(Plan(steps=400), "torchtitan")
    assert read(log).mean_step_ms == read(plain(log)).mean_step_ms


@pytest.mark.parametrize("prefix", ["[rank{}]:", "[default{}]:", "{}: ", "worker-{}: "])
def test_the_ranks_of_a_run_are_not_steps(prefix: str) -> None:
    alone = steps(60)
    lines = alone.splitlines(keepends=True)
    every = "".join(prefix.format(rank) + line for line in lines for rank in range(4))
    assert read(every).recorded_steps == read(alone).recorded_steps
    assert "ranks_in_log" in {note.code for note in read(every).notes}


def test_a_progress_bar_with_carriage_returns() -> None:
    bar = "".join(
        f"\r{step}%|██  | {step}/200 [{step * 3 // 60:02d}:{step * 3 % 60:02d}<05:00,  3.00s/it]"
        for step in range(1, 201)
    )
    profile = read("Downloading shards: 100%|██| 3/3 [00:09<00:00,  3.00s/it]\n" + bar + "\n")
    assert profile.mean_step_ms == pytest.approx(3000.0, rel=0.02)


def test_a_step_line_in_printed_source_code_is_none() -> None:
    code = 'print0(f"step {step:05d}/{n:05d} | loss: {loss:.6f} | dt: {dt:.2f}ms | tok/sec: {rate:,}")\n'
    assert read(code * 30 + steps(40)).recorded_steps == 40


def test_a_last_line_that_is_cut_off_costs_one_step() -> None:
    whole = steps(40)
    assert read(whole[:-60]).recorded_steps in (39, 40)


def test_several_runs_in_one_file_are_distinguishable() -> None:
    finished = "".join(nanochat(step, 900.0) for step in range(500))
    profile = read(finished + steps(100))
    assert profile.mean_step_ms == pytest.approx(501.0, rel=0.01)
    assert "last_of_several" in {note.code for note in profile.notes}


def test_the_step_that_a_resumed_log_begins_with_does_not_matter() -> None:
    later = "".join(nanochat(8001 + step, 500.0) for step in range(50))
    assert read(later).mean_step_ms == pytest.approx(500.0)


@pytest.mark.parametrize("jump_s", [-3600, 3600])
def test_a_clock_that_is_set_does_not_stop_the_run(jump_s: int) -> None:
    def log(jump: int) -> str:
        base = 1_772_000_000.0
        now = base + 43_200.0
        lines = []
        for step in range(1, 201):
            now += 2.0 + (jump if step == 100 else 0)
            hours, rest = divmod(int(now - base) % 86_400, 3600)
            stamp = f"2026-03-0{1 + int(now - base) // 86_400} {hours:02d}:{rest // 60:02d}:{rest % 60:02d}"
            lines.append(
                f"[{stamp}] iteration {step}/ 500 | elapsed time per iteration (ms): 2000.0 | lm loss: 2.1E+00 |"
            )
        return "\n".join(lines)

    card = sg.score(read(log(jump_s)))
    assert card.goodput is not None
    assert card.goodput.productive > 0.97
    assert "clock_jumped" in {note.code for note in card.notes}


def test_a_loss_that_is_no_number_to_the_end_is_not_graded() -> None:
    good = steps(50)
    bad = "".join(nanochat(step, 500.0, loss="nan") for step in range(50, 80))
    card = sg.score(read(good + bad), device="h100-sxm5-80gb")
    assert card.grade == "ungraded"
    assert any(note.code == "diverged" and "50" in note.text for note in card.ungraded_because)


def test_a_loss_that_was_no_number_once_is_said() -> None:
    log = (
        steps(50) + nanochat(50, 500.0, loss="nan") + "".join(nanochat(step, 500.0) for step in range(51, 90))
    )
    assert "loss_nan" in {note.code for note in sg.score(read(log)).fitness}


def test_a_step_that_was_only_dispatched_is_none() -> None:
    lines = [44.9, 0.3, *[5.6] * 20]
    log = "".join(
        f"completed step: {step}, seconds: {s}, TFLOP/s/device: 1.0, Tokens/s/device: {4096 / s:.1f}, loss: 1.0\n"
        for step, s in enumerate(lines)
    )
    profile = read(log)
    assert min(profile.samples_ms) == pytest.approx(5600.0)
    assert {"dispatched", "start_left_out"} <= {note.code for note in profile.notes}


def test_micro_batches_add_up_to_steps() -> None:
    log = "".join(
        f"Epoch 1 | iter {step * 4 + part} step {step} | loss train: 1.6, val: n/a | iter time: 100.00 ms"
        f"{' (step)' if part == 3 else ''}\n"
        for step in range(1, 40)
        for part in range(4)
    )
    assert read(log).mean_step_ms == pytest.approx(400.0)


def test_the_speed_of_light_of_llm_q_is_reproduced() -> None:
    """The figures are those of its README: Qwen2.5-0.5B in fp8 on an RTX 4090."""
    header = "  Device 0: NVIDIA GeForce RTX 4090\n./train --model=Qwen/Qwen2.5-0.5B --matmul-dtype=e4m3 --seq-len=1024\n"
    lines = "".join(
        f"[T] step {step:5} [ 39.8%] | time:  1708 ms | norm 4.8 | loss   3.33 | tps 38370 | sol 47.0%\n"
        for step in range(30)
    )
    card = sg.score(read(header + lines))
    (note,) = (note.text for note in card.notes if note.code == "printed_mfu")
    assert note.startswith("the log prints an MFU of 47.0 %")
    assert float(note.rsplit(" ", 2)[-2]) == pytest.approx(47.0, rel=0.01)


def test_a_step_number_without_end_is_no_step() -> None:
    hostile = f"step {'9' * 400}/1 | loss: 1 | dt: 1.00ms | tok/sec: {'9' * 400}\n"
    assert read(steps(40) + hostile).recorded_steps == 40


def test_a_rate_without_step_times_is_a_rate() -> None:
    log = "".join(
        f"Step {step} | loss:1.5 lr:2e-05 tokens_per_second_per_gpu:1234.5\n" for step in range(1, 40)
    )
    card = sg.score(read("world size: 4\n" + log))
    assert card.throughput_tok_s == pytest.approx(4 * 1234.5)
    assert card.step_time_ms is None
    printed = "".join(
        f"{{'loss': '5.5', 'epoch': '0.1', 'train_runtime': '{n * 0.2:.4f}', 'num_input_tokens_seen': '{n * 2560}'}}\n"
        for n in range(1, 40)
    )
    assert sg.score(read(printed)).throughput_tok_s == pytest.approx(12_800.0, rel=0.01)


def test_a_log_of_huge_size_is_thinned_and_says_so() -> None:
    log, truth = generate(
        Plan(steps=140_000, every=1, step_s=0.01, slow_every=20_000, slow_s=40.0), "megatron"
    )
    card = sg.score(read(log))
    assert card.goodput is not None
    assert "lines_sampled" in {note.code for note in card.notes}
    assert card.goodput.stall * card.goodput.wall_s == pytest.approx(truth.spent["stall"], rel=0.02)


def test_after_a_clock_was_set_back_lines_that_come_in_time_are_not_asked_why() -> None:
    def line(step: int) -> str:
        at = step * 2 + (0 if step < 100 else -70)
        clock = f"2025-03-04 10:{at // 60:02}:{at % 60:02},250"
        return f"evaluation is off\n[titan] {clock} - step: {step}  loss: 7.4  memory: 4.0GiB  tps: 8,192\n"

    scanner = LogScanner()
    scanner.feed("".join(line(step) for step in range(1, 200)).encode())
    scanned = scanner.result()
    assert len(scanned.events) <= 3


def test_a_cause_is_looked_for_only_where_a_step_is_late() -> None:
    """A checkpoint is saved twice: step 12 waits six seconds for the first, and step 22 for none."""
    lines, clock = [], 0
    for step in range(1, 31):
        clock += 7 if step == 12 else 1
        if step in (12, 22):
            lines.append("saving checkpoint took 5.5 s")
        lines.append(f"2026-05-19 10:00:{clock:02} step: {step} loss: 2.5 tps: 4,096")
    scanner = LogScanner()
    scanner.feed("\n".join(lines).encode())
    assert [(event.kind, event.seconds) for event in scanner.result().events] == [("checkpoint", 5.5)]
