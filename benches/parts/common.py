"""What all parts of scripts/bench use: programs, gateways, and figures of processes."""

import contextlib
import dataclasses
import hashlib
import http.client
import json
import os
import secrets
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BENCHES = ROOT / "benches"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "lockgate"
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", CACHE / "target"))
BENCH_TARGET = Path(os.environ.get("BENCH_TARGET_DIR", CACHE / "bench-target"))
MCPLOAD = BENCH_TARGET / "release" / "mcpload"
ECHO = BENCH_TARGET / "release" / "echo-server"
CHILD = TARGET / "dist" / "examples" / "child"
BRIDGE = BENCH_TARGET / "release" / "minimal-bridge"
SUPERGATEWAY = BENCHES / "node_modules" / ".bin" / "supergateway"
MCP_PROXY = BENCHES / "node_modules" / ".bin" / "mcp-proxy"
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "bench", "version": "1"},
    },
}




@dataclasses.dataclass
class Options:
    """How a part is to be measured."""

    binary: Path
    folder: Path
    quick: bool
    count: int | None
    other: str | None = None
    seed: int | None = None

    def of(self, full, quick):
        """How many: what was asked for, else by whether it has to be quick."""
        return self.count or (quick if self.quick else full)


@dataclasses.dataclass
class Report:
    """What a part found; the last cell of each row is whether its target is reached."""

    text: str
    columns: list
    rows: list


def build_tools():
    environment = os.environ | {"CARGO_TARGET_DIR": str(BENCH_TARGET)}
    environment.pop("RUSTFLAGS", None)
    for name in ("echo-server", "mcpload", "refs"):
        command = ["cargo", "build", "--release", "--locked"]
        subprocess.run(command, cwd=BENCHES / name, env=environment, check=True)


def build():
    build_tools()
    environment = os.environ | {"CARGO_TARGET_DIR": str(TARGET)}
    # As it is deployed.
    command = ["cargo", "build", "--profile", "dist", "--locked", "--bin", "lockgate", "--example", "child"]
    subprocess.run([ROOT / "scripts" / "pgo", *command], cwd=ROOT, env=environment, check=True)
    if not (SUPERGATEWAY.exists() and MCP_PROXY.exists()):
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
        subprocess.run(command, cwd=BENCHES, check=True)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def running(command, log):
    """A process in a group of its own, of which nothing is left behind."""
    with open(log, "ab") as out:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
    try:
        yield child
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            pass
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def await_port(port, child):
    end = time.monotonic() + 15
    while time.monotonic() < end and child.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.05)
    sys.exit(f"nothing listens on port {port}: {child.args}")


def load(url, sessions, concurrency, seconds, *more):
    command = [str(MCPLOAD), "--json", "--url", url, "--sessions", str(sessions)]
    command += ["--concurrency", str(concurrency), "--duration", str(seconds), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 120)
    report = json.loads(done.stdout or '{"failed": "no output"}')
    if report.get("failed") or report.get("errors"):
        raise RuntimeError(f"{shlex.join(command)}: {report} {done.stderr}")
    return report


def versus(urls, one, other, shape, rounds, seconds, figure, more=()):
    """Pairs of figures, measured in turn."""
    pairs = []
    for _ in range(rounds):
        pairs.append([figure(load(urls[kind], *shape, seconds, *more)) for kind in (one, other)])
    return pairs


def rps(report):
    return report["rps"]


def p50(report):
    return report["latency_ms"]["p50"]


def bare_open(count, command=(str(ECHO),)):
    """p50 in ms from starting the bare child to its answer to initialize."""
    line = (json.dumps(INITIALIZE) + "\n").encode()
    times = []
    for _ in range(count):
        began = time.perf_counter()
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, close_fds=False) as child:
            child.stdin.write(line)
            child.stdin.flush()
            child.stdout.readline()
            times.append((time.perf_counter() - began) * 1000)
            child.stdin.close()
    return statistics.median(times)


def gateway_open(url, count, *more):
    report = load(url, count, 1, 0.2, "--warmup", "0", "--open-concurrency", "1", *more)
    return report["open"]["latency_ms"]["p50"]


