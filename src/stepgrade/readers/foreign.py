"""Identify files that no reader takes by their first bytes, with advice; no content of the file is shown."""

from __future__ import annotations

import re
from collections.abc import Iterable

from msgspec import Struct

from stepgrade.errors import UnknownFormat
from stepgrade.readers.base import Reader
from stepgrade.readers.source import ByteSource


class Foreign(Struct, frozen=True):
    """A known format that is not read: all its signs are in the first bytes."""

    what: str
    signs: tuple[bytes, ...]
    advice: str = ""
    supply: str = ""


_TRACE = "trace a few steps with torch.profiler, or run the script under stepgrade record"
_UNPACK = "unpack it, and pass what is inside"
_NO_TRACES = "it contains no traces: unpack it and pass its contents"
ARCHIVES = ("a zip archive", "a tar archive")
_WEIGHTS = f"weights say nothing about speed: {_TRACE}"
_OTHER_TOOL = f"stepgrade does not read it yet: {_TRACE}"
_UNKNOWN_LINES = (
    "its lines match no known dialect, or it stopped before the first step; describe them with [[dialect]] "
    "in stepgrade.toml"
)
_SOURCE_OF = "the profile that it was made from"
_OF_SQLITE = rb"\ASQLite format 3\x00"
_OF_PICKLE = rb"\A\x80[\x02-\x05]"
_OF_ZIP = rb"\APK\x03\x04"
_OF_JSON = rb'\s*(?:\{\s*["}]|\[\s*(?:[\[\]{"]|-?\d{1,30}(?:\.\d{1,30})?\s*[,\]]))'
# An object of Chrome's trace format, or a list of its events.
_OF_CHROME = rb'"traceEvents"\s{0,9}:|\A\s{0,99}\[\s{0,99}\{[^\[\]]{0,9999}?"ph"\s{0,9}:'
TRAINING_LOG = "a training log"

