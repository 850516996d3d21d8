"""Dialects of vision frameworks and examples, which count batches within an epoch."""

from __future__ import annotations

from stepgrade.readers.logs.dialect import Dialect, Field
from stepgrade.readers.logs.values import MIB

# The MetricLogger of torchvision's references, which DETR, DeiT, MAE, DINO and BLIP carry on.
_METRIC_LOGGER = Dialect(
    name="metric-logger",
    framework="torchvision's MetricLogger",
    anchor=b"  data: ",
    fields=(
        Field(r"[Ee]poch: \[", "epoch", after=r"(?=\] +\[)"),
        Field(r"\] +\[", "step", after="(?=/)"),
        Field("/", "total", after=r"\] +eta:"),
        Field(" loss:", "loss"),
        Field(" time:", "step_s"),
        Field("max mem:", "memory_bytes", MIB),
    ),
    needs=("step", "step_s"),
    mean="interval",
    restarts_at_epochs=True,
)
_MMENGINE = Dialect(
    name="mmengine",
    framework="OpenMMLab",
    anchor=b"data_time: ",
    fields=(
        Field(r"Epoch(?:\(train\))? +\[", "epoch", after=r"(?=\]\[)"),
        Field(r"(?:Epoch(?:\(train\))? +\[ *\d+\]|Iter(?:\(train\))? +)\[", "step", after="/"),
        Field("/", "total", after=r"\]"),
        Field(" loss:", "loss"),
        Field(" time:", "step_s"),
        Field(" memory:", "memory_bytes", MIB),
    ),
    needs=("step", "step_s"),
    mean="interval",
    restarts_at_epochs=True,
)
_YOLOX = Dialect(
    name="yolox",
    framework="YOLOX",
    anchor=b", iter_time: ",
    fields=(
        Field("epoch: ", "epoch"),
        Field(" iter: ", "step", after="(?=/)"),
        Field("/", "total", after=", mem"),
        Field("mem: ", "memory_bytes", MIB, "Mb"),
        Field("iter_time: ", "step_s", 1.0, "s"),
        Field("total_loss: ", "loss"),
    ),
    needs=("step", "step_s"),
    mean="interval",
    restarts_at_epochs=True,
)
# Its "time" is the mean of all steps so far, its "last_time" the last one's; without that its clock counts.
_DETECTRON = Dialect(
    name="detectron2",
    framework="Detectron2",
    anchor=b"  iter: ",
    fields=(
        Field("  iter:", "step"),
        Field("total_loss:", "loss"),
        Field("last_time:", "step_s"),
        Field("max_mem:", "memory_bytes", MIB, "M"),
    ),
)
# PaddleClas, PaddleOCR, PaddleRec and PaddleSeg; their rate is that of one card.
_PADDLE = Dialect(
    name="paddle",
    framework="PaddlePaddle",
    anchor=b"batch_cost: ",
    fields=(
        Field(r"[Ee]poch:? \[?", "epoch"),
        Field(r"(?:global_step|batch_id|[Ii]ter): ", "step"),
        Field(r"[Ii]ter: \d+/", "total"),
        Field("[ ,]loss:", "loss"),
        Field("batch_cost: ", "step_s"),
        Field("avg_samples: ", "step_samples"),
        Field("ips: ", "samples_s_device"),
    ),
    needs=("step", "step_s"),
    mean="interval",
    restarts_at_epochs=True,
)
_TIMM = Dialect(
    name="timm",
    framework="timm",
    anchor=b"Train: ",
    fields=(
        Field("Train: ", "epoch", after=r"(?= +\[)"),
        Field(r" \[", "step", after="(?=/)"),
        Field("/", "total", after=r" +\("),
        Field("Loss:", "loss"),
        Field("Time:", "step_s", 1.0, "(?=s,)"),
        Field("s, ", "samples_s", after="/s"),
    ),
    needs=("step", "step_s"),
    restarts_at_epochs=True,
)
_IMAGENET = Dialect(
    name="pytorch-imagenet",
    framework="PyTorch's ImageNet example",
    anchor=b"\tTime ",
    fields=(
        Field(r"Epoch: \[", "epoch", after=r"(?=\]\[)"),
        Field(r"\]\[", "step", after="(?=/)"),
        Field("/", "total", after=r"\]"),
        Field("\tTime ", "step_s"),
        Field("\tLoss ", "loss"),
    ),
    needs=("step", "step_s"),
    restarts_at_epochs=True,
)
_SWIN = Dialect(
    name="swin",
    framework="Swin Transformer",
    anchor=b"\ttime ",
    fields=(
        Field(r"Train: \[", "epoch"),
        Field(r"\]\[", "step", after="/"),
        Field(r"\]\[ *\d+/", "total"),
        Field("\ttime ", "step_s"),
        Field("\tloss ", "loss"),
        Field("\tmem ", "memory_bytes", MIB, "MB"),
    ),
    needs=("step", "step_s"),
    restarts_at_epochs=True,
)

VISION = (
    _METRIC_LOGGER,
    _MMENGINE,
    _YOLOX,
    _DETECTRON,
    _PADDLE,
    _TIMM,
    _IMAGENET,
    _SWIN,
)
