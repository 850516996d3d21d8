"""The changes that can be tried: which findings choose one, how it is made, and what it may break."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

from msgspec import Struct, structs

from stepgrade.fix.attention import attention_edits
from stepgrade.fix.edit import CannotEdit, Edit, source_text
from stepgrade.fix.trial import Site, Witnessed
from stepgrade.model.scorecard import Finding, Scorecard

# How equal the results must be: bit for bit, up to rounding, or within what another seed changes.
Equality = Literal["exact", "rounding", "tolerance"]
_MOST_WORKERS = 8


class Seen(Struct, frozen=True, kw_only=True):
    """What a short recording of the script showed."""

    card: Scorecard
    witness: Witnessed
    cores: int  # that each of its processes may use
    at: Site = Site(call="", file="", line=0, calls=0)  # the call that a change is for

    def site(self, *calls: str) -> Site | None:
        """Return where the script makes one of these calls most often."""
        sites = [site for site in self.witness.sites if site.call in calls]
        return max(sites, key=lambda site: site.calls, default=None)

    def optimizer(self) -> Site | None:
        """Return where the script makes the optimizer, if it is one that can be told how to compute."""
        return next((site for site in self.witness.sites if site.arguments.get("is_optimizer")), None)


class Way(Struct, frozen=True):
    """How a change is made in this script: settings of the patch of that name, and the edits for the same."""

    patch: str  # empty if it is tried as an edit of the copy
    settings: Any
    edits: tuple[Edit, ...]
    how: str  # what exactly, in a few words


class ScriptChange(Struct, frozen=True, kw_only=True):
    """One change: when it applies, how it is tried and written, what must stay equal, what it may break."""

    name: str
    what: str
    rules: str = ""  # findings that choose it; empty if facts of the run do
    equality: Equality
    breaks: str
    how: str = ""  # with {keywords}, or what {value} they have
    allow: str = ""  # what the user must allow first
    patch: str = ""  # empty if only a person can make it
    calls: str = ""  # one of which the script must make; MODEL and OPTIMIZER stand for any
    unless: tuple[tuple[Callable[[Seen], object], str], ...] = ()  # why it does not apply
    settings: Callable[[Seen], Any] = lambda _: True  # of the patch, if it is not keywords of the call
    keywords: Callable[[Seen], dict[str, Any]] = lambda _: {}  # of the call, at run time and in the edit
    line: str = ""  # an edit before the optimizer is made
    rewrites: Callable[[str, str], list[Edit]] | None = None  # a source, which is how it is tried too
    counts_alike: bool = True  # whether its FLOPs can be compared: not if it saves them, or hides them
    redraws: bool = False  # whether random augmentation draws other numbers, and nothing else may differ

    def asked_by(self, card: Scorecard) -> list[Finding]:
        """Return the findings of the run that ask for it."""
        rules = {*self.rules.split()}
        return [finding for finding in card.findings if finding.rule in rules]

    def promise(self, card: Scorecard) -> float:
        """Return the most that the findings promise of it."""
        return max((finding.gain_high for finding in self.asked_by(card)), default=0.0)

    def is_chosen(self, card: Scorecard) -> bool:
        """Tell whether a finding of the run asks for it, or needs none to."""
        return not self.rules or bool(self.asked_by(card))

    def way(self, seen: Seen) -> Way | str | None:
        """Return how it is made in this script; why it does not apply; None if only a person can make it."""
        if self.rewrites is not None:
            made = list[Edit]()
            for file in seen.witness.modules:
                with suppress(CannotEdit, OSError):
                    made += self.rewrites(file, source_text(file).removeprefix("\ufeff"))
            if not made:
                return "no file of this folder writes it out plainly"
            return Way("", None, tuple(made), self.how)
        if not self.patch:
            return None
        found = seen.optimizer() if self.calls == OPTIMIZER else seen.site(*self.calls.split())
        if self.calls and found is None:
            return f"the script does not call {self.calls.replace(' ', ' or ')}"
        seen = structs.replace(seen, at=found or seen.at)
        site = seen.at
        for applies, reason in self.unless:
            if applies(seen):
                return reason
        keywords = self.keywords(seen)
        settings = {"place": site.place, "keywords": keywords} if keywords else self.settings(seen)
        edits = (Edit(site, keywords, self.line),) if site.line and (keywords or self.line) else ()
        shown = ", ".join(f"{name}={value!r}" for name, value in keywords.items())
        return Way(self.patch, settings, edits, self.how.format(keywords=shown, value=settings))


def cores_here() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


MODEL, OPTIMIZER, LOADER = "model", "optimizer", "DataLoader"
DDP = "DistributedDataParallel"
_SLOW_INPUT = "loader-on-main-thread starved-loader input-wait"
_ITERABLE = (
    lambda seen: seen.at.arguments.get("is_iterable"),
    "an iterable dataset would give each worker the same samples",
)
_ON_CPU = (
    lambda seen: seen.witness.device == "cpu",
    "the work is on a processor, where it changes nothing",
)


def _workers(seen: Seen) -> int:
    return max(1, min(_MOST_WORKERS, seen.cores))


def _accumulated(seen: Seen) -> int:
    """Return the backward passes of a step; 0 if steps differ."""
    counts = {step.backwards for step in seen.witness.steps}
    return counts.pop() if len(counts) == 1 else 0


CHANGES = (
    ScriptChange(
        name="loader-workers",
        what="Prepare batches in worker processes",
        rules=_SLOW_INPUT,
        equality="exact",
        breaks="random augmentation draws from the workers' seeds; spawned workers need a dataset to pickle",
        how="{keywords}",
        patch="loader",
        calls=LOADER,
        unless=(
            _ITERABLE,
            (
                lambda seen: (seen.at.arguments.get("num_workers") or 0) >= _workers(seen),
                "it has a worker for each core",
            ),
        ),
        # Not persistent_workers: a loader that shuffles would draw another order from its second epoch on.
        keywords=lambda seen: {"num_workers": _workers(seen), "prefetch_factor": 4},
        redraws=True,
    ),
    ScriptChange(
        name="cached-samples",
        what="Prepare each sample once",
        rules=_SLOW_INPUT,
        equality="exact",
        breaks="all samples stay in memory; augmentation would be frozen",
        how="a cache in front of the dataset",
        patch="loader",
        calls=LOADER,
        unless=(_ITERABLE,),
        settings=lambda seen: {"place": seen.at.place, "cached": True},
    ),
    ScriptChange(
        name="pinned-memory",
        what="Copy from pinned memory",
        rules="pageable-copies heavy-transfer",
        equality="exact",
        breaks="takes host memory that cannot be swapped",
        how="{keywords}",
        patch="loader",
        calls=LOADER,
        unless=(_ON_CPU,),
        keywords=lambda _: {"pin_memory": True},
    ),
    ScriptChange(
        name="fused-optimizer",
        what="Update all weights in one operation",
        rules="single-tensor-optimizer heavy-optimizer",
        equality="rounding",
        breaks="needs all weights of a group on one device",
        how="{keywords}",
        patch="optimizer",
        calls=OPTIMIZER,
        unless=((lambda seen: seen.at.arguments.get("fused"), "the optimizer is fused already"),),
        keywords=lambda seen: {"fused" if "fused" in seen.at.arguments else "foreach": True},
    ),
    ScriptChange(
        name="zero-grad-none",
        what="Drop gradients instead of filling them with zeros",
        rules="zero-grad-fills",
        equality="exact",
        breaks="code that reads .grad between steps finds None",
        how="{keywords}",
        patch="zero_grad",
        calls="zero_grad",
        keywords=lambda _: {"set_to_none": True},
    ),
    ScriptChange(
        name="compile",
        what="Compile the model",
        rules="elementwise-chains fragmented-elementwise slow-elementwise hand-written-norm short-kernels",
        equality="tolerance",
        breaks="the first steps take longer; new shapes compile again; dropout draws other numbers",
        how="model.compile()",
        patch="model",
        calls=OPTIMIZER,
        unless=(
            (
                lambda seen: seen.witness.device == "cpu" and not shutil.which(os.environ.get("CXX", "g++")),
                "torch.compile needs a C++ compiler for this processor",
            ),
        ),
        settings=lambda _: {"compile": True},
        line="{model}.compile()",
        counts_alike=False,
    ),
    ScriptChange(
        name="autocast-bf16",
        what="Compute matrix products in bf16",
        rules="fp32-matmuls",
        equality="tolerance",
        allow="precision",
        breaks="rounds to 8 bits of mantissa",
        how="autocast around forward",
        patch="model",
        calls=MODEL,
        settings=lambda _: {"autocast": "bfloat16"},
    ),
    ScriptChange(
        name="matmul-precision",
        what="Let fp32 products use tf32",
        rules="fp32-matmuls",
        equality="tolerance",
        allow="precision",
        breaks="rounds inputs of products to 10 bits of mantissa",
        how="torch.set_float32_matmul_precision({value!r})",
        patch="products",
        unless=(_ON_CPU,),
        settings=lambda _: "high",
    ),
    ScriptChange(
        name="float32",
        what="Compute in float32 instead of float64",
        equality="tolerance",
        allow="precision",
        breaks="what needs double precision",
        how="weights and inputs in float32",
        patch="model",
        calls=MODEL,
        unless=((lambda seen: "float64" not in seen.witness.dtypes, "no weight is float64"),),
        settings=lambda _: {"single": True},
    ),
    ScriptChange(
        name="channels-last",
        what="Keep images in channels_last",
        rules="layout-conversions slow-gemm",
        equality="rounding",
        breaks="code that assumes contiguous NCHW",
        how="model and images in torch.channels_last",
        patch="model",
        calls=MODEL,
        settings=lambda _: {"channels_last": True},
    ),
    ScriptChange(
        name="sdpa",
        what="Use the library's fused attention",
        rules="unfused-attention math-attention",
        equality="tolerance",
        breaks="attention weights are not returned",
        how='attn_implementation="sdpa"',
        patch="model",
        calls=MODEL,
        unless=(
            (
                lambda seen: not seen.at.arguments.get("can_choose_attention"),
                "the model cannot be told which attention to use",
            ),
        ),
        settings=lambda _: {"attention": "sdpa"},
        counts_alike=False,
    ),
    ScriptChange(
        name="library-attention",
        what="Call the library's fused attention instead of writing it out",
        rules="unfused-attention math-attention",
        equality="rounding",
        breaks="attention weights are not there to be looked at; dropout draws other numbers",
        how="F.scaled_dot_product_attention",
        rewrites=attention_edits,
        counts_alike=False,
    ),
    ScriptChange(
        name="no-sync",
        what="Reduce gradients once a step",
        rules="sync-every-micro-batch data-parallel small-messages",
        equality="rounding",
        breaks="a loop whose number of micro-batches changes",
        how="no_sync() for all but the last backward pass of a step",
        patch="ddp",
        calls=DDP,
        unless=(
            (
                lambda seen: _accumulated(seen) < 2,
                "each step has one backward pass, or their number changes",
            ),
        ),
        settings=lambda seen: {"accumulates": _accumulated(seen)},
    ),
    ScriptChange(
        name="ddp-buckets",
        what="Reduce gradients in fewer messages",
        rules="small-messages exposed-communication",
        equality="rounding",
        breaks="code that detaches gradients in place",
        how="{keywords}",
        patch="ddp",
        calls=DDP,
        keywords=lambda _: {"bucket_cap_mb": 25, "gradient_as_bucket_view": True},
    ),
    ScriptChange(
        name="no-checkpointing",
        what="Keep activations instead of computing them again",
        rules="recomputed-forward",
        equality="exact",
        breaks="takes the memory that checkpointing saved",
        how="the function is called directly",
        patch="checkpointing",
        calls="checkpoint",
        counts_alike=False,
    ),
    ScriptChange(
        name="no-anomaly-detection",
        what="Leave anomaly detection off",
        equality="exact",
        breaks="NaN gradients are not traced to their operation",
        how="set_detect_anomaly(False)",
        patch="anomaly",
        calls="set_detect_anomaly detect_anomaly",
    ),
    ScriptChange(
        name="no-collection",
        what="Leave garbage collection to Python",
        equality="exact",
        breaks="memory in cycles is freed later",
        how="without gc.collect()",
        patch="collecting",
        calls="collect",
    ),
    ScriptChange(
        name="threads",
        what="Compute with one thread for each core",
        equality="rounding",
        breaks="other programs on the machine get fewer cores",
        how="torch.set_num_threads({value})",
        patch="threads",
        unless=(
            (lambda seen: seen.witness.device != "cpu", "the work is on a device"),
            (lambda seen: seen.witness.threads == seen.cores, "there is a thread for each core"),
        ),
        settings=lambda seen: seen.cores,
    ),
    ScriptChange(
        name="static-graph",
        what="Tell DDP that the graph never changes",
        rules="weak-overlap exposed-communication",
        equality="rounding",
        breaks="it is a promise: a graph that changes gives wrong gradients",
    ),
    ScriptChange(
        name="larger-fsdp-units",
        what="Shard whole blocks, not single layers",
        rules="small-messages",
        equality="rounding",
        breaks="the parameters of a unit are gathered at once",
    ),
    ScriptChange(
        name="fewer-logs",
        what="Read the loss, print and save every N steps",
        rules="scalar-read-sync scalar-read-loop host-stall slow-checkpoints long-evaluations",
        equality="exact",
        breaks="logs and checkpoints are rarer",
    ),
    ScriptChange(
        name="larger-micro-batch",
        what="Larger micro-batches, with the same batch",
        rules="small-micro-batches tiny-gemms",
        equality="rounding",
        breaks="takes memory; batch norm sees other batches",
    ),
    ScriptChange(
        name="sparse-gradients",
        what="Sparse gradients for the large embedding",
        rules="dense-embedding-gradients heavy-embedding",
        equality="tolerance",
        breaks="the optimizer must be SparseAdam or SGD, which update differently",
    ),
)
