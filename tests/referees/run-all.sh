#!/usr/bin/env bash
# The external referees of the protocol against one gateway binary: run-all.sh LOCKGATE_BINARY
# [NAME_PATTERN]. Starts `lockgate run` per backend, runs each script with a time limit, REFEREE_JOBS
# (3) at a time, and ends only what it started. One line per script; the last line is
# "N passed, N failed". packages.py is not among them: it measures, and wants the machine for itself.
# REFEREE_PYTHON: the Python with requirements.txt (default: python3).
set -euo pipefail

binary=$(realpath "${1:?usage: run-all.sh LOCKGATE_BINARY [NAME_PATTERN]}")
pattern=${2:-.}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
node="$here/node_modules/.bin/node"
python=${REFEREE_PYTHON:-python3}
everything="$here/node_modules/@modelcontextprotocol/server-everything/dist/index.js"
limit=${REFEREE_LIMIT:-240}
jobs=${REFEREE_JOBS:-3}
work=$(mktemp -d)
gateways=()
declare -A pending=()
passed=0
failed=0

finish() {
  local pid
  for pid in "${gateways[@]}" "${!pending[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${gateways[@]}"; do
    # A gateway that does not stop within its drain time is ended the hard way.
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap finish EXIT

# start NAME FLAG… -- COMMAND…: a gateway on a free port; its MCP URL goes to $url
start() {
  local name=$1
  shift
  "$binary" run --listen 127.0.0.1:0 "$@" >"$work/$name.out" 2>"$work/$name.err" </dev/null &
  local pid=$!
  gateways+=("$pid")
  for _ in $(seq 600); do
    url=$(head -n 1 "$work/$name.out" 2>/dev/null || true)
    case $url in http://*/mcp) return 0 ;; esac
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  echo "FAILED start of the gateway over $name"
  sed 's/^/    /' "$work/$name.out" "$work/$name.err"
  url=
  failed=$((failed + 1))
}

# check NAME COMMAND…: runs in the background, its outcome in $work/NAME.rc (slashes as dashes)
check() {
  local name=$1
  shift
  [[ $name =~ $pattern ]] || return 0
  while [ "${#pending[@]}" -ge "$jobs" ]; do collect; done
  (
    began=$SECONDS
    rc=0
    timeout --kill-after=5 "$limit" "$@" >"$work/${name//\//-}.log" 2>&1 </dev/null &
    # Whoever ends this one ends the check with it.
    trap 'kill "$!" 2>/dev/null' TERM
    wait "$!" || rc=$?
    echo "$rc $((SECONDS - began))" >"$work/${name//\//-}.rc"
  ) &
  pending[$!]=$name
}

# Waits for a check that ends, and says how it went.
collect() {
  local pid name rc seconds
  wait -n -p pid "${!pending[@]}" || true
  name=${pending[$pid]}
  unset "pending[$pid]"
  read -r rc seconds <"$work/${name//\//-}.rc" || rc=none
  if [ "$rc" = 0 ]; then
    passed=$((passed + 1))
    echo "ok $name ($seconds s)"
  else
    failed=$((failed + 1))
    echo "FAILED $name (exit $rc)"
    tail -n 60 "$work/${name//\//-}.log" | sed 's/^/    /'
  fi
}

drain() { while [ "${#pending[@]}" -gt 0 ]; do collect; done; }

# The clients' scripts over one backend, which is like another one: clients NAME [BACKEND]
clients() {
  local name=$1 backend=${2:-$1} sse=${url%/mcp}/sse
  [ -n "$url" ] || return 0
  check "$name/ts-quiet" "$node" ts-quiet.mjs "$url" --backend "$backend"
  check "$name/ts-streamable" "$node" ts-streamable.mjs "$url" --backend "$backend"
  check "$name/ts-sse" "$node" ts-sse.mjs "$sse" --backend "$backend"
  check "$name/ts-resume" "$node" ts-resume.mjs "$url" --backend "$backend"
  check "$name/eventsource" "$node" eventsource.mjs "$url" --backend "$backend"
  check "$name/py_streamable" "$python" py_streamable.py "$url" --backend "$backend"
  check "$name/py_sse" "$python" py_sse.py "$sse" --backend "$backend"
  check "$name/py_quiet" "$python" py_quiet.py "$url" --backend "$backend"
}

# Like `check`, with a gateway of its own over a server, and its URL as the last argument: clients of
# 2026-07-28 without credentials are one caller, whose subscriptions hear of all of its calls.
# alone NAME CLIENT… -- SERVER…
alone() {
  local client=()
  while [ "$1" != -- ]; do
    client+=("$1")
    shift
  done
  [[ ${client[0]} =~ $pattern ]] || return 0
  start "${client[0]//\//-}" "$@"
  if [ -n "$url" ]; then check "${client[@]}" "$url"; fi
}

# Clients of both eras in these modes over one backend. `clients` has the older ones of Python.
eras() {
  local backend=$1 modes=$2 mode
  shift 2
  for mode in $modes; do
    alone "$backend/ts2-streamable/$mode" "$node" ts2-streamable.mjs --mode "$mode" --backend "$backend" "$@"
    case $mode in
      auto | 2026-*) alone "$backend/py_streamable/$mode" "$python" py_streamable.py --mode "$mode" --backend "$backend" "$@" ;;
    esac
  done
}

