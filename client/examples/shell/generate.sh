#!/usr/bin/env bash
# Streams a generation from Treadle, with grpcurl and jq. Usage:
#   generate.sh [--max-new-tokens N] [--temperature T] [--deadline SECONDS] [--cancel-after CHUNKS] PROMPT
# The server is that of TREADLE_ADDRESS, or 127.0.0.1:50051. Ctrl-C cancels.
set -euo pipefail

max_new_tokens=32 temperature=null deadline=60 cancel_after=0
while [[ ${1-} == --* ]]; do
  case $1 in
    --max-new-tokens) max_new_tokens=$2 ;;
    --temperature) temperature=$2 ;;
    --deadline) deadline=$2 ;;
    --cancel-after) cancel_after=$2 ;;
    *) echo "$0: there is no flag $1" >&2; exit 2 ;;
  esac
  shift 2
done

# A field that is not there takes the server's default; 0 would not.
request=$(jq --null-input --arg prompt "$*" --argjson max "$max_new_tokens" --argjson temperature "$temperature" '{
  prompt: $prompt,
  stopping: {max_new_tokens: $max},
  sampling: (if $temperature == null then {} else {temperature: $temperature} end)
}')

status=$(mktemp)
trap 'rm -f "$status"' EXIT

exec {answers}< <(exec grpcurl -plaintext -format-error -max-time "$deadline" -d "$request" \
  "${TREADLE_ADDRESS:-127.0.0.1:50051}" treadle.v1.GenerationService/Generate 2>"$status")
grpcurl=$!

chunks=0 cancelled=
while IFS= read -r -d '' text; do # up to the next NUL: texts have line breaks
  printf '%s' "$text"
  if ((++chunks == cancel_after)); then
    cancelled=yes
    kill "$grpcurl" # the connection closes, and the server stops the work at once
    break
  fi
done < <(jq --unbuffered --join-output '
  (.tokens | select(.) | .text // ""),
  (.result | select(.) | "\n[\(.finish_reason), \(.usage.completion_tokens) tokens]\n")
  | . + "\u0000"
' <&"$answers")

if wait "$grpcurl"; then
  exit 0
elif [[ $cancelled ]]; then
  printf '\n[cancelled]\n'
else
  # What grpcurl says before there is a call, such as of a refused connection, is no JSON.
  jq --raw-output '
    "\nstatus \(.code): \(.message)",
    (.details[]? | select(.reason) | "reason \(.reason) \(.metadata)")
  ' "$status" >&2 2>/dev/null || cat "$status" >&2
  exit 1
fi
