"""A replica that is killed costs nothing but the calls that its own children had: this client, which
knows nothing of replicas, calls on in the same session. CONTROL is the URL of what can kill one."""

import json
import os
import re
import urllib.request

import anyio
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError

from referee import call, main, options, same, session, until

STEPS = 20


async def control(method, path):
    def ask():
        request = urllib.request.Request(os.environ["CONTROL"] + path, method=method)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    return await anyio.to_thread.run_sync(ask)


async def killed(url, backend, who):
    """Two calls at once, by way of both replicas, one of which is killed meanwhile."""
    before = (await control("GET", "/sessions"))["sessions"]
    async with streamable_http_client(url) as streams, session(streams) as (client, transcript):
        outcomes = []

        async def run():
            name, arguments, _ = backend["slow"](STEPS, 100)
            try:
                text, token = await call(client, transcript, name, arguments)
                outcomes.append((text, transcript.progress(token)))
            except MCPError as error:
                outcomes.append((error.error.code, None))

        def seconds():
            notes = transcript.notifications("notifications/progress")
            return sum(one["params"]["progress"] == 2 for one in notes)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(run)
            tasks.start_soon(run)
            await until("two steps of both", lambda: seconds() == 2)
            await control("POST", f"/kill?who={who}")
        same(len(outcomes), 2, "outcomes")
        for said, progress in outcomes:
            if who == "owner":
                same(said, -31001, "the call of a killed owner")
            else:
                assert re.search(r"^run [12]: 20 steps$", str(said)), said
                same(progress, list(range(1, STEPS + 1)), "progress")
        name, arguments, _ = backend["slow"](2, 10)
        text, _ = await call(client, transcript, name, arguments)
        same(text, "run 1: 2 steps" if who == "owner" else "run 3: 2 steps", "the next call")
        same((await control("GET", "/sessions"))["sessions"], before + 1, "sessions")
        transcript.check_once()
    await control("POST", "/start")
    print(f"{who}: the session went on")


async def story():
    url, backend = options()
    await killed(url, backend, "other")
    await killed(url, backend, "owner")


main(story)
