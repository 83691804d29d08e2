"""FastMCP's client with nothing but a URL settles on 2026-07-28, and does what it can do there; with
`mode="legacy"` on the newest of the older revisions: py_fastmcp.py URL."""

import anyio
from fastmcp import Client
from fastmcp.client.elicitation import ElicitResult
from fastmcp.exceptions import ToolError

from referee import LOG_LINES, VERSIONS, main, options, same, until


async def story(url, backend, mode):
    progress, lines, asked = [], [], []

    async def reported(done, _total, _message):
        progress.append(done)

    async def logged(message):
        lines.append(message.data)

    async def elicited(message, _type, _params, _context):
        asked.append(message)
        return ElicitResult(action="accept", content={"username": "ada", "email": "ada@example.org"})

    async def sampled(_messages, _params, _context):
        asked.append("sampling")
        return "sampled"

    client = Client(
        url,
        progress_handler=reported,
        log_handler=logged,
        elicitation_handler=elicited,
        sampling_handler=sampled,
        **({"mode": mode} if mode != "auto" else {}),
    )
    async with client:
        same(client.session.protocol_version, VERSIONS[mode], "revision")
        same(len(await client.list_tools()), backend["tools"], "tools")

        async def check(one):
            name, arguments, _ = one
            return (await client.call_tool(name, arguments)).content[0].text

        await check(backend["slow"](5, 50))
        same(progress, [1, 2, 3, 4, 5], "progress")
        text = await check(backend["elicit"])
        assert 'action=accept' in text and '"username":"ada"' in text, text
        same(await check(backend["sample"]), "LLM response: sampled", "sampling")
        same(asked, ["who?", "sampling"], "asked of the client")
        await client.call_tool(backend["log"], {})
        await until("log lines", lambda: len(lines) >= len(LOG_LINES))
        same(lines, LOG_LINES, "log")

        uri, text = backend["read"]
        assert text in (await client.read_resource(uri))[0].text
        name, arguments, text = backend["prompt"]
        assert text in (await client.get_prompt(name, arguments)).messages[0].content.text
        argument, values = backend["complete"]
        same((await client.complete({"type": "ref/prompt", "name": name}, argument)).values, values, "completion")
        try:
            await client.call_tool("test_error_handling", {})
        except ToolError as error:
            assert "intentionally" in str(error), error
        else:
            raise AssertionError("the failing call succeeded")

        before = len(progress)
        name, arguments, _ = backend["slow"](100, 50)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.call_tool, name, arguments)
            await until("two steps", lambda: len(progress) >= before + 2)
            tasks.cancel_scope.cancel()
        await check(backend["echo"])


async def stories():
    url, backend = options()
    for mode in ("auto", "legacy"):
        await story(url, backend, mode)


main(stories)
