"""What a log says about the run besides its steps: device, model, batch, sequence, precision."""

from __future__ import annotations

import re
from math import isfinite, prod

import msgspec
from msgspec import Struct

from stepgrade.model.step_log import PauseKind
from stepgrade.readers.logs.values import number, plain

_N = rb"([-+]?\d[\d,_]{0,24}(?:\.\d{1,12})?(?:[eE][-+]?\d{1,3})?)"
_MOST_TEXT = 120
_MOST_CONFIG = 1 << 16
MOST_EVENTS = 20_000


class HeaderFact(Struct, frozen=True):
    """Something that a log prints once: a word of the line, its pattern, its name, its unit."""

    literal: bytes
    pattern: bytes
    name: str
    scale: float = 1.0


_BILLION = 1e9
# The first match counts, except for those in _MOST_OF.
NUMBERS: tuple[HeaderFact, ...] = (
    HeaderFact(
        b"CUDA capacity", rb"CUDA capacity: [^\n]{1,80}? with " + _N + rb"GiB", "device_bytes", 2.0**30
    ),
    HeaderFact(b"Max memory", rb"Max memory: " + _N + rb" GB", "device_bytes", 2.0**30),
    HeaderFact(b"world size", rb"world size: ?" + _N, "world"),
    HeaderFact(b"World size", rb"World size: ?" + _N, "world"),
    HeaderFact(b"Num_devices", rb"Num_devices: ?" + _N, "world"),
    HeaderFact(b"Num GPUs", rb"Num GPUs(?: used)? = ?" + _N, "world"),
    HeaderFact(b"number of devices", rb"number of devices: ?" + _N, "world"),
    HeaderFact(b"--gpus=", rb"--gpus=" + _N, "world"),
    HeaderFact(b"nproc_per_node", rb"nproc[_-]per[_-]node[= ]" + _N, "local_world"),
    HeaderFact(b"nnodes", rb"nnodes[= ]" + _N, "nodes"),
    HeaderFact(b"num_processes", rb"num_processes[= ]" + _N, "world"),
    HeaderFact(b"total parameters", rb"size: ?" + _N + rb" total parameters", "parameters"),
    HeaderFact(b"number parameters", rb"number parameters: " + _N + rb" billion", "parameters", _BILLION),
    HeaderFact(b"number of parameters: ", rb"number of parameters: " + _N + rb"M\b", "parameters", 1e6),
    HeaderFact(b"number of parameters: ", rb"number of parameters: " + _N + rb"\s", "parameters"),
    HeaderFact(
        b"on model parallel rank",
        rb"parameters on model parallel rank 0:? +" + _N + rb"\s*$",
        "shard_parameters",
    ),
    HeaderFact(
        b"on model parallel rank",
        rb"model parallel rank 0:? +" + _N + rb" Billion",
        "shard_parameters",
        _BILLION,
    ),
    HeaderFact(b"(tensor, pipeline)", rb"model parallel rank \(0, 0\): " + _N, "shard_parameters"),
    HeaderFact(b"num_parameters", rb"num_parameters[ :=|]+" + _N, "parameters"),
    HeaderFact(b"dummy tokens", rb"dummy tokens \(new size: " + _N, "padded_vocab_size"),
    HeaderFact(b"FLOPs per token", rb"Estimated FLOPs per token: " + _N, "flops_per_token"),
    HeaderFact(b"Total TFLOPs", rb"Total TFLOPs: " + _N, "device_step_flops", 1e12),
    HeaderFact(b"Peak FLOPS used", rb"Peak FLOPS used for computing MFU: " + _N, "peak_flops"),
    HeaderFact(b"Peak FLOPS (BF16)", rb"Peak FLOPS \(BF16\): " + _N, "peak_flops"),
    HeaderFact(b"local batch size", rb"local batch size:? " + _N, "micro_batch_size"),
    HeaderFact(b"global batch size", rb"global batch size " + _N, "global_batch_size"),
    HeaderFact(b"accumulation steps", rb"[Gg]radient [Aa]ccumulation steps?(?: =|:)? ?" + _N, "accumulation"),
    HeaderFact(b"sequence length", rb"sequence length:? (?:T +\| )?" + _N, "seq_length"),
    HeaderFact(b"--training.seq_len", rb"--training\.seq_len[= ]" + _N, "seq_length"),
    HeaderFact(b"--seq-len", rb"--seq-len[= ]" + _N, "seq_length"),
    HeaderFact(b"--batch-size", rb"--batch-size[= ]" + _N, "micro_batch_size"),
    HeaderFact(b"--grad-accumulation", rb"--grad-accumulation[= ]" + _N, "accumulation"),
    HeaderFact(b"max_target_length", rb"max_target_length: " + _N, "seq_length"),
    HeaderFact(b"per_device_batch_size", rb"per_device_batch_size: " + _N, "micro_batch_size"),
    HeaderFact(b"tokens per iteration", rb"tokens per iteration will be: " + _N, "step_tokens"),
    HeaderFact(b"otal batch size", rb"Total batch size " + _N + rb" => gradient accumulation", "step_tokens"),
    HeaderFact(b"desired batch size", rb"total desired batch size: " + _N, "step_tokens"),
    HeaderFact(b"effective batch", rb"effective batch: " + _N + rb" tokens/step", "step_tokens"),
    HeaderFact(b"total batch size", rb"\| total batch size +\| " + _N, "step_tokens"),
    HeaderFact(
        b"Tokens / micro-batch / rank", rb"Tokens / micro-batch / rank: [^=\n]{1,40}= " + _N, "rank_tokens"
    ),
    HeaderFact(b"Tokens / micro-batch:", rb"Tokens / micro-batch: " + _N, "micro_tokens"),
    HeaderFact(
        b"Total train batch size", rb"Total train batch size[^=\n]{0,80}= ?" + _N, "global_batch_size"
    ),
    HeaderFact(b"Total batch size (", rb"Total batch size \([^)\n]{1,40}\) = ?" + _N, "global_batch_size"),
    HeaderFact(b"batch size per device", rb"[Bb]atch size per device = ?" + _N, "micro_batch_size"),
    HeaderFact(b"Total optimization steps", rb"Total optimization steps = ?" + _N, "total_steps"),
    HeaderFact(b"Total steps", rb"Total steps = ?" + _N, "total_steps"),
    HeaderFact(b"trainable parameters", rb"[Tt]rainable parameters ?[=:] ?" + _N, "trained_parameters"),
    HeaderFact(b"seconds used for training", _N + rb" seconds used for training", "train_seconds"),
    HeaderFact(b"Peak memory usage", rb"Peak memory usage: " + _N + rb"MiB", "peak_bytes", 2.0**20),
    HeaderFact(b"peak memory allocated", rb"peak memory allocated: " + _N + rb" MiB", "peak_bytes", 2.0**20),
    HeaderFact(b"Peak reserved memory =", rb"Peak reserved memory = " + _N + rb" GB", "peak_bytes", 2.0**30),
    # Megatron-LM writes a line for each rank, in MiB; DeepSpeed prints one on request.
    HeaderFact(b"max allocated: ", rb"\| max allocated: " + _N, "peak_bytes", 2.0**20),
    HeaderFact(b"Max_MA ", rb"\bMax_MA " + _N + rb" GB", "peak_bytes", 2.0**30),
    HeaderFact(
        b"Memory used: ", rb"\bMemory used: " + _N + rb" GB", "peak_bytes", 1e9
    ),  # litgpt's are decimal
)
# Printed by several ranks or at several times: the maximum counts.
_MOST_OF = ("world", "peak_bytes")
_NAME = rb"([A-Za-z0-9][\w .()/+-]{1,60}?)"
TEXTS: tuple[HeaderFact, ...] = (
    HeaderFact(b"CUDA capacity", rb"CUDA capacity: " + _NAME + rb" with ", "device"),
    HeaderFact(b"Num GPUs", rb"(?:\bGPU: |/\|\s+)" + _NAME + rb"\. Num GPUs", "device"),
    HeaderFact(b"GPU: ", rb"\bGPU: " + _NAME + rb"(?:\. |\.?$| \||, | \(\d)", "device"),
    HeaderFact(b"Device 0: ", rb"Device 0: " + _NAME + rb"$", "device"),
    HeaderFact(b"flops undefined for", rb"flops undefined for: " + _NAME + rb"(?:,|$)", "device"),
    HeaderFact(b"computeCapability", rb"name: " + _NAME + rb" computeCapability", "device"),
    HeaderFact(b"| device  ", rb"\| device +\| " + _NAME + rb" +\|", "device"),
    HeaderFact(b"TFRT TPU", rb"TFRT (TPU v\w{1,8})", "device"),
    HeaderFact(b"Model ", rb"Model (\w{1,20} [\w.-]{1,20}) size: [\d,]{1,24} total", "model"),
    HeaderFact(b"Running Model", rb"Running Model: ([\w.-]{1,40})", "model"),
    HeaderFact(b"--model", rb"--model(?:_name_or_path)?[= ]['\"]?([\w./-]{2,80})", "model"),
    HeaderFact(b"--matmul-dtype", rb"--matmul-dtype[= ](\w{2,10})", "precision"),
    HeaderFact(b"for parameters", rb"using torch\.(\w{4,10}) for parameters", "precision"),
    HeaderFact(b"--training.dtype", rb"--training\.(?:mixed_precision_)?dtype[= ](\w{4,10})", "precision"),
    HeaderFact(b"COMPUTE_DTYPE", rb"COMPUTE_DTYPE: (?:torch\.)?(\w{4,10})", "precision"),
    HeaderFact(b"PyTorch", rb"(?:Running )?PyTorch(?: version)?:? (\d[\w.+]{2,30})", "torch"),
)
# Arguments that Megatron, GPT-NeoX and DeepSpeed dump, one to a line; nothing else of a dump is kept.
_ARGUMENT = re.compile(
    rb"^[^\n.]{0,120}?\b(\w{2,60}) \.{3,60} ?([\w.+-]{1,40}?)(?:\.{3,60}\w{1,12})?\s*$", re.M
)
_ARGUMENT_NAMES = (
    "hidden_size num_layers num_attention_heads num_query_groups group_query_attention ffn_hidden_size "
    "kv_channels seq_length padded_vocab_size vocab_size micro_batch_size global_batch_size "
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
    "tensor_model_parallel_size pipeline_model_parallel_size model_parallel_size pipe_parallel_size "
    "world_size global_num_gpus bf16 fp16 precision params_dtype swiglu recompute_granularity "
    "checkpoint_activations recompute_activations num_experts moe_router_topk moe_ffn_hidden_size "
    "untie_embeddings_and_output_weights no_weight_tying log_interval"
)
ARGUMENTS = frozenset(_ARGUMENT_NAMES.split())
_DEVICE = re.compile(
    rb"(?i)nvidia|tesla|geforce|[rg]tx|quadro|titan|amd|instinct|radeon|gaudi|tpu"
    rb"|\bmi\d{3}|\b[ahblv]\d{2,3}|\bg[bh]\d"
)
_PRECISIONS = {
    "bf16": "bf16",
    "bfloat16": "bf16",
    "fp16": "fp16",
    "float16": "fp16",
    "half": "fp16",
    "fp32": "fp32",
    "float32": "fp32",
    "fp8": "fp8",
    "e4m3": "fp8",
}
_MOST_SHARD = 2e10  # parameters that one device can train
_MESH = re.compile(rb"parallelism: ((?:\w{1,16}=\d{1,6}(?:, )?){1,12})")
_OLD_MESH = re.compile(rb"device mesh with \[[\w', ]{1,120}\], \[(\d{1,6}(?:, \d{1,6}){0,7})\]")
_SMI = re.compile(rb"^\|\s+(\d{1,3})\s+([A-Z][\w .-]{2,40}?)(\.\.\.)?\s+(?:On|Off|N/A)\s+\|", re.M)
_SMI_MEMORY = re.compile(rb"MiB /\s+(\d{2,7})MiB")
_CONFIG = re.compile(rb"Model config \w{1,60} (\{)")
_MESH_DEVICES = (b"pp", b"dp_replicate", b"dp_shard", b"cp", b"tp")


