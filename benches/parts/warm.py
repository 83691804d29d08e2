"""Warm: how long a request waits before a child that was kept warm reads its `initialize`."""

import json
import statistics
import sys
import time

from .common import BENCHES, Client, Report, percentile, running_one, until


def arrivals(options, warm, count):
    """ms from just before each request is written to when its child read it."""
    sets = ["--set", f"server.warm={warm}"]
    times = []
    with running_one(options, [sys.executable, "-S", BENCHES / "stamp.py"], *sets) as gateway:

        def is_calm():
            """As many children as are kept warm, all up and waiting: no CPU is used any more."""
            kept = json.loads(gateway.operations("/children"))
            used = sum(one["cpu"] for one in kept)
            is_so = len(kept) == warm and used == is_calm.used
            is_calm.used = used
            return is_so

        is_calm.used = -1
        for _ in range(count):
            until("warm children", is_calm, 20)
            client = Client(gateway.http)
            client.connect()
            began = time.monotonic_ns()
            said = client.open()
            times.append((int(said["serverInfo"]["version"]) - began) / 1e6)
            client.delete()
    return times


def measure(options):
    count = 40 if options.quick else 200
    warm, cold = arrivals(options, 2, count), arrivals(options, 0, count // 4)
    middle, late = statistics.median(warm), percentile(warm, 0.99)
    rows = [
        ["warm: 2, p50", f"{middle:.2f}", "< 5", middle < 5],
        ["warm: 2, p99", f"{late:.2f}", "", None],
        ["warm: 0, p50", f"{statistics.median(cold):.2f}", "", None],
    ]
    text = (
        f"{count} sessions, one after the other, of a Python server; milliseconds from writing the HTTP\n"
        "request to the server's reading `initialize`. Each waits until two children are warm again."
    )
    return Report(text, ["what", "ms", "target"], rows)
