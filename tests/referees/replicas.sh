#!/usr/bin/env bash
# Clients that know nothing of replicas, over two of them: replicas.sh LOCKGATE_BINARY [NAME_PATTERN]
# A Redis, two replicas and a balancer without stickiness, all of its own (replicas.mjs); each script has
# a time limit. Ends only what it started. One line per script; the last line is "N passed, N failed".
# REFEREE_PYTHON: the Python with requirements.txt (default: python3). REDIS_SERVER: the program
# (default: redis-server).
set -euo pipefail

binary=$(realpath "${1:?usage: replicas.sh LOCKGATE_BINARY [NAME_PATTERN]}")
pattern=${2:-.}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
node=$(realpath "$here/node_modules/.bin/node")
python=${REFEREE_PYTHON:-python3}
limit=${REFEREE_LIMIT:-400}
work=$(mktemp -d)
replicas=
conformance=
passed=0
failed=0

finish() {
  if [ -n "$conformance" ]; then kill -TERM "$conformance" 2>/dev/null || true; fi
  # It ends the replicas, their children, and Redis.
  if [ -n "$replicas" ]; then
    kill -TERM "$replicas" 2>/dev/null || true
    wait "$replicas" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

# check NAME COMMAND…
check() {
  run "$@"
  verdict "$1"
}

# Runs a check; how it went is in $work/NAME.rc.
run() {
  local name=$1 rc=0 began=$SECONDS
  shift
  [[ $name =~ $pattern ]] || return 0
  timeout --kill-after=5 "$limit" "$@" >"$work/$name.log" 2>&1 </dev/null &
  # Whoever ends this one ends the check with it.
  trap 'kill "$!" 2>/dev/null' TERM
  wait "$!" || rc=$?
  trap - TERM
  echo "$rc $((SECONDS - began))" >"$work/$name.rc"
}

verdict() {
  local rc seconds
  [[ $1 =~ $pattern ]] || return 0
  read -r rc seconds <"$work/$1.rc" || rc=none
  if [ "$rc" = 0 ]; then
    passed=$((passed + 1))
    echo "ok $1 ($seconds s)"
  else
    failed=$((failed + 1))
    echo "FAILED $1 (exit $rc)"
    tail -n 60 "$work/$1.log" "$work/err" | sed 's/^/    /'
  fi
}

cd "$here"
"$node" replicas.mjs "$binary" "${REDIS_SERVER:-redis-server}" >"$work/out" 2>"$work/err" </dev/null &
replicas=$!
for _ in $(seq 600); do
  [ ! -s "$work/out" ] || break
  kill -0 "$replicas" 2>/dev/null || break
  sleep 0.1
done
if [ ! -s "$work/out" ]; then
  echo "FAILED start of the replicas"
  sed 's/^/    /' "$work/err"
  exit 1
fi
field() { "$node" -e 'console.log(JSON.parse(require("fs").readFileSync(0, "utf8"))[process.argv[1]])' "$1" <"$work/out"; }
base=$(field url)
CONTROL=$(field control)
export CONTROL
url=$base/t/acme/one/mcp

# The long one beside the others; who kills replicas runs alone.
limit=900 run conformance "$here/conformance.sh" "$url" "$base/t/acme/polling/mcp" newest &
conformance=$!
check ts-streamable "$node" ts-streamable.mjs "$url" --backend fixture
check ts-sse "$node" ts-sse.mjs "${url%/mcp}/sse" --backend fixture
check ts-resume "$node" ts-resume.mjs "$url" --backend fixture
check py_streamable "$python" py_streamable.py "$url" --backend fixture
wait "$conformance"
verdict conformance
check ts-replicas "$node" ts-replicas.mjs "$url" --backend fixture
check py_replicas "$python" py_replicas.py "$url" --backend fixture

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
