"""Speed: Lockgate as installed and with everything on, held against a minimal bridge, and supergateway
and mcp-proxy of npm.

Each has the machine for itself, one after the other, in each round anew: that is how a user runs it.
"""

import contextlib
import json
import os
import shlex
import statistics
import subprocess
import time
from pathlib import Path

from .common import (
    BRIDGE,
    ECHO,
    MCP_PROXY,
    MCPLOAD,
    SUPERGATEWAY,
    Report,
    api_key,
    await_port,
    bare_open,
    children,
    free_port,
    gateway_open,
    key_hash,
    listening,
    load,
    p50,
    private_kib,
    rps,
    rss_kib,
    running,
)

BIG = ("--payload-bytes", "65536")
# Name, sessions and concurrency, more arguments of the load.
SHAPES = (
    ("16 × 1", (16, 1), ()),
    ("1 × 32", (1, 32), ()),
    ("1 × 1", (1, 1), ()),
    ("64 × 1", (64, 1), ()),
    ("256 × 1", (256, 1), ()),
    ("1,024 × 1", (1024, 1), ()),
    ("64 KiB, 16 × 1", (16, 1), BIG),
)
FULL = "key, policy, quotas, sandbox, log"
QUOTAS = {"requests_per_second": 1_000_000, "sessions": 10_000, "streams": 10_000, "calls": 10_000}


@contextlib.contextmanager
def subject(kind, binary, folder):
    """A gateway that runs one command: its URL and process id."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    run = [str(binary), "run", "--listen", f"127.0.0.1:{port}"]
    commands = {
        # Without a log, for comparisons of builds.
        "lockgate": [*run, "--set", "telemetry.log=error", "--", str(ECHO)],
        "run": [*run, "--", str(ECHO)],
        "bridge": [str(BRIDGE), "--child-per-session", str(port), str(ECHO)],
        "bridge-shared": [str(BRIDGE), str(port), str(ECHO)],
        "supergateway": [str(SUPERGATEWAY), "--stdio", shlex.quote(str(ECHO))]
        + ["--outputTransport", "streamableHttp", "--stateful"]
        + ["--port", str(port), "--logLevel", "none"],
        # It has one child for all sessions.
        "mcp-proxy": [str(MCP_PROXY), "--host", "127.0.0.1", "--port", str(port), "--server", "stream", "--", str(ECHO)],
    }
    with running(commands[kind], Path(folder) / f"{kind}.log") as child:
        await_port(port, child)
        yield url, child.pid, ()


@contextlib.contextmanager
def full(binary, folder, sandbox=None, more=None):
    """`lockgate serve` with all that is on in production, and defaults for everything else."""
    key, place = api_key(), Path(folder) / f"serve-{time.monotonic_ns()}"
    place.mkdir()
    server = {
        "command": str(ECHO),
        "policy": {"tools": {"allow": ["echo", "slow", "big", "flood", "list_*", "get_*"], "deny": ["drop_*", "delete_*"]}},
    } | ({"sandbox": sandbox} if sandbox else {}) | (more or {})
    tenant = {
        "auth": {"mode": "keys"},
        "api_keys": {"bench": {"hash": key_hash(key), "subject": "bench", "servers": ["echo"]}},
        "quotas": QUOTAS | {"children": 2000, "principal": QUOTAS},
        "servers": {"echo": server},
    }
    # Apart from the log: the gateway watches the directory of its manifest, and would see each line.
    (place / "declared").mkdir()
    manifest = place / "declared" / "manifest.json"
    manifest.write_text(json.dumps({"version": 1, "tenants": {"acme": tenant}}))
    command = [str(binary), "serve", "--apply", str(manifest), "--set", f"data_dir={place / 'data'}"]
    for one in ("http.listen=127.0.0.1:0", "ops.listen=127.0.0.1:0"):
        command += ["--set", one]
    log = place / "log"
    with running(command, log) as process:
        gateway = listening(process, log)
        yield gateway.url("acme", "echo"), process.pid, ("--header", f"Authorization: Bearer {key}")


def processor(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one_shape(found, shape, more, seconds):
    """Requests a second, p50 in ms, and the processor's microseconds for each request."""
    url, pid, header = found
    before = processor(pid)
    report = load(url, *shape, seconds, *more, *header)
    # It counts the requests of its warm-up of a second too.
    requests = report["requests"] * (1 + 1 / seconds)
    return rps(report), p50(report), (processor(pid) - before) / requests * 1e6


def events(found, count):
    """Events a second of eight streams at once."""
    url, _, header = found
    return load(url, 8, 1, 1, "--events", str(count), *header)["events_per_s"]


def one_round(options, seconds):
    """What each of them did, alone on the machine."""
    binary, folder = options.binary, options.folder
    subjects = {
        "bridge": lambda: subject("bridge", binary, folder),
        "bridge-shared": lambda: subject("bridge-shared", binary, folder),
        "run": lambda: subject("run", binary, folder),
        "full": lambda: full(binary, folder),
        "supergateway": lambda: subject("supergateway", binary, folder),
        "mcp-proxy": lambda: subject("mcp-proxy", binary, folder),
    }
    only = {"bridge-shared": ("1 × 32",), "supergateway": ("16 × 1",), "mcp-proxy": ("16 × 1",)}
    if options.quick:
        only |= dict.fromkeys(("bridge", "run", "full"), ("16 × 1", "1 × 32", "1 × 1"))
    made = {}
    for kind, start in subjects.items():
        with start() as found:
            for name, shape, more in SHAPES:
                if kind in only and name not in only[kind]:
                    continue
                made[kind, name] = one_shape(found, shape, more, seconds)
            if kind in ("run", "full"):
                made[kind, "open"] = gateway_open(found[0], 40, *found[2])
                made[kind, "events"] = events(found, 20_000 if options.quick else 100_000)
    made["bare", "open"] = bare_open(40)
    return made


