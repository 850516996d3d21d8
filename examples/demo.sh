#!/bin/sh
# Grade the bundled runs: two trainings of one small GPT that differ only in their attention.
# The figures of the machine and of the model are derived in examples/README.md.
set -eu
cd "$(dirname "$0")/.."
BIN=${BIN:-.venv/bin}

TOKENS_PER_STEP=1024
PEAK_BW_GB_S=32.05
BYTES_PER_TOKEN=391000
NAIVE_TOK_S=2327

# show WHAT ARGUMENTS...: say what comes, print the command, run it.
show() {
    printf '\n# %s\n' "$1"
    shift
    printf '$ stepgrade'
    printf ' %s' "$@"
    printf '\n\n'
    "$BIN/stepgrade" "$@"
}

show 'The scorecard of a real run, graded against the memory bandwidth of its machine.' \
    score examples/runs/gpt_fused.json --tokens-per-step "$TOKENS_PER_STEP" \
    --peak-bw "$PEAK_BW_GB_S" --bytes-per-token "$BYTES_PER_TOKEN"

show 'The same training with attention written out by hand: what got slower than the baseline?' \
    score examples/runs/gpt_naive.json --tokens-per-step "$TOKENS_PER_STEP" \
    --peak-bw "$PEAK_BW_GB_S" --bytes-per-token "$BYTES_PER_TOKEN" \
    --baseline examples/runs/gpt_fused.json

show 'The two side by side, operation by operation: where is the gap?' \
    parity examples/runs/parity_naive.json examples/runs/parity_fused.json

show 'The slower run once more, under contract v1 and as Markdown, for a pull request or a wiki.' \
    score examples/runs/gpt_naive.json --contract v1 --throughput "$NAIVE_TOK_S" \
    --peak-bw "$PEAK_BW_GB_S" --bytes-per-token "$BYTES_PER_TOKEN" --format markdown
