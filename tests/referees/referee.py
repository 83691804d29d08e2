"""What the Python referees share: the table of backends, a session that keeps the whole transcript
as it came over the wire, and the story that it must get through."""

import argparse
import asyncio
import re
import sys
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import anyio
import mcp_types as types
from mcp.client import Client
from mcp.shared.exceptions import MCPError

WATCHED = "test://watched-resource"
DOCUMENT = "demo://resource/dynamic/text/1"
UPDATED = "notifications/resources/updated"
LISTS = [f"notifications/{one}/list_changed" for one in ("tools", "prompts", "resources")]
LOG_LINES = [f"Tool execution {one}" for one in ("started", "processing data", "completed")]


def slow(steps, ms):
    return ("slow", {"steps": steps, "ms": ms}, r"^run \d+: \d+ steps$")


def long_running(steps, ms):
    arguments = {"steps": steps, "duration": steps * ms / 1000}
    return ("trigger-long-running-operation", arguments, r"^Long running operation completed")


# Calls are (tool, arguments, pattern of the answer).
BACKENDS = {
    "fixture": {
        "tools": 39,
        "echo": ("test_simple_text", {}, r"^This is a simple text response"),
        "slow": slow,
        "log": "test_tool_with_logging",
        "sample": ("test_sampling", {"prompt": "hello"}, r"^LLM response: sampled$"),
        "elicit": ("test_elicitation", {"message": "who?"}, r'action=accept.*"username":"ada"'),
        "fail": "fail",
        "read": ("test://static-text", "static text resource"),
        "prompt": ("test_prompt_with_arguments", {"arg1": "paris", "arg2": "b"}, "arg1='paris', arg2='b'"),
        "complete": ({"name": "arg1", "value": "par"}, ["paris", "park", "party"]),
        "subscribe": WATCHED,
        "unsolicited": [("touch", {"uri": WATCHED}, [UPDATED]), ("announce", {}, LISTS)],
    },
    "everything": {
        "echo": ("echo", {"message": "hi"}, r"^Echo: hi$"),
        "slow": long_running,
        "sample": ("trigger-sampling-request", {"prompt": "hello"}, r'"text": "sampled"'),
        "elicit": ("trigger-elicitation-request", {}, r"(?i)accept|provided"),
        "read": (DOCUMENT, "Resource 1"),
        "subscribe": DOCUMENT,
        # Toggling sends at once and then every 5 s; the story toggles it off again sooner.
        "unsolicited": [("toggle-subscriber-updates", {}, [UPDATED])],
        "undo": "toggle-subscriber-updates",
        "chatty": True,
    },
    "python": {
        "tools": 7,
        "echo": ("echo", {"message": "hi"}, r"^Echo: hi$"),
        "slow": slow,
        "log": "log",
        "sample": ("sample", {"prompt": "hello"}, r"^LLM response: sampled$"),
        "elicit": ("elicit", {"message": "who?"}, r'action=accept.*"username":"ada"'),
        "fail": "fail",
        "read": (WATCHED, "Watched resource content"),
        "unsolicited": [("announce", {}, LISTS)],
    },
}


MODERN = "2026-07-28"
# What a client settles on by its mode.
VERSIONS = {"legacy": "2025-11-25", "auto": MODERN, MODERN: MODERN}


def arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--backend", choices=BACKENDS, default="fixture")
    return parser


def options():
    given = arguments().parse_args()
    return given.url, BACKENDS[given.backend]


def main(story):
    """Runs the story; an exception of it, grouped or not, ends the script with 1."""
    try:
        asyncio.run(story())
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.exit(1)


async def until(what, condition, seconds=20.0):
    try:
        with anyio.fail_after(seconds):
            while not condition():
                await anyio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"waited {seconds} s in vain: {what}") from None


def same(actual, expected, what):
    assert actual == expected, f"{what}: {actual!r}, expected {expected!r}"