cd "$here"
fixture="$here/../fixtures/conformance/server.mjs"
# Absolute commands: a child's environment is not ours. The Node 22 that came with npm ci.
node_real=$(realpath "$node")
python_real=$(command -v "$python")
mcpcheck=$(dirname "$python_real")/mcpcheck

start fixture -- "$node_real" "$(realpath "$fixture")"
fixture_url=$url
start polling --set server.reply.close_after=300ms -- "$node_real" "$(realpath "$fixture")"
# The long one first.
if [ -n "$url" ] && [ -n "$fixture_url" ]; then
  limit=900 check conformance "$here/conformance.sh" "$fixture_url" "$url"
fi
for era in legacy modern; do
  start "tasks-$era" --set server.reply.task_after=300ms -- \
    "$node_real" "$(realpath "$fixture")" --era "$era"
  if [ -n "$url" ]; then limit=900 check "conformance/tasks-$era" "$here/conformance.sh" --tasks "$url"; fi
done
start legacy -- "$node_real" "$(realpath "$fixture")" --era legacy
legacy_url=$url
start modern -- "$node_real" "$(realpath "$fixture")" --era modern
if [ -n "$url" ] && [ -n "$legacy_url" ]; then
  limit=900 check conformance/eras "$here/conformance.sh" --eras "$legacy_url" "$url"
fi
clients modern fixture
url=$fixture_url
clients fixture
if [ -n "$url" ]; then
  check fixture/py_fastmcp "$python" py_fastmcp.py "$url"
  check fixture/inspector-eras "$node" inspector-eras.mjs "$url"
  # Strict but for what the fixture does on purpose: it logs, and its tools have no output schemas.
  check fixture/mcpcheck "$mcpcheck" "$url" --legacy-probes --strict --skip discover,schemas
  check fixture/mcpcheck/lists "$mcpcheck" "$url" --check discover,schemas
fi
eras fixture 'legacy auto 2026-07-28 2025-06-18' -- "$node_real" "$(realpath "$fixture")"
start everything -- "$node_real" "$everything" stdio
clients everything
eras everything auto -- "$node_real" "$everything" stdio
start python -- "$python_real" "$(realpath "$here/../fixtures/python/server.py")"
clients python
drain

# One session at a time: what is killed is the only child with the marker.
export MARKER="$$-$RANDOM"
start restore --env "RESTORE=$MARKER" -- "$node_real" "$(realpath "$fixture")"
if [ -n "$url" ]; then
  check restore/ts-restore "$node" ts-restore.mjs "$url" --backend fixture
  drain
  check restore/py_restore "$python" py_restore.py "$url" --backend fixture
  drain
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
