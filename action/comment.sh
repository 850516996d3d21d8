#!/usr/bin/env bash
# Comment on the pull request with what the reports say; a comment of an earlier run is replaced.
set -uo pipefail

reports=${STEPGRADE_REPORTS:-stepgrade-reports}
if ! [[ ${GITHUB_REF:-} =~ ^refs/pull/([0-9]+)/ ]]; then
    echo "stepgrade: no pull request, so there is nothing to comment on"
    exit 0
fi
number=${BASH_REMATCH[1]}
mark="<!-- stepgrade -->"
body=$(mktemp) || exit 2
trap 'rm -f "$body"' EXIT
echo "$mark" >"$body"
for name in gate fix; do
    # A checkout could contain links with these names.
    if [ -f "$reports/$name.md" ] && [ ! -L "$reports/$name.md" ]; then
        # GitHub takes 65,536 characters in all.
        head -c 30000 "$reports/$name.md" | iconv -c -f utf-8 -t utf-8 >>"$body"
        printf '\n\n' >>"$body"
    fi
done
comments="repos/${GITHUB_REPOSITORY:?}/issues/$number/comments"
export GH_TOKEN=${STEPGRADE_TOKEN:-}
# Only a comment of a bot: anybody can write the mark into theirs.
mine=".[] | select(.user.type == \"Bot\" and (.body | startswith(\"$mark\"))) | .id"
id=$(gh api --paginate "$comments" --jq "$mine" | tail -n 1)
if [ -n "$id" ]; then
    gh api --silent --method PATCH "repos/$GITHUB_REPOSITORY/issues/comments/$id" -F "body=@$body"
else
    gh api --silent "$comments" -F "body=@$body"
fi || echo "::warning::stepgrade could not comment; the job needs 'permissions: pull-requests: write', which forks do not get"
exit 0
