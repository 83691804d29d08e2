"""Attacks: what each takes of the gateway, and what another tenant notices of it."""

import multiprocessing
import resource
import statistics
import time
from pathlib import Path

from .attackers import ATTACKS, attack
from .common import ECHO, Client, Report, api_key, key_hash, percentile, rss_kib, serving

BUDGET = 256
DISK = 16
SETS = (
    f"limits.memory={BUDGET}MiB",
    "sandbox.separation=none",
    "sandbox.shared_uid=true",
    "auth.insecure=true",
)


def measure(options):
    seconds = options.of(10, 3)
    resource.setrlimit(resource.RLIMIT_NOFILE, (20_000, 20_000))
    rows = [row(options, name, seconds) for name in ATTACKS]
    text = (
        f"Each attack for {seconds} s on a gateway of its own: `limits.memory` {BUDGET} MiB, 20,000 open files, SQLite. It comes\n"
        f"from other addresses and goes to another tenant than the calls whose p99 is measured, one each 5 ms.\n"
        f"*Before* is with a process beside it that uses a processor, as the attacks do. Memory: the most that was\n"
        f"resident, ≤ the budget + 20 %. Disk: what the database grew, ≤ {DISK} MiB. p99 ≤ 2 × before."
    )
    columns = ["attack", "MiB before → most", "disk MiB", "open files", "p99 ms before → with", "refused calls"]
    return Report(text, columns, rows)


def row(options, name, seconds):
    key = api_key()
    server = {"main": {"command": str(ECHO), "sandbox": {"profile": "open"}}}
    tenants = {
        "quiet": {
            "auth": {"mode": "builtin"},
            "api_keys": {"bench": {"hash": key_hash(key), "subject": "bench", "servers": ["main"]}},
            "servers": server,
        },
        "open": {"auth": {"mode": "none"}, "servers": server},
        "acme": {"auth": {"mode": "builtin"}, "users": {}, "servers": server},
    }
    is_oauth = name in ("registrations, and changes that change nothing", "requests that begin a log-in")
    path = f"/t/{'acme' if is_oauth else 'open'}/main/mcp"
    with serving(options, tenants, *SETS) as gateway:
        client = Quiet(gateway.http, "/t/quiet/main/mcp", key)
        client.open()
        client.calls(1)
        with beside(burn):
            before, _ = client.calls(seconds)
        small, disk = rss_kib(gateway.pid), size(gateway)
        with beside(attack, name, gateway.http, path) as attacker:
            watch = Watch(gateway)
            during, refused = client.calls(seconds, watch)
            if not attacker.is_alive():
                raise RuntimeError(f"the attack has ended: {name}")
        grown = (size(gateway) - disk) / (1 << 20)
    most, files = watch.memory / 1024, watch.files
    is_held = most <= BUDGET * 1.2 and grown <= DISK and during <= 2 * before and not refused
    cells = [name, f"{small / 1024:.0f} → {most:.0f}", f"{grown:.1f}", f"{files:,}"]
    print(f"  {cells} {before:.2f} → {during:.2f}, {refused} refused", flush=True)
    return [*cells, f"{before:.2f} → {during:.2f}", f"{refused}", is_held]


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
    """The most that a gateway had."""

    def __init__(self, gateway):
        self.gateway, self.memory, self.files, self.next = gateway, 0, 0, 0

    def look(self):
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + 0.2
        self.memory = max(self.memory, rss_kib(self.gateway.pid))
        self.files = max(self.files, self.gateway.descriptors())


def size(gateway):
    """Bytes of the database."""
    folder = Path(gateway.log).parent / "data"
    return sum(one.stat().st_size for one in folder.glob("*.db*"))


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
