"""Idle: what sessions with an open stream cost the gateway that nobody says anything on."""

import contextlib
import json
import subprocess
import time

from .common import ECHO, MCPLOAD, Client, Report, percentile, rss_kib, running_one, until


@contextlib.contextmanager
def listening(url, count):
    """A process that holds so many sessions, each with its listener open."""
    command = [str(MCPLOAD), "--json", "--url", url, "--idle", str(count), "--no-delete"]
    command += ["--duration", "3600", "--open-concurrency", "16"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as loader:
        try:
            yield
        finally:
            loader.kill()


def knock(gateway, count):
    """p99 in ms of requests that each come on a new connection, of a session that is there."""
    known = Client(gateway.http)
    known.open()
    times = []
    for _ in range(count):
        client = Client(gateway.http)
        client.session = known.session
        began = time.perf_counter()
        answer = client.ask("tools/list", {})
        times.append((time.perf_counter() - began) * 1000)
        if "result" not in answer:
            raise RuntimeError(f"a new request: {answer}")
        client.connection.close()
    known.delete()
    return percentile(times, 0.99)


def measure(options):
    count = options.of(10_000, 1000)
    few, knocks, rest = count // 10, 300 if options.quick else 1000, 10 if options.quick else 30
    sets = ["--set", "server.isolation=tenant"]
    with running_one(options, [ECHO], *sets) as gateway, contextlib.ExitStack() as held:
        url = f"http://{gateway.http}/mcp"

        def are_open(number):
            opened = lambda: gateway.metric("lockgate_streams_open") >= number  # noqa: E731
            until(f"{number} open streams", opened, 300)

        knock(gateway, 100)
        before = knock(gateway, knocks)
        held.enter_context(listening(url, few))
        are_open(few)
        small = rss_kib(gateway.pid)
        held.enter_context(listening(url, count - few))
        are_open(count)
        # The last of what opening them took is over.
        time.sleep(2)
        large = rss_kib(gateway.pid)
        began, used = time.monotonic(), gateway.cpu_seconds()
        time.sleep(rest)
        load = (gateway.cpu_seconds() - used) / (time.monotonic() - began) * 100
        settled = rss_kib(gateway.pid)
        after = knock(gateway, knocks)
        still = gateway.metric("lockgate_streams_open")
        kept = json.loads(gateway.operations("/children"))
    slope = (max(large, settled) - small) / (count - few)
    rows = [
        [f"KiB a session, {few:,} to {count:,}", f"{small:,} → {large:,}", f"{slope:.1f}", "≤ 32", slope <= 32],
        [f"% of a core, idle for {rest} s", "", f"{load:.1f}", "≤ 5", load <= 5],
        ["p99 ms of a new request, before → with them", f"{before:.2f} → {after:.2f}", f"{after / before:.2f}", "≤ 2", after <= 2 * before],
        ["streams still open at the end", "", f"{still:,.0f}", f"≥ {count:,}", still >= count],
        ["children", "", str(len(kept)), "1", len(kept) == 1],
    ]
    text = (
        f"{count:,} sessions of `lockgate run` on one shared child (`isolation: tenant`), each with its\n"
        f"GET stream open; a comment every 15 s on each. p99 of {knocks:,} requests."
    )
    return Report(text, ["what", "figures", "result", "target"], rows)
