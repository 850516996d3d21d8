"""Every remedy has its condition, and both sides of it: said where it can be followed, not said where it cannot."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

import stepgrade as sg
from stepgrade.config import Config
from stepgrade.diagnosis.rule import NEEDS
from stepgrade.diagnosis.rules import RULE_NAMES, RULES
from stepgrade.hardware.setup import Setup
from stepgrade.model import RECORDER, DeviceSeen, Note, Profile
from stepgrade.model.profile import Recorded
from stepgrade.model.ranks import ManyRanks, SlowPart
from tests.builders import make_phases
from tests.diagnosis.test_rules import FIRES, GEMMS, gaps, host, kernels, op, trace

V100 = DeviceSeen(name="Tesla V100-SXM2-32GB", memory_bytes=32 * 2**30, sm_count=80)
ON_A_DEVICE = {name: profile for name, profile in FIRES.items() if profile.activity is not None}
ON_A_DEVICE = {name: p for name, p in ON_A_DEVICE.items() if p.activity and p.activity.driver == "device"}


def on(profile: Profile, **known: Any) -> Profile:
    """Return the run with another activity, or other fields of the profile."""
    fields = {name: known.pop(name) for name in [*known] if name in Profile.__struct_fields__}
    assert profile.activity is not None
    return msgspec.structs.replace(
        profile, activity=msgspec.structs.replace(profile.activity, **known), **fields
    )


def advice_of(profile: Profile, device: str | None = None) -> list[str]:
    card = sg.score(profile, setup=Setup(device=device))
    assert all(finding.remedy.endswith(".") for finding in card.findings)
    return [*card.recommendations, *(finding.remedy for finding in card.findings)]


def remedy_of(rule: str, profile: Profile, device: str | None = None) -> str:
    alone = Config(rules={"ignore": [name for name in RULE_NAMES if name != rule]})
    found = sg.score(profile, setup=Setup(device=device), config=alone).findings
    return found[0].remedy if found else ""


# What must not be said on a run of the kind, whatever rule fires.
IMPOSSIBLE = {
    "mtia": r"NCCL|nccl|CUDA|cuda|reduce-overhead|graph\b|graphs|tensor cores|Flash",
    "xpu": r"NCCL|nccl|CUDA|cuda|reduce-overhead|tensor cores",
    "npu": r"NCCL|nccl|CUDA|cuda|reduce-overhead|tensor cores",
}


@pytest.mark.parametrize("platform", IMPOSSIBLE)
@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_no_rule_advises_what_another_platform_has(name: str, platform: str) -> None:
    for advice in advice_of(on(ON_A_DEVICE[name], platform=platform, device=None)):
        assert not re.search(IMPOSSIBLE[platform], advice), advice


@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_no_rule_advises_bf16_or_tf32_to_a_v100(name: str) -> None:
    profile = on(ON_A_DEVICE[name], platform="cuda", device=V100, capability="7.0")
    for advice in advice_of(profile, "v100-sxm2-32gb"):
        assert not re.search(r"bf16|bfloat16|tf32|float32_matmul", advice), advice


@pytest.mark.parametrize("name", ON_A_DEVICE)
def test_no_rule_advises_training_to_a_run_that_does_not_train(name: str) -> None:
    profile = on(ON_A_DEVICE[name], work="inference")
    for advice in advice_of(profile):
        assert not re.search(
            r"optimizer|[Bb]ackward|[Gg]radient|GradScaler|zero_grad|DDP|the loss", advice
        ), advice


@pytest.mark.parametrize("name", FIRES)
def test_no_rule_advises_a_device_to_a_run_without_one(name: str) -> None:
    profile = FIRES[name]
    if profile.activity is None:
        return
    changed = on(profile, driver="host", platform="cpu", device=None, kernels=None)
    for advice in advice_of(changed):
        assert not re.search(r"CUDA|cuda|NCCL|nccl|pin_memory|non_blocking|pinned|[Ll]aunch", advice), advice


@pytest.mark.parametrize("name", FIRES)
def test_what_was_recorded_is_not_asked_for_again(name: str) -> None:
    profile = FIRES[name]
    if profile.activity is None:
        return
    everything = Recorded(settings=("memory", "shapes", "stacks"))
    for advice in advice_of(on(profile, recorded=everything)):
        assert not re.search(r"record_shapes|[Rr]ecord shapes|with_stack", advice), advice


# Each need from both sides: a run where a rule's remedy says it, and the same run where it must not.
LAUNCHES = trace(lost={"idle_host": 0.4}, kernels=kernels(2000.0, 10.0), gaps=gaps())
BOTH_SIDES: dict[str, tuple[str, str, Profile, Profile]] = {
    "a device that torch.cuda drives": (
        "sync-wait",
        "torch.cuda",
        on(FIRES["sync-wait"], platform="cuda"),
        on(FIRES["sync-wait"], platform="mtia", device=None),
    ),
    "graphs of kernels": (
        "launch-gaps",
        "graphs",
        on(LAUNCHES, platform="rocm"),
        on(LAUNCHES, platform="mtia", device=None),
    ),
    "an accelerator": (
        "loader-on-main-thread",
        "pin_memory",
        FIRES["loader-on-main-thread"],
        on(FIRES["loader-on-main-thread"], driver="host", platform="cpu", device=None),
    ),
    "arithmetic in bf16": (
        "fp32-matmuls",
        "bfloat16",
        on(FIRES["fp32-matmuls"], platform="cuda"),
        on(FIRES["fp32-matmuls"], platform="cuda", device=V100, capability="7.0"),
    ),
    "arithmetic in tf32": (
        "fp32-matmuls",
        "tf32",
        on(FIRES["fp32-matmuls"], platform="cuda"),
        on(FIRES["fp32-matmuls"], platform="cuda", device=V100, capability="7.0"),
    ),
    "a training step": (
        "scalar-read-sync",
        "the loss",
        on(FIRES["scalar-read-sync"], work="training"),
        on(FIRES["scalar-read-sync"], work="inference"),
    ),
    "tables that are not FBGEMM's yet": (
        "heavy-embedding",
        "FBGEMM",
        FIRES["heavy-embedding"],
        on(FIRES["heavy-embedding"], marks={"fbgemm": 4.0}),
    ),
    "PyTorch's profiler": (
        "host-stall",
        "with_stack",
        FIRES["host-stall"],
        on(FIRES["host-stall"], source=msgspec.structs.replace(FIRES["host-stall"].source, format="nsys")),
    ),
    "stacks that were not recorded": (
        "host-stall",
        "with_stack",
        FIRES["host-stall"],
        on(FIRES["host-stall"], recorded=Recorded(settings=("stacks",))),
    ),
    "a DataLoader, as far as our recorder saw": (
        "input-wait",
        "DataLoader",
        FIRES["input-wait"],
        on(
            FIRES["input-wait"],
            source=msgspec.structs.replace(FIRES["input-wait"].source, producer=RECORDER),
        ),
    ),
    "an optimizer that is not fused yet": (
        "heavy-optimizer",
        "fused=True",
        FIRES["heavy-optimizer"],
        on(FIRES["heavy-optimizer"], operations=(op("aten::_fused_adamw_", "optimizer", 40.0), *GEMMS)),
    ),
    "operations that are not compiled yet": (
        "slow-gemm",
        "torch.compile",
        FIRES["slow-gemm"],
        on(FIRES["slow-gemm"], platform="mtia", device=None),
    ),
}


@pytest.mark.parametrize("need", BOTH_SIDES)
def test_a_remedy_is_said_where_it_can_be_followed_and_not_where_it_cannot(need: str) -> None:
    rule, words, can, cannot = BOTH_SIDES[need]
    assert words in remedy_of(rule, can)
    said = remedy_of(rule, cannot)
    assert words not in said


OF_PARALLELISM = {
    "data": ("bucket_cap_mb", "reshard_after_forward"),
    "fsdp": ("reshard_after_forward", "bucket_cap_mb"),
    "tensor": ("tensor parallelism", "FSDP|DDP"),
    "expert": ("exchange", "FSDP|DDP"),
    "pipeline": ("micro-batches", "FSDP|DDP"),
}


@pytest.mark.parametrize("kind", OF_PARALLELISM)
def test_advice_on_communication_fits_the_kind_of_parallelism(kind: str) -> None:
    said, unsaid = OF_PARALLELISM[kind]
    profile = on(FIRES["exposed-communication"], parallelism_ms={kind: 25.0, "unknown": 5.0}, work="training")
    remedy = remedy_of("exposed-communication", profile)
    assert said in remedy
    assert not re.search(unsaid, remedy)


RL = next(rule for rule in RULES if rule.name == "longest-rl-part")


@pytest.mark.parametrize("part", [remedy.kind for remedy in RL.fix_where])
def test_each_part_of_rl_has_a_remedy_of_its_own(part: str) -> None:
    """A run always has a longest part, so none of these remedies is for a run of another kind."""
    times = dict.fromkeys(["rollout", "update", part], 5.0) | {part: 90.0}
    run = msgspec.structs.replace(FIRES[RL.name], phases=make_phases(**times))
    source = msgspec.structs.replace(run.source, format="log", producer="verl")
    said = remedy_of(RL.name, msgspec.structs.replace(run, source=source))
    for remedy in RL.fix_where:
        assert (remedy.text.split(".")[0].split(";")[0] in said) == (remedy.kind == part)


OF_ONE_KIND = [rule for rule in RULES if rule.fix_where and rule is not RL]


@pytest.mark.parametrize("rule", OF_ONE_KIND, ids=lambda rule: rule.name)
def test_a_remedy_for_one_kind_of_run_is_not_given_to_another(rule: Any) -> None:
    kinds = {
        "inference": {"work": "inference"},
        "on AMD's devices": {"platform": "rocm"},
        "on processors": {"driver": "host", "platform": "cpu", "device": None},
        "with FBGEMM's tables": {"marks": {"fbgemm": 1.0}},
        "whose launches were recorded": {
            "warnings": (Note("kernels_missing", "Launches were recorded.", fatal=True),)
        },
    }
    for kind, slow in {
        "with slow hosts or ranks": "host",
        "with a slow stage": "stage",
        "with a slow link or switch": "link",
    }.items():
        part = SlowPart(kind=slow, name="host 1", ranks="8 to 15", slower=0.5)
        kinds[kind] = {"many_ranks": ManyRanks(ranks=64, hosts=8, per_host=8, slow=(part,))}
    if (compiled := FIRES[rule.name].compilation) is not None:
        logged = msgspec.structs.replace(compiled, logged_ms=compiled.total_ms)
        kinds["the log of torch.compile was given"] = {"compilation": logged}
    usual = remedy_of(rule.name, on(FIRES[rule.name], work="training", platform="cuda"))
    for remedy in rule.fix_where:
        first = remedy.text.split(".")[0].split(";")[0]
        changed = remedy_of(rule.name, on(FIRES[rule.name], **kinds[remedy.kind]))
        assert first in changed
        if usual.endswith(remedy.text):  # it leaves out what was done already
            assert changed == remedy.text != usual
        else:
            assert first not in usual


def test_needs_are_all_looked_for_in_remedies() -> None:
    texts = " ".join(
        text
        for rule in RULES
        for text in (rule.fix, rule.fix_pytorch, rule.fix_jax, *(one.text for one in rule.fix_where))
        if text
    )
    from_advice = "record_shapes torch.compile reshard_after_forward tf32 bfloat16 graphs"
    assert all(need.words.search(f"{texts} {from_advice}") for need in NEEDS)


def test_a_step_on_a_processor_is_not_told_to_use_a_device() -> None:
    remedies = advice_of(
        host(lost={"idle_input": 0.3}, loader="_SingleProcessDataLoaderIter", platform="cpu")
    )
    assert any("num_workers" in remedy for remedy in remedies)
    assert not any("pin_memory" in remedy for remedy in remedies)


@pytest.mark.parametrize(
    ("cores", "ranks", "words"),
    [(1, 1, "num_workers=1 (it has 0, and there is 1 core)"), (2, 1, "num_workers=2 "), (8, 4, "for each rank"),
     (4, 1, "num_workers=4 or more"), (None, 1, "num_workers=4 or more")],
)  # fmt: skip
def test_no_more_workers_are_advised_than_there_are_cores(cores: int | None, ranks: int, words: str) -> None:
    recorded = Recorded(processor="a processor", processor_cores=cores, processor_ranks=ranks)
    assert words in remedy_of("loader-on-main-thread", on(FIRES["loader-on-main-thread"], recorded=recorded))
