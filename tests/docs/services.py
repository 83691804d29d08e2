"""What the pages need and readers have: PostgreSQL, Redis, an identity provider, a certificate."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pages import ROOT

sys.path.append(str(ROOT / "deploy"))
sys.dont_write_bytecode = True

from bare.stores import postgres  # noqa: E402


def wait_for(what, is_there, seconds=30):
    until = time.monotonic() + seconds
    while not is_there():
        if time.monotonic() > until:
            raise SystemExit(f"{what} did not come up")
        time.sleep(0.05)


class Postgres:
    """A server on the usual port, with the user and the database `lockgate`."""

    def __init__(self, folder):
        self.folder = Path(tempfile.mkdtemp(prefix="lockgate-docs-pg-"))
        programs, log = Path(os.environ["POSTGRES_BIN"]), self.folder / "log"
        self.server = postgres(programs, self.folder / "postgres", 5432, "a-password", log, "fsync=off")
        self.server.start()
        self.server.wait_ready()
        self.values = {"LOCKGATE_SQL__URL": "postgres://lockgate:a-password@127.0.0.1/lockgate?sslmode=disable"}

    def end(self):
        # Whoever is still connected is cut off.
        self.server.ask_to_end(signal.SIGINT)
        self.server.wait_end()
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
