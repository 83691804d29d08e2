"""The services of docker-compose.yml with its profile `observability`, as processes on loopback.

The files that Compose mounts are used as they are, but for the addresses. tests/deploy/compose.py holds the
environment and the arguments below to those of docker-compose.yml.
"""

import base64
import contextlib
import json
import os
import re
import resource
import secrets
import socket
import subprocess
from pathlib import Path

from .processes import Process, answers, free_port
from .programs import PROVIDER, ROOT, Failed
from .stores import postgres

DEPLOY = ROOT / "deploy"
PERSON = "ada@example.com"
# The ports that docker-compose.yml publishes; others are taken as they come.
PUBLISHED = {"balancer": 8080, "dex": 5556, "prometheus": 9091}
PORTS = [*PUBLISHED, "postgres", "redis", "lockgate-1", "lockgate-2", "ops-1", "ops-2", "cluster-1", "cluster-2"]
# What starts at the same time, one stage after another, by `depends_on` of docker-compose.yml.
STAGES = [["postgres", "redis", "dex", "prometheus"], ["lockgate-1", "lockgate-2"], ["balancer"]]
# docker-compose.yml: `ulimits` of the gateways and the load balancer.
FILES = 65536
# Prometheus's 15 s are right for a deployment. Whoever tries it waits for two scrapes of each call.
SCRAPE = 2


def substitute(text, pairs, where):
    """Replaces each text, which must be there: a file that changed must not pass unnoticed."""
    for old, new in pairs:
        if old not in text:
            raise Failed(f"{where} has no {old!r} any more; deploy/bare/topology.py replaces it")
        text = text.replace(old, new)
    return text


