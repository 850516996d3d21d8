"""A plan as the flags that start it in its trainer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stepgrade.hardware.cost.plan import Plan

if TYPE_CHECKING:
    from stepgrade.hardware.planner import RankedPlan


def launch_flags(plan: RankedPlan, run: Plan, devices: int, global_batch: int) -> str:
    """Return what starts the plan in its trainer: flags, or DeepSpeed's configuration."""
    if plan.trainer == "torchtitan":
        return torchtitan_flags(plan, run, global_batch)
    if plan.trainer == "megatron":
        return megatron_flags(plan, run, global_batch)
    return deepspeed_flags(plan, run) if plan.trainer == "deepspeed" else accelerate_flags(plan, run, devices)


def torchtitan_flags(plan: RankedPlan, run: Plan, global_batch: int) -> str:
    """Return torchtitan's flags; its local batch is a whole step where there is a pipeline."""
    is_sharded = plan.data.startswith("fsdp")
    degrees = {
        "tensor": plan.tensor,
        "pipeline": plan.pipeline,
        "context": plan.context,
        "expert": plan.expert,
    }
    flags: dict[str, int | str] = {
        "training.local_batch_size": plan.micro_batch * (plan.micro_batches if plan.pipeline > 1 else 1),
        "training.global_batch_size": global_batch,
        "training.seq_len": run.seq,
        "parallelism.data_parallel_replicate_degree": 1 if is_sharded else plan.replicas,
        "parallelism.data_parallel_shard_degree": plan.replicas if is_sharded else 1,
    }
    flags |= {f"parallelism.{name}_parallel_degree": size for name, size in degrees.items() if size > 1}
    if is_sharded:
        flags["parallelism.fsdp_reshard_after_forward"] = "always" if plan.data == "fsdp" else "never"
    if plan.pipeline > 1:
        flags["parallelism.pipeline_parallel_schedule"] = "Interleaved1F1B" if plan.virtual > 1 else "1F1B"
        flags["parallelism.pipeline_parallel_microbatch_size"] = plan.micro_batch
    flags["activation_checkpoint.mode"] = "selective" if plan.checkpointing == "op" else plan.checkpointing
    if plan.checkpointing == "op":
        flags["activation_checkpoint.selective_ac_option"] = "op"
    return " ".join(f"--{name} {value}" for name, value in flags.items()) + " --compile.enable"


def megatron_flags(plan: RankedPlan, run: Plan, global_batch: int) -> str:
    """Return Megatron-LM's flags, without those that would be 1."""
    sizes = {
        "tensor-model-parallel-size": plan.tensor,
        "pipeline-model-parallel-size": plan.pipeline,
        "num-virtual-stages-per-pipeline-rank": plan.virtual,
        "context-parallel-size": plan.context,
        "expert-model-parallel-size": plan.expert,
    }
    flags = {name: size for name, size in sizes.items() if size > 1} | {
        "micro-batch-size": plan.micro_batch,
        "global-batch-size": global_batch,
        "seq-length": run.seq,
    }
    switches = ["--fp16" if run.dtype == "fp16" else "--bf16"] if run.value_bytes == 2 else []
    if plan.sequence:
        switches.append("--sequence-parallel")
    if plan.data == "zero1":
        switches.append("--use-distributed-optimizer")
    if plan.checkpointing == "full":
        switches.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    return " ".join((*(f"--{name} {value}" for name, value in flags.items()), *switches))


def deepspeed_flags(plan: RankedPlan, run: Plan) -> str:
    """Return DeepSpeed's configuration; the layers are recomputed by Transformers' own switch."""
    stage = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[plan.data]
    config = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
        "fp16" if run.dtype == "fp16" else "bf16": {"enabled": run.value_bytes == 2},
        "zero_optimization": {"stage": stage},
    }
    recompute = " --gradient_checkpointing" if plan.checkpointing == "full" else ""
    text = msgspec.json.format(msgspec.json.encode(config), indent=0).decode()  # with room to break a line
    return f"--deepspeed '{text}'{recompute}"


def accelerate_flags(plan: RankedPlan, run: Plan, devices: int) -> str:
    """Return the command that launches it with Accelerate: DDP or FSDP."""
    start = (
        f"accelerate launch --num_processes {devices} --mixed_precision {run.dtype}"
        f" --gradient_accumulation_steps {plan.micro_batches}"
    )
    if plan.data == "ddp":
        return start + (" --multi_gpu" if devices > 1 else "")
    reshard = "true" if plan.data == "fsdp" else "false"
    recompute = "true" if plan.checkpointing == "full" else "false"
    return (
        f"{start} --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
        f" --fsdp_reshard_after_forward {reshard} --fsdp_activation_checkpointing {recompute}"
    )
