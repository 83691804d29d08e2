"""Mutated requests over the wire: what they are answered, and what they leave behind."""

import json
import secrets
import subprocess

from .common import CHILD, MCPLOAD, Report, serving

CONNECTIONS = 4
# The child does not answer messages that its parser refuses: their calls end at a short deadline.
SERVER = {
    "command": str(CHILD),
    "sandbox": {"profile": "open"},
    "clocks": {"start": "5s", "call": "100ms", "call_max": "100ms"},
    "reply": {"sse_after": "50ms"},
}
SETS = (
    "default.tenant=local",
    "default.server=main",
    "log.age=1s",
    "oauth.failures=1000000000", "oauth.writes=1000000000",
    "sandbox.separation=none",
    "sandbox.shared_uid=true",
)


def measure(options):
    count, seed = options.of(1_000_000, 20_000), options.seed or secrets.randbits(32)
    server = {"main": SERVER}
    tenants = {
        "local": {"auth": {"mode": "none"}, "servers": server},
        "acme": {
            "auth": {"mode": "builtin"},
            "users": {"ada": {"password": secrets.token_urlsafe(16)}},
            "servers": server,
        },
    }
    with serving(options, tenants, *SETS) as gateway:
        command = [str(MCPLOAD), "--json", "--url", f"http://{gateway.http}/mcp", "--seed", str(seed)]
        command += ["--mutate", str(count), "--oauth", "/t/acme/oauth", "--pid", str(gateway.pid)]
        command += ["--concurrency", str(CONNECTIONS)]
        print(f"mutations: seed {seed}", flush=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=7200)
        found = json.loads(done.stdout or "{}")
        if "statuses" not in found:
            raise RuntimeError(f"mcpload: {done.stdout} {done.stderr} {gateway.log.read_text()[-4000:]}")
        is_alive = gateway.process.poll() is None
        panics = gateway.log.read_text().count("panicked")
    for fault in found["faults"]:
        print(fault)
    statuses = {int(status): times for status, times in found["statuses"].items()}
    wrong = sum(times for status, times in statuses.items() if status >= 500 and status != 503)
    samples = found["rss_kib"]
    warm = samples[len(samples) // 4 :]
    early, late = warm[: len(warm) // 2], warm[len(warm) // 2 :]
    growth = (min(late) - min(early)) / min(early)
    listed = ", ".join(f"{status}: {times:,}" for status, times in sorted(statuses.items()))
    text = (
        f"Valid requests of all methods, of Streamable HTTP, HTTP+SSE and the authorization server, each with up to\n"
        f"three random changes of its JSON, parameters, bytes, header fields, request line or framing, over\n"
        f"{CONNECTIONS} connections; {found['rps']:,.0f} a second. Memory: the least of the second half after a\n"
        f"warm-up of a quarter, against the least of the first; {min(early) / 1024:.0f} MiB and\n"
        f"{min(late) / 1024:.0f} MiB. Seed {seed}; `--seed` repeats a run. Answers: {listed}."
    )
    rows = [
        ["requests", f"{found['requests']:,}", f"{count:,}", found["requests"] >= count - CONNECTIONS],
        ["answers of 5xx other than 503", f"{wrong:,}", "0", wrong == 0],
        ["sound requests without an answer", f"{found['unanswered']:,}", "0", found["unanswered"] == 0],
        ["restarts and panics", f"{(not is_alive) + panics}", "0", is_alive and not panics],
        ["growth of memory", f"{100 * growth:+.1f} %", "≤ 5 %", growth <= 0.05],
    ]
    return Report(text, ["what", "found", "target"], rows)
