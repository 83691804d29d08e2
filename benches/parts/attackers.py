"""Attacks of the part `attacks`: each runs in a process of its own, from addresses of its own, until it is ended."""

import asyncio
import base64
import contextlib
import itertools
import json
import secrets
import socket
import sys
import time
from urllib.parse import urlsplit

from .common import INITIALIZE, api_key

MIB = 1 << 20
DEAF = 1000
# How long their sessions rest, once all of them have begun.
REST = 15


def head(host, path, length, more=""):
    return (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Accept: application/json, text/event-stream\r\nContent-Length: {length}\r\n{more}\r\n"
    ).encode()


# Of linux/in.h: the port is chosen with the destination. Otherwise each connection keeps one for itself, also from
# whoever connects elsewhere, for a minute after its end.
IP_BIND_ADDRESS_NO_PORT = 24


async def connect(host, source):
    name, port = host.rsplit(":", 1)
    made = socket.socket()
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        made.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(made, (name, int(port)))
        return await asyncio.open_connection(sock=made)
    except BaseException:
        made.close()
        raise


async def answer(reader):
    """Status, headers and body of one answer with a length."""
    first = (await reader.readuntil(b"\r\n\r\n")).decode()
    lines = first.split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines[1:] if ": " in line)
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return int(lines[0].split(" ")[1]), headers, body


async def request(host, source, method, path, body=b"", kind="application/json", more=""):
    reader, writer = await connect(host, source)
    try:
        line = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: {kind}\r\n"
        writer.write(f"{line}Content-Length: {len(body)}\r\n{more}\r\n".encode() + body)
        return await answer(reader)
    finally:
        writer.close()


async def again(act):
    """Does it again and again; what a refusal breaks is begun anew."""
    while True:
        try:
            await act()
        except (OSError, asyncio.IncompleteReadError, TimeoutError, ValueError):
            await asyncio.sleep(0.05)


async def many(count, act):
    await asyncio.gather(*(again(lambda at=at: act(at)) for at in range(count)))


async def unfinished(host, count, sent):
    """Requests whose bodies do not end, each sent anew once it is refused or has waited."""

    async def one(_):
        reader, writer = await connect(host, "127.0.0.2")
        writer.write(sent)
        await writer.drain()
        await reader.read(1)
        await asyncio.sleep(0.5)
        writer.close()

    await many(count, one)


async def unfinished_bodies(host, path):
    await unfinished(host, 200, head(host, path, 4 * MIB) + b" " * (4 * MIB - 1))


async def big_heads(host, path):
    fields = "".join(f"X-{at}: {'y' * 900}\r\n" for at in range(60))
    await unfinished(host, 1000, head(host, path, 1000, fields))


async def heads_without_ends(host, path):
    """Heads of 63 KiB without their ends, on connections that have had an answer: nothing is known of such a request
    yet. One that is refused comes again after a second."""
    answered = f"GET /livez HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    begun = f"GET {path} HTTP/1.1\r\nHost: {host}\r\n".encode()
    begun += b"".join(b"X-%02d: %s\r\n" % (at, b"y" * 900) for at in range(71))

    async def one(_):
        reader, writer = await connect(host, "127.0.0.2")
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            writer.write(answered)
            await answer(reader)
            writer.write(begun)
            await reader.read(1)
        writer.close()
        await asyncio.sleep(1)

    await many(6000, one)


def frame(kind, flags, stream, payload=b""):
    return len(payload).to_bytes(3) + bytes((kind, flags)) + stream.to_bytes(4) + payload


def fields(host, target):
    """Fields of a request: GET, http, a path and a host."""
    target, host = target.encode(), host.encode()
    return b"\x82\x86\x04" + bytes((len(target),)) + target + b"\x01" + bytes((len(host),)) + host


