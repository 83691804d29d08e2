"""The faults of the soak: what is done, how long it lasts, and which answers it explains.

What a fault may cost is what docs/replicas.md says of it. Every other answer that is not good fails the soak.
"""

import asyncio
import dataclasses
import os
import signal
import time
from collections.abc import Callable

from .ledger import Window

# What a broken connection looks like, and what is heard of a replica that is gone.
CUT = {"broken", "oauth broken"}
GONE = CUT | {"owner_lost"}


@dataclasses.dataclass
class Fault:
    name: str
    act: Callable
    # Answers that it explains, and for how many seconds after its end.
    allows: set = frozenset()
    after: float = 2


class Faults:
    """All of them, over one world and its load."""

    def __init__(self, made, load, times):
        self.world, self.load, self.times = made, load, times

    def all(self):
        """In their order. Those that end the first replica come first and last: its memory is measured in between.

        So what fills its buffers comes early too: an allocator keeps some of the pages of a peak, which is a step
        and not growth.
        """
        by_call = self.times.call + 15
        return [
            Fault("rolling restart of both replicas", self.rolling),
            Fault("replica killed (kill -9)", self.kill_second, GONE),
            Fault("clients that never read", self.unread),
            Fault("Redis killed, back empty after 3 s", self.redis_killed, {"503", "410"}, 5),
            Fault("a third of the children killed", self.children_killed, {"backend_exited"}, 1),
            Fault("connections of all clients cut", self.clients_cut, CUT, 1),
            Fault("PostgreSQL away", self.postgres_away, {"oauth 503"}, 5),
            Fault("a quarter of the children hang", self.children_hang, {"timeout", "backend_exited"}, by_call),
            Fault("Redis away", self.redis_away, {"503"}, 2),
            Fault("a replica cut off from Redis", self.replica_cut_off, {"503", "owner_lost"}, 2),
            Fault("Redis flushed", self.redis_flushed, {"503", "410"}, 5),
            Fault("data disk full", self.disk_full),
            Fault("replica frozen", self.frozen, {"503", "owner_lost"}, 5),
            Fault("owner killed (kill -9)", self.kill_first, GONE),
        ]

    async def run(self, fault):
        window = Window(fault.name, fault.allows, time.monotonic(), after=fault.after)
        self.load.ledger.windows.append(window)
        window.note = await fault.act() or ""
        window.ended = time.monotonic()
        return window

    async def rolling(self):
        for at in range(2):
            await asyncio.to_thread(self.world.stop, at)
            await asyncio.to_thread(self.world.start, at)
            await asyncio.sleep(1)

    async def kill(self, at):
        await asyncio.to_thread(self.world.kill, at)
        await asyncio.sleep(2)
        await asyncio.to_thread(self.world.start, at)

    async def kill_first(self):
        await self.kill(0)

    async def kill_second(self):
        await self.kill(1)

    async def redis_killed(self):
        self.world.store.kill()
        await asyncio.sleep(3)
        await asyncio.to_thread(self.world.store.start)

    async def redis_flushed(self):
        self.world.store.ask("FLUSHALL")

    async def redis_away(self):
        self.world.store.pause()
        await asyncio.sleep(self.times.away)
        self.world.store.resume()

    async def postgres_away(self):
        await asyncio.to_thread(self.world.database.crash)
        await asyncio.sleep(self.times.away)
        await asyncio.to_thread(self.world.database.start)

    async def children_killed(self):
        return f"{self.world.signal_children(signal.SIGKILL, 3)} of them"

    async def children_hang(self):
        return f"{self.world.signal_children(signal.SIGSTOP, 4)} of them"

    async def clients_cut(self):
        return f"{self.world.balancer.cut()} connections"

    async def replica_cut_off(self):
        self.world.ways[1].send_signal(signal.SIGSTOP)
        await asyncio.sleep(self.times.away)
        self.world.ways[1].send_signal(signal.SIGCONT)

    async def unread(self):
        self.load.deaf = 20
        await asyncio.sleep(2 * self.times.unread)
        self.load.deaf = 1

    async def disk_full(self):
        if not self.world.has_disks:
            return "not tried: no file system can be mounted here"
        filler = self.world.fill(0)
        await asyncio.sleep(self.times.away)
        filler.unlink()
        return None

    async def frozen(self):
        os.kill(self.world.pid(1), signal.SIGSTOP)
        await asyncio.sleep(self.times.away)
        os.kill(self.world.pid(1), signal.SIGCONT)
        return None
