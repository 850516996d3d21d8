"""Trainers that plans are made for: what each can do, the plans themselves, and the flags that launch them.

Flags are those of torchtitan 0.2, Megatron-LM, Megatron-Bridge, MaxText, and the Trainer of Transformers
with DeepSpeed or Accelerate.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct

from stepgrade.hardware.cluster import DEFAULT_PER_NODE
from stepgrade.hardware.cost.plan import ZERO_STAGE, Plan
from stepgrade.hardware.memory.need import Verdict
from stepgrade.hardware.throughput import Expected

Reason = Literal[
    "compute",
    "bubble",
    "recompute",
    "exposed_link",
    "memory_bandwidth",
    "host",
    "optimizer",
    "stragglers",
    "too_close",
]


class Trainer(Struct, frozen=True, kw_only=True):
    """What a trainer can do, and how it keeps what it trains; checkpointing from fastest to leanest."""

    weights: str
    data: tuple[str, ...]
    kernels: str = "transformers"
    losses: tuple[str, ...] = ("upcast", "fused")
    checkpointing: tuple[str, ...] = ("none", "full")
    is_of_transformers: bool = False  # data parallel only
    methods: tuple[str, ...] = ("full",)
    offload: tuple[str, ...] = ()  # tried where nothing fits without
    is_of_xla: bool = False  # runs on TPUs, without a pipeline
    group_sizes: bool = False  # shards among the devices of a node, with copies in every node
    divides_experts: bool = False  # among the devices of tensor parallelism, unless configured otherwise
    mixes_ddp: bool = True  # plain copies with tensor, pipeline, context or expert parallelism
    gathers_head_alone: bool = False  # FSDP's last group is the head, without the embedding


_ALL_METHODS = ("full", "lora", "qlora")
_FSDP = ("ddp", "fsdp-no-reshard", "fsdp")
_ZERO = ("ddp", "zero1", "zero2", "zero3")
TRAINERS = {
    "torchtitan": Trainer(
        kernels="compiled",
        weights="fp32",
        losses=("compiled",),
        data=_FSDP,
        checkpointing=("none", "op", "full"),
        mixes_ddp=False,
        gathers_head_alone=True,
        group_sizes=True,
    ),
    "megatron": Trainer(
        kernels="te",
        weights="megatron",
        losses=("megatron",),
        data=("ddp", "zero1", "fsdp"),
        divides_experts=True,
    ),
    "megatron-bridge": Trainer(
        kernels="te",
        weights="megatron",
        losses=("megatron",),
        data=("ddp",),
        divides_experts=True,
        methods=("lora",),
    ),
    "maxtext": Trainer(
        kernels="compiled",
        weights="fp32",
        losses=("compiled",),
        data=("fsdp",),
        checkpointing=("none", "op", "full"),
        gathers_head_alone=True,
        offload=("activations",),
        is_of_xla=True,
    ),
    "deepspeed": Trainer(
        weights="master",
        data=_ZERO,
        is_of_transformers=True,
        methods=_ALL_METHODS,
        offload=("optimizer", "parameters"),
        group_sizes=True,
    ),
    "accelerate": Trainer(
        weights="fp32",
        data=_FSDP,
        is_of_transformers=True,
        methods=_ALL_METHODS,
        offload=("parameters",),
        group_sizes=True,
    ),
}


class WhyNotBetter(Struct, frozen=True):
    """Where a plan's step goes, and the share of the step that it takes; `compute` is the work itself."""

    reason: Reason
    share: float | None
    text: str


class RankedPlan(Struct, frozen=True, kw_only=True):
    """One way to run it; `tok_s` is the most that all devices could reach, `expected_tok_s` what is likely.

    The memory is that of `trainer`, and `flags` start the plan in it. `devices` are those that it uses.
    """

    trainer: str
    devices: int
    tensor: int
    sequence: bool
    pipeline: int
    virtual: int
    context: int
    expert: int
    expert_tensor: int | None
    replicas: int
    data: str
    shard_group: int | None
    offload: str
    checkpointing: str
    loss: str
    micro_batch: int
    micro_batches: int
    verdict: Verdict
    need_bytes: float
    low_bytes: float
    high_bytes: float
    memory_parts: dict[str, float]
    tok_s: float
    expected_tok_s: Expected
    step_s: dict[str, float]
    tok_s_per_device: float
    mfu: float | None
    expected_mfu: float | None
    why_not_better: tuple[WhyNotBetter, ...]
    flags: str

    @property
    def global_batch(self) -> int:
        """Return the sequences of one step."""
        return self.micro_batch * self.micro_batches * self.replicas