class Demo:
    """All services, and what they need: ports, secrets, files."""

    def __init__(self, programs, binary, folder, say):
        self.programs, self.binary, self.folder, self.say = programs, Path(binary).resolve(), folder, say
        self.ports = self.kept("ports.json", choose_ports)
        for name, port in self.ports.items():
            if free_port(port) != port:
                raise Failed(f"port {port} of the last start ({name}) is taken; end what listens there, or remove {folder}")
        allow_files()
        self.secrets = self.kept("secrets.json", self.make_secrets)
        self.url = f"http://localhost:{self.ports['balancer']}"
        self.issuer = f"http://127.0.0.1:{self.ports['dex']}"
        self.prometheus_url = f"http://127.0.0.1:{self.ports['prometheus']}"
        (folder / "logs").mkdir(exist_ok=True)
        (folder / "files").mkdir(exist_ok=True)
        # `command: lockgate` in the manifest is this binary, whatever the name of its file.
        self.bin = folder / "bin"
        self.bin.mkdir(exist_ok=True)
        (self.bin / "lockgate").unlink(missing_ok=True)
        (self.bin / "lockgate").symlink_to(self.binary)
        self.secret_file("master_key")
        self.admin_key = self.secret_file("admin_key")

    def kept(self, name, make):
        """What a start writes down for the next one with the same folder."""
        path = self.folder / name
        if not path.exists():
            part = path.with_suffix(".part")
            part.touch(mode=0o600)
            part.write_text(json.dumps(make(), indent=1))
            part.rename(path)
        return json.loads(path.read_text())

    def make_secrets(self):
        """As .env.example tells to make them."""
        said = subprocess.run([self.binary, "key", "new"], capture_output=True, text=True)
        key = re.search(r"\blgk_\w+", said.stdout)
        if said.returncode or not key:
            raise Failed(f"{self.binary} key new: {said.stdout}{said.stderr}")
        return {
            "master_key": base64.b64encode(secrets.token_bytes(32)).decode(),
            "admin_key": key[0],
            "postgres_password": secrets.token_hex(24),
            "redis_password": secrets.token_hex(24),
            "dex_client_secret": secrets.token_hex(24),
            "dex_password": secrets.token_urlsafe(12),
        }

    def secret_file(self, name):
        path = self.folder / name
        path.touch(mode=0o600)
        path.write_text(f"{self.secrets[name]}\n")
        return path

    def file(self, name, source, pairs):
        """A file that Compose mounts, with this machine's addresses."""
        path = self.folder / "files" / name
        path.write_text(substitute((DEPLOY / source).read_text(), pairs, f"deploy/{source}"))
        return path

    def log(self, name):
        return self.folder / "logs" / f"{name}.log"

    def environment(self):
        """Nothing of the user's, whose settings for another gateway must not count here."""
        names = ("HOME", "LANG", "TMPDIR")
        found = {name: os.environ[name] for name in names if name in os.environ}
        return {**found, "PATH": f"{self.bin}:{os.environ.get('PATH', '/usr/bin:/bin')}"}

    def gateway_environment(self):
        """`environment` of the gateways in docker-compose.yml."""
        redis, sql = (f"127.0.0.1:{self.ports[name]}" for name in ("redis", "postgres"))
        manifest = [("issuer: http://dex.localhost:5556/dex", f"issuer: {self.issuer}")]
        return {
            "LOCKGATE_CONFIG": str(DEPLOY / "lockgate.toml"),
            "LOCKGATE_APPLY": str(self.file("manifest.yaml", "manifest.yaml", manifest)),
            "LOCKGATE_MASTER_KEY_FILE": str(self.folder / "master_key"),
            "LOCKGATE_ADMIN_KEY_FILE": str(self.folder / "admin_key"),
            "LOCKGATE_REDIS__URL": f"redis://:{self.secrets['redis_password']}@{redis}/0",
            "LOCKGATE_SQL__URL": f"postgres://lockgate:{self.secrets['postgres_password']}@{sql}/lockgate?sslmode=disable",
            "DEX_CLIENT_SECRET": self.secrets["dex_client_secret"],
            "OTEL_EXPORTER_OTLP_ENDPOINT": "",
        }

    def overrides(self, number):
        """The addresses of deploy/lockgate.toml, which are those of Compose's network."""
        ports = self.ports
        return [
            f"public_url={self.url}",
            f"data_dir={self.folder / f'lockgate-{number}'}",
            f"http.listen=127.0.0.1:{ports[f'lockgate-{number}']}",
            'http.trusted_proxies=["127.0.0.1/32"]',
            f"ops.listen=127.0.0.1:{ports[f'ops-{number}']}",
            f"cluster.listen=127.0.0.1:{ports[f'cluster-{number}']}",
            'outbound.allow=["127.0.0.1/32"]',
        ]

    def postgres(self):
        ports, password = self.ports["postgres"], self.secrets["postgres_password"]
        return postgres(self.programs.postgres, self.folder / "postgres", ports, password, self.log("postgres"))

    def redis(self):
        port, password = self.ports["redis"], self.secrets["redis_password"]
        words = [self.programs.valkey, "-", *REDIS, "--port", port, "--bind", "127.0.0.1", "--dir", self.folder]
        return Process(
            "redis", words, self.log("redis"), self.environment(), stdin=f"requirepass {password}\n",
            is_ready=lambda: redis_answers(port, password),
        )

    def dex(self):
        """In Dex's place: no registry but those of containers has it."""
        environment = self.environment() | {
            "DEX_CLIENT_SECRET": self.secrets["dex_client_secret"],
            "DEX_PASSWORD": self.secrets["dex_password"],
        }
        callback = f"{self.url}/t/acme/oauth/callback/dex"
        words = [self.programs.node, PROVIDER / "person.mjs", self.ports["dex"], callback, PERSON]
        known = f"{self.issuer}/.well-known/openid-configuration"
        return Process("dex", words, self.log("dex"), environment, is_ready=lambda: answers(known))

    def gateway(self, number):
        words = [self.binary, "serve"]
        for one in [*self.overrides(number), *self.separation()]:
            words += ["--set", one]
        ready = f"http://127.0.0.1:{self.ports[f'ops-{number}']}/readyz"
        name = f"lockgate-{number}"
        return Process(
            name, words, self.log(name), self.environment() | self.gateway_environment(), grace=60,
            is_ready=lambda: answers(ready),
        )

    def separation(self):
        """On a machine that separates no children, two tenants need a permission."""
        if not hasattr(self, "shared"):
            words = [self.binary, "check", *(word for one in self.overrides(1) for word in ("--set", one))]
            environment = self.environment() | self.gateway_environment()
            said = subprocess.run(words, env=environment, capture_output=True, text=True)
            if said.returncode:
                raise Failed(f"lockgate check:\n{said.stdout}{said.stderr}")
            self.shared = "separation of children: none" in said.stdout
            if self.shared:
                self.say("note", "nothing on this machine keeps the servers of two tenants apart; sandbox.shared_uid permits them")
        return ["sandbox.shared_uid=true"] if self.shared else []

    def balancer(self):
        ports = self.ports
        pairs = [
            ("bind :8080", f"bind 127.0.0.1:{ports['balancer']}"),
            ("Host localhost:8080", f"Host localhost:{ports['balancer']}"),
            ("server lockgate-1 lockgate-1:8080", f"server lockgate-1 127.0.0.1:{ports['lockgate-1']}"),
            ("server lockgate-2 lockgate-2:8080", f"server lockgate-2 127.0.0.1:{ports['lockgate-2']}"),
            # Addresses need no DNS.
            ("resolvers docker\n    nameserver dns 127.0.0.11:53\n    hold valid 5s\n\n", ""),
            (" resolvers docker init-addr libc,none", ""),
            # Two files for each connection, of as many as this machine permits.
            ("maxconn 20000", f"maxconn {min(20000, (files() - 200) // 2)}"),
        ]
        path = self.file("haproxy.cfg", "haproxy.cfg", pairs)
        words = [self.programs.haproxy, "-W", "-db", "-f", path]
        return Process(
            "balancer", words, self.log("balancer"), self.environment(),
            is_ready=lambda: answers(f"{self.url}/readyz"),
        )

    def prometheus(self):
        ports = self.ports
        alerts = self.file("alerts.yaml", "prometheus/alerts.yaml", [])
        text = (DEPLOY / "prometheus/prometheus.yaml").read_text()
        # The job of the collector, which is not here.
        collector = text[text.index("  - job_name: otel-collector\n"):]
        pairs = [
            (collector, ""),
            ("/etc/prometheus/alerts.yaml", json.dumps(str(alerts))),
            ('"lockgate-1:9090"', f'"127.0.0.1:{ports["ops-1"]}"'),
            ('"lockgate-2:9090"', f'"127.0.0.1:{ports["ops-2"]}"'),
            ("scrape_interval: 15s, evaluation_interval: 15s", f"scrape_interval: {SCRAPE}s, evaluation_interval: {SCRAPE}s"),
        ]
        path = self.file("prometheus.yaml", "prometheus/prometheus.yaml", pairs)
        words = [self.programs.prometheus, f"--config.file={path}", *PROMETHEUS]
        words += [f"--storage.tsdb.path={self.folder / 'prometheus'}", f"--web.listen-address=127.0.0.1:{ports['prometheus']}"]
        return Process(
            "prometheus", words, self.log("prometheus"), self.environment(), grace=20,
            is_ready=lambda: answers(f"{self.prometheus_url}/-/ready"),
        )

    def service(self, name):
        """The process of a service."""
        kind, _, number = name.partition("-")
        return self.gateway(int(number)) if number else getattr(self, kind)()


# The arguments of docker-compose.yml.
REDIS = ["--maxmemory", "512mb", "--maxmemory-policy", "noeviction", "--save", "", "--appendonly", "no"]
PROMETHEUS = ["--storage.tsdb.retention.time=7d"]


def choose_ports():
    taken = {}
    for name in PORTS:
        while (port := free_port(PUBLISHED.get(name, 0))) in taken.values():
            pass
        taken[name] = port
    return taken


def allow_files():
    """Raises the limit of open files for all that is started, as far as this machine permits."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in (max(hard, FILES), hard):
        with contextlib.suppress(ValueError, OSError):
            return resource.setrlimit(resource.RLIMIT_NOFILE, (min(limit, FILES), limit))


def files():
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def redis_answers(port, password):
    try:
        with socket.create_connection(("127.0.0.1", port), 1) as line:
            line.sendall(f"AUTH {password}\r\nPING\r\n".encode())
            said = b""
            while said.count(b"\r\n") < 2 and (part := line.recv(100)):
                said += part
    except OSError:
        return False
    return said == b"+OK\r\n+PONG\r\n"
