"""Attacks: what each takes of the gateway, and what another tenant notices of it."""

import contextlib
import dataclasses
import http.client
import json
import multiprocessing
import resource
import socket
import statistics
import tempfile
import time
from pathlib import Path

from .attackers import (
    ATTACKS,
    DEAF,
    MIB,
    REST,
    UNREADING,
    UNREADING_ELSEWHERE,
    WITH_ACCOUNTS,
    attack,
    refuser,
)
from .cluster import KEY, redis
from .common import ECHO, Client, Report, api_key, key_hash, listening, percentile, rss_kib, running, serving, until
from .postgres import postgres

BUDGET = 256
REDIS = 512
DISK = 16
# What a thousand clients that do not read may add (R9).
UNREAD = 64
SETS = (
    f"limits.memory={BUDGET}MiB",
    "sandbox.separation=none",
    "sandbox.shared_uid=true",
    "auth.insecure=true",
)


def measure(options):
    seconds, rounds = 3 if options.quick else 10, options.of(3, 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
    stages = [(stage, name) for stage in (alone, pair) for name in ATTACKS]
    stages.remove((alone, UNREADING_ELSEWHERE))
    rows = [row(options, stage, name, seconds, rounds) for stage, name in stages]
    text = (
        f"Each attack for {seconds} s on a gateway of its own: `limits.memory` {BUDGET} MiB, 20,000 open files. It comes\n"
        f"from other addresses and goes to another tenant than the calls whose p99 is measured, one each 5 ms.\n"
        f"*Two*: replicas over Redis and PostgreSQL; the attack is on the one that has the session, and the calls come by\n"
        f"way of the other. The attackers and their refusals need the machine's processors as well, so that p99 is measured\n"
        f"without an attack, too: *busy*, beside a process that uses a processor, and *refused*, beside the same attack on a\n"
        f"program that refuses all of it at once. Of clients that do not read, a third: with their {DEAF:,} sessions, whose\n"
        f"servers rest, since so many processes alone take some milliseconds of the kernel. Medians of p99 of {rounds} rounds,\n"
        f"of the rest the most of them. Memory: the most that was\n"
        f"resident in a replica, ≤ the budget + 20 %, and ≤ {UNREAD} MiB more for clients that do not read than when all\n"
        f"{DEAF:,} had their sessions. Disk: what the database grew, ≤ {DISK} MiB. Redis: the most that it had, ≤\n"
        f"`log.redis` ({REDIS} MiB) + 20 %. p99 ≤ 2 × the largest one without an attack."
    )
    columns = ["attack", "replicas", "MiB before → most", "disk MiB", "Redis MiB", "open files"]
    return Report(text, [*columns, "p99 ms busy, refused → attacked", "refused calls"], rows)


def row(options, stage, name, seconds, rounds):
    all_rounds = [one_round(options, stage, name, seconds) for _ in range(rounds)]
    without = [statistics.median(times) for times in zip(*(one.without for one in all_rounds), strict=True)]
    during = statistics.median(one.during for one in all_rounds)
    largest = max(all_rounds, key=lambda one: one.most)
    grown, events, files = (max(getattr(one, what) for one in all_rounds) for what in ("grown", "events", "files"))
    refused = sum(one.refused for one in all_rounds)
    is_held = largest.most <= BUDGET * 1.2 and grown <= DISK and events <= REDIS * 1.2
    are_read = name not in (UNREADING, UNREADING_ELSEWHERE)
    is_held = is_held and (are_read or all(one.most - one.small <= UNREAD for one in all_rounds))
    is_held = is_held and during <= 2 * max(without) and not refused
    memory = f"{largest.small:.0f} → {largest.most:.0f}"
    cells = [name, f"{largest.replicas}", memory, f"{grown:.1f}", f"{events:.0f}", f"{files:,}"]
    times = f"{', '.join(f'{one:.2f}' for one in without)} → {during:.2f}"
    print(f"  {cells} {times}, {refused} refused", flush=True)
    return [*cells, times, f"{refused}", is_held]


@dataclasses.dataclass
class Round:
    """One round of an attack: times in ms, sizes in MiB."""

    replicas: int
    without: list
    during: float
    small: float
    most: float
    grown: float
    events: float
    files: int
    refused: int


def one_round(options, stage, name, seconds):
    key = api_key()
    path = f"/t/{'acme' if ATTACKS[name] in WITH_ACCOUNTS else 'open'}/main/mcp"
    with stage(options, declared(key)) as made:
        attacked, other = made.gateways[0], made.gateways[-1]
        client = Quiet(attacked.http, "/t/quiet/main/mcp", key)
        client.open()
        client.move(other.http)
        client.calls(1)
        with beside(burn):
            busy, _ = client.calls(seconds)
        with socket.create_server(("127.0.0.1", 0), backlog=4096) as listener:
            refusing = f"127.0.0.1:{listener.getsockname()[1]}"
            with beside(refuser, listener), beside(attack, name, refusing, path):
                refused_at_once, _ = client.calls(seconds)
        without = [busy, refused_at_once]
        small, disk = max(rss_kib(one.pid) for one in made.gateways), made.disk()
        hosts = f"{attacked.http} {other.http}" if name == UNREADING_ELSEWHERE else attacked.http
        with beside(attack, name, hosts, path) as attacker:
            if name in (UNREADING, UNREADING_ELSEWHERE):
                until("all have sessions", lambda: attacked.metric("lockgate_sessions") > DEAF, 180)
                small = max(rss_kib(one.pid) for one in made.gateways)
                begun = time.monotonic()
                without.append(client.calls(REST / 2)[0])
                time.sleep(max(0, begun + REST + 1 - time.monotonic()))
            watch = Watch(made)
            during, refused = client.calls(seconds, watch)
            if not attacker.is_alive():
                raise RuntimeError(f"the attack has ended: {name}")
        grown = (made.disk() - disk) / MIB
    print(f"    {name}: {', '.join(f'{one:.2f}' for one in without)} → {during:.2f}", flush=True)
    most, events = watch.memory / 1024, watch.redis / MIB
    return Round(
        len(made.gateways), without, during, small / 1024, most, grown, events, watch.files, refused
    )


def declared(key):
    server = {"main": {"command": str(ECHO), "sandbox": {"profile": "open"}}}
    return {
        "quiet": {
            "auth": {"mode": "builtin"},
            "api_keys": {"bench": {"hash": key_hash(key), "subject": "bench", "servers": ["main"]}},
            "servers": server,
        },
        "open": {"auth": {"mode": "none"}, "servers": server},
        "acme": {"auth": {"mode": "builtin", "own_keys": {"max": 5}}, "users": {}, "servers": server},
    }


class Stage:
    """Replicas, and how large their stores are."""

    def __init__(self, gateways, disk, kept):
        self.gateways, self.disk, self.kept = gateways, disk, kept


@contextlib.contextmanager
def alone(options, tenants):
    with serving(options, tenants, *SETS) as gateway:
        folder = Path(gateway.log).parent / "data"
        yield Stage([gateway], lambda: sum(one.stat().st_size for one in folder.glob("*.db*")), lambda: 0)


@contextlib.contextmanager
def pair(options, tenants):
    with contextlib.ExitStack() as stack:
        store, database = stack.enter_context(redis()), stack.enter_context(postgres())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        manifest = folder / "manifest.json"
        manifest.write_text(json.dumps({"version": 1, "tenants": tenants}))
        sets = [*SETS, f"master_key={KEY}", f"redis.url={store.url}", f"sql.url={database.url}"]
        sets += ["public_url=http://127.0.0.1:8080", "http.listen=127.0.0.1:0", "ops.listen=127.0.0.1:0"]
        sets += ["cluster.listen=127.0.0.1:0", "telemetry.log=warn,lockgate::cli=info", f"log.redis={REDIS}MiB"]
        gateways = []
        for at in range(2):
            command = [str(options.binary), "serve", "--apply", str(manifest)]
            for one in [*sets, f"data_dir={folder / f'data-{at}'}"]:
                command += ["--set", one]
            log = folder / f"log-{at}"
            gateways.append(listening(stack.enter_context(running(command, log)), log))

        def kept():
            lines = store.ask("INFO", "memory").splitlines()
            return next(int(line.split(":")[1]) for line in lines if line.startswith("used_memory:"))

        yield Stage(gateways, lambda: int(database.ask("select pg_database_size('postgres')")), kept)


class Quiet(Client):
    """A client of another tenant, with its key."""

    def __init__(self, address, path, key):
        super().__init__(address, path)
        self.key = key

    def send(self, method, body=None):
        connection, inner = self.connection, self.connection.request

        def with_key(method, path, body, headers):
            inner(method, path, body, headers | {"Authorization": f"Bearer {self.key}"})

        connection.request = with_key
        try:
            return super().send(method, body)
        finally:
            connection.request = inner

    def move(self, address):
        """Goes on by way of another replica."""
        self.connection = http.client.HTTPConnection(address, timeout=60)
        self.connect()

    def calls(self, seconds, watch=None):
        """p99 in ms of its calls, and how many were refused."""
        times, refused, end = [], 0, time.monotonic() + seconds
        while time.monotonic() < end:
            began = time.perf_counter()
            answer = self.call("echo", text="x")
            times.append((time.perf_counter() - began) * 1000)
            refused += "result" not in answer
            if watch:
                watch.look()
            time.sleep(0.005)
        # The middle of three parts: one pause of the machine is no attack.
        part = len(times) // 3
        parts = [times[at * part : (at + 1) * part] for at in range(3)]
        return statistics.median(percentile(part, 0.99) for part in parts), refused


class Watch:
    """The most that a replica, and Redis, had."""

    def __init__(self, stage):
        self.stage, self.memory, self.files, self.redis, self.next = stage, 0, 0, 0, 0

    def look(self):
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + 0.2
        self.memory = max([self.memory, *(rss_kib(one.pid) for one in self.stage.gateways)])
        self.files = max([self.files, *(one.descriptors() for one in self.stage.gateways)])
        self.redis = max(self.redis, self.stage.kept())


def burn():
    while True:
        pass


class beside:
    """A process until the end of the block."""

    def __init__(self, target, *words):
        context = multiprocessing.get_context("spawn")
        self.process = context.Process(target=target, args=words, daemon=True)

    def __enter__(self):
        self.process.start()
        time.sleep(0.5)
        return self.process

    def __exit__(self, *_):
        self.process.kill()
        self.process.join()
