"""PostgreSQL and Valkey of a test's own, from the programs that scripts/test installs."""

import os
import pwd
import shutil
import socket
import subprocess
import time
from pathlib import Path

from cluster import variable


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
        programs, data, port = Path(variable("POSTGRES_BIN")), self.directory / "postgres", free_port()
        data.mkdir()
        user = {}
        if os.geteuid() == 0:
            # PostgreSQL refuses root, and root's home is closed to others.
            names = [one.pw_name for one in pwd.getpwall()]
            name = "postgres" if "postgres" in names else "nobody"
            found = pwd.getpwnam(name)
            user = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
            os.chown(data, found.pw_uid, found.pw_gid)
            for directory in (self.directory, self.directory.parent):
                directory.chmod(0o711)
            # The programs, and the libraries that lie beside them in a package of PyPI.
            package = programs.parents[1]
            for part in (package, package.with_name(f"{package.name}.libs")):
                if part.exists():
                    shutil.copytree(part, self.directory / part.name, symlinks=True)
            programs = self.directory / programs.relative_to(package.parent)
        env = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}
        words = ["-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--no-locale", "--wal-segsize=1", "-D", str(data)]
        done = subprocess.run([programs / "initdb", *words], env=env, cwd="/", capture_output=True, text=True, **user)
        assert done.returncode == 0, done.stderr
        words = ["-D", str(data), "-p", str(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
                 "-c", "fsync=off"]
        self.start([str(programs / "postgres"), *words], env=env, cwd="/", **user)
        wait_for("PostgreSQL", connects(port))
        url = f"postgres://postgres@127.0.0.1:{port}/postgres?sslmode=disable"
        return url

    def start(self, words, **options):
        with open(self.directory / f"{Path(words[0]).name}.log", "wb") as log:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **options)
        self.processes.append(process)

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()