# Asked in this order: the more precise before the more general.
_KNOWN = (
    # Profilers
    Foreign("a report of Nsight Compute", (rb"\ANVR\x00",), f"it times single kernels, not steps: {_TRACE}"),
    Foreign("a file of nvprof", (_OF_SQLITE, rb"CUPTI_ACTIVITY_KIND_"), _OTHER_TOOL),
    Foreign("a history of stepgrade", (_OF_SQLITE, rb"stepgrade_run"), supply="it as {history}"),
    Foreign("an SQLite database", (_OF_SQLITE,), f"in an unknown layout: {_TRACE}"),
    Foreign(
        "a rocprofv3 table other than the kernel trace",
        (rb'\A"?(?:Domain"?,"?Function|Kind"?,"?Direction|Node_Id"?,"?Logical)',),
        "pass the file whose name ends in kernel_trace.csv: this one is read with it",
    ),
    Foreign(
        "a table of rocprof",
        (rb'\A"?(?:Index"?,"?KernelName|Name"?,"?Calls"?,"?TotalDur)',),
        "it contains sums, or counters, not steps: record with rocprofv3",
    ),
    Foreign(
        "a summary table of Nsight Systems",
        (rb"Total Time \(ns\)",),
        "it contains sums, not steps: pass the SQLite export that it was made from",
    ),
    Foreign("a table of Nsight Compute", (rb'\A[^\n]{0,2000}"Kernel Name","Context","Stream"',), _OTHER_TOOL),
    Foreign(
        "a printed table of torch.profiler's key_averages()",
        (rb"Self CPU %",),
        'write the trace instead: prof.export_chrome_trace("trace.json")',
    ),
    Foreign(
        "a PyTorch execution trace (ExecutionTraceObserver)",
        (rb'"schema"\s{0,9}:\s{0,9}"[\d.]{1,20}(?:-chakra)?', rb'"nodes"\s{0,9}:'),
        f"it contains no times: {_TRACE}",
    ),
    Foreign("a recording of perf", (rb"\APERFILE2",), f"it samples the processor, not steps: {_TRACE}"),
    Foreign(
        "a Perfetto trace",
        (rb"\A\n[^\0]{0,200}(?:linux\.ftrace|perfetto|track_event)",),
        f"save it as JSON only if PyTorch wrote it: {_TRACE}",
    ),
    Foreign("a profile for speedscope", (rb"https?://www\.speedscope\.app/",), _OTHER_TOOL),
    Foreign(
        "stacks of py-spy or perf (folded)",
        (rb"\A(?:[^\n;]{1,400};[^\n]{1,4000} \d{1,9}\n){2}",),
        f"they are samples of Python, not steps: {_TRACE}",
    ),
    Foreign(
        "a flame graph", (rb"(?s)\A.{0,400}<svg ",), f"it is a picture of samples, not of steps: {_TRACE}"
    ),
    Foreign(
        "a profile of Triton's proton (hatchet)",
        (rb'"frame"\s{0,9}:\s{0,9}\{[^{}]{0,200}"ROOT"',),
        f"it contains sums of kernels, not steps: {_TRACE}",
    ),
    Foreign("a recording of memray", (rb"\Amemray",), f"it contains allocations, not times: {_TRACE}"),
    Foreign("a profile of cProfile", (rb"\A[\xfb{][)\xa9(]\x03",), f"it knows Python only: {_TRACE}"),
    # PyTorch's other files
    Foreign(
        "a memory timeline of PyTorch as a picture",
        (rb"\A\s{0,9}<html>", rb"<title>GPU Memory Timeline HTML</title>"),
        "export it to a name that ends in .json.gz or .raw.json.gz, or pass the trace itself",
    ),
    Foreign(
        "a checkpoint of torch.save",
        (_OF_ZIP, rb"(?s)\APK.{28}[^\0]{0,200}/(?:data|constants)\.pkl"),
        _WEIGHTS,
    ),
    Foreign("a checkpoint of torch.save", (rb"\A\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19",), _WEIGHTS),
    Foreign(
        "a Python pickle",
        (_OF_PICKLE,),
        f"pickles can run code, so they are never opened here: {_TRACE}",
    ),
    # Weights and data
    Foreign("a safetensors file", (rb'(?s)\A.{3}[\0-\x03]\0{4}\s{0,9}\{\s{0,9}"',), _WEIGHTS),
    Foreign("a GGUF file", (rb"\AGGUF",), _WEIGHTS),
    Foreign("an HDF5 file", (rb"\A\x89HDF\r\n",), _TRACE),
    Foreign("a Parquet file", (rb"\APAR1",), _TRACE),
    Foreign("an array of NumPy", (rb"\A\x93NUMPY",), _TRACE),
    Foreign("arrays of NumPy (npz)", (_OF_ZIP, rb"(?s)\APK.{28}[^\0]{0,200}\.npy"), _TRACE),
    # Archives and pointers
    Foreign("a zip archive", (_OF_ZIP,), _NO_TRACES),
    Foreign("a tar archive", (rb"(?s)\A.{257}ustar",), _NO_TRACES),
    *(
        Foreign(
            f"compressed by {tool}", (sign,), f"only gzip and zstd are unpacked here: use {tool} -d first"
        )
        for tool, sign in (
            ("xz", rb"\A\xfd7zXZ\0"),
            ("bzip2", rb"\ABZh[1-9]1AY&SY"),
            ("lz4", rb"\A\x04\x22\x4d\x18"),
        )
    ),
    Foreign("a 7z archive", (rb"\A7z\xbc\xaf\x27\x1c",), _UNPACK),
    Foreign("gzipped twice", (rb"\A\x1f\x8b\x08",), "unpack it once"),
    Foreign(
        "a Git LFS pointer, not the file itself",
        (rb"\Aversion https://git-lfs\.github\.com/spec/",),
        "git lfs pull fetches the file",
    ),
    Foreign(
        "a git-annex pointer, not the file itself",
        (rb"\A[./]{0,99}(?:git/)?annex/objects/",),
        "git annex get fetches the file",
    ),
    Foreign(
        "a report of stepgrade (HTML)", (rb'<meta name="generator" content="stepgrade',), supply=_SOURCE_OF
    ),
    Foreign(
        "an HTML page",
        (rb"(?i)\A(?:\xef\xbb\xbf)?\s{0,999}(?:<!--[^>]{0,999}-->\s{0,99})?<(?:!doctype html|html|head)",),
        "was a web page saved instead of the file? Download the file itself",
    ),
    Foreign("an XML file", (rb"\A(?:\xef\xbb\xbf)?\s{0,99}<\?xml",), _TRACE),
    Foreign("a PDF", (rb"\A%PDF-",), _TRACE),
    Foreign("a picture", (rb"\A(?:\x89PNG|\xff\xd8\xff|GIF8)",), "pass the file that it was drawn from"),
    Foreign("a program", (rb"\A(?:\x7fELF|MZ\x90|\xcf\xfa\xed\xfe)",), _TRACE),
    Foreign("text in UTF-16", (rb"\A(?:\xff\xfe|\xfe\xff)",), "save it as UTF-8"),
    # What stepgrade itself writes
    Foreign(
        "a gate report of stepgrade", (rb'"verdict":', rb'"checks":', rb'"exit_code":'), supply=_SOURCE_OF
    ),
    Foreign(
        "a comparison of stepgrade (parity)", (rb'"apr_runtime":', rb'"parity_achieved":'), supply=_SOURCE_OF
    ),
    Foreign("an inspection of stepgrade", (rb'"holds":', rb'"missing":', rb'"fit":'), supply=_SOURCE_OF),
    # JSON of other tools
    Foreign(
        "a model's config.json",
        (
            rb"\A\s{0,99}\{",  # logs print one too
            rb'"(?:model_type|architectures)"\s{0,9}:',
            rb'"(?:hidden_size|vocab_size|n_embd|d_model|num_\w{1,30})"',
        ),
        supply="it as {model}",
    ),
    Foreign("the index of a checkpoint", (rb'"weight_map"\s{0,9}:',), _WEIGHTS),
    Foreign("a Jupyter notebook", (rb'"nbformat"\s{0,9}:',), "write the trace in a cell, and give that file"),
    Foreign(
        "a trace of VizTracer",
        (_OF_CHROME, rb'"viztracer_metadata"|"FEE"'),
        f"it knows Python only: {_TRACE}",
    ),
    Foreign("a timeline of Horovod", (_OF_CHROME, rb"NEGOTIATE_ALL"), _OTHER_TOOL),
    Foreign(
        "a Chrome trace of JAX or TensorFlow (XLA)",
        (_OF_CHROME, rb'/(?:device|host):(?:CPU|GPU|TPU)|"highres-ticks"'),
        "pass the .xplane.pb next to it",
    ),
    Foreign(
        "a trace without events",
        (rb'\A\s{0,99}\[\s{0,99}\]\s{0,99}\Z|"traceEvents"\s{0,9}:\s{0,9}\[\s{0,999}\]',),
        "was it exported after the schedule had ended, or before it began? Export it in on_trace_ready, and "
        "call prof.step() in the loop",
    ),
    Foreign(
        "an Ascend trace without PyTorch's operations (msprof)",
        (_OF_CHROME, rb'"(?:aclnn|AI_CORE|AI_VECTOR|MIX_AIC|Ascend|AscendCL@|HCCL|hcom_)'),
        "trace with torch_npu.profiler, and pass its trace_view.json",
    ),
    Foreign("a Chrome trace that PyTorch did not write", (_OF_CHROME,), _TRACE),
    Foreign(
        "a recording of a browser's network (HAR)",
        (rb'\A\s{0,99}\{\s{0,99}"log"\s{0,9}:', rb'"creator"\s{0,9}:', rb'"entries"\s{0,9}:'),
        _TRACE,
    ),
    # Text
    Foreign(
        "a stepgrade.toml",
        (rb"(?m)^\[\[?(?:gate|limits|budget|waiver)\b",),
        "it is read from the working directory; pass a profile as well",
    ),
    Foreign(
        "a Python script",
        (
            rb"\A(?:\xef\xbb\xbf)?\s{0,99}(?:[rR]?\"\"\"|'''|#|import |from )",
            rb"(?sm)\A(?!.{0,65536}^```).{0,6000}?^(?:import|from) {1,3}[\w.]{1,99}(?: import | as |,|$)",
            rb"(?m)^(?: {4}|\t|def |class |if |for |with |@|\w{1,40} {0,3}= {0,3}\S|[\w.]{1,60}\()",
        ),
        "stepgrade record runs it and records its steps",
    ),
    Foreign("a text in Markdown", (rb"\A#{1,3} ", rb"(?m)^## |^```|\]\("), _TRACE),
    Foreign(
        "a table of timm's benchmarks",
        (rb"\Amodel,[^\n]{0,400}train_samples_per_sec",),
        "each row is a separate run: pass the log of one run",
    ),
    Foreign(
        "a table of runs",
        (
            rb"(?i)\A[^\n]{0,400}\b(?:tokens_per_sec|tok_s|throughput|mfu\w{0,9})\b[^\n]{0,400}\b(?:command|commit)\b",
        ),
        "each row is a separate run: pass the log of one run",
    ),
    Foreign(
        "a table of metrics (CSV)",
        (
            rb"(?i)\A[^\n{\[]{0,1000}\b_?(?:step|epoch|iter\w{0,9}|\w{0,20}loss|throughput)\b[^\n{]{0,1000}\n[^\n]{0,999}[,\t]",
            rb"\A[^\n:]{0,2000}\n",  # column names: lines such as `step 5: loss 2.3` belong to a log
        ),
        "no column has the step number, or none has its time",
    ),
    Foreign(
        "the log of an inference server",
        (
            (
                rb"vLLM API server|Uvicorn running on http|Avg prompt throughput: \d|sglang\.launch_server"
                rb"|The server is fired up|llama_perf_context_print|tritonserver"
            ),
        ),
        "it trains nothing: pass the log of the training",
    ),
    *(
        Foreign(TRAINING_LOG, (sign,), _UNKNOWN_LINES)
        for sign in (
            rb"(?i)\b(?:iter\w{0,6}|step|batch|epoch)s?\b[^\n]{0,200}(?:loss|\blr\b|\d ?ms\b|sec|tok|%\|)",
            rb"(?i)(?:loss|mlperf|:::MLL)[^\n]{0,200}(?:iteration|iter|step|batch|epoch)",
        )
    ),
    Foreign(
        "JSON lines without a training step",
        (rb"\A\{\"[^\n]{0,4000}\}\s{0,9}\n\{\"",),
        "a step needs a number and a loss, a time or a rate, under the names in docs/logs.md",
    ),
    # Trainings print it too, before their first line.
    Foreign("the output of nvidia-smi", (rb"NVIDIA-SMI \d",), _TRACE),
    Foreign(
        "the output of a run that crashed",
        (rb"Traceback \(most recent call last\)|ChildFailedError|Root Cause \(first observed failure\)",),
        "it contains no step, so there is nothing to grade",
    ),
)


def what_it_is(head: bytes) -> Foreign | None:
    """Return the first format of the table that matches the first bytes of a file; None without one."""
    for known in _KNOWN:
        if all(re.search(sign, head) for sign in known.signs):
            return known
    return None


def refusal(source: ByteSource, readers: Iterable[Reader]) -> UnknownFormat:
    """Return the error for a source that no reader takes: what it is, else which formats there are."""
    if not source.head.strip(b"\0 \t\r\n"):
        broken_off = "was the disk full, or the machine switched off, while it was written?"
        return UnknownFormat("contains only blanks or zero bytes", where=source.name, hint=broken_off)
    found = what_it_is(source.head)
    if found is not None:
        hint, supply = found.advice or None, found.supply or None
        return UnknownFormat(f"is {found.what}", where=source.name, hint=hint, supply=supply)
    kind = "binary" if not source.is_text else "JSON" if re.match(_OF_JSON, source.head) else "text"
    problem = f"is {kind} in an unknown format"
    known = ", ".join(reader.name for reader in readers)
    return UnknownFormat(problem, where=source.name, hint=f"formats: {known}; {_TRACE}")
