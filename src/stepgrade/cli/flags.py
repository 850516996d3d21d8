"""The flag of each parameter: errors and notes name parameters, the command line shows these instead."""

from __future__ import annotations

# Parameter in Python -> flag with what it takes. An error at a field shows the flag alone.
FLAGS = {
    # Hardware, as in Setup
    "device": "--device KEY",
    "device_file": "--device-file TOML",
    "peak_bw_gb_s": "--peak-bw GB_S",
    "peak_tflops": "--peak-tflops TFLOPS",
    "link_gb_s": "--link GB_S",
    "bytes_per_token": "--bytes-per-token B",
    "flops_per_token": "--flops-per-token F",
    "state": "--state FILE",
    "words": "--filter WORDS",
    # The run, as in Plan and Parallelism
    "model": "--model CONFIG_JSON",
    "batch": "--batch N",
    "seq": "--seq N",
    "micro_batches": "--micro-batches N",
    "packed_seq": "--packed-seq N",
    "dtype": "--dtype NAME",
    "method": "--method NAME",
    "rank": "--rank R",
    "lora_targets": "--lora-targets NAME",
    "optimizer": "--optimizer NAME",
    "checkpointing": "--checkpointing NAME",
    "loss": "--loss NAME",
    "dequantise": "--dequantise NAME",
    "convention": "--convention NAME",
    "devices": "--world-size N",
    "data": "--data-parallel NAME",
    "tensor": "--tensor-parallel N",
    "pipeline": "--pipeline-parallel N",
    "expert": "--expert-parallel N",
    # Scoring
    "throughput_tok_s": "--throughput TOK_S",
    "tokens_per_step": "--tokens-per-step N",
    "baseline": "--baseline FILE",
    "baselines": "--baseline FILE",
    "allow_different": "--allow-different FIELD",
    "settings": "--config TOML",
    # The gate and the history
    "against": "--against history:BRANCH",
    "fail_on": "--fail-on WHAT",
    "run_noise": "--run-noise PCT",
    "cannot_tell": "--cannot-tell fail",
    "config": "--config TOML",
    "history": "--history PLACE",
    "branch": "--branch NAME",
    "keep": "--keep N",
    "older_than": "--older-than YYYY-MM-DD",
    # Reading, recording, writing
    "input_format": "--input-format NAME",
    "steps": "--steps FIRST-LAST",
    "max_bytes": "--max-bytes SIZE",
    "layers": "--layers NAME",
    "ops_every": "--ops-every N",
    "warmup": "--warmup N",
    "required": "--require RATIO",
    "to": "--format NAME",
}
