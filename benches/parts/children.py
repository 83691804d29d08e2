"""Children: hostile ones by the thousand, of which nothing may be left."""

import concurrent.futures
import contextlib
import os
import random
import secrets
import time
from pathlib import Path

from .common import CHILD, Client, Report, children, rss_kib, running_one, until

# Each is a way of not going away, and a way to be ended.
KINDS = [
    ("exit",),
    ("forks", "exit"),
    ("tree", "delete"),
    ("tree", "crash"),
    ("ignore", "delete"),
    ("ignore", "tree", "delete"),
    ("flood", "delete"),
    ("stderr", "delete"),
    ("closed", "delete"),
    ("deaf", "delete"),
]
AT_ONCE = 8
BATCH = 100
# After so many a gateway has all that it takes at its first use.
FIRST = 2
# Every so many batches end with the gateway itself killed.
KILLED = 10


def behave(client, what):
    """One misdeed; answers are of no interest."""
    match what:
        case "exit":
            client.call("exit", code=3)
        case "crash":
            client.call(random.choice(["abort", "segv"]))
        case "forks":
            client.call("forks", n=5)
        case "tree":
            client.call("spawn_tree")
        case "ignore":
            client.call("ignore_term")
        case "flood":
            client.call("flood", n=100_000)
        case "stderr":
            client.call("stderr", bytes=2_000_000)
        case "closed":
            client.call("close_stdin")
        case "deaf":
            client.call("stop_reading")
        case "delete":
            client.delete()


def one(address, kind, is_left):
    """A session whose child misbehaves; ended, or left for the gateway's own end."""
    client = Client(address)
    with contextlib.closing(client.connection):
        client.open()
        for what in kind:
            if is_left and what == "delete":
                return
            behave(client, what)
        if kind[-1] != "delete" and not is_left:
            client.delete()


def marked(marker):
    """Processes with the mark in their environment, and those that nobody has waited for."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if marker in Path(entry.path, "environ").read_bytes():
                    found.append(int(entry.name))
    return found


def zombies(pid):
    def is_dead(child):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{child}/stat").read_text()
            return stat.rsplit(")", 1)[1].split()[0] == "Z"
        return False

    return sum(is_dead(child) for child in children(pid))


def batch(address, number, is_left, pool):
    kinds = [KINDS[(number * BATCH + at) % len(KINDS)] for at in range(BATCH)]
    running = [pool.submit(one, address, kind, is_left) for kind in kinds]
    failed = [done.exception() for done in running if done.exception()]
    if failed:
        raise RuntimeError(f"{len(failed)} of {BATCH}: {failed[0]!r}")


def measure(options):
    count = options.of(10_000, 300)
    batches = max(FIRST + 2, count // BATCH)
    killed = min(KILLED, batches)
    marker = f"BENCH_MARKER={secrets.token_hex(8)}"
    words = ["--env", marker, "--set", "server.clocks.stop=[\"100ms\", \"200ms\"]"]
    words += ["--set", "server.clocks.call=20s"]
    left = {"survivors": 0, "zombies": 0, "descriptors": 0, "memory": 0.0, "kills": 0, "seen": 0}
    began, done = time.monotonic(), 0
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        while done < batches:
            with running_one(options, [CHILD], *words) as gateway:
                done = round_of(gateway, done, min(done + killed, batches), pool, marker, left)
    took = time.monotonic() - began
    rows = [
        ["processes of theirs, seen before a SIGKILL", str(left["seen"]), f"≥ {BATCH}", left["seen"] >= BATCH],
        ["survivors", str(left["survivors"]), "0", left["survivors"] == 0],
        ["zombies", str(left["zombies"]), "0", left["zombies"] == 0],
        ["descriptors above the baseline", str(left["descriptors"]), "0", left["descriptors"] <= 0],
        ["% of memory above the baseline", f"{left['memory']:.1f}", "≤ 5", left["memory"] <= 5],
    ]
    text = (
        f"{batches * BATCH:,} children in {took:.0f} s, {AT_ONCE} at a time: they exit at once, crash, fork into\n"
        "sessions of their own, orphan grandchildren, ignore SIGTERM and the end of stdin, flood stdout\n"
        "and stderr, close stdin, stop reading. Ended by DELETE, by their crash, and the last of each\n"
        f"{killed * BATCH:,} by SIGKILL of the gateway ({left['kills']} times, {BATCH} children each). The baseline is that\n"
        f"of each gateway after its first {FIRST * BATCH} children."
    )
    return Report(text, ["what is left", "found", "target"], rows)


def is_back(gateway, baseline):
    return gateway.descriptors() <= baseline[0] and rss_kib(gateway.pid) <= baseline[1] * 1.05


def round_of(gateway, done, end, pool, marker, left):
    """Batches on one gateway, of which the last ends with it; the number of the next one."""
    mark = marker.encode()
    baseline, begun = None, done
    while done < end:
        is_last = done == end - 1
        batch(gateway.http, done, is_last, pool)
        done += 1
        if is_last:
            break
        with contextlib.suppress(RuntimeError):
            until("no survivor", lambda: not marked(mark), 20)
            until("all streams ended", lambda: gateway.metric("lockgate_children") == 0, 20)
        left["survivors"] += len(marked(mark))
        left["zombies"] += zombies(gateway.pid)
        if baseline:
            # The question above has a connection, which lingers a moment.
            with contextlib.suppress(RuntimeError):
                until("what it was before", lambda: is_back(gateway, baseline), 5)
        figures = gateway.descriptors(), rss_kib(gateway.pid)
        if done == begun + FIRST:
            baseline = figures
    if baseline:
        left["descriptors"] = max(left["descriptors"], figures[0] - baseline[0])
        left["memory"] = max(left["memory"], (figures[1] / baseline[1] - 1) * 100)
    left["seen"] = max(left["seen"], len(marked(mark)))
    gateway.process.kill()
    gateway.process.wait()
    left["kills"] += 1
    with contextlib.suppress(RuntimeError):
        until("no survivor", lambda: not marked(mark), 20)
    left["survivors"] += len(marked(mark))
    return done
