#!/usr/bin/env bash
# The external referees of the authorization server, against one gateway binary:
# authorization.sh LOCKGATE_BINARY [NAME_PATTERN]
# One gateway with the defaults of `serve` and SQLite, an OpenID provider behind one tenant, and each
# script with a time limit, REFEREE_JOBS (3) at a time. Ends only what it started. One line per
# script; the last line is "N passed, N failed".
# REFEREE_PYTHON: the Python with requirements.txt (default: python3). CHROMIUM: the browser of the
# pages (default: chromium). REFEREE_SCREENSHOTS: the folder that keeps its pictures.
set -euo pipefail

binary=$(realpath "${1:?usage: authorization.sh LOCKGATE_BINARY [NAME_PATTERN]}")
pattern=${2:-.}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
node=$(realpath "$here/node_modules/.bin/node")
python=$(command -v "${REFEREE_PYTHON:-python3}")
limit=${REFEREE_LIMIT:-400}
jobs=${REFEREE_JOBS:-3}
work=$(mktemp -d)
started=()
declare -A pending=()
passed=0
failed=0
# browser.mjs names `node`: the one that came with npm ci.
export PATH="$(dirname "$node"):$PATH"

finish() {
  local pid
  # The provider ends with its standard input.
  if [ -n "$people_stdin" ]; then exec {people_stdin}>&-; fi
  for pid in "${started[@]}" "${!pending[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  for pid in "${started[@]}"; do
    for _ in $(seq 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$pid" 2>/dev/null || true
    wait "$pid" 2>/dev/null || true
  done
  rm -rf "$work"
}
people_stdin=
trap finish EXIT

port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
url=http://127.0.0.1:$port

mkfifo "$work/people"
"$node" "$here/../fixtures/issuer/people.mjs" "$url/t/house/oauth/callback/people" \
  "$url/t/acme/oauth/connected/people" \
  <"$work/people" >"$work/people.out" 2>"$work/people.err" &
started+=("$!")
exec {people_stdin}>"$work/people"
for _ in $(seq 600); do
  issuer=$(head -n 1 "$work/people.out")
  [ -z "$issuer" ] || break
  sleep 0.1
done
if [ -z "$issuer" ]; then
  echo "FAILED the OpenID provider did not start"
  cat "$work/people.err"
  exit 1
fi

# The key pair of a machine: the private half stays with its client.
machine_key=$("$node" -e '
  const { generateKeyPairSync } = require("node:crypto");
  const { privateKey, publicKey } = generateKeyPairSync("ec", { namedCurve: "P-256" });
  require("node:fs").writeFileSync(process.argv[1], JSON.stringify(privateKey.export({ format: "jwk" })));
  console.log(JSON.stringify({ ...publicKey.export({ format: "jwk" }), alg: "ES256", use: "sig" }));
' "$work/machine.jwk")
machine_secret=$("$node" -e 'console.log(require("node:crypto").randomBytes(24).toString("hex"))')

fixture=$(realpath "$here/../fixtures/conformance/server.mjs")
server="\"command\": \"$node\", \"args\": [\"$fixture\"], \"sandbox\": {\"profile\": \"open\"}"
cat >"$work/manifest.json" <<JSON
{
  "version": 1,
  "tenants": {
    "acme": {
      "users": {"ada": {"password": "correct horse battery"}, "bob": {"password": "correct horse battery"}},
      "auth": {"mode": "builtin", "scopes": ["mcp"], "own_keys": {}},
      "default_server": "one",
      "clients": {
        "machine": {"grant_types": ["client_credentials"], "secret": "$machine_secret"},
        "signer": {"grant_types": ["client_credentials"], "jwks": {"keys": [$machine_key]}}
      },
      "upstreams": {
        "people": {
          "title": "People", "issuer": "$issuer", "client_id": "lockgate", "client_secret": "secret",
          "scopes": ["openid", "email"]
        }
      },
      "servers": {
        "one": {$server, "policy": {"scopes": {"extra_*": ["extra"]}}},
        "connected": {$server, "secrets": {"TOKEN": {"for": "principal", "upstream": "people"}}},
        "stepped": {$server, "policy": {"scopes": {"test_simple_text": ["extra"]}}},
        "two": {$server},
        "personal": {$server, "secrets": {
          "TOKEN": {"for": "principal", "title": "Token of the service", "help": "https://service.example/tokens"},
          "CREDENTIALS": {"for": "principal", "as": "file"}
        }},
        "polling": {$server, "reply": {"close_after": "300ms"}}
      }
    },
    "house": {
      "users": {"ada": {"password": "correct horse battery"}},
      "auth": {"mode": "builtin"},
      "providers": {
        "people": {
          "title": "People", "issuer": "$issuer", "client_id": "lockgate", "client_secret": "secret",
          "scopes": ["openid", "email", "profile"], "id_jag": true
        }
      },
      "clients": {"assistant": {"redirect_uris": ["https://assistant.example/callback"], "secret": "$machine_secret"}},
      "servers": {"one": {$server, "policy": {"scopes": {"extra_*": ["extra"]}}}}
    },
    "main": {
      "users": {"ada": {"password": "correct horse battery"}},
      "auth": {"mode": "builtin"},
      "servers": {"one": {$server}}
    }
  }
}
JSON

"$binary" serve --apply "$work/manifest.json" --listen "127.0.0.1:$port" --set ops.listen= \
  --set "data_dir=$work/data" --set "public_url=$url" --set default.tenant=main --set default.server=one \
  --set 'outbound.allow=["127.0.0.0/8"]' --set 'outbound.probe=[]' --set oauth.registrations_address=600 \
  --set oauth.failures=1000 --set oauth.writes=100000 --set sandbox.shared_uid=true \
  >"$work/log" 2>"$work/err" </dev/null &
gateway=$!
started+=("$gateway")
for _ in $(seq 600); do
  if grep -q '"event":"listening"' "$work/log" 2>/dev/null; then break; fi
  if ! kill -0 "$gateway" 2>/dev/null; then
    cat "$work/log" "$work/err"
    exit 1
  fi
  sleep 0.1
done

# check NAME COMMAND…: runs in the background, its outcome in $work/NAME.rc
check() {
  local name=$1
  shift
  [[ $name =~ $pattern ]] || return 0
  while [ "${#pending[@]}" -ge "$jobs" ]; do collect; done
  (
    began=$SECONDS
    rc=0
    timeout --kill-after=5 "$limit" "$@" >"$work/$name.log" 2>&1 </dev/null &
    # Whoever ends this one ends the check with it.
    trap 'kill "$!" 2>/dev/null' TERM
    wait "$!" || rc=$?
    echo "$rc $((SECONDS - began))" >"$work/$name.rc"
  ) &
  pending[$!]=$name
}

# Waits for a check that ends, and says how it went.
collect() {
  local pid name rc seconds
  wait -n -p pid "${!pending[@]}" || true
  name=${pending[$pid]}
  unset "pending[$pid]"
  read -r rc seconds <"$work/$name.rc" || rc=none
  if [ "$rc" = 0 ]; then
    passed=$((passed + 1))
    echo "ok $name ($seconds s)"
  else
    failed=$((failed + 1))
    echo "FAILED $name (exit $rc)"
    tail -n 60 "$work/$name.log" | sed 's/^/    /'
  fi
}

drain() { while [ "${#pending[@]}" -gt 0 ]; do collect; done; }

cd "$here"
one=$url/t/acme/one
# The long ones first.
limit=900 check suites "$here/oauth-suites.sh" "$one/mcp" "$url/t/acme/polling/mcp"
check authlab "$python" py_authlab.py "$one/mcp"
check remote-mcp "$node" oauth-remote.mjs "$one/mcp"
check remote-sse "$node" oauth-remote.mjs "$one/sse"
check remote-provider "$node" oauth-remote.mjs "$url/t/house/one/mcp" --provider people
check inspector "$node" oauth-inspector.mjs "$one/mcp"
check strict "$node" oauth-strict.mjs "$one/mcp"
check conformance "$node" oauth-conformance.mjs "$one/mcp"
check conformance-root "$node" oauth-conformance.mjs "$url/mcp"
for version in 1 2; do
  check "step-up-ts$version" "$node" oauth-stepup.mjs "$version" "$url/t/acme/stepped/mcp" test_simple_text
done
for version in 1 2; do
  check "machine-secret-ts$version" "$node" oauth-machine.mjs "$version" "$one/mcp" "$machine_secret"
  check "machine-key-ts$version" "$node" oauth-machine.mjs "$version" "$one/mcp" --key "$work/machine.jwk"
done
check dpop "$node" oauth-dpop.mjs "$one/mcp" "$machine_secret"
check enterprise "$node" oauth-enterprise.mjs "$url/t/house/one/mcp" "$issuer" "$machine_secret"
# Another name of this machine than that of public_url.
check step-up-localhost "$node" oauth-stepup.mjs 2 "${url/127.0.0.1/localhost}/t/acme/stepped/mcp" test_simple_text
check step-up-python "$python" py_stepup.py "$url/t/acme/stepped/mcp" test_simple_text
for kind in mcp sse; do
  for client in ts1 ts2; do
    check "$client-$kind" "$node" "oauth-$client.mjs" "$one/$kind"
    check "$client-$kind-root" "$node" "oauth-$client.mjs" "$url/$kind"
    check "$client-$kind-provider" "$node" "oauth-$client.mjs" "$url/t/house/one/$kind" --provider people
  done
  check "python-$kind" "$python" py_oauth.py "$one/$kind"
  check "python-$kind-root" "$python" py_oauth.py "$url/$kind"
  check "python-$kind-provider" "$python" py_oauth.py "$url/t/house/one/$kind" --provider people
done
if [ -e pages.mjs ]; then
  limit=300 check pages "$node" pages.mjs "$one/mcp" "$url/t/house/one/mcp" "$url/t/acme/connected/mcp"
fi
drain
if ! kill -0 "$gateway" 2>/dev/null; then
  echo "FAILED the gateway ended"
  tail -n 40 "$work/log" "$work/err"
  failed=$((failed + 1))
fi
if grep -aE 'lg[rcas]_[A-Za-z0-9_-]{20}|correct horse' "$work/log" "$work/err"; then
  echo "FAILED a secret stands in the log"
  failed=$((failed + 1))
fi

echo "$passed passed, $failed failed"
[ "$failed" = 0 ] && [ "$passed" -gt 0 ]
