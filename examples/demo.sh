#!/bin/sh
# Record a training where torch is installed, then grade the bundled runs.
# The figures of the machine and of the model are derived in examples/README.md.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}

# What the machine can do, and what one token costs it.
ROOFS='--dtype fp32 --peak-tflops 0.1715 --flops-per-token 30867456 --peak-bw 32.05 --bytes-per-token 391000'

# show WHAT ARGUMENTS...: say what comes, print the command, run it.
show() {
    printf '\n# %s\n' "$1"
    shift
    printf '$ stepgrade'
    printf ' %s' "$@"
    printf '\n\n'
    "$BIN/stepgrade" "$@"
}

# Two words before a script; it writes nothing into the checkout.
if "$BIN/python" -c 'import torch' 2> /dev/null; then
    folder=$(mktemp -d)
    trap 'rm -r "$folder"' EXIT
    show 'Put two words before a training script: it is recorded, then graded.' \
        record -o "$folder/slow.json" --steps 16 examples/tutorial/slow.py
else
    printf "\n# stepgrade record train.py needs torch: run %s/pip install '.[torch]', then make demo again.\n" "$BIN"
fi

show 'A trace of torch.profiler: rank 0 of a small GPT on eight H100s, generated.' \
    score examples/traces/h100_ddp.json.gz

# shellcheck disable=SC2086  # the roofs are several words on purpose
show 'A small GPT with attention written out by hand: what got slower than with the fused kernel?' \
    score examples/runs/gpt_naive.json $ROOFS --baseline examples/runs/gpt_fused.json

show 'The two side by side, operation by operation: where is the gap?' \
    parity examples/runs/parity_naive.json examples/runs/parity_fused.json
