"""Eras: calls of revision 2026-07-28, which have no session, at a shared server of either era, with everything
on, held against a minimal bridge to one shared server.
"""

from .common import Report, load, rps
from .speed import FULL, full, ratio_row, subject

SHAPES = (("16 × 1", (16, 1)), ("1 × 32", (1, 32)))
# The server, its environment, and the part of the bridge's speed that is wanted.
SERVERS = (("2026-07-28", {"ECHO_ERA": "modern"}, 0.6), ("with sessions", {}, 0.5))


def measure(options):
    count, seconds = options.of(5, 2), 2 if options.quick else 3
    rounds = []
    for _ in range(count):
        made = {}
        with subject("bridge-shared", options.binary, options.folder) as (url, _, _):
            for name, shape in SHAPES:
                made["bridge", name] = (rps(load(url, *shape, seconds)),)
        for server, env, _ in SERVERS:
            more = {"isolation": "tenant", "env": env}
            with full(options.binary, options.folder, more=more) as (url, _, header):
                for name, shape in SHAPES:
                    report = load(url, *shape, seconds, "--protocol-version", "2026-07-28", *header)
                    made[server, name] = (rps(report),)
        rounds.append(made)
    rows = []
    for server, _, target in SERVERS:
        for name, _ in SHAPES:
            what = f"req/s, {name}, server {server}"
            rows.append(ratio_row(what, rounds, (server, name), ("bridge", name), 0, target))
    text = (
        f"{count} rounds of {seconds} s for each shape, each candidate alone on the machine, in turn; medians. Clients of\n"
        f"revision 2026-07-28 at one shared server (`isolation: tenant`) of `lockgate serve` with {FULL}.\n"
        "The other side is the bridge, with a shared server and clients that have sessions. Reached: as for speed."
    )
    return Report(text, ["what", "Lockgate / bridge", "median", "worst round", "target"], rows)
