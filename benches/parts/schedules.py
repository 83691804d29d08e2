"""Schedules: two owners of one session over a store, what they send each other lost, late or repeated (R18)."""

import os
import re
import subprocess
import time

from .common import ROOT, TARGET, Report

# What SCALE multiplies: seeds in memory, and on each of Redis and Valkey.
GATE = 1000
OVER_WIRE = 20


def measure(options):
    scale = max(options.of(10 * GATE, GATE) // GATE, 1)
    environment = os.environ | {"SCALE": str(scale), "CARGO_TARGET_DIR": str(TARGET)}
    command = ["cargo", "test", "--locked", "--lib", "store::model_tests"]
    subprocess.run([*command, "--no-run"], cwd=ROOT, env=environment, check=True)
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    took = time.monotonic() - began
    said = done.stdout + done.stderr
    # Each seed that breaks the model is named, and repeats it.
    broken = re.findall(r"^seed (\d+)$", said, re.MULTILINE)
    held = re.search(r"test result: ok\. 2 passed", said) is not None
    if not held:
        print("\n".join(said.splitlines()[-40:]), flush=True)
    rows = [
        ["schedules in memory", f"{GATE * scale:,}", "", None],
        ["schedules on Redis, and on Valkey, both with cut connections", f"{OVER_WIRE * scale:,} each", "", None],
        ["schedules that break a promise of the event log or the directory", "", ", ".join(broken) or ("0" if held else "?"), held],
    ]
    text = (
        "200 steps each: writes, heartbeats, claims and readers of two owners, either of which is frozen, cut off, or\n"
        f"answered too late (`src/state/tests/schedules.rs`, debug build). {took:.0f} s."
    )
    return Report(text, ["what", "how many", "result"], rows)
