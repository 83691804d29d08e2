"""The official Python client over Streamable HTTP gets through the whole story."""

from mcp.client.streamable_http import streamable_http_client

from referee import full_story, main, options


async def story():
    url, backend = options()
    async with streamable_http_client(url) as streams:
        await full_story(streams, backend)


main(story)