# Pipeline stages per device in torchtitan's interleaved schedule by default.
_USUAL_STAGES = 2


def launch_flags(plan: RankedPlan, run: Plan, depth: int, per_node: int | None = None) -> str:
    """Return the flags that launch the plan of a model with `depth` layers in its trainer."""
    match plan.trainer:
        case "torchtitan":
            return _torchtitan_flags(plan, run, depth)
        case "megatron":
            return _megatron_flags(plan, run, depth)
        case "megatron-bridge":
            # Options of its run_recipe.py, without the recipe.
            flags: dict[str, object] = {"mode": run.method, "global_batch_size": plan.global_batch}
            flags |= {"micro_batch_size": plan.micro_batch, "seq_length": run.seq}
            flags |= {"tensor_model_parallel_size": plan.tensor}
            flags |= {"pipeline_model_parallel_size": plan.pipeline}
            flags |= {"context_parallel_size": plan.context}
            flags |= {"virtual_pipeline_model_parallel_size": plan.virtual} if plan.virtual > 1 else {}
            flags |= {"expert_model_parallel_size": plan.expert} if plan.expert > 1 else {}
            kinds = "granularity=full", "method=uniform", "num_layers=1"
            recompute = "".join(f" model.recompute_{kind}" for kind in kinds)
            return _written(flags) + (recompute if plan.checkpointing == "full" else "")
        case "maxtext":
            # A batch per device is that of a replica over its devices.
            shared = plan.tensor * plan.context
            policy = {"none": "minimal", "op": "save_qkv_proj", "full": "full"}[plan.checkpointing]
            settings: dict[str, object] = {
                "per_device_batch_size": f"{plan.micro_batch / shared:g}",
                "gradient_accumulation_steps": plan.micro_batches,
                "max_target_length": run.seq,
                "ici_fsdp_parallelism": plan.replicas // plan.expert,
                "ici_tensor_parallelism": plan.tensor,
                "ici_context_parallelism": plan.context,
                "ici_expert_parallelism": plan.expert,
                "remat_policy": policy if plan.offload == "none" else "custom decoder_layer_input=offload",
            }
            return " ".join(f"{name}={value}" for name, value in settings.items() if value != 1)
    half, recomputes = _half(run), plan.checkpointing == "full"
    flags = {
        "per_device_train_batch_size": plan.micro_batch,
        "gradient_accumulation_steps": plan.micro_batches,
    }
    flags |= {half: "true"} if run.value_bytes == 2 else {}
    flags |= {"use_liger_kernel": "true"} if plan.loss == "fused" else {}
    if recomputes and not plan.data.startswith("fsdp"):
        flags["gradient_checkpointing"] = "true"
    if plan.trainer == "deepspeed":
        cpu = {"device": "cpu"}
        has_parameters = plan.offload == "parameters" and plan.data == "zero3"
        zero: dict[str, object] = {"stage": ZERO_STAGE[plan.data]}
        zero |= {} if plan.shard_group is None else {"mics_shard_size": plan.shard_group}
        zero |= {} if plan.offload == "none" else {"offload_optimizer": cpu}
        zero |= {"offload_param": cpu} if has_parameters else {}
        config = {
            "train_micro_batch_size_per_gpu": plan.micro_batch,
            "gradient_accumulation_steps": plan.micro_batches,
            half: {"enabled": run.value_bytes == 2},
            "zero_optimization": zero,
        }
        # With spaces, so that lines can wrap.
        text = msgspec.json.format(msgspec.json.encode(config), indent=0).decode()
        return f"{_written(flags)} --deepspeed '{text}'"
    # Racks that share one domain of fast links still have hosts of a few devices each.
    host = min(per_node or DEFAULT_PER_NODE, DEFAULT_PER_NODE)
    launcher: dict[str, object] = {"num_processes": plan.devices}
    if plan.devices > host:
        launcher["num_machines"] = -(-plan.devices // host)
    launcher |= {"mixed_precision": half} if run.value_bytes == 2 else {}
    words = ["accelerate launch", _written(launcher)]
    if plan.data != "ddp":
        reshard, recompute = (str(flag).lower() for flag in (plan.data == "fsdp", recomputes))
        words.append(
            "--use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy TRANSFORMER_BASED_WRAP"
            f" --fsdp_reshard_after_forward {reshard} --fsdp_activation_checkpointing {recompute}"
        )
        words += [] if plan.offload == "none" else ["--fsdp_offload_params true"]
        size = "--parallelism_config_dp"
        group = plan.shard_group or 1
        groups = f"{size}_replicate_size {plan.devices // group} {size}_shard_size {group}"
        words += [] if plan.shard_group is None else [groups]
    elif plan.devices > 1:
        words.append("--multi_gpu")
    return " ".join((*words, "train.py", _written(flags)))


def _half(run: Plan) -> str:
    return "fp16" if run.dtype == "fp16" else "bf16"


def _written(flags: dict[str, object]) -> str:
    return " ".join(f"--{name} {value}" for name, value in flags.items())


def _megatron_flags(plan: RankedPlan, run: Plan, depth: int) -> str:
    flags: dict[str, object] = {  # a size of 1 is the default
        "tensor-model-parallel-size": plan.tensor,
        "pipeline-model-parallel-size": plan.pipeline,
        "num-virtual-stages-per-pipeline-rank": plan.virtual,
        "context-parallel-size": plan.context,
        "expert-model-parallel-size": plan.expert,
    }
    stages = plan.pipeline * plan.virtual
    layout = "none"
    if depth % stages:
        layout = "balanced" if (depth + 2) % stages == 0 else "uneven"
    if layout == "uneven":
        del flags["num-virtual-stages-per-pipeline-rank"]  # the layout tells
    flags = {name: size for name, size in flags.items() if size != 1}
    flags |= {} if plan.expert_tensor is None else {"expert-tensor-parallel-size": plan.expert_tensor}
    flags |= {"micro-batch-size": plan.micro_batch, "global-batch-size": plan.global_batch}
    if layout == "uneven":
        least, more = divmod(depth, stages)
        parts = ["t" * (least + (index < more)) for index in range(stages)]
        flags["pipeline-model-parallel-layout"] = "E" + "|".join(parts) + "L"
    switches = {
        f"--{_half(run)}": run.value_bytes == 2,
        "--sequence-parallel": plan.sequence,
        "--use-distributed-optimizer": plan.data == "zero1",
        "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params": plan.data == "fsdp",
        "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split": layout
        == "balanced",
        "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1": plan.checkpointing
        == "full",
    }
    chosen = (switch for switch, is_on in switches.items() if is_on)
    return " ".join((_written(flags | {"seq-length": run.seq}), *chosen))


def _torchtitan_flags(plan: RankedPlan, run: Plan, depth: int) -> str:
    """Return torchtitan's flags; with a pipeline, its local batch is a whole step."""
    is_sharded, has_pipeline = plan.data.startswith("fsdp"), plan.pipeline > 1
    shards = 1
    if is_sharded:  # those that share a sequence hold shards as well
        shards = plan.replicas if plan.shard_group is None else plan.shard_group // plan.context
    degrees = {name: getattr(plan, name) for name in ("tensor", "pipeline", "context", "expert")}
    flags: dict[str, object] = {
        "training.local_batch_size": plan.micro_batch * (plan.micro_batches if has_pipeline else 1),
        "training.global_batch_size": plan.global_batch,
        "training.seq_len": run.seq,
        "parallelism.data_parallel_replicate_degree": plan.replicas // shards,
        "parallelism.data_parallel_shard_degree": shards,
    }
    flags |= {f"parallelism.{name}_parallel_degree": size for name, size in degrees.items() if size > 1}
    if is_sharded:
        flags["parallelism.fsdp_reshard_after_forward"] = "always" if plan.data == "fsdp" else "never"
    if has_pipeline:
        stages = plan.pipeline * plan.virtual
        # By default the first and the last stage get one layer fewer, for the embedding and the head.
        less = int(depth % stages != 0 and (depth + 2) % stages == 0)
        pipeline = {
            "schedule": "Interleaved1F1B" if plan.virtual > 1 else "1F1B",
            "microbatch_size": plan.micro_batch,
            "first_stage_less_layers": less,
            "last_stage_less_layers": less,
        }
        if plan.virtual > _USUAL_STAGES:
            pipeline["layers_per_stage"] = -(-(depth + 2 * less) // stages)
        flags |= {f"parallelism.pipeline_parallel_{name}": value for name, value in pipeline.items()}
    flags["activation_checkpoint.mode"] = "selective" if plan.checkpointing == "op" else plan.checkpointing
    if plan.checkpointing == "op":
        flags["activation_checkpoint.selective_ac_option"] = "op"
    return f"{_written(flags)} --compile.enable"