class LogHeader:
    """What was found so far: numbers and texts by name, and the model's config.json where one is printed."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self.arguments: dict[str, str] = {}
        self.config: bytes | None = None
        self.smi_devices = 0
        self.event_times: tuple[float, float] | None = None  # of MLPerf's events: the first and the last

    def read(self, text: bytes) -> None:
        """Search a part of the log."""
        text = plain(text)
        self._read_numbers(text)
        for fact in TEXTS:
            if fact.name not in self.texts and fact.literal in text:
                names = (match[1] for match in re.finditer(fact.pattern, text, re.M))
                found = next((name for name in names if fact.name != "device" or _DEVICE.search(name)), None)
                if found is not None:
                    # Only the last part of a path: the rest may identify the user.
                    is_path = found.startswith((b"/", b".", b"~")) or found.count(b"/") > 1
                    self.texts[fact.name] = clean(
                        found.rstrip(b"/").rsplit(b"/", 1)[-1] if is_path else found
                    )
        if b" ..." in text:
            # Later values are derived from earlier ones, such as the world size.
            found_now = ((name.decode("ascii", "replace"), value) for name, value in _ARGUMENT.findall(text))
            self.arguments |= {name: clean(value) for name, value in found_now if name in ARGUMENTS}
        if b"NVIDIA-SMI" in text or self.smi_devices:
            self._read_smi(text)
        if self.config is None and (opening := _CONFIG.search(text)) is not None:
            self.config = _object_at(text, opening.start(1))

    def _read_numbers(self, text: bytes) -> None:
        for fact in NUMBERS:
            # Launchers print a world size of 1 first.
            takes_most = fact.name in _MOST_OF
            if (fact.name not in self.numbers or takes_most) and fact.literal in text:
                every = re.finditer(fact.pattern, text, re.M)
                found = [number(match[1].replace(b"_", b"")) * fact.scale for match in every]
                if found and isfinite(found[0]):
                    known = self.numbers.get(fact.name, 0.0)
                    self.numbers[fact.name] = max(*found, known) if takes_most else found[0]
        if b"parallelism: " in text and (mesh := _MESH.search(text)) and "world" not in self.numbers:
            sizes = dict(part.split(b"=") for part in mesh[1].rstrip(b", ").split(b", "))
            counted = [int(sizes[name]) for name in _MESH_DEVICES if name in sizes]
            if all(count > 0 for count in counted):
                self.numbers["world"] = float(prod(counted))
        if b"device mesh with [" in text and (mesh := _OLD_MESH.search(text)) and "world" not in self.numbers:
            self.numbers["world"] = float(prod(int(size) for size in mesh[1].split(b", ")) or 1)

    def _read_smi(self, text: bytes) -> None:
        """Read the table of nvidia-smi, which cuts long names."""
        numbers, is_cut = set(), False
        for found in _SMI.finditer(text):
            numbers.add(found[1])
            is_cut = found[3] is not None
            self.texts.setdefault("device", clean(found[2]))
        if numbers and not self.smi_devices:
            self.smi_devices = len(numbers)
            memory = _SMI_MEMORY.search(text)
            if memory is not None:
                self.numbers.setdefault("device_bytes", float(memory[1]) * 2.0**20)
                if is_cut:  # the truncated part of "Tesla V100-SXM2..." is its memory
                    self.texts["device"] += f"-{round(float(memory[1]) / 1024.0)}GB"

    def whole(self, *names: str) -> int | None:
        """Return the first of these arguments or numbers in the log, as a whole number above 0."""
        for name in names:
            text, value = self.arguments.get(name, ""), self.numbers.get(name)
            value = float(text) if text.isdecimal() and len(text) < 16 else value
            if value is not None and 1.0 <= value < 1e15 and value == int(value):
                return int(value)
        return None

    @property
    def precision(self) -> str | None:
        """Return the precision that matrices are multiplied in, by its short name; None if unknown."""
        for name in ("bf16", "fp16"):
            if self.arguments.get(name) == "True":
                return name
        texts = (
            self.arguments.get("precision"),
            self.texts.get("precision"),
            self.arguments.get("params_dtype"),
        )
        names = (text.lower().removeprefix("torch.") for text in texts if text)
        return next((_PRECISIONS[name] for name in names if name in _PRECISIONS), None)

    @property
    def parameters(self) -> float | None:
        """Return the model's parameters; a log of Megatron's prints those of one model-parallel rank."""
        shard = self.numbers.get("shard_parameters")
        if "parameters" in self.numbers or shard is None:
            return self.numbers.get("parameters")
        if "tensor_model_parallel_size" not in self.arguments:  # older versions print the total
            return shard * (self.whole("model_parallel_size") or 1) if shard < _MOST_SHARD else shard
        tensor = self.whole("tensor_model_parallel_size") or 1
        return shard * tensor * (self.whole("pipeline_model_parallel_size") or 1)


def clean(text: bytes) -> str:
    """Return a name from a log without control characters."""
    shown = text.decode("utf-8", "replace").strip()[:_MOST_TEXT]
    return "".join(letter for letter in shown if letter.isprintable())


def _object_at(text: bytes, start: int) -> bytes | None:
    """Return the JSON object that begins there, if it is whole."""
    end = text.find(b"\n}", start, start + _MOST_CONFIG)
    if end < 0:
        return None
    found = text[start : end + 2]
    try:
        msgspec.json.decode(found)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return None
    return found


class LogEvent(Struct, frozen=True):
    """Something between two step lines: `at` is the offset of the later line."""

    kind: PauseKind
    at: float
    seconds: float | None = None


class RunTotals(Struct, frozen=True):
    """The whole run's time and mean rates, which a trainer prints at its end."""

    runtime_s: float
    samples_s: float | None
    steps_s: float | None


class LogContext:
    """What a log says besides its step lines: its header, events between steps, totals at the end."""

    def __init__(self) -> None:
        self.header = LogHeader()
        self.events: list[LogEvent] = []
        self.totals: RunTotals | None = None

    def add_event(self, kind: PauseKind, at: float, seconds: float | None) -> None:
        """Keep an event, unless there are too many."""
        if len(self.events) < MOST_EVENTS:
            self.events.append(LogEvent(kind, at, seconds))