@dataclass
class Transcript:
    """Each message that the transport delivered, as a dict."""

    messages: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    asked: Counter = field(default_factory=Counter)
    tokens: int = 0

    def notifications(self, method):
        return [one for one in self.messages if one.get("method") == method and "id" not in one]

    def progress(self, token):
        notes = [one["params"] for one in self.notifications("notifications/progress")]
        return [one["progress"] for one in notes if one["progressToken"] == token]

    def check_once(self):
        for kind in (True, False):
            ids = [one["id"] for one in self.messages if "id" in one and ("method" in one) == kind]
            assert len(ids) == len(set(ids)), f"an id came twice: {ids}"
        same(self.errors, [], "errors of the transport")


@asynccontextmanager
async def session(streams, mode="legacy"):
    """A client over a transport's streams that samples `sampled`, answers as ada, has a root."""
    source, sink = streams
    tapped_in, tapped_out = anyio.create_memory_object_stream(64)
    transcript = Transcript()

    async def pump():
        async with tapped_in:
            async for item in source:
                if isinstance(item, Exception):
                    transcript.errors.append(item)
                else:
                    dump = item.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
                    transcript.messages.append(dump)
                await tapped_in.send(item)

    async def sampling(_context, _params):
        transcript.asked["sampling"] += 1
        content = types.TextContent(type="text", text="sampled")
        return types.CreateMessageResult(role="assistant", model="none", content=content)

    async def elicitation(_context, params):
        transcript.asked["elicitation"] += 1
        known = {"username": "ada", "email": "ada@example.org", "name": "Ada", "check": True}
        wanted = (params.requested_schema or {}).get("properties", {})
        content = {key: known[key] for key in wanted if key in known}
        return types.ElicitResult(action="accept", content=content)

    async def roots(_context):
        return types.ListRootsResult(roots=[types.Root(uri="file:///srv/referee", name="referee")])

    @asynccontextmanager
    async def transport():
        yield tapped_out, sink

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(pump)
        async with Client(
            transport(),
            mode=mode,
            cache=None,
            log_level="info",
            sampling_callback=sampling,
            elicitation_callback=elicitation,
            list_roots_callback=roots,
        ) as client:
            same(client.protocol_version, VERSIONS[mode], "revision")
            await anyio.sleep(0.3)  # the listener of a bare SDK server keeps nothing for who is late
            yield client, transcript
        tasks.cancel_scope.cancel()


async def call(client, transcript, name, arguments):
    """A call with a progress token of our own; the text of its answer, and the token."""
    transcript.tokens += 1
    token = f"token-{transcript.tokens}"
    result = await client.call_tool(name, arguments, meta={"progress_token": token})
    return "\n".join(getattr(one, "text", "") for one in result.content), token


async def full_story(streams, backend, mode="legacy"):
    async with session(streams, mode) as (client, transcript):
        tools = (await client.list_tools()).tools
        if "tools" in backend:
            same(len(tools), backend["tools"], "tools")
        if client.protocol_version != MODERN:
            await client.send_ping()
        tokens = []

        async def check(one):
            name, arguments, pattern = one
            text, token = await call(client, transcript, name, arguments)
            assert re.search(pattern, text), f"{name}: {text!r}"
            return token

        async def check_slow():
            tokens.append(await check(backend["slow"](5, 100)))

        await check(backend["echo"])
        await check_slow()
        async with anyio.create_task_group() as both:
            both.start_soon(check_slow)
            both.start_soon(check_slow)
        await check(backend["sample"])
        await check(backend["elicit"])
        assert (await client.list_resources()).resources
        uri, text = backend["read"]
        contents = (await client.read_resource(uri)).contents
        assert text in contents[0].text, contents
        await prompting(client, backend)
        await failing(client, transcript, backend)
        await logging(client, transcript, backend)
        expected = await unsolicited(client, transcript, backend)

        await anyio.sleep(1.0)  # what comes twice, comes late
        for token in tokens:
            same(transcript.progress(token), [1, 2, 3, 4, 5], f"progress of {token}")
        for method, count in expected.items():
            same(len(transcript.notifications(method)), count, method)
        same(transcript.asked, Counter(sampling=1, elicitation=1), "asked of the client")
        if not backend.get("chatty"):
            nothing_else(transcript, backend, expected)
        await cancelling(client, transcript, backend)
        await check(backend["echo"])
        transcript.check_once()


