"""A call whose scopes the token lacks, by the official Python client: py_stepup.py URL TOOL. The first log-in asks for
the scopes to begin with; the call is refused with those that it needs, and the client asks for them by itself."""

import os
import sys
from urllib.parse import parse_qs, urlsplit

import referee
from py_oauth import Memory, claims_of, factory, provider, through


async def story():
    url, tool = sys.argv[1:]
    memory, trace = Memory(dict(os.environ)), []
    opened = []
    by_itself = memory.open

    async def noted(address):
        opened.append(set(parse_qs(urlsplit(address).query)["scope"][0].split(" ")) - {"offline_access"})
        await by_itself(address)

    memory.open = noted
    granted = []

    async def once(streams):
        async with referee.session(streams) as (client, _):
            granted.append(set(claims_of(memory.tokens.access_token)["scope"].split(" ")) - {"offline_access"})
            result = await client.call_tool(tool, {})
            assert not result.is_error, result

    await through(url, provider(url, memory), factory(trace), once)
    referee.same(opened, [{"mcp"}, {"mcp", "extra"}], "scopes that it asked for")
    referee.same(granted, [{"mcp"}], "the first grant")
    last = set(claims_of(memory.tokens.access_token)["scope"].split(" ")) - {"offline_access"}
    referee.same(last, {"mcp", "extra"}, "the second grant")


if __name__ == "__main__":
    referee.main(story)
