#!/usr/bin/env bash
# The commands of README from its top, as they stand there, one after the other on one data directory:
# ten-commands.sh. Only the port differs, so that it may run beside another gateway, and where things are kept.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here/../.."
work=$(mktemp -d)
gateway=

finish() {
  # The gateways: the one that the commands leave behind, and the one beside it.
  for gateway in $(cat "$work/gateway" "$work/second" 2>/dev/null); do
    kill -TERM "$gateway" 2>/dev/null || true
    for _ in $(seq 100); do kill -0 "$gateway" 2>/dev/null || break; sleep 0.1; done
    kill -KILL "$gateway" 2>/dev/null || true
  done
  rm -rf "$work"
}
trap finish EXIT

# block MARK: the lines of the sh block that follows a line with MARK.
block() { awk -v mark="$1" 'index($0, mark) { on = 1; next } on && /^```sh/ { inside = 1; next } inside && /^```/ { exit } inside' README.md; }

first=$(block "runs this first")
commands=$(block "runs these lines as they stand")
asking=$(block "runs this too")
person=$(block "gives this a password")
count=$(printf '%s\n' "$commands" | wc -l)
if [ "$count" != 10 ]; then
  echo "README has $count commands in place of ten"
  exit 1
fi

port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
# The environment that the commands run in; their own words are not touched but for the port.
export LOCKGATE_HTTP__LISTEN=127.0.0.1:$port LOCKGATE_OPS__LISTEN= LOCKGATE_URL=http://127.0.0.1:$port
export XDG_STATE_HOME=$work/state CARGO_INSTALL_ROOT=$work/installed PATH=$work/installed/bin:$PATH
unset LOCKGATE_KEY LOCKGATE_CONFIG LOCKGATE_APPLY DATABASE_URL

# "Start": the gateway with its demo, which a person ends with Ctrl-C before the next section.
read -r -a start <<<"${first%%#*}"
"${start[@]}" --listen "127.0.0.1:$port" >"$work/run.out" 2>"$work/run.err" &
gateway=$!
echo "$gateway" >"$work/gateway"
url=http://127.0.0.1:$port/mcp
for _ in $(seq 12000); do
  [ "$(head -n 1 "$work/run.out")" = "$url" ] && break
  kill -0 "$gateway" 2>/dev/null || { cat "$work/run.err"; exit 1; }
  sleep 0.1
done
# hello URL FIELD…: the answer to an initialize.
hello() { curl -sS "$1" "${@:2}" -H "Content-Type: application/json" -H "Accept: application/json" \
  -d '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"curl","version":"1"}}}'; }
hello "$url" | grep -q '"protocolVersion":"2025-11-25"'
# The gateway prints the URL that a person writes into a client.
grep -q "claude mcp add --transport http lockgate $url" "$work/run.out"
kill -INT "$gateway"
wait "$gateway" || { echo "the end of lockgate run: $?"; cat "$work/run.err"; exit 1; }
rm "$work/gateway"

cat >"$work/commands.sh" <<SCRIPT
set -euo pipefail
${commands//lockgate.log/$work/lockgate.log}
$asking
SCRIPT
sed -i "s/127\.0\.0\.1:8080/127.0.0.1:$port/g; s|^\(lockgate serve .*\)$|\1 echo \$! >$work/gateway|" "$work/commands.sh"
answer=$(timeout --kill-after=5 "${TEN_COMMANDS_LIMIT:-1500}" bash "$work/commands.sh") || {
  cat "$work/lockgate.log" 2>/dev/null || true
  exit 1
}
printf '%s\n' "$answer" | tail -n 1 | python3 -c '
import json, sys
said = json.load(sys.stdin)
assert said["result"]["protocolVersion"] == "2025-11-25", said
'

# A person with a password, which the environment has in place of a terminal.
LOCKGATE_USER_PASSWORD="correct horse battery" timeout 60 bash -c "$person"
[ "$(lockgate user list acme | wc -l)" = 2 ]

# And they led to what the heading says.
for tenant in acme globex; do
  servers=$(lockgate server list "$tenant" --json | python3 -c 'import json, sys; print(*[one["name"] for one in json.load(sys.stdin)["items"]])')
  [ "$servers" = "one two" ] || { echo "$tenant has: $servers"; exit 1; }
done
[ "$(lockgate tenant list | wc -l)" = 3 ]
[ "$(lockgate key list acme | wc -l)" = 2 ]

# "Start" once more beside it, at another address: neither knows of the other.
lockgate run --listen 127.0.0.1:0 >"$work/second.out" 2>"$work/second.err" &
second=$!
echo "$second" >"$work/second"
for _ in $(seq 200); do [ -s "$work/second.out" ] && break; sleep 0.1; done
hello "$(head -n 1 "$work/second.out")" | grep -q '"protocolVersion":"2025-11-25"'
kill -INT "$second" && wait "$second"
rm "$work/second"
[ "$(lockgate server list acme | wc -l)" = 3 ]
echo "ten commands: ok"
