"""Train a small GPT on the CPU and write down where the time of its steps went.

This is where the bundled step profiles come from; it measures and does not judge. It needs torch.

Every time is taken with `time.perf_counter_ns` in the training run itself. A module's forward time
lies between its forward hooks, its backward time between its full backward hooks: on a CPU the
operations run one after the other in the calling thread, so nothing of another module falls between.
What has no module (adding the residual, the embedding's gradient) is in its phase and in no operation.
Only the number of aten calls comes from torch.profiler, in one more step of a fresh model without hooks.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import mean, median

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

LAYERS, WIDTH, HEADS = 6, 256, 8
BATCH, SEQUENCE, VOCABULARY = 4, 256, 128
TOKENS_PER_STEP = BATCH * SEQUENCE
PHASES = ("input", "forward", "loss", "backward", "optimizer")


class Stopwatch:
    """Adds up the nanoseconds between `start` and `stop`, by name."""

    def __init__(self) -> None:
        self.total_ns: dict[str, int] = {}
        self._started_ns: dict[str, int] = {}

    def start(self, name: str) -> None:
        """Begin one interval; its name must not be running."""
        if name in self._started_ns:
            raise RuntimeError(f"{name} is timed twice at once")
        self._started_ns[name] = time.perf_counter_ns()

    def stop(self, name: str) -> None:
        """End the interval that `start` began."""
        lasted_ns = time.perf_counter_ns() - self._started_ns.pop(name)
        self.total_ns[name] = self.total_ns.get(name, 0) + lasted_ns

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Time the body of a `with`."""
        self.start(name)
        yield
        self.stop(name)


