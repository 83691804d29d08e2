"""PostgreSQL and Valkey of a test's own, from the programs that scripts/test installs."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

from cluster import ROOT, variable

sys.path.append(str(ROOT / "deploy"))
sys.dont_write_bytecode = True

from bare.stores import postgres  # noqa: E402


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_for(what, is_there, seconds=30):
    end = time.monotonic() + seconds
    while not is_there():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.05)


def connects(port):
    def is_there():
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            return False
        return True

    return is_there


class Stores:
    """Both stores, until `end`."""

    def __init__(self, directory):
        self.directory = Path(directory)
        self.processes = []
        try:
            self.redis = self.start_valkey()
            self.sql = self.start_postgres()
        except BaseException:
            self.end()
            raise

    def start_valkey(self):
        port = free_port()
        words = [variable("VALKEY_SERVER"), "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.start([*map(str, words), "--dir", str(self.directory)])
        wait_for("Valkey", connects(port))
        return f"redis://127.0.0.1:{port}/0"

    def start_postgres(self):
        if os.geteuid() == 0:
            # PostgreSQL runs as another user.
            self.directory.parent.chmod(0o711)
        port = free_port()
        log = self.directory / "postgres.log"
        server = postgres(Path(variable("POSTGRES_BIN")), self.directory / "postgres", port, "a-password", log, "fsync=off")
        server.start()
        self.processes.append(server.process)
        server.wait_ready()
        return f"postgres://lockgate:a-password@127.0.0.1:{port}/lockgate?sslmode=disable"

    def start(self, words, **options):
        with open(self.directory / f"{Path(words[0]).name}.log", "wb") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        self.processes.append(process)

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