def rss_kib(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def private_kib(pid):
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def children(pid):
    """The guards of a gateway, or the children of a bridge."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(one) for one in (task / "children").read_text().split()]
    return [one for one in found if not is_zygote(one)]


def is_zygote(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == "lockgate-zygote"
    return False


def ratio_row(name, pairs, target, ceiling=False):
    ratios = [one / other for one, other in pairs]
    middle = statistics.median(ratios)
    if ceiling:
        reached = middle <= target and max(ratios) <= target / 0.85
        worst, bound = max(ratios), "≤"
    else:
        reached = middle >= target and min(ratios) >= 0.85 * target
        worst, bound = min(ratios), "≥"
    ours, theirs = (statistics.median(side) for side in zip(*pairs))
    figures = f"{ours:,.3g} / {theirs:,.3g}" if ceiling else f"{ours:,.0f} / {theirs:,.0f}"
    return name, figures, f"{middle:.2f}", f"{worst:.2f}", f"{bound} {target}", reached


def api_key():
    """An API key as the gateway makes them (src/auth/api_key.rs)."""
    letters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    body = "lgk_" + "".join(secrets.choice(letters) for _ in range(43))
    number = int.from_bytes(hashlib.sha256(body.encode()).digest()[:4], "big")
    end = ""
    for _ in range(6):
        number, digit = divmod(number, 62)
        end = letters[digit] + end
    return body + end


def key_hash(key):
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


@dataclasses.dataclass
class Gateway:
    """One that listens."""

    http: str
    ops: str
    pid: int
    process: subprocess.Popen
    log: Path

    def url(self, tenant, server):
        return f"http://{self.http}/t/{tenant}/{server}/mcp"

    def operations(self, path):
        connection = http.client.HTTPConnection(self.ops, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return connection.getresponse().read().decode()

    def metric(self, name):
        lines = self.operations("/metrics").splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name + " "))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_seconds(self):
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(options, tenants, *sets):
    """`lockgate serve` with these tenants, on SQLite, as few other settings as can be."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        folder = Path(folder)
        manifest = folder / "manifest.json"
        manifest.write_text(json.dumps({"version": 1, "tenants": tenants}))
        command = [str(options.binary), "serve", "--apply", str(manifest)]
        settings = ["http.listen=127.0.0.1:0", "ops.listen=127.0.0.1:0"]
        settings += [f"data_dir={folder / 'data'}", "telemetry.log=warn,lockgate::cli=info", *sets]
        for one in settings:
            command += ["--set", one]
        log = folder / "log"
        with running(command, log) as process:
            yield listening(process, log)


@contextlib.contextmanager
def running_one(options, command, *words):
    """`lockgate run` of one server, with an operations listener."""
    http_port, ops_port = free_port(), free_port()
    line = [str(options.binary), "run", "--listen", f"127.0.0.1:{http_port}"]
    line += ["--set", f"ops.listen=127.0.0.1:{ops_port}", "--set", "telemetry.log=error"]
    log = options.folder / f"run-{http_port}.log"
    with running([*line, *words, "--", *map(str, command)], log) as process:
        await_port(http_port, process)
        addresses = f"127.0.0.1:{http_port}", f"127.0.0.1:{ops_port}"
        yield Gateway(*addresses, process.pid, process, log)


def listening(process, log):
    end = time.monotonic() + 30
    while time.monotonic() < end and process.poll() is None:
        for line in log.read_text().splitlines():
            with contextlib.suppress(ValueError):
                said = json.loads(line)
                if said.get("event") == "listening":
                    return Gateway(said["http"], said["ops"], process.pid, process, log)
        time.sleep(0.02)
    sys.exit(f"it does not listen: {log.read_text()}")


def until(what, is_so, seconds):
    """Waits until it is so; what it was then."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = is_so()
        if found:
            return found
        time.sleep(0.05)
    raise RuntimeError(f"not in {seconds} s: {what}")


class Client:
    """One session over one connection, with nothing hidden."""

    def __init__(self, address, path="/mcp", timeout=60):
        self.connection = http.client.HTTPConnection(address, timeout=timeout)
        self.path = path
        self.id = 0
        self.session = None

    def connect(self):
        self.connection.connect()
        self.connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, method, body=None):
        headers = {"Accept": "application/json, text/event-stream"}
        if self.session:
            headers["Mcp-Session-Id"] = self.session
        if body is not None:
            headers["Content-Type"] = "application/json"
            body = json.dumps(body)
        self.connection.request(method, self.path, body, headers)
        response = self.connection.getresponse()
        self.session = self.session or response.headers.get("Mcp-Session-Id")
        return response.status, response.read().decode("utf-8", "replace")

    def ask(self, method, params):
        """The answer to a request, or what came instead."""
        self.id += 1
        wanted = {"jsonrpc": "2.0", "id": self.id, "method": method, "params": params}
        status, text = self.send("POST", wanted)
        for line in text.splitlines():
            with contextlib.suppress(ValueError):
                message = json.loads(line.removeprefix("data: "))
                if isinstance(message, dict) and message.get("id") == self.id:
                    return message
        return {"status": status, "text": text}

    def open(self):
        answer = self.ask("initialize", INITIALIZE["params"])
        if "result" not in answer:
            raise RuntimeError(f"initialize: {answer}")
        self.send("POST", {"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer["result"]

    def call(self, tool, **arguments):
        return self.ask("tools/call", {"name": tool, "arguments": arguments})

    def delete(self):
        status, _ = self.send("DELETE")
        self.connection.close()
        return status


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]
