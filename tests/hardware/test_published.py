"""MFU, HFU and TFLOP/s that others published come out of their tokens per second."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stepgrade.hardware.ceilings import utilisation
from stepgrade.hardware.cost.conventions import CONVENTIONS
from stepgrade.hardware.cost.model_costs import count, flops_per_token
from stepgrade.hardware.cost.plan import Plan
from stepgrade.hardware.models.hf_config import model_from_config
from stepgrade.hardware.models.shape import ModelShape
from tests.hardware import model_configs as configs
from tests.hardware.published import convention_of, counts_of, flops_of, number, rows, tok_s_per_device

WITHIN = 0.01
ROWS = rows()


def label(row: Any) -> str:
    return f"{row['group']}, {row['model']}, {row['device']}, {row['dtype']}, {row['seq']}"


NAMED = [row for row in ROWS if convention_of(row) and tok_s_per_device(row)]
WITH_MFU = [row for row in NAMED if row["mfu"]]
WITH_HFU = [row for row in NAMED if row["hfu"]]
# The Megatron-Bridge tables of release 26.04.01 print tokens/s of the 405B model as multiples of 32
# (1024, 864, 800, 1440): up to 16 tok/s off, so they are held to that instead.
ROUNDED_TO_32 = [row for row in NAMED if "26.04.01" in row["source"] and "405B" in row["model"]]
WITH_TFLOPS = [row for row in NAMED if row["tflops_gpu"] and not row["mfu"] and row not in ROUNDED_TO_32]


def test_the_file_is_used() -> None:
    assert len(ROWS) == 148
    assert len(WITH_MFU) >= 95
    assert len(WITH_HFU) >= 75
    assert len(WITH_TFLOPS) >= 25


@pytest.mark.parametrize("row", WITH_MFU, ids=label)
def test_mfu_from_tokens_per_second(row: Any) -> None:
    flops = flops_of(row, convention_of(row))
    mfu = 100 * utilisation(tok_s_per_device(row), flops.model, number(row, "peak_used"))
    assert mfu == pytest.approx(number(row, "mfu"), rel=WITHIN)


@pytest.mark.parametrize("row", WITH_HFU, ids=label)
def test_hfu_from_tokens_per_second(row: Any) -> None:
    flops = flops_of(row, convention_of(row))
    hfu = 100 * utilisation(tok_s_per_device(row), flops.hardware, number(row, "peak_used"))
    assert hfu == pytest.approx(number(row, "hfu"), rel=WITHIN)


@pytest.mark.parametrize("row", WITH_TFLOPS, ids=label)
def test_tflops_from_tokens_per_second(row: Any) -> None:
    flops = flops_of(row, convention_of(row))
    assert tok_s_per_device(row) * flops.model / 1e12 == pytest.approx(number(row, "tflops_gpu"), rel=WITHIN)


@pytest.mark.parametrize("row", ROUNDED_TO_32, ids=label)
def test_rows_whose_tokens_were_rounded_to_multiples_of_32(row: Any) -> None:
    tok_s = tok_s_per_device(row)
    implied = number(row, "tflops_gpu") * 1e12 / flops_of(row, "causal-exact").model
    assert tok_s % 32 == 0
    assert abs(implied - tok_s) <= 16


RATIOS = [row for row in ROWS if "over peak" in row["convention"]]


@pytest.mark.parametrize("row", RATIOS, ids=label)
def test_rows_that_only_divide_by_the_peak(row: Any) -> None:
    mfu = 100 * number(row, "tflops_gpu") / number(row, "peak_used")
    if row["model"] == "1024B":
        # Digits swapped in the source: 294 TFLOP/s gives the 64.05 % that it prints.
        mfu = 100 * 294 / 459
    rounding = 0.5 * (number(row, "mfu_round") or 0.01) + 100 * 0.5 / number(row, "peak_used")
    assert mfu == pytest.approx(number(row, "mfu"), abs=rounding + 0.1)


MEGATRON_2021 = [row for row in ROWS if convention_of(row) == "megatron-2021"]


@pytest.mark.parametrize("row", MEGATRON_2021, ids=label)
def test_the_formula_of_megatron_2021_is_hardware_flops_by_our_parts(row: Any) -> None:
    depth, d, seq, vocab = (int(row[name]) for name in ("layers", "hidden", "seq", "vocab"))
    theirs = 96 * depth * d * d * (1 + seq / (6 * d) + vocab / (16 * depth * d))
    assert flops_of(row, "megatron-2021").hardware == pytest.approx(theirs)
    assert 100 * number(row, "tflops_gpu") / 312 == pytest.approx(number(row, "hfu"), abs=0.6)


MAXTEXT = [row for row in ROWS if row["group"] == "MaxText tiering"]


@pytest.mark.parametrize("row", MAXTEXT, ids=label)
def test_maxtext_rows_follow_the_full_count_of_their_time(row: Any) -> None:
    """Their "approx tokens/sec" for Llama-2-70B on v5p is off by more than its MFU: held to 3 %."""
    flops = flops_of(row, "full-exact")
    within = 0.03 if row["model"] == "Llama-2-70B" else WITHIN
    mfu = 100 * utilisation(tok_s_per_device(row), flops.model, number(row, "peak_used"))
    assert mfu == pytest.approx(number(row, "mfu"), rel=within)


def test_full_recompute_makes_hfu_four_thirds_of_mfu() -> None:
    (row,) = [row for row in ROWS if row["model"] == "GLM-130B"]
    assert number(row, "mfu") * 4 / 3 == pytest.approx(number(row, "hfu"), rel=WITHIN)


MORE = rows("more_rows.csv")


@pytest.mark.parametrize("row", MORE, ids=lambda row: f"{row['source']}, {row['model']}")
def test_other_rows_of_the_same_sources(row: Any) -> None:
    plan = Plan(batch=1, seq=int(row["seq"]), method=row["method"], rank=int(row["rank"] or 16))
    shape = model_from_config(json.dumps(getattr(configs, row["model"])))
    flops = flops_per_token(count(shape, plan), plan, CONVENTIONS[row["convention"]])
    tflops = float(row["tok_s_gpu"]) * flops.model / 1e12
    if row["tflops_gpu"]:
        assert tflops == pytest.approx(float(row["tflops_gpu"]), rel=WITHIN)
    else:
        assert 100 * tflops / float(row["peak_tflops"]) == pytest.approx(float(row["mfu"]), rel=WITHIN)


@pytest.mark.parametrize(
    "row", rows("llm_foundry_rows.csv"), ids=lambda row: f"{row['params']}, {row['seq']}"
)
def test_other_rows_of_llm_foundry_from_their_config(row: Any) -> None:
    width, seq = int(row["d_model"]), int(row["seq"])
    shape = mpt(width, int(row["n_layers"]), seq)
    plan = Plan(batch=1, seq=seq, checkpointing=row["checkpointing"])
    flops = flops_per_token(count(shape, plan), plan, CONVENTIONS["mosaic"])
    tok_s, peak, gpus = float(row["tok_s"]), float(row["peak_tflops"]), int(row["gpus"])
    assert shape.parameters == int(row["params"])
    assert 100 * utilisation(tok_s, flops.model, peak, gpus) == pytest.approx(float(row["mfu"]), rel=WITHIN)
    assert 100 * utilisation(tok_s, flops.hardware, peak, gpus) == pytest.approx(
        float(row["hfu"]), rel=WITHIN
    )


LLM_FOUNDRY = [row for row in ROWS if row["group"] == "llm-foundry MPT"]


@pytest.mark.parametrize("row", LLM_FOUNDRY, ids=label)
def test_llm_foundry_parameters_are_exact_from_their_config(row: Any) -> None:
    shape = mpt(int(row["hidden"]), int(row["layers"]), int(row["seq"]))
    assert shape.parameters == int(row["params"]) == counts_of(row).active


def mpt(width: Any, depth: Any, seq: Any) -> ModelShape:
    """Return the model of their benchmark: biases, a table of positions as long as the sequence."""
    config = {
        "model_type": "mpt",
        "d_model": width,
        "n_layers": depth,
        "n_heads": width // 64,
        "vocab_size": 50368,
        "max_seq_len": seq,
        "no_bias": False,
        "attn_config": {"alibi": False},
    }
    return model_from_config(json.dumps(config))


def test_one_throughput_by_three_conventions() -> None:
    """Llama-3-8B at 8,192 tokens on an H100: 5,762 tok/s is 30.0, 33.7 or 35.6 % MFU."""
    plan = Plan(batch=1, seq=8192)
    counts = count(model_from_config(json.dumps(configs.LLAMA3_8B)), plan)
    shares = {
        name: 100 * utilisation(5762, flops_per_token(counts, plan, CONVENTIONS[name]).model, 989.4)
        for name in ("causal-exact", "torchtitan", "palm")
    }
    assert shares == pytest.approx({"causal-exact": 30.0, "torchtitan": 33.7, "palm": 35.6}, abs=0.06)
