"""What the soak runs on: PostgreSQL, Redis, two replicas with a way to Redis each, and a balancer before them."""

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from parts.cluster import Balancer, Replicas, redis
from parts.common import await_port, free_port, running
from parts.postgres import postgres

CUTTER = Path(__file__).with_name("cutter.py")
PASSWORD = secrets.token_urlsafe(16)
PEOPLE = [f"person{number}" for number in range(12)]
# A disk of its own for the data directory, which one can fill: the process stays the same.
OWN_DISK = 'mount -t tmpfs -o size=16m,mode=700 none "$0" && exec "$@"'


class World(Replicas):
    """Two replicas of one gateway with three servers, of two tenants."""

    def __init__(self, options, times, store, database, folder, child):
        self.balancer = Balancer(free_port(), panics=True)
        super().__init__(options, store, folder, child, self.balancer.address)
        self.store, self.database, self.child = store, database, child
        self.ports = [free_port() for _ in range(2)]
        self.ways = []
        self.has_disks = can_mount(folder)
        self.manifest.write_text(json.dumps({"version": 1, "tenants": tenants(child, times)}))
        self.sets = [one for one in self.sets if not one.startswith("redis.url=")]
        self.sets += [f"sql.url={database.url}", "sandbox.shared_uid=true", "oauth.failures=1000000000", "oauth.writes=1000000000"]
        self.sets += [f"session.idle={times.idle}s", f"log.age={times.log}s", f"oauth.access={times.access}s"]
        self.sets += ["oauth.registrations_address=100000", "spawn.wait=5s"]

    def own_sets(self, at):
        return [f"redis.url=redis://127.0.0.1:{self.ports[at]}/0"]

    def command(self, at):
        command = super().command(at)
        if not self.has_disks:
            return command
        self.data(at).mkdir(exist_ok=True)
        return [*wrapper(), "sh", "-c", OWN_DISK, str(self.data(at)), *command]

    def open_ways(self, held):
        for at, port in enumerate(self.ports):
            command = [sys.executable, str(CUTTER), str(port), str(self.store.port)]
            way = held.enter_context(running(command, self.folder / f"way-{at}"))
            await_port(port, way)
            self.ways.append(way)

    def pid(self, at):
        life = self.lives[at]
        return life[0].pid if life else None

    def fill(self, at):
        """Leaves no room on the disk of one of them; the file, to be removed."""
        filler = Path(f"/proc/{self.pid(at)}/root{self.data(at)}/filler")
        with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
            while file.write(b"x" * 4096):
                pass
        return filler

    def children(self):
        """The processes of servers, those included that are nobody's."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if (entry / "cmdline").read_bytes().split(b"\0")[0] == str(self.child).encode():
                        found.append(int(entry.name))
        return found

    def signal_children(self, which, share):
        """To so many of them; how many that was."""
        chosen = [pid for number, pid in enumerate(sorted(self.children())) if number % share == 0]
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, which)
        return len(chosen)


def tenants(child, times):
    open_to_all = {"profile": "open"}
    clocks = {"call": f"{times.call}s", "call_max": "60s", "start": "10s"}
    server = {"command": str(child), "sandbox": open_to_all, "idle": f"{times.child}s", "clocks": clocks}
    shared = server | {"isolation": "tenant", "max_children": 2}
    people = {name: {"password": PASSWORD} for name in PEOPLE}
    people = {"auth": {"mode": "builtin"}, "users": people, "servers": {"echo": server}}
    everybody = {"auth": {"mode": "none"}, "servers": {"child": server, "shared": shared}}
    return {"bench": everybody, "acme": people}


def wrapper():
    return ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]


def can_mount(folder):
    probe = folder / "probe"
    probe.mkdir()
    command = [*wrapper(), "sh", "-c", OWN_DISK, str(probe), "true"]
    return subprocess.run(command, capture_output=True).returncode == 0


@contextlib.contextmanager
def world(options, times, child, logs):
    """All of it; whatever happens, no process is left, and what the replicas logged lies in `logs`."""
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(dir=options.folder)))
        # A name of its own: whoever has it is a child of this soak.
        own = folder / "soak-child"
        shutil.copy(child, own)
        database, store = held.enter_context(postgres()), held.enter_context(redis())
        made = World(options, times, store, database, folder, own)
        made.open_ways(held)
        try:
            for at in range(2):
                made.start(at)
            yield made
        finally:
            for way in made.ways:
                way.send_signal(signal.SIGCONT)
            for at in range(2):
                if made.lives[at]:
                    made.kill(at)
            made.signal_children(signal.SIGKILL, 1)
            for log in folder.glob("log-*"):
                shutil.copy(log, logs)