async def prompting(client, backend):
    if "prompt" not in backend:
        return
    name, arguments, text = backend["prompt"]
    assert name in [one.name for one in (await client.list_prompts()).prompts]
    messages = (await client.get_prompt(name, arguments)).messages
    assert text in messages[0].content.text, messages
    argument, values = backend["complete"]
    completion = (await client.complete(types.PromptReference(name=name), argument)).completion
    same(completion.values, values, "completion")


async def cancelling(client, transcript, backend):
    """A cancelled call says no more, and is not in the way of the next one."""
    reported = lambda: len(transcript.notifications("notifications/progress"))  # noqa: E731
    before = reported()
    name, arguments, _ = backend["slow"](100, 100)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(call, client, transcript, name, arguments)
        await until("two steps", lambda: reported() >= before + 2)
        tasks.cancel_scope.cancel()
    # What was under way may still come; the call itself would go on for ten seconds.
    for _ in range(8):
        seen = reported()
        await anyio.sleep(0.5)
        if seen == reported():
            return
    raise AssertionError("a cancelled call reports on")


async def failing(client, transcript, backend):
    if "fail" not in backend:
        return
    try:
        await call(client, transcript, backend["fail"], {})
    except MCPError as error:
        # In 2026-07-28 the codes from -32020 to -32099 are the protocol's own (basic, Error Codes).
        code = -32603 if client.protocol_version == MODERN else -32050
        same((error.error.code, error.error.data), (code, {"why": "asked to"}), "error")
    else:
        raise AssertionError("the failing call succeeded")


async def logging(client, transcript, backend):
    if "log" not in backend:
        return
    await call(client, transcript, backend["log"], {})
    method = "notifications/message"
    await until("log lines", lambda: len(transcript.notifications(method)) >= len(LOG_LINES))
    same([one["params"]["data"] for one in transcript.notifications(method)], LOG_LINES, "log")


@asynccontextmanager
async def subscribed(client, backend):
    uris = [backend["subscribe"]] if "subscribe" in backend else []
    if client.protocol_version == MODERN:
        lists = dict.fromkeys(("tools_list_changed", "prompts_list_changed", "resources_list_changed"), True)
        async with client.listen(**lists, resource_subscriptions=uris):
            yield {"notifications/subscriptions/acknowledged": 1}
    else:
        for uri in uris:
            await client.subscribe_resource(uri)
        yield {}
        for uri in uris:
            await client.unsubscribe_resource(uri)


async def unsolicited(client, transcript, backend):
    async with subscribed(client, backend) as expected:
        await changing(client, transcript, backend, expected)
    if "subscribe" in backend and "undo" not in backend:
        await call(client, transcript, "touch", {"uri": WATCHED})  # nobody is subscribed any more: must say nothing
    return expected


async def changing(client, transcript, backend, expected):
    for name, arguments, methods in backend["unsolicited"]:
        counts = {one: len(transcript.notifications(one)) + 1 for one in methods}
        await call(client, transcript, name, arguments)
        for method, count in counts.items():
            arrived = lambda: len(transcript.notifications(method)) >= count  # noqa: B023, E731
            await until(method, arrived)
        expected.update(counts)
    if "undo" in backend:
        await call(client, transcript, backend["undo"], {})


def nothing_else(transcript, backend, expected):
    """Every notification of the transcript is one that the story asked for."""
    seen = Counter(one["method"] for one in transcript.messages if "id" not in one)
    wanted = Counter(expected)
    wanted["notifications/message"] = len(LOG_LINES) if "log" in backend else 0
    wanted["notifications/progress"] = 15 + (1 if "fail" in backend else 0)
    same(+seen, +wanted, "notifications in all")