async def ended_streams(reader, count):
    """Reads frames until so many streams have an answer with its end."""
    while count:
        first = await reader.readexactly(9)
        await reader.readexactly(int.from_bytes(first[:3]))
        # DATA or HEADERS with END_STREAM.
        count -= first[3] <= 1 and first[4] & 1


async def after_an_answer(host, sent, act):
    """Sends frames on a connection of HTTP/2 that has had an answer."""
    reader, writer = await connect(host, "127.0.0.2")
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        # SETTINGS; HEADERS with END_HEADERS and END_STREAM.
        writer.write(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + frame(1, 5, 1, fields(host, "/livez")))
        await ended_streams(reader, 1)
        writer.write(sent)
        await act(reader)
    writer.close()
    await asyncio.sleep(1)


async def blocks_without_ends(host, path):
    """The same over HTTP/2, where a byte of a header block that names a field once more makes a value of 72 bytes: blocks
    of two kilobytes, on connections that have had an answer. One that is refused comes again after a second."""
    # A field that is remembered, and named again and again; without END_HEADERS.
    begun = frame(1, 1, 3, fields(host, path) + b"\x40\x01a\x00" + b"\xbe" * 1900)

    async def refused(reader):
        while await reader.read(1 << 12):
            pass

    await many(6000, lambda _: after_an_answer(host, begun, refused))


async def complete_blocks(host, path):
    """64 such blocks with their ends at once on each connection, again and again."""
    first = frame(1, 5, 3, fields(host, path) + b"\x40\x01a\x00" + b"\xbe" * 1900)
    others = (frame(1, 5, 2 * number + 3, fields(host, path) + b"\xbe" * 1900) for number in range(1, 64))
    blocks = first + b"".join(others)
    await many(500, lambda _: after_an_answer(host, blocks, lambda reader: ended_streams(reader, 64)))


async def unread_answers(host, path):
    body = b'{"jsonrpc":"2.0","id":1,"method":"ping"}'
    one_request = head(host, path, len(body)) + body

    async def one(_):
        _, writer = await connect(host, "127.0.0.2")
        for _ in range(200):
            writer.write(one_request * 20)
            await asyncio.wait_for(writer.drain(), 2)
        writer.close()

    await many(150, one)


async def connections(host, path):
    async def one(_):
        reader, writer = await connect(host, "127.0.0.2")
        await reader.read(1)
        writer.close()
        await asyncio.sleep(0.2)

    await many(12_000, one)


async def begin(host, path, source):
    """A session; its id, and the connection that it began on."""
    reader, writer = await connect(host, source)
    body = json.dumps(INITIALIZE).encode()
    writer.write(head(host, path, len(body)) + body)
    status, headers, _ = await answer(reader)
    if status != 200:
        writer.close()
        await asyncio.sleep(0.2)
        raise ValueError(status)
    return headers["mcp-session-id"], reader, writer


async def sessions(host, path):
    async def one(_):
        _, _, writer = await begin(host, path, "127.0.0.2")
        writer.close()

    await many(16, one)


async def deaf_clients(host, path):
    """Sessions whose servers send on streams that nobody reads, once all of them have begun and rested.

    Of two hosts, the first has the sessions and the second the streams.
    """
    host, _, asked = host.partition(" ")
    asked = asked or host
    flood = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    # Without a token no event would be for the stream.
    flood["params"] = {"name": "flood", "arguments": {"events": 20_000}, "_meta": {"progressToken": 1}}
    flood = json.dumps(flood).encode()

    gate, waiting, all_begun = asyncio.Semaphore(32), DEAF, asyncio.Event()

    async def one(at):
        nonlocal waiting
        source, session = f"127.0.0.{2 + at % 100}", None
        while not session:
            # One that is refused comes again.
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, ValueError):
                async with gate:
                    session, _, writer = await begin(host, path, source)
                writer.close()
        waiting -= 1
        if not waiting:
            all_begun.set()
        await all_begun.wait()
        await asyncio.sleep(REST)

        async def again_deaf():
            _, stream = await connect(asked, source)
            stream.transport.pause_reading()
            stream.write(head(asked, path, len(flood), f"Mcp-Session-Id: {session}\r\n") + flood)
            await asyncio.sleep(3)
            stream.close()

        await again(again_deaf)

    await asyncio.gather(*(one(at) for at in range(DEAF)))


