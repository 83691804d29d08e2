"""What the replicas take, sampled from /proc, and the slope of it."""

import asyncio
import contextlib
import dataclasses
import math
import os
import signal
import statistics
import time
from pathlib import Path

from parts.common import rss_kib

# KiB that no replica takes in a soak; one that does is ended before the machine has no memory left.
MOST = 1 << 20


@dataclasses.dataclass
class Sample:
    """One replica at one time; `life` counts its starts."""

    at: float
    replica: int
    life: int
    rss_kib: int
    descriptors: int
    threads: int
    zombies: list
    children: int
    redis_keys: int | None


class Watch:
    """Samples of both replicas, until it is cancelled."""

    def __init__(self, made, began, every):
        self.world, self.began, self.every = made, began, every
        self.samples, self.eaters = [], []

    async def run(self):
        while True:
            # It waits for Redis, which may be away.
            self.samples += await asyncio.to_thread(self.take)
            await asyncio.sleep(self.every)

    def take(self):
        keys, found = None, []
        with contextlib.suppress(OSError, ValueError):
            keys = int(self.world.store.ask("DBSIZE"))
        zombies, children = dead(), len(self.world.children())
        for at in range(2):
            pid = self.world.pid(at)
            with contextlib.suppress(OSError, TypeError):
                folder = Path(f"/proc/{pid}")
                counts = len(os.listdir(folder / "fd")), len(os.listdir(folder / "task"))
                own = [one for one in zombies if pid in ancestors(one)]
                now = time.monotonic() - self.began
                life = self.world.lives[at][0].pid
                rss = rss_kib(pid)
                found.append(Sample(round(now, 1), at, life, rss, *counts, own, children, keys))
                if rss > MOST:
                    self.eaters.append(f"replica {at + 1} at {now:.0f} s: {rss} KiB")
                    os.kill(pid, signal.SIGKILL)
        return found

    def of(self, at, since, until):
        """Of its last life within this time."""
        within = [one for one in self.samples if one.replica == at and since <= one.at <= until]
        return [one for one in within if one.life == within[-1].life]

    def zombies(self):
        """Those that were seen in two samples: one that is about to be waited for is seen once."""
        pairs = zip(self.samples, self.samples[2:])
        seen = {pid for one, other in pairs for pid in set(one.zombies) & set(other.zombies)}
        return sorted(seen)


def fields(pid):
    """State and parent."""
    state, parent = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[:2]
    return state, int(parent)


def dead():
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if fields(entry.name)[0] == "Z":
                    found.append(int(entry.name))
    return found


def ancestors(pid):
    found = []
    with contextlib.suppress(OSError):
        while pid > 1:
            pid = fields(pid)[1]
            found.append(pid)
    return found


@dataclasses.dataclass
class Slope:
    """Theil and Sen: the median of the slopes of all pairs, an hour, and its interval of 95 %."""

    each_hour: float
    low: float
    high: float
    middle: float
    count: int

    def relative(self):
        """In percent of the median."""
        return tuple(100 * one / self.middle for one in (self.each_hour, self.low, self.high))


def slope(times, values):
    """None where there is too little to see one."""
    count = len(times)
    if count < 20:
        return None
    pairs = [
        (values[later] - values[at]) / (times[later] - times[at]) * 3600
        for at in range(count)
        for later in range(at + 1, count)
    ]
    pairs.sort()
    # Sen (1968): the ranks that Kendall's statistic leaves on either side.
    spread = 1.96 * math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    low = max(0, math.floor((len(pairs) - spread) / 2))
    high = min(len(pairs) - 1, math.ceil((len(pairs) + spread) / 2))
    return Slope(statistics.median(pairs), pairs[low], pairs[high], statistics.median(values), count)
