"""The official Python client over Streamable HTTP gets through the whole story, whichever revision it
settles on: py_streamable.py URL [--mode legacy|auto|2026-07-28]."""

import json

import httpx2
from mcp.client.streamable_http import streamable_http_client

from referee import BACKENDS, MODERN, VERSIONS, arguments, full_story, main, same


async def story():
    parser = arguments()
    parser.add_argument("--mode", choices=VERSIONS, default="legacy")
    given = parser.parse_args()
    posts = []

    async def note(request):
        if request.method == "POST":
            method = json.loads(request.content).get("method")
            posts.append((method, request.headers.get("mcp-protocol-version")))

    timeout = httpx2.Timeout(30, read=300)
    web = httpx2.AsyncClient(event_hooks={"request": [note]}, timeout=timeout)
    async with web, streamable_http_client(given.url, http_client=web) as streams:
        await full_story(streams, BACKENDS[given.backend], given.mode)
    # Settled by the first request, and never spoken of again. A client that is told the revision asks nothing.
    version = VERSIONS[given.mode]
    handshake = [one for one, _ in posts if one in ("initialize", "server/discover")]
    wanted = {"legacy": ["initialize"], "auto": ["server/discover"], MODERN: []}[given.mode]
    same(handshake, wanted, "handshake")
    same(posts[0][0], [*wanted, "tools/list"][0], "first request")
    same({spoken for _, spoken in posts[1:]}, {version}, "revisions")
    print(f"{len(posts)} requests as {version}")


main(story)
