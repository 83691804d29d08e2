#!/usr/bin/env bash
# The MCP conformance suite against a gateway over the fixture:
# conformance.sh URL [POLLING_URL [newest]]
# POLLING_URL is a gateway with reply.close_after = 300ms (default: URL); with `newest` the suite of
# 0.1.16 is left out, and warnings of the set of 2026-07-28 count for nothing (subscriptions hear of calls at
# their replica alone). Fails unless the set of 2025-11-25 is 30 of 30, that of 2026-07-28 37 of 37, the
# suite of 0.1.16 is 32 of 32, server-sse-polling has three SUCCESS and nothing else of weight,
# server-session-lifecycle passes, and an evil Origin alone is a 403.
# conformance.sh --eras SESSIONS_URL MODERN_URL holds the sets over a server with sessions and one without:
# 36 of 37 there (one wants a key that a server with sessions cannot have), 37 of 37 and 30 of 30 here.
# conformance.sh --tasks URL holds the scenarios of the tasks extension over a gateway with
# reply.task_after = 300ms: all but tasks-required-task-error (no tool has to be called as a task: where the
# client does not declare the extension, the call is answered by its own response) and
# tasks-status-notifications, which is empty.
set -euo pipefail

url=${1:?usage: conformance.sh URL [POLLING_URL [newest]] | --eras SESSIONS_URL MODERN_URL | --tasks URL}
polling_url=${2:-$url}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
node="$here/node_modules/.bin/node"
new="$here/node_modules/@modelcontextprotocol/conformance/dist/index.js"
old="$here/node_modules/conformance-0-1-16/dist/index.js"
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
failed=0

# A step: its name, its verdict. A failed one shows what it printed.
verdict() {
  if [ "$2" = ok ]; then
    echo "  ok $1"
  else
    echo "  FAILED $1"
    sed 's/^/    /' "$out/log" | tail -n 80
    failed=1
  fi
}

# Whether the checks below a folder are as wanted: checks.mjs FOLDER MODE
checks() {
  "$node" "$here/checks.mjs" "$@" >>"$out/log" 2>&1 && echo ok || echo no
}

# The set of a revision: set_of REVISION URL FOLDER
set_of() {
  timeout 400 "$node" "$new" server --url "$2" --requirements "$1" -o "$out/$3" >"$out/log" 2>&1 || true
}

# Starts the server for the capabilities with which one of the scenarios gives it 600 ms: warm URL
warm() {
  local meta='"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientCapabilities":{"elicitation":{}}'
  for _ in 1 2 3 4; do # as many times as a balancer needs for each replica
    curl -sS -o /dev/null --max-time 20 -X POST "$1" -H 'content-type: application/json' \
      -H 'accept: application/json, text/event-stream' -H 'mcp-protocol-version: 2026-07-28' \
      -H 'mcp-method: tools/list' \
      -d '{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{'"$meta"'}}}' || true
  done
}

if [ "$url" = --eras ]; then
  warm "$2"
  set_of 2026-07-28 "$2" bridged
  verdict 'set of 2026-07-28 over a server with sessions: 36/37' "$(checks "$out/bridged" bridged 36)"
  warm "$3"
  set_of 2026-07-28 "$3" modern
  verdict 'set of 2026-07-28 over a server of 2026-07-28: 37/37' "$(checks "$out/modern" quiet 37)"
  set_of 2025-11-25 "$3" set
  verdict 'set of 2025-11-25 over a server of 2026-07-28: 30/30' "$(checks "$out/set" required 30)"
  exit "$failed"
fi

if [ "$url" = --tasks ]; then
  for scenario in lifecycle capability-negotiation wire-fields request-state-removal mrtr-input \
    request-headers dispatch-and-envelope mrtr-composition; do
    timeout 150 "$node" "$new" server --url "$2" --scenario "tasks-$scenario" \
      --spec-version 2026-07-28 --force -o "$out/tasks" >"$out/log" 2>&1 || true
  done
  verdict 'scenarios of the tasks extension: 41 x SUCCESS' "$(checks "$out/tasks" clean 41)"
  exit "$failed"
fi

set_of 2025-11-25 "$url" set
verdict 'conformance 0.2.0-alpha.12, set of 2025-11-25: 30/30' "$(checks "$out/set" required 30)"

if [ "${3:-}" != newest ]; then
  timeout 400 "$node" "$old" server --url "$url" --suite all --spec-version 2025-11-25 \
    -o "$out/all" >"$out/log" 2>&1 || true
  verdict 'conformance 0.1.16, suite all: 32/32' "$(checks "$out/all" all 32)"
fi

# Clients without sessions, at the same server.
warm "$url"
set_of 2026-07-28 "$url" modern
mode=quiet
if [ "${3:-}" = newest ]; then mode=modern; fi
verdict 'conformance 0.2.0-alpha.12, set of 2026-07-28: 37/37' "$(checks "$out/modern" "$mode" 37)"
# Of the scenarios that run with the set and are no part of it.
verdict 'http-header-validation' "$(checks "$out/modern" clean 14 http-header-validation)"
verdict 'http-custom-header-server-validation' \
  "$(checks "$out/modern" clean 10 http-custom-header-server-validation)"

timeout 150 "$node" "$new" server --url "$polling_url" --scenario server-sse-polling \
  --spec-version 2025-11-25 -o "$out/polling" >"$out/log" 2>&1 || true
verdict 'server-sse-polling: 3 x SUCCESS, no WARNING' "$(checks "$out/polling" clean 3)"

timeout 150 "$node" "$new" server --url "$url" --scenario server-session-lifecycle \
  --spec-version 2025-11-25 -o "$out/lifecycle" >"$out/log" 2>&1 || true
verdict 'server-session-lifecycle' "$(checks "$out/lifecycle" clean 1)"

body='{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"evil","version":"1"}}}'
status=$(curl -sS -o "$out/log" -w '%{http_code}' --max-time 10 -X POST "$url" \
  -H 'content-type: application/json' -H 'accept: application/json, text/event-stream' \
  -H 'origin: http://evil.example' -d "$body" || true)
echo "status $status" >>"$out/log"
verdict 'an evil Origin with a good Host is 403' "$([ "$status" = 403 ] && echo ok || echo no)"

exit "$failed"
