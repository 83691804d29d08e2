"""The official Python client over HTTP+SSE of 2024-11-05 gets through the whole story."""

from mcp.client.sse import sse_client

from referee import full_story, main, options


async def story():
    url, backend = options()
    async with sse_client(url) as streams:
        await full_story(streams, backend)


main(story)
