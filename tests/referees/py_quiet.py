"""After a call that errors over SSE and after one that is cancelled, the client asks for nothing
within ten seconds: this SDK asks again for a stream that ended without a response, when the server
says."""

import anyio
import httpx2
from mcp.client.streamable_http import streamable_http_client

from referee import call, failing, main, options, same, session, until

WINDOW = 10.0


async def story():
    url, backend = options()
    gets = []

    async def count(request):
        if request.method == "GET":
            gets.append(request)

    timeout = httpx2.Timeout(30, read=300)
    async with httpx2.AsyncClient(event_hooks={"request": [count]}, timeout=timeout) as http:
        async with streamable_http_client(url, http_client=http) as streams:
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


main(story)
