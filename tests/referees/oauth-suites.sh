#!/usr/bin/env bash
# The conformance suites of conformance.sh against servers that want an access token:
# oauth-suites.sh URL POLLING_URL. A small proxy before each adds one.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
node="$here/node_modules/.bin/node"
work=$(mktemp -d)
proxies=()

finish() {
  for pid in "${proxies[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap finish EXIT

# through URL: the URL of a proxy before it goes to $found
through() {
  local name=$work/${#proxies[@]}
  mkfifo "$name.in"
  # It is read before the proxy may have opened it.
  : >"$name.out"
  "$node" "$here/bearer-proxy.mjs" "$1" <"$name.in" >"$name.out" 2>"$name.err" &
  proxies+=("$!")
  exec {held}>"$name.in"
  for _ in $(seq 600); do
    found=$(head -n 1 "$name.out")
    [ -z "$found" ] || return 0
    kill -0 "${proxies[-1]}" 2>/dev/null || break
    sleep 0.1
  done
  cat "$name.err"
  exit 1
}

through "${1:?usage: oauth-suites.sh URL POLLING_URL}"
url=$found
through "${2:?usage: oauth-suites.sh URL POLLING_URL}"
"$here/conformance.sh" "$url" "$found"