class Attention(nn.Module):
    """Causal attention over packed queries, keys and values."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.attend = {"naive": self.naive, "fused": self.fused}[kind]
        self.register_buffer("future", torch.ones(SEQUENCE, SEQUENCE, dtype=torch.bool).triu(1))

    def forward(self, qkv: Tensor) -> Tensor:
        """Split into heads, attend, and put the heads together again."""
        batch, length, _ = qkv.shape
        heads = (part.view(batch, length, HEADS, -1).transpose(1, 2) for part in qkv.split(WIDTH, dim=-1))
        return self.attend(*heads).transpose(1, 2).reshape(batch, length, WIDTH)

    def naive(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Write out softmax(QK^T)V: every score is stored, the masked half too."""
        scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)
        return scores.masked_fill(self.future, -math.inf).softmax(dim=-1) @ v

    def fused(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Leave it to the library's blockwise kernel."""
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(nn.Module):
    """One transformer layer; its children's names are the operations of the profile."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.norm_attn = nn.LayerNorm(WIDTH)
        self.qkv_gemm = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.attention = Attention(attention)
        self.o_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.mlp_up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.gelu = nn.GELU()
        self.mlp_down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Add attention, then the MLP, to the residual stream."""
        x = x + self.o_proj(self.attention(self.qkv_gemm(self.norm_attn(x))))
        return x + self.mlp_down(self.gelu(self.mlp_up(self.norm_mlp(x))))


class GPT(nn.Module):
    """Characters in, logits of the next character out."""

    def __init__(self, attention: str) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.position = nn.Parameter(torch.zeros(SEQUENCE, WIDTH))
        self.blocks = nn.ModuleList(Block(attention) for _ in range(LAYERS))
        self.norm_final = nn.LayerNorm(WIDTH)
        self.lm_head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits of shape (batch, sequence, vocabulary)."""
        x = self.embed(ids) + self.position
        for block in self.blocks:
            x = block(x)
        return self.lm_head(self.norm_final(x))


def time_module(module: nn.Module, watch: Stopwatch, forward: str, backward: str) -> None:
    """Let `watch` time the module's forward and backward passes under these names."""
    module.register_forward_pre_hook(lambda *_: watch.start(forward))
    module.register_forward_hook(lambda *_: watch.stop(forward))
    module.register_full_backward_pre_hook(lambda *_: watch.start(backward))
    module.register_full_backward_hook(lambda *_: watch.stop(backward))


def time_model(model: GPT, watch: Stopwatch) -> None:
    """Attach the stopwatch to every layer and operation."""
    for number, block in enumerate(model.blocks):
        time_module(block, watch, f"layer/{number}/fwd", f"layer/{number}/bwd")
        for name, part in block.named_children():
            time_module(part, watch, f"op/{name}", f"op/{name}_bwd")
    for name in ("norm_final", "lm_head"):
        time_module(getattr(model, name), watch, f"op/{name}", f"op/{name}_bwd")


def write_text(words: int, seed: int = 0) -> str:
    """Make up `words` words of an invented language: 300 different ones, few common, many rare."""
    draw = torch.Generator().manual_seed(seed)
    syllables = [consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou"]
    spelling = torch.randint(len(syllables), (300, 3), generator=draw).tolist()
    lexicon = ["".join(syllables[part] for part in word) for word in spelling]
    rarity = 1.0 / torch.arange(1, 301)
    chosen = torch.multinomial(rarity, words, replacement=True, generator=draw).tolist()
    return "".join(lexicon[word] + (". " if index % 9 == 8 else " ") for index, word in enumerate(chosen))


def batches(stall_ms: float = 0.0, seed: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield inputs and targets for ever; wait `stall_ms` before each, as a slow loader would."""
    ids = torch.frombuffer(bytearray(write_text(50_000).encode("ascii")), dtype=torch.uint8).long()
    draw = torch.Generator().manual_seed(seed)
    while True:
        time.sleep(stall_ms / 1e3)
        starts = torch.randint(len(ids) - SEQUENCE - 1, (BATCH,), generator=draw).tolist()
        rows = torch.stack([ids[start : start + SEQUENCE + 1] for start in starts])
        yield rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


class Training:
    """A model, its optimizer and its input, ready to take steps."""

    def __init__(self, attention: str, stall_ms: float = 0.0) -> None:
        torch.manual_seed(0)
        self.model = GPT(attention)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3, fused=True)
        self.batches = batches(stall_ms)
        next(self.batches)  # the text is made before the first step

    def step(self, watch: Stopwatch) -> float:
        """Take one step, time its phases, and return the loss."""
        with watch.span("phase/input"):
            ids, targets = next(self.batches)
        with watch.span("phase/forward"):
            logits = self.model(ids)
        with watch.span("phase/loss"):
            loss = F.cross_entropy(logits.view(-1, VOCABULARY), targets.view(-1))
        with watch.span("phase/backward"):
            loss.backward()
        with watch.span("phase/optimizer"):
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item()


def record(options: argparse.Namespace) -> dict[str, object]:
    """Train, and return the measured steps as a step_profiler_v2 profile."""
    training, watch = Training(options.attention, options.loader_stall_ms), Stopwatch()
    if not options.bare:
        time_model(training.model, watch)
    losses = [training.step(watch) for _ in range(options.warmup)]
    watch.total_ns.clear()
    edges_ns = [time.perf_counter_ns()]
    for _ in range(options.steps):
        losses.append(training.step(watch))
        edges_ns.append(time.perf_counter_ns())
    samples_ms = [(end - start) / 1e6 for start, end in pairwise(edges_ns)]
    parameters = sum(parameter.numel() for parameter in training.model.parameters())
    about = {"attention": options.attention, "parameters": parameters, "torch": torch.__version__}
    return step_profile(watch, samples_ms) | about | {"loss": {"first": losses[0], "last": losses[-1]}}


def step_profile(watch: Stopwatch, samples_ms: list[float]) -> dict[str, object]:
    """Arrange the stopwatch's totals over all measured steps in the shape of step_profiler_v2."""
    total_ms = {name: ns / 1e6 for name, ns in watch.total_ns.items()}
    wall_ms, steps = sum(samples_ms), len(samples_ms)
    phase_ms = {name: total_ms[f"phase/{name}"] for name in PHASES}
    ops = {name.removeprefix("op/"): ms for name, ms in total_ms.items() if name.startswith("op/")}
    return {
        "_profiler": "step_profiler_v2",
        "steps": steps,
        "avg_step_ms": mean(samples_ms),
        "wall_coverage": sum(phase_ms.values()) / wall_ms,
        "bottleneck": None,
        "phases": {
            name: {"total_ms": ms, "pct": 100 * ms / wall_ms, "avg_ms": ms / steps}
            for name, ms in phase_ms.items()
        },
        "per_layer": [
            {"layer": n, "fwd_ms": total_ms[f"layer/{n}/fwd"], "bwd_ms": total_ms[f"layer/{n}/bwd"]}
            for n in range(LAYERS)
            if f"layer/{n}/fwd" in total_ms
        ],
        "ops": ops | {"cross_entropy": phase_ms["loss"], "optimizer": phase_ms["optimizer"]},
        "tokens_per_step": TOKENS_PER_STEP,
        "samples_ms": samples_ms,
    }


def parity_profile(run: dict, attention: str) -> dict[str, object]:
    """Return the same run per step, with the number of aten calls a step makes."""
    return {
        "runtime": f"torch-{attention}",
        "throughput_tok_s": TOKENS_PER_STEP / run["avg_step_ms"] * 1e3,
        "step_time_ms": run["avg_step_ms"],
        "kernel_launches_per_step": count_aten_calls(attention),
        "ops": {name: ms / run["steps"] for name, ms in run["ops"].items()},
    }


def count_aten_calls(attention: str) -> int:
    """Count every aten operator a step calls, those called by another one too."""
    training = Training(attention)
    training.step(Stopwatch())  # the first step also makes the optimizer's state
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        training.step(Stopwatch())
    return sum(event.name.startswith("aten::") for event in trace.events())


def rates(work: float, run: Callable[[], object], repeats: int = 30) -> dict[str, float]:
    """Return the highest, median and lowest of `work` (in 1e9) per second over `repeats` runs."""
    found = []
    for _ in range(repeats + 3):  # the first three only warm up
        start_ns = time.perf_counter_ns()
        run()
        found.append(work / (time.perf_counter_ns() - start_ns))
    found = found[3:]
    return {"high": max(found), "median": median(found), "low": min(found)}


def measure_machine(size: int = 1 << 26, edge: int = 2048) -> dict[str, object]:
    """Measure memory bandwidth as STREAM counts it, and the fp32 GEMM rate, on all cores."""
    a, b, c = (torch.ones(size) for _ in range(3))
    left, right = torch.randn(edge, edge), torch.randn(edge, edge)
    copy = rates(2 * 4 * size, lambda: a.copy_(b))
    triad = rates(3 * 4 * size, lambda: torch.add(b, c, alpha=3.0, out=a))
    gemm = rates(2 * edge**3, lambda: left @ right)
    cpu_lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "cpu": next(line.split(":")[1].strip() for line in cpu_lines if line.startswith("model name")),
        "cores": torch.get_num_threads(),
        "torch": torch.__version__,
        "bandwidth_gb_s": max(copy["high"], triad["high"]),
        "gemm_gflops": gemm["high"],
        "spread": {"copy_gb_s": copy, "triad_gb_s": triad, "gemm_gflops": gemm},
    }


def write(path: Path, document: dict[str, object]) -> None:
    """Write `document` as JSON, with four decimals."""
    rounded = json.loads(json.dumps(document), parse_float=lambda digits: round(float(digits), 4))
    path.write_text(json.dumps(rounded, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Read the options, measure, and write the files that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--attention", choices=("naive", "fused"), default="fused")
    parser.add_argument("--out", type=Path, help="write the step profile here")
    parser.add_argument("--parity", type=Path, help="write the same run as a ParityProfile here")
    parser.add_argument("--machine", type=Path, help="measure bandwidth and GEMM rate, and write them here")
    parser.add_argument("--steps", type=int, default=60, help="measured steps")
    parser.add_argument("--warmup", type=int, default=10, help="steps before them")
    parser.add_argument("--loader-stall-ms", type=float, default=0.0, help="wait this long for each batch")
    parser.add_argument("--bare", action="store_true", help="no hooks: phases only, to see what hooks cost")
    options = parser.parse_args()
    if options.machine:
        write(options.machine, measure_machine())
    if options.out or options.parity:
        run = record(options)
        print(f"{options.attention}: {run['avg_step_ms']:.1f} ms per step, loss {run['loss']['last']:.2f}")
    if options.out:
        write(options.out, run)
    if options.parity:
        write(options.parity, parity_profile(run, options.attention))


if __name__ == "__main__":
    main()
