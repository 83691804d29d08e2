"""Prepare: what a session adds to its server's own start once that is prepared."""

import json
import statistics

from .common import (
    BENCH_TARGET,
    ECHO,
    Report,
    bare_open,
    gateway_open,
    running_one,
    serving,
    until,
)

# `lockgate run` puts up no walls; `open` under `serve` still hides the gateway's own files.
WALLS = {
    "none (`lockgate run`)": None,
    "profile open, separation none": ("none", "open"),
    "profile standard, separation none": ("none", "standard"),
    "profile standard, separation auto": ("auto", "standard"),
}
RECIPE = ["sh", "-c", f"mkdir bin && cp {ECHO} bin/echo-server"]
# Behind `--` nothing is filled in: a shell finds the store, here as in the bare start.
BY_SHELL = ["sh", "-c", 'exec "$LOCKGATE_PREPARED/bin/echo-server"']


def gateway_of(options, walls):
    """A gateway whose server is started from its store, its URL, and the bare start."""
    if walls is None:
        sets = ["--set", f"server.prepare={json.dumps(RECIPE)}"]
        return running_one(options, BY_SHELL, *sets), ["sh", "-c", f"exec {ECHO}"]
    separation, profile = walls
    server = {
        "command": "${prepared}/bin/echo-server",
        "prepare": RECIPE,
        "sandbox": {"profile": profile, "read": [str(BENCH_TARGET / "release")]},
    }
    tenants = {"acme": {"auth": {"mode": "none"}, "servers": {"echo": server}}}
    sets = [f"sandbox.separation={separation}", "sandbox.shared_uid=true"]
    return serving(options, tenants, *sets), [str(ECHO)]


def is_prepared(gateway):
    seen = json.loads(gateway.operations("/prepared"))
    if any(one["state"] == "failed" for one in seen):
        raise RuntimeError(f"not prepared: {seen}")
    return seen and all(one["state"] == "ready" for one in seen)


def measure(options):
    rounds, opens = (3, 20) if options.quick else (5, 40)
    rows = []
    for name, walls in WALLS.items():
        serves, bare = gateway_of(options, walls)
        with serves as gateway:
            path = "/mcp" if walls is None else "/t/acme/echo/mcp"
            url = f"http://{gateway.http}{path}"
            until("prepared", lambda: is_prepared(gateway), 60)
            bare_open(1, bare)
            first = gateway_open(url, 1)
            pairs = [(gateway_open(url, opens), bare_open(opens, bare)) for _ in range(rounds)]
        added = [ours - theirs for ours, theirs in pairs]
        middle, worst = statistics.median(added), max(added)
        figures = " / ".join(f"{statistics.median(side):.2f}" for side in zip(*pairs))
        reached = middle <= 6 and worst <= 6 / 0.85 if walls is None else None
        cells = [name, f"{first:.2f}", figures, f"+{middle:.2f}", f"+{worst:.2f}"]
        rows.append([*cells, "≤ +6" if walls is None else "", reached])
    text = (
        f"Milliseconds to open a session of a server that was prepared (`cp` into its store), p50 of\n"
        f"{opens} in each of {rounds} rounds, against starting the same server directly. The\n"
        "first is one session, right after the preparation."
    )
    columns = ["walls", "first", "session / bare", "median", "worst round", "target"]
    return Report(text, columns, rows)
