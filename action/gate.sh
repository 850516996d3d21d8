#!/usr/bin/env bash
# The gate as action.yml runs it: inputs come from the environment, the verdict goes to GITHUB_OUTPUT.
set -uo pipefail

words=()
# Lines of $2 become words, each after the option $1 if there is one.
add_lines() {
    local line
    while IFS= read -r line || [ -n "$line" ]; do
        if [ -n "$line" ]; then words+=(${1:+"$1"} "$line"); fi
    done <<<"$2"
}

reports=${STEPGRADE_REPORTS:-stepgrade-reports}
# A checkout could contain links with these names; do not write through them.
for path in "$reports" "$reports"/gate.{md,json,xml,sarif,html} "$reports/grade.svg"; do
    if [ -L "$path" ]; then
        echo "stepgrade: $path is a link; reports are not written through links" >&2
        exit 2
    fi
done
mkdir -p "$reports" || exit 2
add_lines "" "${STEPGRADE_SOURCE:?no source was given}"
add_lines --repeat "${STEPGRADE_REPEAT:-}"
add_lines --baseline "${STEPGRADE_BASELINE:-}"
add_lines --against "${STEPGRADE_AGAINST:-}"
# The history stays in STEPGRADE_HISTORY: every process can see arguments.
add_lines --budgets "${STEPGRADE_BUDGETS:-}"
add_lines "" "${STEPGRADE_OPTIONS:-}"
if [ "${STEPGRADE_SAVE:-false}" = true ]; then words+=(--save); fi

stepgrade gate "${words[@]}" --format github \
    --also "markdown=$reports/gate.md" --also "json=$reports/gate.json" --also "junit=$reports/gate.xml" \
    --also "sarif=$reports/gate.sarif" --also "html=$reports/gate.html" --also "badge=$reports/grade.svg"
code=$?

case $code in
    0) verdict="pass" ;;
    1) verdict="regressed" ;;
    3) verdict="could not be measured" ;;
    *) verdict="bad input" ;;
esac
printf '%s\n' "verdict=$verdict" "exit-code=$code" "reports=$reports" >>"${GITHUB_OUTPUT:-/dev/null}"
if [ "$code" = 3 ] && [ "${STEPGRADE_UNMEASURED:-fail}" = pass ]; then exit 0; fi
exit "$code"
