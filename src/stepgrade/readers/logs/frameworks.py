"""The dialects: one entry for each framework's step line. docs/logs.md shows them as a table."""

from __future__ import annotations

from stepgrade.readers.logs.dialect import LAST_RANK, Dialect, Variant, fields
from stepgrade.readers.logs.lines import (
    keras_bar,
    mlperf_event,
    progress_bar,
    read_json_line,
    read_named_numbers,
    read_plain_line,
    read_printed_dict,
)

DIALECTS: tuple[Dialect, ...] = (
    # A validation has a line of its own, with a rate.
    Dialect(
        framework="torchtitan",
        anchor=b"tps: ",
        fields=fields(
            "(?<!validate )step:{step} … loss:{loss} … memory:{memory_gib}GiB … tps:{tok_s_device}",
            "tflops:{tflops_device} … mfu:{mfu_percent}%",
        ),
        mean="interval",
        convention="torchtitan",
    ),
    # until 2024
    Dialect(
        framework="torchtitan",
        anchor=b"wps: ",
        fields=fields(
            "(?<!validate )step:{step} … loss:{loss} … memory:{memory_gib}GiB … wps:{tok_s_device}",
            "mfu:{mfu_percent}%",
        ),
        mean="interval",
        convention="torchtitan",
    ),
    Dialect(
        framework="Megatron-LM",
        anchor=b"elapsed time per iteration (ms):",
        fields=fields(
            r"iteration {step}\s*/ … /{total} … elapsed time per iteration \(ms\):{step_ms}",
            r"consumed samples:{samples} … consumed tokens:{tokens}(?![\d.]*[KMBT])",
            r"global batch size:{step_samples} … throughput per GPU \(TFLOP/s/GPU\):{tflops_device}",
            r"compute per GPU \(TFLOP/s/GPU\):{tflops_device} … TFLOPs:{tflops_device}",
            "approx flops per GPU:{tflops_device}TFLOPS … tokens/sec/gpu:{tok_s_device}",
            "tokens/s/GPU inst/harmonic mean:{tok_s_device}",
            r"tokens per GPU \(tokens/s/GPU\):{tok_s_device}",
            r"tokens per gpu per second \(tgs\):{tok_s_device}",
            "hip mem usage/free/total/usage_ratio:{memory_gib}GB/ … samples/sec:{samples_s}",
            "samples per second:{samples_s} … lm loss:{loss} … lm_loss:{loss} … curriculum seqlen:{seq}",
        ),
        mean="interval",
        convention="causal-exact",
        recompute_argument="checkpoint_activations",
        variants=(
            Variant(framework="GPT-NeoX", has="samples_s", lacks="samples"),  # its FLOPs leave the head out
            Variant(framework="Megatron-DeepSpeed", has="tokens", convention="causal-exact"),
        ),
    ),
    Dialect(
        framework="NeMo",
        anchor=b"train_step_timing in s",
        fields=fields(
            r"global_step[:=]{step} … global_step[:=] *[\d.]+ *\|.*?max_steps[:=]{total}",
            "train_step_timing in s[:=]{step_s} … TFLOPS_per_GPU[:=]{tflops_device}",
            "tokens_per_sec_per_gpu[:=]{tok_s_device} … consumed_samples[:=]{samples}",
            "global_batch_size[:=]{step_samples} … reduced_train_loss[:=]{loss}",
            "max_memory_allocated[:=]{memory_bytes}",
        ),
        convention="causal-exact",
    ),
    Dialect(
        framework="NeMo Automodel",
        anchor=b" GiB | tps ",
        fields=fields(
            r"step {step} … loss {loss} … mem {memory_gib} GiB … tps {tok_s} … tps [\d.,]+\({tok_s_device}",
        ),
        convention="automodel-lora",
    ),
    Dialect(
        framework="Megatron-Bridge",
        anchor=b"MODEL_TFLOP/s/GPU",
        fields=fields("Step Time :{step_s} … GPU utilization:{tflops_device}"),
        counts_lines=True,
        convention="causal-exact",
        rank=2,
    ),
    Dialect(
        framework="DeepSpeed",
        anchor=b"iter time (s):",
        fields=fields(r"steps:{step} … loss:{loss} … iter time \(s\):{step_s} … samples/sec:{samples_s}"),
        mean="interval",
        rank=2,
    ),
    Dialect(
        framework="DeepSpeed",
        anchor=b"CurrSamplesPerSec=",
        fields=fields("global_step={step} … CurrSamplesPerSec={samples_s} … MaxMemAllocated={memory_gib}GB"),
    ),
    Dialect(
        framework="nanochat",
        anchor=b"| dt: ",
        fields=fields(
            r"step {step} … /{total} … loss:{loss} … dt:{step_ms}ms … dt:{step_s}s\b … tok/sec:{tok_s}",
            "mfu:{mfu_percent}",
        ),
    ),
    Dialect(
        framework="nanoGPT",
        anchor=b"ms, mfu ",
        fields=fields("iter {step}: … loss {loss} … time {step_ms}ms … mfu {mfu_percent}%"),
        convention="nanogpt",
        peak_tflops=312.0,
    ),
    # in 2022
    Dialect(
        framework="nanoGPT",
        anchor=b", time ",
        fields=fields(r"iter {step}: … loss {loss} … , time {step_ms}ms\s*$"),
        rank=1,
    ),
    Dialect(
        framework="llama2.c",
        anchor=b"ms | mfu ",
        fields=fields(r"^{step} \| loss … loss {loss} … \| {step_ms}ms … mfu {mfu_percent}%"),
        convention="nanogpt",
        peak_tflops=312.0,
    ),
    Dialect(
        framework="modded-nanogpt",
        anchor=b"train_time:",
        fields=fields(
            "step:{step} … /{total} … train_loss:{loss} … train_time:{elapsed_ms}ms",
            r"train_time:{elapsed_s}s\b",
        ),
        needs=("step", "elapsed_s"),
        mean="running",
    ),
    Dialect(
        framework="llm.c",
        anchor=b"16 MFU |",
        fields=fields(
            r"step {step} … /{total} … loss {loss} … \| {step_ms} ms … ms \| {mfu_percent}% ",
            r"MFU \| {tok_s} tok/s",
        ),
        convention="palm",
    ),
    # the first versions of 2024
    Dialect(
        framework="llm.c",
        anchor=b"train loss ",
        fields=fields(
            r"step {step} … step +\d+/{total} … train loss {loss} … \(took {step_ms} ms … \({step_ms} ms",
            "ms, {tok_s} tok/s",
        ),
    ),
    # main.log, which has no times
    Dialect(
        framework="llm.c",
        anchor=b" trl:",
        fields=fields("^s:{step} … trl:{loss}"),
    ),
    Dialect(
        framework="llm.c",
        anchor=b" tel:",
        fields=fields("^s:{step}"),
        rank=3,
    ),
    Dialect(
        framework="llm.q",
        anchor=b"[T] step",
        fields=fields(
            "step {step} … time:{step_ms} ms … loss {loss}",
            "tps {thousand_tok_s} ?k … tps {tok_s} … sol {mfu_percent}%",
        ),
        convention="llmq",
        mixes_fp8=True,
    ),
    Dialect(
        framework="LitGPT",
        anchor=b" iter time: ",
        fields=fields(
            r"iter +\d+ +step {step} … loss(?: train:)?{loss} … iter time:{step_ms} ?ms",
            r"iter time:{step_s} ?s\b",
        ),
        micro=True,
    ),
    Dialect(
        framework="torchtune",
        anchor=b"tokens_per_second_per_gpu:",
        fields=fields(
            "Step {step} … loss:{loss} … tokens_per_second_per_gpu:{tok_s_device}",
            "peak_memory_alloc:{memory_gib} … peak_memory_active:{memory_gib}",
        ),
    ),
    Dialect(
        framework="MaxText",
        anchor=b"completed step: ",
        fields=fields(
            "completed step:{step} … seconds:{step_s} … TFLOP/s/device:{tflops_device}",
            "Tokens/s/device:{tok_s_device} … loss:{loss}",
        ),
    ),
    Dialect(
        framework="OLMo",
        anchor=b"[step=",
        fields=fields(
            r"\[step={step} … \[step=\d+/{total} … CrossEntropyLoss={loss} … CE loss={loss}",
            "throughput/total_tokens={tokens} … throughput/total tokens={tokens}",
            "throughput/device/tokens_per_second={tok_s_device} … throughput/device/TPS={tok_s_device}",
            "throughput/device/batches_per_second={steps_s} … throughput/device/BPS={steps_s}",
            r"throughput/device/MFU={mfu_percent} … System/Peak GPU Memory \(MB\)={memory_mib}",
        ),
        mean="interval",
        block=True,
    ),
    Dialect(
        framework="Composer",
        anchor=b"[batch=",
        fields=fields(
            r"\[batch={step} … \[batch=\d+/{total} … loss/train/total:{loss}",
            "throughput/tokens_per_sec:{tok_s} … throughput/device/tokens_per_sec:{tok_s_device}",
            "throughput/device/samples_per_sec:{samples_s_device} … throughput/batches_per_sec:{steps_s}",
            "throughput/device/mfu:{mfu}",
        ),
        mean="interval",
        block=True,
        convention="mosaic",
    ),
    Dialect(
        framework="MLPerf GNMT",
        anchor=b"TRAIN [",
        fields=fields(
            r"TRAIN \[\d+\]\[{step} … TRAIN \[\d+\]\[\d+/{total} … Time {step_s} … Tok/s {tok_s_device}",
            "Loss/tok {loss}",
        ),
        restarts_at_epochs=True,
    ),
    Dialect(
        framework="fairseq",
        anchor=b", num_updates=",
        fields=fields(
            "num_updates={step} …  loss={loss} … wps={tok_s} … ups={steps_s} … wpb={step_tokens}",
            "bsz={step_samples} … , wall={elapsed_s}",
        ),
        mean="interval",
    ),
    Dialect(
        framework="entrenar",
        anchor=b" tok/s=",
        fields=fields(
            r" step={step} … loss={loss} … tok/s={tok_s} … mfu={mfu_percent}% … gpu={memory_mib}/\d+MB",
        ),
    ),
    Dialect(
        framework="TensorFlow",
        anchor=b"examples/second between steps",
        fields=fields(r"between steps \d+ and {step} … seconds, {samples_s} … TimeHistory:{interval_s}"),
        mean="interval",
    ),
    # Vision: these count batches within an epoch.
    # The MetricLogger of torchvision's references, which DETR, DeiT, MAE, DINO and BLIP carry on.
    Dialect(
        framework="torchvision's MetricLogger",
        anchor=b"  data: ",
        fields=fields(
            r"[Ee]poch: \[{epoch}(?=\] +\[) … \] +\[{step}(?=/) … /{total}\] +eta: …  loss:{loss}",
            " time:{step_s} … max mem:{memory_mib}",
        ),
        mean="interval",
        restarts_at_epochs=True,
    ),
    Dialect(
        framework="OpenMMLab",
        anchor=b"data_time: ",
        fields=fields(
            r"Epoch(?:\(train\))? +\[{epoch}(?=\]\[)",
            r"(?:Epoch(?:\(train\))? +\[ *\d+\]|Iter(?:\(train\))? +)\[{step}/ … /{total}\] …  loss:{loss}",
            " time:{step_s} …  memory:{memory_mib}",
        ),
        mean="interval",
        restarts_at_epochs=True,
    ),
    Dialect(
        framework="YOLOX",
        anchor=b", iter_time: ",
        fields=fields(
            "epoch: {epoch} …  iter: {step}(?=/) … /{total}, mem … mem: {memory_mib}Mb",
            "iter_time: {step_s}s … total_loss: {loss}",
        ),
        mean="interval",
        restarts_at_epochs=True,
    ),
    # Its "time" is the mean of all steps so far, its "last_time" that of the last.
    Dialect(
        framework="Detectron2",
        anchor=b"  iter: ",
        fields=fields("  iter:{step} … total_loss:{loss} … last_time:{step_s} … max_mem:{memory_mib}M"),
        needs=("step",),
    ),
    # PaddleClas, PaddleOCR, PaddleRec and PaddleSeg; their rate is that of one card.
    Dialect(
        framework="PaddlePaddle",
        anchor=b"batch_cost: ",
        fields=fields(
            r"[Ee]poch:? \[?{epoch} … (?:global_step|batch_id|[Ii]ter): {step} … [Ii]ter: \d+/{total}",
            "[ ,]loss:{loss} … batch_cost: {step_s} … avg_samples: {step_samples} … ips: {samples_s_device}",
        ),
        mean="interval",
        restarts_at_epochs=True,
    ),
    Dialect(
        framework="timm",
        anchor=b"Train: ",
        fields=fields(
            r"Train: {epoch}(?= +\[) …  \[{step}(?=/) … /{total} +\( … Loss:{loss} … Time:{step_s}(?=s,)",
            "s, {samples_s}/s",
        ),
        restarts_at_epochs=True,
    ),
    Dialect(
        framework="PyTorch's ImageNet example",
        anchor=b"\tTime ",
        fields=fields(
            r"Epoch: \[{epoch}(?=\]\[) … \]\[{step}(?=/) … /{total}\] … \tTime {step_s} … \tLoss {loss}",
        ),
        restarts_at_epochs=True,
    ),
    Dialect(
        framework="Swin Transformer",
        anchor=b"\ttime ",
        fields=fields(
            r"Train: \[{epoch} … \]\[{step}/ … \]\[ *\d+/{total} … \ttime {step_s} … \tloss {loss}",
            "\tmem {memory_mib}MB",
        ),
        restarts_at_epochs=True,
    ),
    Dialect(
        framework="PyTorch's word_language_model",
        anchor=b" ms/batch ",
        fields=fields(
            r"epoch{epoch} … \|{step}(?=/) … /{total} batches … ms/batch {step_ms} … loss {loss}",
        ),
        mean="interval",
        restarts_at_epochs=True,
    ),
    Dialect(
        framework="ESPnet",
        anchor=b"batch: iter_time=",
        fields=fields(
            r"INFO:{epoch}(?=epoch:train:) … epoch:train:\d+-{step}(?=batch) … , train_time={step_s}",
            r", loss={loss}",
        ),
        mean="interval",
        restarts_at_epochs=True,
    ),
    # Its time is that since the last line, over all devices.
    Dialect(
        framework="Marian",
        anchor=b" : Up. ",
        fields=fields(r"Up\. {step} … Cost {loss} … Time {interval_s}s … : {tok_s} words/s"),
        needs=("step", "interval_s"),
        mean="interval",
    ),
    # An iteration is a rollout and its updates.
    Dialect(
        framework="Stable-Baselines3",
        anchor=b"| time/ ",
        fields=fields(
            r"iterations +\| {step} … time_elapsed +\| {elapsed_s} … total_timesteps +\| {samples}",
            r"policy_gradient_loss +\| {loss}",
        ),
        needs=("step", "elapsed_s"),
        mean="running",
        block=True,
    ),
    Dialect(
        framework="verl",
        anchor=b" - timing",
        reader=read_named_numbers,
        line_bytes=1 << 15,
    ),
    # Keras draws a bar too; the last state of an epoch has the mean of its steps.
    Dialect(
        framework="Keras",
        anchor=b"/step",
        reader=keras_bar,
        needs_evidence=True,
        mean="running",
        restarts_at_epochs=True,
        rank=1,
    ),
    Dialect(
        framework="MLPerf",
        anchor=b":::",
        reader=mlperf_event,
        mean="interval",
        has_own_events=True,
        untimed="the events of this MLPerf benchmark count epochs, not samples: the step time is unknown",
    ),
    Dialect(framework="Hugging Face Trainer", anchor=b"{'", reader=read_printed_dict, rank=1),
    Dialect(framework="JSON lines", anchor=b'{"', reader=read_json_line, rank=1),
    *(
        Dialect(
            framework="progress bar",
            anchor=anchor,
            reader=progress_bar,
            needs_evidence=True,
            mean="running",
            restarts_at_epochs=True,
            rank=LAST_RANK,
        )
        for anchor in (b"s/it", b"it/s")
    ),
    *(
        Dialect(
            framework="a plain training loop",
            anchor=anchor,
            reader=read_plain_line,
            needs_evidence=True,
            is_generic=True,
            restarts_at_epochs=True,
            rank=2,
        )
        for anchor in (b"tep", b"ter", b"atch", b"poch")  # step, iteration, batch, epoch
    ),
)
