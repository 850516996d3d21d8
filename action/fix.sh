#!/usr/bin/env bash
# The tried fixes as action.yml runs them: the command comes from the environment, a word on each line.
set -uo pipefail

reports=${STEPGRADE_REPORTS:-stepgrade-reports}
for path in "$reports" "$reports/fix.md"; do
    if [ -L "$path" ]; then
        echo "stepgrade: $path is a link; reports are not written through links" >&2
        exit 2
    fi
done
mkdir -p "$reports" || exit 2
words=()
while IFS= read -r line || [ -n "$line" ]; do
    if [ -n "$line" ]; then words+=("$line"); fi
done <<<"${STEPGRADE_FIX:?no command was given}"

stepgrade fix --budget "${STEPGRADE_TIME:-10m}" --format markdown --output "$reports/fix.md" -- "${words[@]}"
code=$?
if [ "$code" = 3 ]; then  # nothing to compare is no failure of the change
    echo "::warning::stepgrade fix could not measure the script; its log says why"
    exit 0
fi
if [ -f "$reports/fix.md" ] && [ -n "${GITHUB_STEP_SUMMARY:-}" ]; then cat "$reports/fix.md" >>"$GITHUB_STEP_SUMMARY"; fi
exit "$code"
