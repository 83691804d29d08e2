"""Hops: what a request by way of another replica costs, and what sessions in Redis do and cost."""

import collections
import concurrent.futures
import contextlib
import statistics
import time

from .cluster import redis, two
from .common import ECHO, Report, listening, load, p50, running


def measure(options):
    # Short and many: this compares two loads on a machine whose others come and go.
    rounds, seconds = (2, 2) if options.quick else (11, 3)
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(redis())
        replicas = stack.enter_context(two(options, store, ECHO))
        here, there = (f"http://{address}/t/bench/child/mcp" for address in replicas.addresses)
        memory = f"http://{stack.enter_context(alone(options, replicas))}/t/bench/child/mcp"
        pairs, waits, kinds, asked, events = [], [], [], [], []
        for _ in range(rounds):
            direct = load(here, 16, 1, seconds)
            hopped = load(there, 16, 1, seconds, "--open-url", here)
            pairs.append((hopped["rps"], direct["rps"]))
            direct = load(here, 1, 1, seconds)
            hopped = load(there, 1, 1, seconds, "--open-url", here)
            waits.append((p50(hopped), p50(direct)))
            watched, busy, idle = commands(store, here, seconds)
            asked.append((sum(busy.values()) - sum(idle.values())) / watched["rps"])
            kinds.append((watched["rps"], load(memory, 16, 1, seconds)["rps"]))
            sent = [load(url, 8, 1, 1, "--events", str(20_000 if options.quick else 100_000)) for url in (here, memory)]
            events.append([one["events_per_s"] for one in sent])
    added = [hopped - direct for hopped, direct in waits]
    middle, worst = statistics.median(added), max(added)
    figures = " / ".join(f"{statistics.median(side):.3f}" for side in zip(*waits))
    shown = ", ".join(f"{name} {rate:.1f}" for name, rate in busy.most_common(8))
    shown = f"{sum(idle.values()):.0f} a second without calls, {sum(busy.values()):.0f} with: {shown}"
    each = statistics.median(asked)
    figures_of = " / ".join(f"{statistics.median(side):,.0f}" for side in zip(*events))
    middle_of = statistics.median(one for one, _ in events)
    rows = [
        compared("req/s by way of the other / at the owner, 16 × 1", pairs, 0.7),
        ["p50 ms, by way of the other / at the owner, 1 × 1", figures, f"+{middle:.3f}", "≤ +0.25", middle <= 0.25],
        compared("req/s with Redis / in memory, 16 × 1, as JSON", kinds, 0.9),
        ["events/s of 8 streams at once, with Redis / in memory", figures_of, f"{middle_of:,.0f}", "≥ 100,000", middle_of >= 100_000],
        ["commands of Redis a call", shown, f"{each:.4f}", "≤ 0.01", each <= 0.01],
    ]
    text = f"{rounds} rounds of {seconds} s in turn, medians; worst p50 +{worst:.3f} ms."
    return Report(text, ["what", "figures", "result", "target"], rows)


def compared(name, pairs, target):
    middle = statistics.median(one / other for one, other in pairs)
    figures = " / ".join(f"{statistics.median(side):,.0f}" for side in zip(*pairs))
    return [name, figures, f"{middle:.2f}", f"≥ {target}", middle >= target]


def commands(store, url, seconds):
    """A load, the commands a second that Redis was given in its middle, and those without any calls."""
    before = given(store, 2)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # Its sessions are open when it warms up.
        loading = pool.submit(load, url, 16, 1, seconds, "--warmup", "4")
        time.sleep(4)
        found = given(store, seconds / 2)
        return loading.result(), found, before


def given(store, seconds):
    before = store.calls()
    time.sleep(seconds)
    after = store.calls()
    rates = {name: (count - before.get(name, 0)) / seconds for name, count in after.items()}
    return collections.Counter({name: rate for name, rate in rates.items() if rate})


@contextlib.contextmanager
def alone(options, replicas):
    """A gateway of the same settings that keeps sessions in memory; its address."""
    folder = replicas.folder
    sets = [one for one in replicas.sets if not one.startswith(("redis.", "cluster."))]
    command = [str(options.binary), "serve", "--apply", str(replicas.manifest)]
    for one in ["http.listen=127.0.0.1:0", f"data_dir={folder / 'alone'}", *sets]:
        command += ["--set", one]
    log = folder / "log-alone"
    with running(command, log) as process:
        yield listening(process, log).http
