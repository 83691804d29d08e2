"""Prepare: what a session adds to its server's own start once that is prepared."""

import json
import statistics

from .common import BENCH_TARGET, ECHO, Report, bare_open, gateway_open, serving, until

WALLS = {
    "no walls (none, open)": ("none", "open"),
    "profile standard (none, standard)": ("none", "standard"),
    "separation auto (auto, standard)": ("auto", "standard"),
}


def measure(options):
    rounds, opens = (3, 20) if options.quick else (5, 40)
    rows = []
    for name, (separation, profile) in WALLS.items():
        sandbox = {"profile": profile, "read": [str(BENCH_TARGET / "release")]}
        recipe = f"mkdir bin && cp {ECHO} bin/echo-server"
        server = {
            "command": "${prepared}/bin/echo-server",
            "prepare": ["sh", "-c", recipe],
            "sandbox": sandbox,
        }
        tenants = {"acme": {"auth": {"mode": "none"}, "servers": {"echo": server}}}
        sets = [f"sandbox.separation={separation}", "sandbox.shared_uid=true"]
        with serving(options, tenants, *sets) as gateway:

            def is_ready():
                seen = json.loads(gateway.operations("/prepared"))
                if any(one["state"] == "failed" for one in seen):
                    raise RuntimeError(f"not prepared: {seen}")
                return seen and all(one["state"] == "ready" for one in seen)

            until("prepared", is_ready, 60)
            url = gateway.url("acme", "echo")
            bare_open(1)
            first = gateway_open(url, 1)
            pairs = [(gateway_open(url, opens), bare_open(opens)) for _ in range(rounds)]
        added = [ours - bare for ours, bare in pairs]
        middle, worst = statistics.median(added), max(added)
        figures = " / ".join(f"{statistics.median(side):.2f}" for side in zip(*pairs))
        is_target = name.startswith("no walls")
        reached = middle <= 6 and worst <= 6 / 0.85 if is_target else None
        cells = [name, f"{first:.2f}", figures, f"+{middle:.2f}", f"+{worst:.2f}"]
        rows.append([*cells, "≤ +6" if is_target else "", reached])
    text = (
        f"Milliseconds to open a session of a server that was prepared (`cp` into its store), p50 of\n"
        f"{opens} in each of {rounds} rounds, against starting the same server and asking it by hand. The\n"
        "first is one session, right after the preparation. In brackets: `sandbox.separation`, and\n"
        "`sandbox.profile` of the server."
    )
    columns = ["walls", "first", "session / bare", "median", "worst round", "target"]
    return Report(text, columns, rows)
