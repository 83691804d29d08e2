"""The load by whose counts a build is optimized: calls of all shapes, streams, resumption, sessions that come and go."""

import subprocess

from .common import MCPLOAD, gateway_open, load
from .speed import BIG, full, subject

# Sessions, concurrency, seconds, more arguments. Most requests are small calls of many clients.
CALLS = ((16, 1, 4, ()), (1, 32, 3, ()), (64, 1, 2, ()), (16, 1, 2, BIG))
# Calls without sessions, at a shared server of either era.
MODERN = ("--protocol-version", "2026-07-28")
SHARED = {"isolation": "tenant"}
ERAS = (SHARED | {"env": {"ECHO_ERA": "modern"}}, SHARED)


def train(binary, folder):
    """Puts the load on a gateway of each kind; its counts are written at its end."""
    # A machine that builds may have nothing to confine by.
    for gateway in (full(binary, folder, {"required": False}), subject("run", binary, folder)):
        with gateway as (url, _, header):
            for sessions, concurrency, seconds, more in CALLS:
                load(url, sessions, concurrency, seconds, *more, *header)
            for mode in (("--idle", "50", "--duration", "2"), ("--resume",)):
                subprocess.run([MCPLOAD, "--json", "--url", url, *mode, *header], check=True, stdout=subprocess.DEVNULL)
            gateway_open(url, 40, *header)
    for server in ERAS:
        with full(binary, folder, {"required": False}, server) as (url, _, header):
            for shape in ((16, 1, 3), (1, 32, 3)):
                load(url, *shape, *MODERN, *header)