def idle_memory(binary, folder, sessions):
    """VmRSS of a fresh gateway alone that holds idle sessions with open GETs, and of a guard."""
    with subject("lockgate", binary, folder) as (url, pid, _):
        command = [str(MCPLOAD), "--json", "--url", url, "--idle", str(sessions), "--duration", "4"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as loader:
            most, guards = 0, []
            while loader.poll() is None:
                most = max(most, rss_kib(pid))
                if not guards:
                    below = children(pid)
                    if len(below) >= min(sessions, 100):
                        with contextlib.suppress(OSError):
                            guards = [private_kib(one) for one in below[:20]]
                time.sleep(0.1)
            report = json.loads(loader.stdout.read())
    if report.get("open_failed") or report.get("sessions") != sessions:
        raise RuntimeError(f"idle {sessions}: {report}")
    return most, statistics.median(guards) if guards else float("nan")


def ratio_row(what, rounds, ours, theirs, figure, target, is_ceiling=False):
    """The median of the ratios of a figure of all rounds; without a target for information alone."""
    pairs = [(one[ours][figure], one[theirs][figure]) for one in rounds]
    ratios = [left / right for left, right in pairs]
    middle, worst = statistics.median(ratios), (max if is_ceiling else min)(ratios)
    left, right = (statistics.median(side) for side in zip(*pairs))
    form = "{:,.0f}" if figure == 0 else "{:,.3g}"
    reached = None
    if target is not None:
        reached = middle <= target and worst <= target / 0.85 if is_ceiling else middle >= target and worst >= target * 0.85
    bound = "" if target is None else f"{'≤' if is_ceiling else '≥'} {target}"
    return (what, f"{form.format(left)} / {form.format(right)}", f"{middle:.2f}", f"{worst:.2f}", bound, reached)


def speed_rows(rounds):
    names = [name for name, _, _ in SHAPES if ("full", name) in rounds[0]]
    goals = {"16 × 1": 0.80, "1 × 32": 0.85}
    rows = []
    for name in names:
        bridge = ("bridge-shared" if name == "1 × 32" else "bridge", name)
        for kind, label in (("full", FULL), ("run", "as installed")):
            target = goals.get(name) if kind == "full" else None
            rows.append(ratio_row(f"req/s, {name}, {label}", rounds, (kind, name), bridge, 0, target))
    for kind, label in (("full", FULL), ("run", "as installed")):
        target = 1.3 if kind == "full" else None
        rows.append(ratio_row(f"p50 ms, 1 × 1, {label}", rounds, (kind, "1 × 1"), ("bridge", "1 × 1"), 1, target, True))
        target = 1.4 if kind == "full" else None
        what = f"processor µs a call, 16 × 1, {label}"
        rows.append(ratio_row(what, rounds, (kind, "16 × 1"), ("bridge", "16 × 1"), 2, target, True))
    for peer in ("supergateway", "mcp-proxy"):
        what = f"req/s, 16 × 1, {FULL}, by {peer}"
        rows.append(ratio_row(what, rounds, ("full", "16 × 1"), (peer, "16 × 1"), 0, 10))
    return rows


def open_rows(rounds):
    rows = []
    for kind, label, most in (("run", "as installed", 1.5), ("full", FULL, 3)):
        pairs = [(one[kind, "open"], one["bare", "open"]) for one in rounds]
        added = [ours - bare for ours, bare in pairs]
        figures = " / ".join(f"{statistics.median(side):.2f}" for side in zip(*pairs))
        middle, worst = statistics.median(added), max(added)
        reached = middle <= most and worst <= most / 0.85
        what = f"session open p50 ms, {label}, by the bare child"
        rows.append((what, figures, f"+{middle:.2f}", f"+{worst:.2f}", f"≤ +{most}", reached))
    return rows


def event_rows(rounds):
    rows = []
    for kind, label in (("run", "as installed"), ("full", FULL)):
        made = [one[kind, "events"] for one in rounds]
        middle, worst, least = statistics.median(made), min(made), 200_000
        reached = middle >= least and worst >= least * 0.85
        what = f"events/s of 8 streams at once, {label}"
        rows.append((what, "", f"{middle:,.0f}", f"{worst:,.0f}", f"≥ {least:,}", reached))
    return rows


def measure(options):
    count, seconds = options.of(5, 2), 2 if options.quick else 3
    rounds = [one_round(options, seconds) for _ in range(count)]
    rows = [*speed_rows(rounds), *open_rows(rounds), *event_rows(rounds)]
    few, many = (50, 150) if options.quick else (200, 1000)
    (small, _), (large, guard) = (idle_memory(options.binary, options.folder, one) for one in (few, many))
    slope = (large - small) / (many - few)
    name = f"KiB per idle session with a GET stream, {few} to {many}"
    rows.append((name, f"{small:,} → {large:,}", f"{slope:.1f}", "", "≤ 20", slope <= 20))
    rows.append(("private KiB of a guard", "", f"{guard:.0f}", "", "≤ 150", guard <= 150))
    text = (
        f"{count} rounds of {seconds} s for each shape, each candidate alone on the machine, in turn; medians. *As installed*:\n"
        f"`lockgate run` with its log. The other subject: `lockgate serve` with an API key, patterns for tools, quotas,\n"
        f"the sandbox profile `standard`, and a line in the log for each request. Sessions × requests at once. The other\n"
        f"side is the bridge, with a child per session, but for 1 × 32 with a shared one. Reached: the median reaches the\n"
        f"target and no round is worse than it by more than 15 %."
    )
    columns = ["what", "Lockgate / other", "median", "worst round", "target"]
    return Report(text, columns, rows)
