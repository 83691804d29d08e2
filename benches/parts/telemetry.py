"""Telemetry: what the export of traces and metrics costs, sampled as by default (A B A B … of one binary)."""

import contextlib
import os
import random
import statistics
import sys
from pathlib import Path

from .common import ECHO, Report, await_port, free_port, load, rps, running

SHAPES = (("16 sessions × 1", (16, 1)), ("1 session × 32", (1, 32)))
# A collector that takes everything and keeps nothing, so that its own work is as little as can be.
SINK = """
import http.server, sys
class Sink(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, 1 << 16)))
        self.send_response(200)
        self.send_header("Content-Type", "application/x-protobuf")
        self.send_header("Content-Length", "0")
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Sink).serve_forever()
"""


def gateway(held, options, variables, name):
    """One more of the same binary: its URL and its process."""
    port = free_port()
    command = ["env", *variables, str(options.binary), "run", "--listen", f"127.0.0.1:{port}"]
    command += ["--set", "telemetry.log=error", "--", str(ECHO)]
    child = held.enter_context(running(command, Path(options.folder) / f"{name}.log"))
    await_port(port, child)
    return f"http://127.0.0.1:{port}/mcp", child.pid


def seconds_of(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def one(subject, shape, seconds):
    """Requests a second, and processor time for each."""
    url, pid = subject
    before = seconds_of(pid)
    report = load(url, *shape, seconds)
    return rps(report), (seconds_of(pid) - before) / report["requests"]


def interval(ratios):
    """The median, and where it is in 95 of 100 samples drawn from them."""
    drawn = [statistics.median(random.choices(ratios, k=len(ratios))) for _ in range(2000)]
    drawn.sort()
    return statistics.median(ratios), drawn[50], drawn[1949]


def measure(options):
    rounds, seconds = (3, 1) if options.quick else (24, 2)
    rows, took = [], 0.0
    with contextlib.ExitStack() as held:
        port = free_port()
        command = [sys.executable, "-c", SINK, str(port)]
        sink = held.enter_context(running(command, Path(options.folder) / "sink.log"))
        await_port(port, sink)
        endpoint = [f"OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:{port}", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf"]
        without, exporting = (gateway(held, options, some, name) for name, some in (("without", []), ("with", endpoint)))
        for name, shape in SHAPES:
            pairs = [(one(exporting, shape, seconds), one(without, shape, seconds)) for _ in range(rounds)]
            for at, (what, bound, unit) in enumerate((("requests/s", 0.95, 1), ("processor µs per request", None, 1e6))):
                middle, low, high = interval([ours[at] / theirs[at] for ours, theirs in pairs])
                ours, theirs = (statistics.median(side[at] for side in sides) * unit for sides in zip(*pairs))
                figures = f"{ours:,.0f} / {theirs:,.0f}"
                reached = None if bound is None else middle >= bound
                rows.append((f"{what}, {name}", figures, f"{middle:.3f}", f"{low:.3f} to {high:.3f}", f"≥ {bound}" * bool(bound), reached))
        took = seconds_of(sink.pid)
    text = (
        f"{rounds} pairs of {seconds} s for each shape, both gateways up and loaded in turn: one exports traces, sampled as by\n"
        f"default, and metrics by OTLP over HTTP, the other nothing. The collector beside them took {took:.1f} s of processor time."
    )
    return Report(text, ["what", "with export / without", "median of the ratios", "95 %", "target"], rows)
