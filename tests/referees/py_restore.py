"""A child that is killed in the middle of a call costs that call and nothing else: this client, which
knows nothing of children, calls on in the same session. The gateway's child has MARKER in its
environment; no other session of it may be open."""

import os
import re
import signal
import time
from pathlib import Path

import anyio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from referee import call, main, options, same, session, until


def children():
    """Processes with the marker in their environment."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environ = (process / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if f"RESTORE={os.environ['MARKER']}".encode() in environ:
                found.append(int(process.name))
    return found


async def story():
    url, backend = options()
    async with streamable_http_client(url) as streams, session(streams) as (client, transcript):
        before = children()
        same(len(before), 1, "children")
        failed = []

        async def cut():
            try:
                await call(client, transcript, *backend["slow"](100, 100)[:2])
            except MCPError as error:
                failed.append((error.error.code, time.monotonic()))

        progress = lambda: len(transcript.notifications("notifications/progress"))  # noqa: E731
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(cut)
            await until("two steps", lambda: progress() >= 2)
            os.kill(before[0], signal.SIGKILL)
            killed = time.monotonic()
        same([code for code, _ in failed], [-31001], "the call that was cut")
        took = failed[0][1] - killed
        assert took < 0.25 * 5, f"the error came after {took} s"
        name, arguments, pattern = backend["slow"](2, 10)
        text, _ = await call(client, transcript, name, arguments)
        assert re.search(pattern, text), text
        assert children() != before, "another child"
        transcript.check_once()
        print(f"error after {took * 1000:.0f} ms")


main(story)