async def large_responses(host, path):
    """Responses of 2 MiB that nobody takes: eight at a time in each of 50 sessions."""
    big = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "big", "arguments": {"kib": 2048}}}

    async def one(at):
        source = f"127.0.0.{2 + at % 20}"
        session, _, writer = await begin(host, path, source)
        writer.close()

        async def untaken(number):
            _, stream = await connect(host, source)
            stream.transport.pause_reading()
            body = json.dumps(big | {"id": number}).encode()
            stream.write(head(host, path, len(body), f"Mcp-Session-Id: {session}\r\n") + body)
            await asyncio.sleep(1)
            stream.close()

        for turn in itertools.count(1):
            await asyncio.gather(*(untaken(turn * 8 + call) for call in range(8)))

    await many(50, one)


async def large_messages(host, path):
    """Messages as large as they may be, of values as small as they may be, that are wrong at their ends: all of
    the work is the gateway's."""
    sent = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"text":['
    sent += b"[]," * ((4 * MIB - len(sent)) // 3)

    async def one(at):
        reader, writer = await connect(host, f"127.0.0.{2 + at}")
        try:
            while True:
                writer.write(head(host, path, len(sent)) + sent)
                await answer(reader)
        finally:
            writer.close()

    await many(16, one)


async def refused_bodies(host, path):
    """Bodies that are refused for their length, of which all is sent nevertheless."""

    async def one(at):
        reader, writer = await connect(host, f"127.0.0.{2 + at % 20}")
        writer.write(head(host, path, 64 * MIB))
        writer.write(b" " * (16 * MIB))
        await answer(reader)
        writer.close()

    await many(64, one)


async def registrations(host, path):
    """Clients that register, and then change nothing of it, from twenty addresses."""
    tenant = path.rsplit("/", 2)[0]
    wanted = {"redirect_uris": ["https://client.example/cb"], "client_name": "x" * 100}
    body = json.dumps(wanted).encode()

    async def one(at):
        source = f"127.0.0.{2 + at % 20}"
        status, _, made = await request(host, source, "POST", f"{tenant}/oauth/register", body)
        if status == 503 and not made:
            # The one that refuses has no text: what follows comes as fast nevertheless.
            uri = f"http://{host}{tenant}/oauth/register/none"
            made = {"client_id": "none", "registration_access_token": "none", "registration_client_uri": uri}
        elif status != 201:
            await asyncio.sleep(0.2)
            return
        else:
            made = json.loads(made)
        uri = urlsplit(made["registration_client_uri"]).path
        more = f"Authorization: Bearer {made['registration_access_token']}\r\n"
        same = json.dumps(wanted | {"client_id": made["client_id"]}).encode()
        while True:
            await request(host, source, "PUT", uri, same, more=more)

    await many(40, one)


def jws(header, claims):
    """A JWS of ES256 or EdDSA with a signature that nobody has made."""
    parts = [json.dumps(part).encode() for part in (header, claims)] + [secrets.token_bytes(64)]
    return ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)


def proof(method, url):
    """A proof for this request (RFC 9449), of the key of its section 4.1."""
    x, y = "l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs", "9VE4jf_Ok_o64zbTTlcuNJajHmt6v9TDVrU0CdvGRDA"
    header = {"typ": "dpop+jwt", "alg": "ES256", "jwk": {"kty": "EC", "crv": "P-256", "x": x, "y": y}}
    return jws(header, {"jti": secrets.token_hex(8), "htm": method, "htu": url, "iat": int(time.time())})


async def credentials(host, path):
    """API keys that nobody has, and tokens and proofs of which all but the signature is right, from twenty addresses."""
    tenant = path.rsplit("/", 2)[0]

    async def said(url):
        return json.loads((await request(host, "127.0.0.2", "GET", urlsplit(url).path))[2] or "{}")

    metadata = await said(f"/.well-known/oauth-authorization-server{tenant}")
    issuer = metadata.get("issuer", f"http://{host}{tenant}")
    keys = (await said(metadata.get("jwks_uri", "/"))).get("keys", [{}])
    header = {"typ": "at+jwt", "alg": keys[0].get("alg", "ES256"), "kid": keys[0].get("kid", "none")}
    endpoint = f"{issuer.removesuffix(tenant)}{path}"

    async def bearer(source, token, more=""):
        await request(host, source, "POST", path, b"{}", more=f"Authorization: {token}\r\n{more}")

    async def one(at):
        source = f"127.0.0.{2 + at % 20}"
        for number in itertools.count(at):
            claims = {"iss": issuer, "sub": "ada", "aud": endpoint, "client_id": "x", "exp": int(time.time()) + 300}
            token = jws(header, claims | {"jti": secrets.token_hex(8), "iat": int(time.time())})
            if number % 4 == 0:
                await bearer(source, f"Bearer {api_key()}")
            elif number % 4 == 1:
                await bearer(source, f"Bearer {token}")
            elif number % 4 == 2:
                await bearer(source, f"DPoP {token}", f"DPoP: {proof('POST', endpoint)}\r\n")
            else:
                form = b"grant_type=authorization_code&client_id=nobody&code=none&code_verifier=none"
                more = f"DPoP: {proof('POST', issuer + '/oauth/token')}\r\n"
                kind = "application/x-www-form-urlencoded"
                await request(host, source, "POST", f"{tenant}/oauth/token", form, kind, more)

    await many(64, one)


async def log_ins(host, path):
    """Requests that begin a log-in, as fast as they are answered."""
    tenant = path.rsplit("/", 2)[0]
    query = "response_type=code&client_id=nobody&redirect_uri=https%3A%2F%2Fclient.example%2Fcb&state=1"

    async def one(at):
        await request(host, f"127.0.0.{2 + at % 20}", "GET", f"{tenant}/oauth/authorize?{query}")

    await many(64, one)


UNREADING = "1,000 clients that do not read"
UNREADING_ELSEWHERE = "1,000 clients that do not read, by way of another replica"
ATTACKS = {
    "200 bodies that do not end": unfinished_bodies,
    "1,000 requests with big heads that do not end": big_heads,
    "6,000 heads of 63 KiB without their ends": heads_without_ends,
    "6,000 header blocks of HTTP/2 without their ends": blocks_without_ends,
    "complete header blocks of HTTP/2 on 500 connections": complete_blocks,
    "150 connections that read no answers": unread_answers,
    "12,000 connections of one address": connections,
    "sessions without end": sessions,
    UNREADING: deaf_clients,
    UNREADING_ELSEWHERE: deaf_clients,
    "16 clients with messages of 4 MiB": large_messages,
    "400 responses of 2 MiB that nobody takes": large_responses,
    "bodies that are refused and go on": refused_bodies,
    "registrations, and changes that change nothing": registrations,
    "requests that begin a log-in": log_ins,
    "keys, tokens and proofs that are not good": credentials,
}

# Those at the tenant that has an authorization server.
WITH_ACCOUNTS = (registrations, log_ins, credentials)


async def refuse(reader, writer):
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.read(1 << 16)
        writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


async def refusing(listener):
    server = await asyncio.start_server(refuse, sock=listener, backlog=4096)
    await server.serve_forever()


def refuser(listener):
    """Refuses whatever comes, at once, until the process is ended."""
    asyncio.run(refusing(listener))


def attack(name, host, path):
    """Runs until the process is ended."""
    try:
        asyncio.run(ATTACKS[name](host, path))
    except KeyboardInterrupt:
        sys.exit()
