"""What a log says about the run besides its steps: device, model, batch, sequence, precision."""

from __future__ import annotations

import re
from contextlib import suppress
from math import isfinite, prod

import msgspec
from msgspec import Struct

from stepgrade.patterns import regex
from stepgrade.readers.logs.values import GIB, MIB, number, plain

_N = rb"([-+]?\d[\d,_]{0,24}(?:\.\d{1,12})?(?:[eE][-+]?\d{1,3})?)"
_MOST_TEXT = 120
_MOST_CONFIG = 1 << 16


class HeaderFact(Struct, frozen=True):
    """Something that a log prints once: a word of the line, its pattern, its name, its unit in ours."""

    literal: bytes
    template: bytes  # {} is a number
    name: str
    scale: float = 1.0

    @property
    def pattern(self) -> bytes:
        """Return the pattern, with the printed value as its only group."""
        return self.template.replace(b"{}", _N)


# The first match counts, except for those in _MOST_OF.
NUMBERS: tuple[HeaderFact, ...] = (
    HeaderFact(b"CUDA capacity", rb"CUDA capacity: [^\n]{1,80}? with {}GiB", "device_bytes", GIB),
    HeaderFact(b"Max memory", b"Max memory: {} GB", "device_bytes", GIB),
    HeaderFact(b"world size", b"world size: ?{}", "world"),
    HeaderFact(b"World size", b"World size: ?{}", "world"),
    HeaderFact(b"Num_devices", b"Num_devices: ?{}", "world"),
    HeaderFact(b"Num GPUs", b"Num GPUs(?: used)? = ?{}", "world"),
    HeaderFact(b"number of devices", b"number of devices: ?{}", "world"),
    HeaderFact(b"--gpus=", b"--gpus={}", "world"),
    HeaderFact(b"nproc_per_node", b"nproc[_-]per[_-]node[= ]{}", "local_world"),
    HeaderFact(b"nnodes", b"nnodes[= ]{}", "nodes"),
    HeaderFact(b"num_processes", b"num_processes[= ]{}", "world"),
    HeaderFact(b"total parameters", b"size: ?{} total parameters", "parameters"),
    HeaderFact(b"number parameters", b"number parameters: {} billion", "parameters", 1e9),
    HeaderFact(b"number of parameters: ", rb"number of parameters: {}M\b", "parameters", 1e6),
    HeaderFact(b"number of parameters: ", rb"number of parameters: {}\s", "parameters"),
    HeaderFact(
        b"on model parallel rank", rb"parameters on model parallel rank 0:? +{}\s*$", "shard_parameters"
    ),
    HeaderFact(b"on model parallel rank", b"model parallel rank 0:? +{} Billion", "shard_parameters", 1e9),
    HeaderFact(b"(tensor, pipeline)", rb"model parallel rank \(0, 0\): {}", "shard_parameters"),
    HeaderFact(b"num_parameters", b"num_parameters[ :=|]+{}", "parameters"),
    HeaderFact(b"dummy tokens", rb"dummy tokens \(new size: {}", "padded_vocab_size"),
    HeaderFact(b"FLOPs per token", b"Estimated FLOPs per token: {}", "flops_per_token"),
    HeaderFact(b"Total TFLOPs", b"Total TFLOPs: {}", "device_step_flops", 1e12),
    HeaderFact(b"Peak FLOPS used", b"Peak FLOPS used for computing MFU: {}", "peak_flops"),
    HeaderFact(b"Peak FLOPS (BF16)", rb"Peak FLOPS \(BF16\): {}", "peak_flops"),
    HeaderFact(b"local batch size", b"local batch size:? {}", "micro_batch_size"),
    HeaderFact(b"global batch size", b"global batch size {}", "global_batch_size"),
    HeaderFact(b"accumulation steps", b"[Gg]radient [Aa]ccumulation steps?(?: =|:)? ?{}", "accumulation"),
    HeaderFact(b"sequence length", rb"sequence length:? (?:T +\| )?{}", "seq_length"),
    HeaderFact(b"--training.seq_len", rb"--training\.seq_len[= ]{}", "seq_length"),
    HeaderFact(b"--seq-len", b"--seq-len[= ]{}", "seq_length"),
    HeaderFact(b"--batch-size", b"--batch-size[= ]{}", "micro_batch_size"),
    HeaderFact(b"--grad-accumulation", b"--grad-accumulation[= ]{}", "accumulation"),
    HeaderFact(b"max_target_length", b"max_target_length: {}", "seq_length"),
    HeaderFact(b"per_device_batch_size", b"per_device_batch_size: {}", "micro_batch_size"),
    HeaderFact(b"tokens per iteration", b"tokens per iteration will be: {}", "step_tokens"),
    HeaderFact(b"otal batch size", b"Total batch size {} => gradient accumulation", "step_tokens"),
    HeaderFact(b"desired batch size", b"total desired batch size: {}", "step_tokens"),
    HeaderFact(b"effective batch", b"effective batch: {} tokens/step", "step_tokens"),
    HeaderFact(b"total batch size", rb"\| total batch size +\| {}", "step_tokens"),
    HeaderFact(
        b"Tokens / micro-batch / rank", rb"Tokens / micro-batch / rank: [^=\n]{1,40}= {}", "rank_tokens"
    ),
    HeaderFact(b"Tokens / micro-batch:", b"Tokens / micro-batch: {}", "micro_tokens"),
    HeaderFact(b"Total train batch size", rb"Total train batch size[^=\n]{0,80}= ?{}", "global_batch_size"),
    HeaderFact(b"Total batch size (", rb"Total batch size \([^)\n]{1,40}\) = ?{}", "global_batch_size"),
    HeaderFact(b"batch size per device", b"[Bb]atch size per device = ?{}", "micro_batch_size"),
    HeaderFact(b"Total optimization steps", b"Total optimization steps = ?{}", "total_steps"),
    HeaderFact(b"Total steps", b"Total steps = ?{}", "total_steps"),
    HeaderFact(b"trainable parameters", b"[Tt]rainable parameters ?[=:] ?{}", "trained_parameters"),
    HeaderFact(b"seconds used for training", b"{} seconds used for training", "train_seconds"),
    HeaderFact(b"Peak memory usage", b"Peak memory usage: {}MiB", "peak_bytes", MIB),
    HeaderFact(b"peak memory allocated", b"peak memory allocated: {} MiB", "peak_bytes", MIB),
    HeaderFact(b"Peak reserved memory =", b"Peak reserved memory = {} GB", "peak_bytes", GIB),
    # Megatron-LM writes a line for each rank, in MiB; DeepSpeed prints one on request.
    HeaderFact(b"max allocated: ", rb"\| max allocated: {}", "peak_bytes", MIB),
    HeaderFact(b"Max_MA ", rb"\bMax_MA {} GB", "peak_bytes", GIB),
    HeaderFact(b"Memory used: ", rb"\bMemory used: {} GB", "peak_bytes", 1e9),  # litgpt's are decimal
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
_ARGUMENT = regex(rb"^[^\n.]{0,120}?\b(\w{2,60}) \.{3,60} ?([\w.+-]{1,40}?)(?:\.{3,60}\w{1,12})?\s*$", re.M)
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
_DEVICE = regex(
    rb"(?i)nvidia|tesla|geforce|[rg]tx|quadro|titan|amd|instinct|radeon|gaudi|tpu"
    rb"|\bmi\d{3}|\b[ahblv]\d{2,3}|\bg[bh]\d"
)
_PRECISIONS = {name: name for name in ("bf16", "fp16", "fp32", "fp8")} | {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "e4m3": "fp8",
}
_MOST_SHARD = 2e10  # parameters that one device can train
_MESH = regex(rb"parallelism: ((?:\w{1,16}=\d{1,6}(?:, )?){1,12})")
_OLD_MESH = regex(rb"device mesh with \[[\w', ]{1,120}\], \[(\d{1,6}(?:, \d{1,6}){0,7})\]")
_SMI = regex(rb"^\|\s+(\d{1,3})\s+([A-Z][\w .-]{2,40}?)(\.\.\.)?\s+(?:On|Off|N/A)\s+\|", re.M)
_SMI_MEMORY = regex(rb"MiB /\s+(\d{2,7})MiB")
_CONFIG = regex(rb"Model config \w{1,60} (\{)")
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
            start = opening.start(1)
            found = text[start : text.find(b"\n}", start, start + _MOST_CONFIG) + 2]
            with suppress(msgspec.DecodeError, RecursionError, UnicodeError):  # an object that is not whole
                msgspec.json.decode(found)
                self.config = found

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
                self.numbers.setdefault("device_bytes", float(memory[1]) * MIB)
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
