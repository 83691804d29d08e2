"""PostgreSQL as a process: its database, made at the first start, and its programs for a user who may run them."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path

from .processes import Process
from .programs import Failed


def postgres(programs, folder, port, password, log, *settings):
    """The server with the user and the database `lockgate`, and this password; settings are `NAME=VALUE`."""
    owner = {}
    folder.mkdir(exist_ok=True)
    if os.geteuid() == 0:
        owner, programs = unprivileged(programs, folder)
    data = folder / "data"
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}

    def run(*words, **more):
        done = subprocess.run(words, env=environment, cwd="/", capture_output=True, text=True, **more, **owner)
        if done.returncode:
            raise Failed(f"{words[0]} failed:\n{done.stdout}{done.stderr}")

    if not (folder / ".complete").exists():
        shutil.rmtree(data, ignore_errors=True)
        data.mkdir(mode=0o700)
        secret = folder / "password"
        secret.touch(mode=0o600)
        secret.write_text(f"{password}\n")
        for path in (data, secret):
            if owner:
                os.chown(path, owner["user"], owner["group"])
        run(programs / "initdb", "--pgdata", data, "--username", "lockgate", "--auth", "scram-sha-256",
            "--pwfile", secret, "--encoding", "UTF8", "--locale", "C", "--no-sync")
        secret.unlink()
        # Without a server, and so without a client that would need the password.
        run(programs / "postgres", "--single", "-D", data, "postgres", input="CREATE DATABASE lockgate\n")
        (folder / ".complete").touch()
    words = [programs / "postgres", "-D", data, "-p", port]
    for one in ("listen_addresses=127.0.0.1", "unix_socket_directories=", *settings):
        words += ["-c", one]
    ask = [programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(port), "-U", "lockgate", "-d", "lockgate"]
    return Process(
        "postgres", words, log, environment, cwd="/", grace=20, **owner,
        is_ready=lambda: subprocess.run(ask, env=environment, cwd="/", **owner).returncode == 0,
    )


def unprivileged(programs, folder):
    """A user for PostgreSQL, which refuses root, and the programs where that user may run them."""
    names = {one.pw_name: one for one in pwd.getpwall()}
    found = names.get("postgres") or names["nobody"]
    owner = {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    # The user passes through the folders, and cannot list them.
    for one in (folder, folder.parent):
        one.chmod(0o711)
    try:
        subprocess.run([programs / "postgres", "--version"], cwd="/", stdout=subprocess.DEVNULL, check=True, **owner)
    except PermissionError:
        # Below root's home: a package of PyPI, with its libraries beside it.
        package = programs.parents[1]
        for part in (package, package.with_name(f"{package.name}.libs")):
            if part.exists() and not (folder / part.name).exists():
                shutil.copytree(part, folder / part.name, symlinks=True)
        programs = folder / package.name / programs.relative_to(package)
    return owner, Path(programs)
