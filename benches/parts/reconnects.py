"""Reconnects: clients that lose their connections at the same time, and all come back within a second."""

import asyncio
import json
import resource
import time

from .attackers import answer, connect, head
from .common import ECHO, INITIALIZE, Report, rss_kib, running_one

FILES = 20_000
PATH = "/mcp"


class Listener:
    """A client with a session and its GET stream, from an address that it shares with ninety-nine others."""

    def __init__(self, host, number):
        self.host, self.source = host, f"127.0.{1 + number // 100}.{1 + number % 100}"
        self.session, self.writer = None, None
        self.refused, self.silent = 0, 0

    async def begin(self, gate):
        async with gate:
            reader, writer = await connect(self.host, self.source)
            body = json.dumps(INITIALIZE).encode()
            writer.write(head(self.host, PATH, len(body)) + body)
            status, headers, said = await answer(reader)
            if status != 200:
                raise RuntimeError(f"initialize: {status} {said}")
            self.session = headers["mcp-session-id"]
            done = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'
            more = f"Mcp-Session-Id: {self.session}\r\nMCP-Protocol-Version: 2025-06-18\r\n"
            writer.write(head(self.host, PATH, len(done), more) + done)
            await answer(reader)
            writer.close()
            await self.listen()

    async def listen(self):
        """Until it has its stream; who is refused comes again after the time that was said."""
        while True:
            try:
                reader, writer = await connect(self.host, self.source)
                writer.write(
                    f"GET {PATH} HTTP/1.1\r\nHost: {self.host}\r\nAccept: text/event-stream\r\n"
                    f"Mcp-Session-Id: {self.session}\r\nMCP-Protocol-Version: 2025-06-18\r\n\r\n".encode()
                )
                first = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            except (OSError, asyncio.IncompleteReadError):
                self.silent += 1
                await asyncio.sleep(0.2)
                continue
            if " 200 " in first.split("\r\n")[0]:
                self.writer = writer
                return
            writer.close()
            self.refused += 1
            waits = [line for line in first.split("\r\n") if line.startswith("retry-after: ")]
            if " 503 " not in first.split("\r\n")[0] or not waits:
                raise RuntimeError(f"refused without 503 and Retry-After: {first}")
            await asyncio.sleep(int(waits[0].split(": ")[1]))

    def cut(self):
        # A reset, as of a machine that is gone.
        self.writer.transport.abort()


async def run(gateway, count):
    clients = [Listener(gateway.http, number) for number in range(count)]
    gate = asyncio.Semaphore(32)
    await asyncio.gather(*(one.begin(gate) for one in clients))
    small = rss_kib(gateway.pid)
    for one in clients:
        one.cut()

    async def back(number):
        # All within a second.
        await asyncio.sleep(number / count)
        await clients[number].listen()

    began = time.monotonic()
    await asyncio.wait_for(asyncio.gather(*(back(number) for number in range(count))), 120)
    took = time.monotonic() - began
    open_streams = gateway.metric("lockgate_streams_open")
    large = rss_kib(gateway.pid)
    for one in clients:
        one.cut()
    return took, open_streams, (small, large), clients


def measure(options):
    count = options.of(10_000, 1000)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))
    with running_one(options, [ECHO], "--set", "server.isolation=tenant") as gateway:
        took, streams, (small, large), clients = asyncio.run(run(gateway, count))
        circuits = gateway.metric("lockgate_circuits_opened_total")
    refused, silent = (sum(getattr(one, name) for one in clients) for name in ("refused", "silent"))
    rows = [
        ["s until the last has its stream", "", f"{took:.1f}", "≤ 10", took <= 10],
        ["streams open then", "", f"{streams:,.0f}", f"{count:,}", streams >= count],
        ["refused with 503 and Retry-After meanwhile", "", f"{refused:,}", "", None],
        ["connections that ended without an answer", "", f"{silent:,}", "0", silent == 0],
        ["circuits that opened", "", f"{circuits:.0f}", "0", circuits == 0],
        ["MiB before → after", f"{small / 1024:.0f} → {large / 1024:.0f}", f"{(large - small) / 1024:.0f}", "", None],
    ]
    text = (
        f"{count:,} sessions of `lockgate run` on one shared child, each with its GET stream, {FILES:,} open files. All connections\n"
        f"are reset at once, and every client connects anew within a second."
    )
    return Report(text, ["what", "figures", "result", "target"], rows)
