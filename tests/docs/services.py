"""What the pages need and readers have: PostgreSQL, Redis, an identity provider, a certificate."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from pages import ROOT


def wait_for(what, is_there, seconds=30):
    until = time.monotonic() + seconds
    while not is_there():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not come up")
        time.sleep(0.05)


class Postgres:
    """A server on the usual port, with the user and the database `lockgate`."""

    def __init__(self, folder):
        programs = Path(os.environ["POSTGRES_BIN"])
        self.folder = Path(tempfile.mkdtemp(prefix="lockgate-docs-pg-"))
        # PostgreSQL refuses to run as root, and another user may not pass through root's home.
        options = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            options = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            package = programs.parents[1]
            for part in (package, package.with_name(f"{package.name}.libs")):
                shutil.copytree(part, self.folder / part.name, symlinks=True)
            programs = self.folder / package.name / "pginstall/bin"
            self.folder.chmod(0o755)
        data = self.folder / "data"
        data.mkdir()
        if options:
            os.chown(data, options["user"], options["group"])
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": "/", **options}
        password = self.folder / "password"
        password.write_text("a-password\n")
        password.chmod(0o644)
        subprocess.run(
            [programs / "initdb", "--pgdata", data, "--username", "lockgate", "--auth", "scram-sha-256"]
            + ["--pwfile", password, "--no-sync", "--encoding", "UTF8", "--locale", "C"],
            check=True,
            **quiet,
        )
        self.server = subprocess.Popen(
            [programs / "postgres", "-D", data, "-c", "fsync=off", "-c", "listen_addresses=127.0.0.1"]
            + ["-c", f"unix_socket_directories={data}"],
            **quiet,
        )
        create = [programs / "psql", "--host", "127.0.0.1", "--username", "lockgate", "--dbname", "postgres"]
        env = {**os.environ, "PGPASSWORD": "a-password"}
        wait_for(
            "PostgreSQL",
            lambda: subprocess.run([*create, "-c", "create database lockgate"], env=env, **quiet).returncode == 0,
        )
        self.values = {"LOCKGATE_SQL__URL": "postgres://lockgate:a-password@127.0.0.1/lockgate?sslmode=disable"}

    def end(self):
        self.server.terminate()
        self.server.wait(20)
        shutil.rmtree(self.folder, ignore_errors=True)


class Redis:
    """A server on the usual port, with a password."""

    def __init__(self, folder):
        self.server = subprocess.Popen(
            [os.environ.get("REDIS_SERVER", "redis-server"), "--requirepass", "a-password", "--save", ""]
            + ["--appendonly", "no", "--maxmemory-policy", "noeviction", "--dir", folder],
            stdout=subprocess.DEVNULL,
        )
        self.values = {"LOCKGATE_REDIS__URL": "redis://:a-password@127.0.0.1:6379/0"}

    def end(self):
        self.server.terminate()
        self.server.wait(20)


class Provider:
    """A real OpenID provider. Its people are who they write that they are."""

    def __init__(self, folder):
        issuer = ROOT / "tests/fixtures/issuer/people.mjs"
        callback = "https://mcp.example.com/t/acme/oauth/callback/corp"
        self.server = subprocess.Popen(
            ["node", issuer, callback], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        url = self.server.stdout.readline().strip()
        if not url:
            raise SystemExit("the OpenID provider did not come up")
        self.values = {"issuer": url, "client_id": "lockgate", "CLIENT_SECRET": "secret"}
        # The reader's provider is at a public address with https; this one is not.
        self.environment = {
            "LOCKGATE_OUTBOUND__ALLOW": '["127.0.0.1/32"]',
            "BROWSER": str(ROOT / "tests/referees/browser.mjs"),
            "BROWSER_PROVIDER": "corp",
            "BROWSER_USERNAME": "grace",
            "BROWSER_TRACE": str(Path(folder, "browser")),
            "MCP_AUTO_OPEN_ENABLED": "true",
            "MCP_INSPECTOR_SECRET_STORE": "file",
        }

    def end(self):
        self.server.stdin.close()
        self.server.wait(20)


class Certificate:
    """A certificate of mcp.example.com from an authority that the clients of this test trust."""

    def __init__(self, folder):
        where = Path(folder, "authority")
        where.mkdir()
        request = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        subprocess.run(
            [*request, "-keyout", where / "tls.key", "-out", where / "tls.crt", "-days", "2"]
            + ["-subj", "/CN=mcp.example.com", "-addext", "subjectAltName=DNS:mcp.example.com"],
            check=True,
            capture_output=True,
        )
        self.values = {
            "LOCKGATE_HTTP__TLS__CERT": str(where / "tls.crt"),
            "LOCKGATE_HTTP__TLS__KEY": str(where / "tls.key"),
        }
        self.environment = {
            "NODE_EXTRA_CA_CERTS": str(where / "tls.crt"),
            "CURL_CA_BUNDLE": str(where / "tls.crt"),
        }

    def end(self):
        pass


SERVICES = {"postgres": Postgres, "redis": Redis, "provider": Provider, "certificate": Certificate}
