#!/usr/bin/env bash
# Schemathesis over the administration API of a real gateway: api.sh LOCKGATE_BINARY
# REFEREE_API_PYTHON: the Python with requirements-api.txt (default: python3).
set -euo pipefail

binary=$(realpath "${1:?usage: api.sh LOCKGATE_BINARY}")
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
python=${REFEREE_API_PYTHON:-python3}
# In memory where there is room: what is asked here writes a row each, and other steps keep the disk busy.
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d)
gateway=

finish() {
  if [ -n "$gateway" ]; then
    kill -TERM "$gateway" 2>/dev/null || true
    for _ in $(seq 50); do kill -0 "$gateway" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$gateway" 2>/dev/null || true
    wait "$gateway" 2>/dev/null || true
  fi
  rm -rf "$work"
}
trap finish EXIT

"$binary" serve --set "data_dir=$work/data" --set http.listen=127.0.0.1:0 --set ops.listen= \
  --set sandbox.shared_uid=true \
  >"$work/log" 2>"$work/err" </dev/null &
gateway=$!
url=
for _ in $(seq 600); do
  bound=$(sed -n 's/.*"event":"listening".*"http":"\([^"]*\)".*/\1/p' "$work/log")
  if [ -n "$bound" ]; then url="http://$bound"; break; fi
  kill -0 "$gateway" 2>/dev/null || break
  sleep 0.1
done
if [ -z "$url" ]; then
  cat "$work/log" "$work/err"
  exit 1
fi
export LOCKGATE_URL=$url
# The first key may be made a moment after the gateway listens.
for _ in $(seq 600); do
  LOCKGATE_KEY=$(cat "$work/data/admin.key" 2>/dev/null || true)
  export LOCKGATE_KEY
  if "$binary" tenant list >/dev/null 2>&1; then break; fi
  sleep 0.1
done
for tenant in a b; do
  "$binary" tenant add "$tenant" >/dev/null
  "$binary" server add "$tenant" x -- "$binary" __demo >/dev/null
  "$binary" key add "$tenant" x --server x >/dev/null 2>&1
done

# What schemathesis reads is the document that the gateway serves, which is docs/openapi.json.
# One worker: Python 3.11 parses its own source for hypothesis, and two threads of it may fail at that.
rc=0
ask() {
  local began=$SECONDS part=0
  timeout --kill-after=5 "${REFEREE_API_LIMIT:-600}" \
    "$(dirname "$python")/schemathesis" --config-file "$1" run "$url/api/openapi.json" --url "$url" \
    --header "Authorization: Bearer $LOCKGATE_KEY" --no-color --warnings off \
    --phases examples,coverage,fuzzing --mode all --max-examples 20 --workers 1 \
    --checks not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance \
    --request-timeout 60 --generation-deterministic "${@:2}" || part=$?
  if [ "$part" != 0 ]; then
    rc=$part
    echo "FAILED with $1 after $((SECONDS - began)) s (exit $part; 124 and 137: out of time)"
    tail -n 20 "$work/err"
  fi
}

# First what is there, so that answers have something in them; then whatever names may be made up.
cat >"$work/known.toml" <<'TOML'
[parameters]
"path.tenant" = "a"
"path.name" = "x"
"path.id" = "0"
TOML
: >"$work/any.toml"
ask "$work/known.toml" --exclude-method DELETE
ask "$work/any.toml"
# Nothing of it may have brought the gateway down.
kill -0 "$gateway"
"$binary" tenant list >/dev/null
exit "$rc"
