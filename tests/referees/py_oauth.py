"""The official Python client with nothing but a URL: discovery, registration, log-in, consent, tokens,
the whole story of the other referees, and a new access token when the old one has ended."""

import argparse
import asyncio
import base64
import json
import os
import subprocess
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.shared._httpx_utils import create_mcp_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

import referee

REDIRECT = "http://127.0.0.1:33420/callback"
BROWSER = Path(__file__).with_name("browser.mjs")


class Memory:
    """What the client keeps, and the person who is asked."""

    def __init__(self, environment):
        self.tokens = self.client = self.landed = None
        self.environment = environment
        self.asked = 0

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens):
        self.tokens = tokens

    async def get_client_info(self):
        return self.client

    async def set_client_info(self, client):
        self.client = client

    async def open(self, url):
        self.asked += 1
        command = [BROWSER, "--until", REDIRECT, url]
        run = asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=60, env=self.environment
        )
        done = await run
        assert done.returncode == 0, done.stderr
        self.landed = done.stdout.strip()

    async def answer(self):
        asked = parse_qs(urlsplit(self.landed).query, strict_parsing=True)
        assert sorted(asked) == ["code", "iss", "state"], asked
        only = {name: value for name, (value,) in asked.items()}
        return AuthorizationCodeResult(**only)


def factory(trace):
    async def seen(response):
        request = response.request
        trace.append(f"{request.method} {request.url.path} {response.status_code}")

    def make(headers=None, timeout=None, auth=None):
        client = create_mcp_http_client(headers=headers, timeout=timeout, auth=auth)
        client.event_hooks = {"response": [seen]}
        return client

    return make


def provider(url, memory):
    metadata = OAuthClientMetadata(
        client_name="referee",
        redirect_uris=[REDIRECT],
        grant_types=["authorization_code", "refresh_token"],
        response_types=["code"],
        token_endpoint_auth_method="none",
    )
    return OAuthClientProvider(url, metadata, memory, memory.open, memory.answer)


async def through(url, auth, make, story):
    """The story over this authorization, whose first request may begin it."""
    if url.endswith("/sse"):
        async with sse_client(url, httpx_client_factory=make, auth=auth) as streams:
            return await story(streams)
    async with make(auth=auth, timeout=httpx2.Timeout(30, read=300)) as client:
        async with streamable_http_client(url, http_client=client) as streams:
            return await story(streams)


def claims_of(token):
    part = token.split(".")[1]
    return json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))


async def story():
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("--provider")
    given = parser.parse_args()
    parts = urlsplit(given.url)
    steps = parts.path.split("/")
    inserted = "/".join(steps[:3]) if steps[1] == "t" else ""
    endpoint = f"{inserted or '/t/main'}/oauth"
    environment = dict(os.environ)
    if given.provider:
        environment |= {"BROWSER_PROVIDER": given.provider, "BROWSER_USERNAME": "grace"}
    memory, trace = Memory(environment), []
    auth, make = provider(given.url, memory), factory(trace)

    async def whole(streams):
        await referee.full_story(streams, referee.BACKENDS["fixture"])

    await through(given.url, auth, make, whole)
    method = "GET" if given.url.endswith("/sse") else "POST"
    expected = [
        f"{method} {parts.path} 401",
        f"GET /.well-known/oauth-protected-resource{parts.path} 200",
        f"GET /.well-known/oauth-authorization-server{inserted} 200",
        f"POST {endpoint}/register 201",
        f"POST {endpoint}/token 200",
        f"{method} {parts.path} 200",
    ]
    referee.same(trace[: len(expected)], expected, "how it came in")
    later = [line for line in trace[len(expected) :] if "oauth" in line]
    referee.same(later, [], "a good token leads to no other exchange")
    referee.same(memory.asked, 1, "how often a person was asked")
    claims = claims_of(memory.tokens.access_token)
    referee.same(claims["aud"], given.url, "audience")
    referee.same(claims["iss"], f"{parts.scheme}://{parts.netloc}{inserted}", "issuer")

    # The client knows that its access token has ended: the refresh token goes first.
    old = memory.tokens
    auth.context.token_expiry_time = 1.0
    trace.clear()

    async def once(streams):
        async with referee.session(streams) as (client, _):
            await client.send_ping()

    await through(given.url, auth, make, once)
    referee.same(trace[:2], [f"POST {endpoint}/token 200", f"{method} {parts.path} 200"], "renewed")
    assert not any(" 401" in line for line in trace), trace
    referee.same(memory.asked, 1, "how often a person was asked")
    assert memory.tokens.refresh_token != old.refresh_token, "the refresh token is another"
    assert memory.tokens.access_token != old.access_token, "the access token is another"


if __name__ == "__main__":
    referee.main(story)
