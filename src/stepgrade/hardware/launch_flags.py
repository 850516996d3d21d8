"""The flags that launch a plan in its trainer.

Flags are those of torchtitan 0.2, Megatron-LM, and the Trainer of Transformers with DeepSpeed or Accelerate.
"""

from __future__ import annotations

import msgspec

from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.plan_table import Cluster, PlanRequest, RankedPlan

# How many stages of a pipeline each device has in torchtitan's interleaved schedule unless it is told.
_USUAL_STAGES = 2


def launch_flags(plan: RankedPlan, run: Plan, depth: int, request: PlanRequest) -> str:
    """Return the flags that launch the plan of a model with `depth` layers."""
    if plan.trainer == "torchtitan":
        return torchtitan_flags(plan, run, depth, request.global_batch)
    if plan.trainer == "megatron":
        return megatron_flags(plan, run, request.global_batch)
    if plan.trainer == "deepspeed":
        return deepspeed_flags(plan, run)
    return accelerate_flags(plan, run, request.cluster)


def torchtitan_flags(plan: RankedPlan, run: Plan, depth: int, global_batch: int) -> str:
    """Return torchtitan's flags; with a pipeline, its local batch is a whole step."""
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
        # By default the first and the last stage get one layer fewer, for the embedding and the head.
        flags["parallelism.pipeline_parallel_first_stage_less_layers"] = 0
        flags["parallelism.pipeline_parallel_last_stage_less_layers"] = 0
        if plan.virtual > _USUAL_STAGES:
            stages = plan.pipeline * plan.virtual
            flags["parallelism.pipeline_parallel_layers_per_stage"] = depth // stages
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
    whole = {} if plan.expert_tensor is None else {"expert-tensor-parallel-size": plan.expert_tensor}
    flags = (
        {name: size for name, size in sizes.items() if size > 1}
        | whole
        | {
            "micro-batch-size": plan.micro_batch,
            "global-batch-size": global_batch,
            "seq-length": run.seq,
        }
    )
    switches = ["--fp16" if run.dtype == "fp16" else "--bf16"] if run.value_bytes == 2 else []
    if plan.sequence:
        switches.append("--sequence-parallel")
    if plan.data == "zero1":
        switches.append("--use-distributed-optimizer")
    if plan.checkpointing == "full":
        switches.append("--recompute-granularity full --recompute-method uniform --recompute-num-layers 1")
    return " ".join((*(f"--{name} {value}" for name, value in flags.items()), *switches))


def trainer_flags(plan: RankedPlan, run: Plan) -> str:
    """Return the arguments of Transformers' Trainer: batch, precision, fused loss."""
    flags: dict[str, int | str] = {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
    }
    if run.value_bytes == 2:
        flags["fp16" if run.dtype == "fp16" else "bf16"] = "true"
    if plan.loss == "fused":
        flags["use_liger_kernel"] = "true"
    return " ".join(f"--{name} {value}" for name, value in flags.items())


def deepspeed_flags(plan: RankedPlan, run: Plan) -> str:
    """Return the Trainer's arguments with a matching DeepSpeed configuration."""
    stage = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3}[plan.data]
    config = {
        "train_micro_batch_size_per_gpu": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
        "fp16" if run.dtype == "fp16" else "bf16": {"enabled": run.value_bytes == 2},
        "zero_optimization": {"stage": stage},
    }
    recompute = " --gradient_checkpointing true" if plan.checkpointing == "full" else ""
    text = msgspec.json.format(
        msgspec.json.encode(config), indent=0
    ).decode()  # with spaces, so that lines can wrap
    return f"{trainer_flags(plan, run)}{recompute} --deepspeed '{text}'"


def accelerate_flags(plan: RankedPlan, run: Plan, cluster: Cluster) -> str:
    """Return the `accelerate launch` command (DDP or FSDP) with the script's arguments."""
    words = [f"accelerate launch --num_processes {cluster.devices}"]
    if cluster.devices > cluster.per_node:
        words.append(f"--num_machines {-(-cluster.devices // cluster.per_node)}")
    if run.value_bytes == 2:
        words.append(f"--mixed_precision {'fp16' if run.dtype == 'fp16' else 'bf16'}")
    is_sharded = plan.data != "ddp"
    if is_sharded:
        reshard = "true" if plan.data == "fsdp" else "false"
        recompute = "true" if plan.checkpointing == "full" else "false"
        words.append(
            "--use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
            f" --fsdp_reshard_after_forward {reshard} --fsdp_activation_checkpointing {recompute}"
        )
    elif cluster.devices > 1:
        words.append("--multi_gpu")
    words.append(f"train.py {trainer_flags(plan, run)}")
    if plan.checkpointing == "full" and not is_sharded:
        words.append("--gradient_checkpointing true")
    return " ".join(words)
