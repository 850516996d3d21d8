#!/bin/sh
# Grade the bundled runs: two trainings of one small GPT that differ only in their attention.
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

# shellcheck disable=SC2086  # the roofs are several words on purpose
show 'The scorecard of a real run, graded against the machine it ran on.' \
    score examples/runs/gpt_fused.json $ROOFS

# shellcheck disable=SC2086
show 'The same training with attention written out by hand: what got slower than the baseline?' \
    score examples/runs/gpt_naive.json $ROOFS --baseline examples/runs/gpt_fused.json

show 'The two side by side, operation by operation: where is the gap?' \
    parity examples/runs/parity_naive.json examples/runs/parity_fused.json

show 'The slower run once more, under contract v1 and as Markdown, for a pull request or a wiki.' \
    score examples/runs/gpt_naive.json --contract v1 --throughput 2327 \
    --peak-bw 32.05 --bytes-per-token 391000 --format markdown
