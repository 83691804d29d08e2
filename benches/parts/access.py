"""Access: what authentication, policy and quotas cost, on one and the same binary."""

from .common import ECHO, Report, api_key, key_hash, ratio_row, rps, running_one, serving, versus

# None of them fits what is called but the last, so that all are looked at.
PATTERNS = [f"{word}_*" for word in "read write list search create move copy delete stat".split()]


def measure(options):
    rounds, seconds = (3, 2) if options.quick else (7, 5)
    key = api_key()
    quotas = {
        "requests_per_second": 1_000_000,
        "sessions": 10_000,
        "streams": 10_000,
        "calls": 10_000,
        "children": 1000,
        "bytes_out": "1GiB",
    }
    principal = {name: bound for name, bound in quotas.items() if name != "children"}
    server = {
        "command": str(ECHO),
        "policy": {"tools": {"allow": [*PATTERNS, "ech?"], "deny": []}},
        # As in `lockgate run`: the walls around a child are no part of this comparison.
        "sandbox": {"profile": "open"},
    }
    tenant = {
        "auth": {"mode": "keys"},
        "quotas": quotas | {"principal": principal},
        "api_keys": {
            "bench": {"hash": key_hash(key), "subject": "bench", "servers": ["echo"]},
        },
        "servers": {"echo": server},
    }
    sets = ["sandbox.separation=none", "sandbox.shared_uid=true"]
    with running_one(options, [ECHO]) as plain, serving(options, {"acme": tenant}, *sets) as full:
        urls = {"plain": f"http://{plain.http}/mcp", "full": full.url("acme", "echo")}
        header = ("--header", f"Authorization: Bearer {key}")
        pairs = versus(urls, "full", "plain", (16, 1), rounds, seconds, rps, header)
    text = (
        f"{rounds} rounds of {seconds} s in turn. `lockgate serve` on SQLite with an API key, ten\n"
        "patterns for tools, and quotas of tenant and principal that are not reached, against\n"
        "`lockgate run` without any of it; the same binary, the same server, the same walls."
    )
    columns = ["what", "with / without", "median", "worst round", "target"]
    return Report(text, columns, [ratio_row("req/s, 16 × 1", pairs, 0.85)])
