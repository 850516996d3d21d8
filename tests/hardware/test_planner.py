"""Plans: every one fits as `estimate` would say, they are ranked, and each says what keeps it from more."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import structs

import stepgrade as sg
from stepgrade.errors import BadOption
from stepgrade.hardware.catalogue import find_device
from stepgrade.hardware.ceilings import Figures
from stepgrade.hardware.cluster import Cluster
from stepgrade.hardware.cost.plan import Parallelism, Plan
from stepgrade.hardware.estimate import estimate
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.planner import PlanRequest, rank_plans
from stepgrade.hardware.setup import Setup
from stepgrade.hardware.trainers import TRAINERS, RankedPlan
from tests.hardware import model_configs as configs

DEVICES = 64
REQUEST = PlanRequest(cluster=Cluster(devices=DEVICES), global_batch=512, most=1000)
RUN = Plan(batch=1, seq=8192)


def ranked(
    config: Any, device: str = "h100-sxm5-80gb", run: Plan = RUN, request: PlanRequest = REQUEST
) -> Any:
    shape = model_from_config(json.dumps(config))
    return rank_plans(shape, Figures(device=find_device(device)), run, request)


@cache
def llama() -> Any:
    return ranked(configs.LLAMA3_70B)


@cache
def mixtral() -> Any:
    return ranked(configs.MIXTRAL_8X7B)


def as_run(found: RankedPlan, run: Plan = RUN, devices: int = DEVICES) -> Plan:
    """Return a ranked plan as the command line of `estimate` would give it."""
    trainer = TRAINERS[found.trainer]
    return structs.replace(
        run,
        batch=found.micro_batch,
        micro_batches=found.micro_batches,
        checkpointing=found.checkpointing,
        loss=found.loss,
        kernels=trainer.kernels,
        weights=trainer.weights,
        allocator="expandable",
        offload=found.offload,
        parallel=Parallelism(
            devices=devices,
            data=found.data,
            tensor=found.tensor,
            sequence=found.sequence,
            pipeline=found.pipeline,
            virtual=found.virtual,
            context=found.context,
            expert=found.expert,
            expert_tensor=found.expert_tensor,
            shard_group=found.shard_group,
            separate_embedding=trainer.gathers_head_alone,
        ),
    )


@pytest.mark.parametrize(("config", "table"), [(configs.LLAMA3_70B, llama), (configs.MIXTRAL_8X7B, mixtral)])
def test_a_plans_memory_is_what_estimate_says(config: Any, table: Any, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    for found in table().plans:
        setup = Setup(device="h100-sxm5-80gb", model=str(path), plan=as_run(found))
        memory = estimate(setup).memory
        assert memory is not None
        assert (memory.need_bytes, memory.verdict) == (found.need_bytes, found.verdict)
        assert (memory.low_bytes, memory.high_bytes) == (found.low_bytes, found.high_bytes)


def test_plans_use_every_device_and_the_whole_batch() -> None:
    assert len(llama().plans) > 20
    for found in llama().plans:
        assert found.tensor * found.pipeline * found.context * found.replicas == DEVICES
        assert found.micro_batch * found.micro_batches * found.replicas == REQUEST.global_batch
        assert found.micro_batches >= found.pipeline


def test_those_that_fit_come_first_and_the_fastest_of_them_first() -> None:
    verdicts = [found.verdict for found in llama().plans]
    assert set(verdicts) <= {"fits", "too_close"}
    assert verdicts == sorted(verdicts)
    speeds = [found.expected_tok_s.mid for found in llama().plans if found.verdict == "fits"]
    assert speeds == sorted(speeds, reverse=True)


def test_no_plan_is_faster_than_the_hardware() -> None:
    for found in (*llama().plans, *mixtral().plans):
        assert 0 < (found.expected_mfu or 0) <= (found.mfu or 0) < 1
        expected = found.expected_tok_s
        assert 0 < expected.low <= expected.mid <= expected.high <= found.tok_s


def test_each_says_what_keeps_it_from_more() -> None:
    for found in llama().plans:
        reasons = {why.reason: why.share for why in found.why_not_better}
        assert sum(share or 0.0 for share in reasons.values()) <= 1 + 1e-9
        assert reasons["compute"] == pytest.approx(
            (found.step_s["matrices"] + found.step_s["attention"]) / sum(found.step_s.values())
        )
        assert ("too_close" in reasons) == (found.verdict == "too_close")
        if found.checkpointing == "full":
            assert (reasons["recompute"] or 0.0) > 0.1
        if found.pipeline == 1:
            assert "bubble" not in reasons


def test_every_trainer_has_its_best_plan_and_how_to_start_it() -> None:
    few = ranked(configs.LLAMA3_70B, request=structs.replace(REQUEST, most=1))
    starts = {found.trainer: found.flags for found in few.plans}
    assert set(starts) == {name for name, one in TRAINERS.items() if "full" in one.methods} - {"maxtext"}
    assert "--parallelism.data_parallel_shard_degree" in starts["torchtitan"]
    assert "--micro-batch-size" in starts["megatron"]
    config = msgspec.json.decode(starts["deepspeed"].split("'")[1])
    best = next(found for found in few.plans if found.trainer == "deepspeed")
    assert config["train_micro_batch_size_per_gpu"] == best.micro_batch
    assert config["gradient_accumulation_steps"] == best.micro_batches
    assert f"--per_device_train_batch_size {best.micro_batch} " in starts["deepspeed"]  # else both disagree


def test_accelerate_and_transformers_understand_what_starts_a_plan() -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    arguments = pytest.importorskip("transformers").TrainingArguments
    known = {field.name for field in dataclasses.fields(arguments)}
    for found in (found for found in llama().plans if found.trainer in ("accelerate", "deepspeed")):
        words = found.flags.split(" --deepspeed ")[0].split()
        if found.trainer == "accelerate":
            parsed = launch.launch_command_parser().parse_args(words[2:])
            assert (parsed.num_processes, parsed.num_machines) == (DEVICES, DEVICES // 8)
            assert parsed.use_fsdp == found.data.startswith("fsdp")
            words = parsed.training_script_args
        assert {word.removeprefix("--") for word in words if word.startswith("--")} <= known


def test_torchtitan_is_asked_for_nothing_that_it_refuses() -> None:
    """It has no DDP beside another parallelism, two stages per device unless told, and whole stages."""
    some = [found for found in (*llama().plans, *mixtral().plans) if found.trainer == "torchtitan"]
    for found in some:
        is_mixed = found.tensor * found.pipeline * found.context * found.expert > 1
        assert not (found.data == "ddp" and found.replicas > 1 and is_mixed)
        flags = dict(zip(found.flags.split()[:-1:2], found.flags.split()[1:-1:2], strict=True))
        prefix = "--parallelism.pipeline_parallel_"
        layers = flags.get(f"{prefix}layers_per_stage")
        assert (layers is not None) == (found.virtual > 2)
        if found.pipeline > 1:
            less = int(flags[f"{prefix}first_stage_less_layers"])
            assert less == int(flags[f"{prefix}last_stage_less_layers"])
            depth = 80 if found in llama().plans else 32
            assert less == 0 or (depth + 2) % (found.pipeline * found.virtual) == 0
            if layers is not None:
                assert -(-(depth + 2 * less) // int(layers)) == found.pipeline * found.virtual


def test_whole_experts_are_a_plan_of_their_own() -> None:
    whole = [found for found in mixtral().plans if found.expert_tensor == 1]
    assert whole
    assert all("--expert-tensor-parallel-size 1" in found.flags for found in whole)
    assert {found.trainer for found in whole} == {"megatron"}


def test_a_small_model_is_not_cut_up() -> None:
    """What fits one device is best copied to all of them, without recomputing anything."""
    run = Plan(batch=1, seq=1024)
    request = PlanRequest(cluster=Cluster(devices=8), global_batch=256)
    best = ranked(configs.GPT2, run=run, request=request).plans[0]
    assert (best.tensor, best.pipeline, best.context, best.checkpointing) == (1, 1, 1, "none")


def test_a_model_too_large_for_the_cluster_has_no_plan() -> None:
    request = PlanRequest(cluster=Cluster(devices=8), global_batch=64)
    found = ranked(configs.LLAMA3_405B, request=request)
    assert found.plans == ()
    assert "no_plan" in {note.code for note in found.notes}


def test_experts_are_spread() -> None:
    found = ranked(configs.QWEN3_235B, run=Plan(batch=1, seq=4096))
    assert any(plan.expert > 1 for plan in found.plans)


def test_adapters_are_planned_for_those_who_train_them() -> None:
    run = Plan(batch=1, seq=2048, method="qlora")
    request = PlanRequest(cluster=Cluster(devices=8), global_batch=64)
    assert {plan.trainer for plan in ranked(configs.LLAMA3_8B, run=run, request=request).plans} == {
        "deepspeed",
        "accelerate",
    }


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: PlanRequest(cluster=Cluster(devices=8), global_batch=0),
        lambda: PlanRequest(cluster=Cluster(devices=8), global_batch=8, trainers=("torchtitans",)),
        lambda: Cluster(devices=0),
        lambda: Cluster(devices=8, network_gb_s=-1),
        lambda: sg.plan(Setup(device="h100-sxm5-80gb"), REQUEST),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: Any) -> None:
    with pytest.raises(BadOption):
        wrong()
