"""After a call that errors over SSE and after one that is cancelled, the client asks for nothing
within ten seconds: this SDK asks again for a stream that ended without a response, when the server
says. It comes back soon to a listener that breaks afterwards."""

import asyncio
from contextlib import asynccontextmanager
from time import monotonic
from urllib.parse import urlsplit

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client

from referee import call, failing, main, options, same, session, until

WINDOW = 10.0
# A delay of 1.5 s at most, and time for a busy machine. The streams of the calls are asked for later.
BACK = 3.0


@asynccontextmanager
async def proxy(url):
    """The URL of a TCP proxy, and a function that cuts all of its connections."""
    target, pairs = urlsplit(url), set()

    async def pump(reader, writer):
        try:
            while chunk := await reader.read(65536):
                # The gateway compares Host exactly: name it, not this proxy.
                writer.write(chunk.replace(here, target.netloc.encode()))
        except OSError:
            pass
        finally:
            writer.close()

    async def pair(reader, writer):
        far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
        pairs.add(writer)
        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        except asyncio.CancelledError:
            pass  # the story has ended
        finally:
            pairs.discard(writer)

    server = await asyncio.start_server(pair, "127.0.0.1", 0)
    here = "127.0.0.1:{}".format(server.sockets[0].getsockname()[1]).encode()
    cut = lambda: [one.transport.abort() for one in list(pairs)]  # noqa: E731
    yield target._replace(netloc=here.decode()).geturl(), cut
    server.close()


async def story():
    url, backend = options()
    gets = []

    async def count(request):
        if request.method == "GET":
            gets.append(request)

    timeout = httpx2.Timeout(30, read=300)
    web = httpx2.AsyncClient(event_hooks={"request": [count]}, timeout=timeout)
    async with proxy(url) as (through, cut), web:
        async with streamable_http_client(through, http_client=web) as streams:
            async with session(streams) as (client, transcript):
                await until("the listener", lambda: len(gets) == 1)
                await failing(client, transcript, backend)
                reported = lambda: len(transcript.notifications("notifications/progress"))  # noqa: E731
                same(reported(), 1 if "fail" in backend else 0, "progress of the failing call")

                before = reported()
                name, arguments, _ = backend["slow"](40, 250)
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(call, client, transcript, name, arguments)
                    await until("two steps", lambda: reported() >= before + 2)
                    tasks.cancel_scope.cancel()

                await anyio.sleep(WINDOW)
                same(len(gets), 1, "no GET but the listener")
                await client.send_ping()  # the session still lives
                late = reported() - before
                assert late <= 4, f"progress after the cancellation: {late}"
                transcript.check_once()

                began = monotonic()
                cut()
                await until("the listener again", lambda: len(gets) > 1, BACK)
                print(f"the listener was back after {monotonic() - began:.1f} s")


main(story)
