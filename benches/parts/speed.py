"""Speed: held against a minimal bridge and npm supergateway over the same echo server."""

import contextlib
import json
import shlex
import statistics
import subprocess
import time
from pathlib import Path

from .common import (
    BRIDGE,
    ECHO,
    MCPLOAD,
    SUPERGATEWAY,
    Report,
    await_port,
    bare_open,
    children,
    free_port,
    gateway_open,
    p50,
    private_kib,
    ratio_row,
    rps,
    rss_kib,
    running,
    versus,
)


@contextlib.contextmanager
def subject(kind, binary, folder):
    """One of the four under test: its URL and process id."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    commands = {
        "lockgate": [str(binary), "run", "--listen", f"127.0.0.1:{port}"]
        + ["--set", "telemetry.log=error", "--", str(ECHO)],
        "bridge-per-session": [str(BRIDGE), "--child-per-session", str(port), str(ECHO)],
        "bridge-shared": [str(BRIDGE), str(port), str(ECHO)],
        "supergateway": [str(SUPERGATEWAY), "--stdio", shlex.quote(str(ECHO))]
        + ["--outputTransport", "streamableHttp", "--stateful"]
        + ["--port", str(port), "--logLevel", "none"],
    }
    with running(commands[kind], Path(folder) / f"{kind}.log") as child:
        await_port(port, child)
        yield url, child.pid


def idle_memory(binary, folder, sessions):
    """VmRSS of a fresh gateway alone that holds idle sessions with open GETs, and of a guard."""
    with subject("lockgate", binary, folder) as (url, pid):
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


def measure(options):
    binary, folder = options.binary, options.folder
    rounds, seconds = (2, 2) if options.quick else (5, 5)
    sessions = (50, 150) if options.quick else (200, 1000)
    kinds = ("lockgate", "bridge-per-session", "bridge-shared", "supergateway")
    rows = []
    with contextlib.ExitStack() as stack:
        urls = {kind: stack.enter_context(subject(kind, binary, folder))[0] for kind in kinds}

        def against(other, shape, figure=rps, more=()):
            return versus(urls, "lockgate", other, shape, rounds, seconds, figure, more)

        own, shared = "bridge-per-session", "bridge-shared"
        big = ("--payload-bytes", "65536")
        rows.append(ratio_row("req/s, 16 × 1, bridge per session", against(own, (16, 1)), 0.60))
        rows.append(ratio_row("req/s, 16 × 1, supergateway", against("supergateway", (16, 1)), 10))
        rows.append(ratio_row("req/s, 1 × 32, shared bridge", against(shared, (1, 32)), 0.60))
        rows.append(
            ratio_row("p50 ms, 1 × 1, bridge per session", against(own, (1, 1), p50), 1.5, True)
        )
        pairs = against(own, (16, 1), rps, big)
        rows.append(ratio_row("req/s, 64 KiB, 16 × 1, bridge", pairs, 0.70))
        opens = [(gateway_open(urls["lockgate"], 40), bare_open(40)) for _ in range(rounds)]
    added = [ours - bare for ours, bare in opens]
    figures = " / ".join(f"{statistics.median(side):.2f}" for side in zip(*opens))
    middle, worst = statistics.median(added), max(added)
    reached = middle <= 6 and worst <= 6 / 0.85
    rows.append(
        ("session open p50 ms, bare child", figures, f"+{middle:.2f}", f"+{worst:.2f}", "≤ +6", reached)
    )
    few, many = sessions
    (small, guard), (large, _) = (idle_memory(binary, folder, count) for count in sessions)
    slope = (large - small) / (many - few)
    name = f"KiB per idle session, {few} to {many}"
    rows.append((name, f"{small:,} → {large:,}", f"{slope:.1f}", "", "≤ 32", slope <= 32))
    rows.append(("private KiB of a guard", "", f"{guard:.0f}", "", "≤ 1024", guard <= 1024))
    text = (
        f"{rounds} rounds of {seconds} s in turn, medians. Reached: the median reaches the target and\n"
        "no round is worse than it by more than 15 %."
    )
    columns = ["what, against what", "Lockgate / other", "median", "worst round", "target"]
    return Report(text, columns, rows)
