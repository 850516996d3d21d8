"""The dialects: one entry for each framework's step line. docs/logs.md shows them as a table."""

from __future__ import annotations

from stepgrade.readers.logs.dialect import LAST_RANK, Dialect, Field, Variant
from stepgrade.readers.logs.lines import json_object, keras_bar, mlperf_event, printed_dict, progress_bar
from stepgrade.readers.logs.plain_lines import plain_line
from stepgrade.readers.logs.values import GIB, MIB
from stepgrade.readers.logs.vision import VISION

_MS = 1e-3
_PERCENT = 0.01

_TORCHTITAN = Dialect(
    name="torchtitan",
    framework="torchtitan",
    anchor=b"tps: ",
    fields=(
        Field("(?<!validate )step:", "step"),  # a validation has a line of its own, with a rate
        Field("loss:", "loss"),
        Field("memory:", "memory_bytes", GIB, "GiB"),
        Field("tps:", "tok_s_device"),
        Field("tflops:", "tflops_device"),
        Field("mfu:", "mfu", _PERCENT, "%"),
    ),
    mean="interval",
    convention="torchtitan",
)
_TITAN_OLD = Dialect(
    name="torchtitan-2024",
    framework="torchtitan",
    anchor=b"wps: ",
    fields=(*_TORCHTITAN.fields[:3], Field("wps:", "tok_s_device"), Field("mfu:", "mfu", _PERCENT, "%")),
    mean="interval",
    convention="torchtitan",
)
_MEGATRON = Dialect(
    name="megatron",
    framework="Megatron-LM",
    anchor=b"elapsed time per iteration (ms):",
    fields=(
        Field("iteration ", "step", after=r"\s*/"),
        Field("/", "total"),
        Field(r"elapsed time per iteration \(ms\):", "step_s", _MS),
        Field("consumed samples:", "samples"),
        Field("consumed tokens:", "tokens", after=r"(?![\d.]*[KMBT])"),
        Field("global batch size:", "step_samples"),
        Field(r"throughput per GPU \(TFLOP/s/GPU\):", "tflops_device"),
        Field(r"compute per GPU \(TFLOP/s/GPU\):", "tflops_device"),
        Field("TFLOPs:", "tflops_device"),
        Field("approx flops per GPU:", "tflops_device", after="TFLOPS"),
        Field("tokens/sec/gpu:", "tok_s_device"),
        Field("tokens/s/GPU inst/harmonic mean:", "tok_s_device"),
        Field(r"tokens per GPU \(tokens/s/GPU\):", "tok_s_device"),
        Field(r"tokens per gpu per second \(tgs\):", "tok_s_device"),
        Field("hip mem usage/free/total/usage_ratio:", "memory_bytes", GIB, "GB/"),
        Field("samples/sec:", "samples_s"),
        Field("samples per second:", "samples_s"),
        Field("lm loss:", "loss"),
        Field("lm_loss:", "loss"),
        Field("curriculum seqlen:", "seq"),
    ),
    needs=("step", "step_s"),
    mean="interval",
    convention="causal-exact",
    variants=(
        Variant(framework="GPT-NeoX", has="samples_s", lacks="samples"),  # its FLOPs leave the head out
        Variant(framework="Megatron-DeepSpeed", has="tokens", convention="causal-exact"),
    ),
    recompute_argument="checkpoint_activations",
)
_NEMO = Dialect(
    name="nemo",
    framework="NeMo",
    anchor=b"train_step_timing in s",
    fields=(
        Field(r"global_step[:=]", "step"),
        Field(r"global_step[:=] *[\d.]+ *\|.*?max_steps[:=]", "total"),
        Field(r"train_step_timing in s[:=]", "step_s"),
        Field(r"TFLOPS_per_GPU[:=]", "tflops_device"),
        Field(r"tokens_per_sec_per_gpu[:=]", "tok_s_device"),
        Field(r"consumed_samples[:=]", "samples"),
        Field(r"global_batch_size[:=]", "step_samples"),
        Field(r"reduced_train_loss[:=]", "loss"),
        Field(r"max_memory_allocated[:=]", "memory_bytes"),
    ),
    needs=("step", "step_s"),
    convention="causal-exact",
)
_AUTOMODEL = Dialect(
    name="nemo-automodel",
    framework="NeMo Automodel",
    anchor=b" GiB | tps ",
    fields=(
        Field("step ", "step"),
        Field("loss ", "loss"),
        Field("mem ", "memory_bytes", GIB, " GiB"),
        Field("tps ", "tok_s"),
        Field(r"tps [\d.,]+\(", "tok_s_device"),
    ),
    convention="automodel-lora",
)
_BRIDGE = Dialect(
    name="megatron-bridge",
    framework="Megatron-Bridge",
    anchor=b"MODEL_TFLOP/s/GPU",
    fields=(
        Field("Step Time :", "step_s"),
        Field("GPU utilization:", "tflops_device"),
    ),
    needs=("step_s",),
    counts_lines=True,
    rank=2,
    convention="causal-exact",
)
_NEOX_STEPS = Dialect(
    name="deepspeed-steps",
    framework="DeepSpeed",
    anchor=b"iter time (s):",
    fields=(
        Field("steps:", "step"),
        Field("loss:", "loss"),
        Field(r"iter time \(s\):", "step_s"),
        Field("samples/sec:", "samples_s"),
    ),
    needs=("step", "step_s"),
    mean="interval",
    rank=2,
)
_DEEPSPEED = Dialect(
    name="deepspeed",
    framework="DeepSpeed",
    anchor=b"CurrSamplesPerSec=",
    fields=(
        Field("global_step=", "step"),
        Field("CurrSamplesPerSec=", "samples_s"),
        Field("MaxMemAllocated=", "memory_bytes", GIB, "GB"),
    ),
)
_NANOCHAT = Dialect(
    name="nanochat",
    framework="nanochat",
    anchor=b"| dt: ",
    fields=(
        Field("step ", "step"),
        Field("/", "total"),
        Field("loss:", "loss"),
        Field("dt:", "step_s", _MS, "ms"),
        Field("dt:", "step_s", 1.0, r"s\b"),
        Field("tok/sec:", "tok_s"),
        Field("mfu:", "mfu", _PERCENT),
    ),
    needs=("step", "step_s"),
)
_NANOGPT = Dialect(
    name="nanogpt",
    framework="nanoGPT",
    anchor=b"ms, mfu ",
    fields=(
        Field("iter ", "step", after=":"),
        Field("loss ", "loss"),
        Field("time ", "step_s", _MS, "ms"),
        Field("mfu ", "mfu", _PERCENT, "%"),
    ),
    needs=("step", "step_s"),
    convention="nanogpt",
    peak_tflops=312.0,
)
_NANOGPT_OLD = Dialect(
    name="nanogpt-2022",
    framework="nanoGPT",
    anchor=b", time ",
    fields=(
        Field("iter ", "step", after=":"),
        Field("loss ", "loss"),
        Field(", time ", "step_s", _MS, r"ms\s*$"),
    ),
    needs=("step", "step_s"),
    rank=1,
)
_LLAMA2_C = Dialect(
    name="llama2.c",
    framework="llama2.c",
    anchor=b"ms | mfu ",
    fields=(
        Field("^", "step", after=r" \| loss"),
        Field("loss ", "loss"),
        Field(r"\| ", "step_s", _MS, "ms"),
        Field("mfu ", "mfu", _PERCENT, "%"),
    ),
    needs=("step", "step_s"),
    convention="nanogpt",
    peak_tflops=312.0,
)
_MODDED = Dialect(
    name="modded-nanogpt",
    framework="modded-nanogpt",
    anchor=b"train_time:",
    fields=(
        Field("step:", "step"),
        Field("/", "total"),
        Field("train_loss:", "loss"),
        Field("train_time:", "elapsed_s", _MS, "ms"),
        Field("train_time:", "elapsed_s", 1.0, r"s\b"),
    ),
    needs=("step", "elapsed_s"),
    mean="running",
)
_LLM_C = Dialect(
    name="llm.c",
    framework="llm.c",
    anchor=b"16 MFU |",
    fields=(
        Field("step ", "step"),
        Field("/", "total"),
        Field("loss ", "loss"),
        Field(r"\| ", "step_s", _MS, " ms"),
        Field(r"ms \| ", "mfu", _PERCENT, "% "),
        Field(r"MFU \| ", "tok_s", after=" tok/s"),
    ),
    needs=("step", "step_s"),
    convention="palm",
)
_LLM_C_OLD = Dialect(
    name="llm.c-2024",
    framework="llm.c",
    anchor=b"train loss ",
    fields=(
        Field("step ", "step"),
        Field(r"step +\d+/", "total"),
        Field("train loss ", "loss"),
        Field(r"\(took ", "step_s", _MS, " ms"),
        Field(r"\(", "step_s", _MS, " ms"),
        Field(r"ms, ", "tok_s", after=" tok/s"),
    ),
    needs=("step", "step_s"),
)
_LLM_C_MAIN = Dialect(
    name="llm.c-main",
    framework="llm.c",
    anchor=b" trl:",
    fields=(Field("^s:", "step"), Field("trl:", "loss")),
)
_LLM_C_EVAL = Dialect(
    name="llm.c-eval", framework="llm.c", anchor=b" tel:", fields=(Field("^s:", "step"),), rank=3
)
_LLM_Q = Dialect(
    name="llm.q",
    framework="llm.q",
    anchor=b"[T] step",
    fields=(
        Field("step ", "step"),
        Field("time:", "step_s", _MS, " ms"),
        Field("loss ", "loss"),
        Field("tps ", "tok_s", 1e3, " ?k"),
        Field("tps ", "tok_s"),
        Field("sol ", "mfu", _PERCENT, "%"),
    ),
    needs=("step", "step_s"),
    convention="llmq",
    mixes_fp8=True,
)
_LITGPT = Dialect(
    name="litgpt",
    framework="LitGPT",
    anchor=b" iter time: ",
    fields=(
        Field(r"iter +\d+ +step ", "step"),
        Field("loss(?: train:)?", "loss"),
        Field("iter time:", "step_s", _MS, " ?ms"),
        Field("iter time:", "step_s", 1.0, r" ?s\b"),
    ),
    needs=("step", "step_s"),
    micro=True,
)
_TORCHTUNE = Dialect(
    name="torchtune",
    framework="torchtune",
    anchor=b"tokens_per_second_per_gpu:",
    fields=(
        Field("Step ", "step"),
        Field("loss:", "loss"),
        Field("tokens_per_second_per_gpu:", "tok_s_device"),
        Field("peak_memory_alloc:", "memory_bytes", GIB),
        Field("peak_memory_active:", "memory_bytes", GIB),
    ),
)
_MAXTEXT = Dialect(
    name="maxtext",
    framework="MaxText",
    anchor=b"completed step: ",
    fields=(
        Field("completed step:", "step"),
        Field("seconds:", "step_s"),
        Field("TFLOP/s/device:", "tflops_device"),
        Field("Tokens/s/device:", "tok_s_device"),
        Field("loss:", "loss"),
    ),
    needs=("step", "step_s"),
)
_OLMO = Dialect(
    name="olmo",
    framework="OLMo",
    anchor=b"[step=",
    fields=(
        Field(r"\[step=", "step"),
        Field(r"\[step=\d+/", "total"),
        Field("CrossEntropyLoss=", "loss"),
        Field("CE loss=", "loss"),
        Field("throughput/total_tokens=", "tokens"),
        Field("throughput/total tokens=", "tokens"),
        Field("throughput/device/tokens_per_second=", "tok_s_device"),
        Field("throughput/device/TPS=", "tok_s_device"),
        Field("throughput/device/batches_per_second=", "steps_s"),
        Field("throughput/device/BPS=", "steps_s"),
        Field("throughput/device/MFU=", "mfu", _PERCENT),
        Field(r"System/Peak GPU Memory \(MB\)=", "memory_bytes", MIB),
    ),
    block=True,
    mean="interval",
)
_COMPOSER = Dialect(
    name="composer",
    framework="Composer",
    anchor=b"[batch=",
    fields=(
        Field(r"\[batch=", "step"),
        Field(r"\[batch=\d+/", "total"),
        Field("loss/train/total:", "loss"),
        Field("throughput/tokens_per_sec:", "tok_s"),
        Field("throughput/device/tokens_per_sec:", "tok_s_device"),
        Field("throughput/device/samples_per_sec:", "samples_s_device"),
        Field("throughput/batches_per_sec:", "steps_s"),
        Field("throughput/device/mfu:", "mfu"),
    ),
    block=True,
    mean="interval",
    convention="mosaic",
)
_GNMT = Dialect(
    name="mlperf-gnmt",
    framework="MLPerf GNMT",
    anchor=b"TRAIN [",
    fields=(
        Field(r"TRAIN \[\d+\]\[", "step"),
        Field(r"TRAIN \[\d+\]\[\d+/", "total"),
        Field(r"Time ", "step_s"),
        Field("Tok/s ", "tok_s_device"),
        Field("Loss/tok ", "loss"),
    ),
    needs=("step", "step_s"),
    restarts_at_epochs=True,
)
_FAIRSEQ = Dialect(
    name="fairseq",
    framework="fairseq",
    anchor=b", num_updates=",
    fields=(
        Field("num_updates=", "step"),
        Field(" loss=", "loss"),
        Field("wps=", "tok_s"),
        Field("ups=", "steps_s"),
        Field("wpb=", "step_tokens"),
        Field("bsz=", "step_samples"),
        Field(", wall=", "elapsed_s"),
    ),
    mean="interval",
)
_ENTRENAR = Dialect(
    name="entrenar",
    framework="entrenar",
    anchor=b" tok/s=",
    fields=(
        Field(" step=", "step"),
        Field(r"loss=", "loss"),
        Field("tok/s=", "tok_s"),
        Field("mfu=", "mfu", _PERCENT, "%"),
        Field(r"gpu=", "memory_bytes", MIB, r"/\d+MB"),
    ),
)
_TIME_HISTORY = Dialect(
    name="tensorflow",
    framework="TensorFlow",
    anchor=b"examples/second between steps",
    fields=(
        Field(r"between steps \d+ and ", "step"),
        Field(r"seconds, ", "samples_s"),
        Field("TimeHistory:", "interval_s"),
    ),
    mean="interval",
)
_TQDM = tuple(
    Dialect(
        name=name,
        framework="progress bar",
        anchor=anchor,
        reader=progress_bar,
        mean="running",
        restarts_at_epochs=True,
        rank=LAST_RANK,
    )
    for name, anchor in (("tqdm", b"s/it"), ("tqdm-rate", b"it/s"))
)
# Keras draws a bar too; the last state of an epoch has the mean of its steps.
_KERAS_BAR = Dialect(
    name="keras",
    framework="Keras",
    anchor=b"/step",
    reader=keras_bar,
    needs=("step", "elapsed_s"),
    mean="running",
    restarts_at_epochs=True,
    rank=1,
)
_PLAIN = tuple(
    Dialect(
        name=f"plain-{word}",
        framework="a plain training loop",
        anchor=anchor,
        reader=plain_line,
        is_generic=True,
        restarts_at_epochs=True,
        rank=2,
    )
    for word, anchor in (("step", b"tep"), ("iteration", b"ter"), ("batch", b"atch"), ("epoch", b"poch"))
)
_JSON_LINES = Dialect(name="json", framework="JSON lines", anchor=b'{"', reader=json_object, rank=1)
_PRINTED_DICTS = Dialect(
    name="huggingface",
    framework="Hugging Face Trainer",
    anchor=b"{'",
    reader=printed_dict,
    needs=("loss",),
    rank=1,
)
_MLPERF = Dialect(
    name="mlperf",
    framework="MLPerf",
    anchor=b":::",
    reader=mlperf_event,
    needs=("step", "time"),
    mean="interval",
    has_own_events=True,
    untimed="the events of this MLPerf benchmark count epochs, not samples: the step time is unknown",
)

DIALECTS: tuple[Dialect, ...] = (
    _TORCHTITAN,
    _TITAN_OLD,
    _MEGATRON,
    _NEMO,
    _AUTOMODEL,
    _BRIDGE,
    _NEOX_STEPS,
    _DEEPSPEED,
    _NANOCHAT,
    _NANOGPT,
    _NANOGPT_OLD,
    _LLAMA2_C,
    _MODDED,
    _LLM_C,
    _LLM_C_OLD,
    _LLM_C_MAIN,
    _LLM_C_EVAL,
    _LLM_Q,
    _LITGPT,
    _TORCHTUNE,
    _MAXTEXT,
    _OLMO,
    _COMPOSER,
    _GNMT,
    _FAIRSEQ,
    _ENTRENAR,
    _TIME_HISTORY,
    *VISION,
    _KERAS_BAR,
    _MLPERF,
    _PRINTED_DICTS,
    _JSON_LINES,
    *_TQDM,
    *_PLAIN,
)
