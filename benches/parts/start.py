"""Start: from the start of the process to the first 200 of /readyz."""

import contextlib
import json
import socket
import statistics
import tempfile
import time
from pathlib import Path

from .cluster import KEY, redis
from .common import ECHO, Report, api_key, free_port, key_hash, running
from .postgres import postgres

TENANTS = 1000
ALONE, MANY = 500, 2000


def manifest(count):
    """So many tenants with an API key and a server each."""
    server = {"command": str(ECHO), "sandbox": {"profile": "open"}}
    tenants = {
        f"t{number}": {
            "auth": {"mode": "keys"},
            "api_keys": {"k": {"hash": key_hash(api_key()), "subject": "s", "servers": ["echo"]}},
            "servers": {"echo": server},
        }
        for number in range(count)
    }
    return json.dumps({"version": 1, "tenants": tenants})


def is_ready(port):
    asked = f"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode()
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as line:
        line.sendall(asked)
        return line.recv(64).startswith(b"HTTP/1.1 200 ")
    return False


def start(options, data, applied, *sets):
    """Milliseconds of one start."""
    port = free_port()
    sets = [f"http.listen=127.0.0.1:{port}", "ops.listen=127.0.0.1:0", f"data_dir={data}", *sets]
    command = [str(options.binary), "serve", "--apply", str(applied), "--set", "telemetry.log=error"]
    for one in [*sets, "sandbox.separation=none", "sandbox.shared_uid=true"]:
        command += ["--set", one]
    began = time.perf_counter()
    with running(command, options.folder / "log") as process:
        while not is_ready(port):
            if process.poll() is not None or time.perf_counter() > began + 60:
                raise RuntimeError(f"it is not ready: {(options.folder / 'log').read_text()}")
            time.sleep(0.001)
        return (time.perf_counter() - began) * 1000


def starts(options, applied, count, prepare):
    """First starts, each with nothing there, and restarts on what the last one left."""
    first, again = [], []
    for _ in range(count):
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, prepare() as sets:
            first.append(start(options, Path(folder) / "data", applied, *sets))
            again += [start(options, Path(folder) / "data", applied, *sets) for _ in range(2)]
    return first, again


@contextlib.contextmanager
def sqlite():
    yield []


@contextlib.contextmanager
def stores():
    """An empty PostgreSQL and an empty Redis."""
    with postgres() as database, redis() as store:
        sets = [f"sql.url={database.url}", f"redis.url={store.url}", f"master_key={KEY}"]
        yield [*sets, "drain.delay=100ms", "cluster.listen=127.0.0.1:0", "public_url=http://127.0.0.1:8080"]


def measure(options):
    count = options.of(10, 3)
    one, many = options.folder / "one.json", options.folder / "many.json"
    one.write_text(manifest(1))
    many.write_text(manifest(TENANTS))
    rows = []
    for name, applied, prepare, target in (
        ("one tenant, SQLite", one, sqlite, ALONE),
        ("one tenant, PostgreSQL and Redis", one, stores, ALONE),
        (f"{TENANTS:,} tenants, SQLite", many, sqlite, MANY),
        (f"{TENANTS:,} tenants, PostgreSQL and Redis", many, stores, MANY),
    ):
        for kind, found in zip(("first start", "restart"), starts(options, applied, count, prepare)):
            middle, worst = statistics.median(found), max(found)
            rows.append([f"{name}: {kind}", f"{middle:,.0f}", f"{worst:,.0f}", f"≤ {target:,}", worst <= target])
    text = (
        f"Milliseconds from the start of the process to the first 200 of `/readyz`, asked every millisecond: {count}\n"
        f"first starts with empty stores, each followed by two restarts. Each applies its manifest: a tenant has an API\n"
        f"key and a server. Reached: the slowest start is within the target."
    )
    return Report(text, ["what", "median", "slowest", "target"], rows)
