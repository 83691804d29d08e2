"""Abandoned: sessions that nobody deletes; what is left of them when their time is over."""

import contextlib
import json
import tempfile
import time
from pathlib import Path

from .cluster import Replicas, redis
from .common import ECHO, Report, load, rss_kib, serving, until

# So many at a time: they are opened and used before the first of them expires.
BATCH, ROUND = 500, 5000
# After so many rounds an allocator has what it keeps.
FIRST = 4
# Of each batch: with a child each. The others share one, so that the gateway is what is measured.
OWN = 10
IDLE = 5
# A session in Redis lives a minute longer than at its owner.
REDIS = IDLE + 60
SETTLED = 10


def tenants():
    server = {"command": str(ECHO), "sandbox": {"profile": "open"}, "idle": f"{IDLE}s"}
    servers = {"own": server, "shared": server | {"isolation": "tenant"}}
    return {"bench": {"auth": {"mode": "none"}, "servers": servers}}


@contextlib.contextmanager
def alone(options):
    """One gateway with its sessions in memory."""
    sets = ["sandbox.separation=none", f"session.idle={IDLE}s", "spawn.wait=60s"]
    with serving(options, tenants(), *sets) as gateway:
        yield [gateway], None


@contextlib.contextmanager
def replicated(options):
    """Two replicas over one Redis."""
    with redis() as store, tempfile.TemporaryDirectory(dir=options.folder) as folder:
        sets = [f"session.idle={IDLE}s", "spawn.wait=60s"]
        replicas = Replicas(options, store, Path(folder), ECHO, "127.0.0.1:8080", *sets)
        replicas.manifest.write_text(json.dumps({"version": 1, "tenants": tenants()}))
        try:
            for at in range(2):
                replicas.start(at)
            yield replicas.gateways, store
        finally:
            for at, life in enumerate(replicas.lives):
                if life:
                    replicas.kill(at)


def abandon(gateway, server, count):
    """Sessions that are opened, used once and left, with their connections."""
    more = ["--no-delete", "--warmup", "0"]
    opened = load(gateway.url("bench", server), count, 1, 0.1, *more)["sessions"]
    if opened != count:
        raise RuntimeError(f"{opened} sessions of {count}")


def are_gone(gateways):
    """Sessions, streams, and children with what was theirs."""
    names = ("lockgate_sessions", "lockgate_streams_open", "lockgate_children")
    return not any(gateway.metric(name) for gateway in gateways for name in names)


def rounds(gateways, count):
    """So many sessions, each round gone before the next: memory is that of one round."""
    for number in range(count // ROUND):
        gateway = gateways[number % len(gateways)]
        for _ in range(ROUND // BATCH):
            abandon(gateway, "shared", BATCH - OWN)
            abandon(gateway, "own", OWN)
        until("no session", lambda: are_gone(gateways), IDLE * 10 + 60)


def settled(gateways, store):
    """Each one's KiB and descriptors, and the keys in Redis, when the time of the last session is over."""
    time.sleep(REDIS if store else SETTLED)
    keys = int(store.ask("DBSIZE")) if store else 0
    return [rss_kib(one.pid) for one in gateways], [one.descriptors() for one in gateways], keys


def kind(name, world, options, count):
    """Rows of one backend of sessions."""
    with world(options) as (gateways, store):
        fresh = [rss_kib(one.pid) for one in gateways]
        rounds(gateways, FIRST * ROUND * len(gateways))
        before = settled(gateways, store)
        began = time.monotonic()
        rounds(gateways, count)
        took = time.monotonic() - began
        after = settled(gateways, store)
    share = count / len(gateways)
    rows = []
    for at in range(len(gateways)):
        was, now = before[0][at], after[0][at]
        grown, left = 100 * (now / was - 1), 1024 * (now - fresh[at]) / share
        which = f"{name}, replica {at + 1}" if store else name
        rows += [
            [f"{which}: KiB", f"{was:,} → {now:,}", f"{grown:+.1f} %", "≤ 5 %", grown <= 5],
            [f"{which}: bytes left of each, from the start", f"{fresh[at]:,} → {now:,} KiB", f"{left:,.0f}", "≤ 1,024", left <= 1024],
        ]
        opened = after[1][at] - before[1][at]
        rows.append([f"{which}: descriptors", f"{before[1][at]} → {after[1][at]}", f"{opened:+}", "≤ 0", opened <= 0])
    if store:
        rows.append([f"{name}: keys in Redis", f"{before[2]} → {after[2]}", f"{after[2] - before[2]:+}", "≤ 0", after[2] <= before[2]])
    return rows, took


def measure(options):
    count = max(2 * ROUND, options.of(100_000, 2 * ROUND))
    rows, took = kind("in memory", alone, options, count)
    more, longer = kind("with Redis", replicated, options, count)
    text = (
        f"{count:,} sessions that are initialized, called once and left, over loopback, once to a gateway with\n"
        f"sessions in memory ({took:.0f} s) and once to two replicas over Redis ({longer:.0f} s); `session.idle` is {IDLE} s.\n"
        f"{OWN} of each {BATCH} have a child each, the others share one. Before: after\n"
        f"{FIRST * ROUND:,} more to each gateway, for what an allocator keeps; at the start: before any session."
    )
    return Report(text, ["what", "figures", "result", "target"], [*rows, *more])
