"""Replicas over one Redis, and clients with nothing hidden, for the parts that need several."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from .common import INITIALIZE, free_port, listening, running, until

PATH = "/t/bench/child/mcp"
REVISION = "2025-11-25"
BOTH = "application/json, text/event-stream"
KEY = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE="
# What a peer that is gone, or that ends in the middle of a body, looks like.
BROKEN = (OSError, asyncio.IncompleteReadError)


class Redis:
    """One that keeps nothing, of its own."""

    def __init__(self, port, folder):
        self.port, self.folder, self.process = port, folder, None
        self.url = f"redis://127.0.0.1:{port}/0"

    def start(self):
        command = [os.environ.get("REDIS_SERVER", "redis-server"), "--port", str(self.port)]
        command += ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", self.folder]
        with open(f"{self.folder}/log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

        def answers():
            with contextlib.suppress(OSError):
                return self.ask("PING") == "PONG"

        until("Redis answers", answers, 15)

    def kill(self):
        """Also one that is stopped."""
        self.process.kill()
        self.process.wait()

    def ask(self, *words):
        """The answer: a text, or a list of texts."""
        asked = b"*%d\r\n" % len(words)
        for word in words:
            asked += b"$%d\r\n%s\r\n" % (len(word), word.encode())
        with socket.create_connection(("127.0.0.1", self.port), 5) as line, line.makefile("rb") as read:
            line.sendall(asked)

            def one():
                first = read.readline().decode().strip()
                if first.startswith("*"):
                    return [one() for _ in range(int(first[1:]))]
                if not first.startswith("$"):
                    return first[1:]
                return read.read(int(first[1:]) + 2)[:-2].decode("utf-8", "replace")

            return one()

    def calls(self):
        """How often each command was given, but those that ask for that."""
        found = {}
        for line in self.ask("INFO", "commandstats").splitlines():
            if line.startswith("cmdstat_"):
                name, figures = line.removeprefix("cmdstat_").split(":", 1)
                found[name] = int(figures.split(",", 1)[0].removeprefix("calls="))
        found.pop("info", None)
        return found

    def kept(self, session):
        """How many events the log has had for each stream of a session but its listener."""
        fields = self.ask("HGETALL", f"lockgate:v1:{{{session}}}")
        pairs = zip(fields[::2], fields[1::2])
        return [int(last) for name, last in pairs if name.startswith("n:") and name != "n:0"]

    def pause(self):
        self.process.send_signal(signal.SIGSTOP)

    def resume(self):
        self.process.send_signal(signal.SIGCONT)


@contextlib.contextmanager
def redis():
    with tempfile.TemporaryDirectory(prefix="lockgate-redis-") as folder:
        made = Redis(free_port(), folder)
        try:
            made.start()
            yield made
        finally:
            made.kill()


class Replicas:
    """Those of one gateway; each keeps its port of the public listener for all of its lives."""

    def __init__(self, options, store, folder, command, public, *sets):
        self.options, self.folder = options, folder
        self.manifest = folder / "manifest.json"
        server = {"command": str(command), "sandbox": {"profile": "open"}, "idle": "10m"}
        # The default of 50,000 is less than these loads.
        quotas = {"requests_per_second": 1_000_000}
        tenant = {"auth": {"mode": "none"}, "servers": {"child": server}}
        tenant["quotas"] = quotas | {"principal": quotas}
        self.manifest.write_text(json.dumps({"version": 1, "tenants": {"bench": tenant}}))
        self.sets = [f"master_key={KEY}", f"redis.url={store.url}", f"public_url=http://{public}"]
        self.sets += ["cluster.listen=127.0.0.1:0", "ops.listen=127.0.0.1:0", "stream.retry=200ms"]
        self.sets += ["telemetry.log=warn,lockgate::cli=info", "sandbox.separation=none"]
        self.sets += ["drain.delay=1s", *sets]
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        self.lives, self.gateways = [None, None], [None, None]
        self.starts = 0

    def data(self, at):
        return self.folder / f"data-{at}"

    def own_sets(self, at):
        """Settings of one of them."""
        return []

    def command(self, at):
        return [str(self.options.binary), "serve", "--apply", str(self.manifest)]

    def start(self, at):
        """A new life of one; returns when it serves."""
        self.starts += 1
        command = self.command(at)
        data = f"data_dir={self.data(at)}"
        for one in [f"http.listen={self.addresses[at]}", data, *self.sets, *self.own_sets(at)]:
            command += ["--set", one]
        log = self.folder / f"log-{at}-{self.starts}"
        with contextlib.ExitStack() as stack:
            process = stack.enter_context(running(command, log))
            self.gateways[at] = listening(process, log)
            until("a replica that serves", lambda: is_ready(self.addresses[at]), 15)
            self.lives[at] = process, stack.pop_all()

    def kill(self, at):
        """Nothing of it gets a chance to say goodbye."""
        process, stack = self.lives[at]
        process.kill()
        process.wait()
        self.lives[at] = None
        stack.close()

    def stop(self, at):
        """As an operator would; returns the seconds that it took."""
        process, stack = self.lives[at]
        began = time.monotonic()
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        self.lives[at] = None
        stack.close()
        return time.monotonic() - began


def is_ready(address):
    connection = http.client.HTTPConnection(address, timeout=1)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    return False


@contextlib.contextmanager
def two(options, store, command, public="127.0.0.1:8080", *sets):
    """Two replicas; whatever happens, no process is left of them."""
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        replicas = Replicas(options, store, Path(folder), command, public, *sets)
        try:
            replicas.start(0)
            replicas.start(1)
            yield replicas
        finally:
            for at, life in enumerate(replicas.lives):
                if life:
                    replicas.kill(at)


@dataclasses.dataclass
class Event:
    """One of a stream; `data` is a message, or none."""

    id: str | None
    retry: int | None
    data: dict | None


class Exchange:
    """One request on a connection of its own, and its answer."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.status, self.headers, self.cursor = 0, {}, None

    @classmethod
    async def begin(cls, address, method, headers, message=None, path=PATH):
        """Returns with the head of the answer."""
        host, port = address.rsplit(":", 1)
        made = cls(*await asyncio.open_connection(host, int(port)))
        try:
            body = b"" if message is None else json.dumps(message).encode()
            head = [f"{method} {path} HTTP/1.1", f"Host: {address}", "Connection: close"]
            head += [f"{name}: {value}" for name, value in headers.items()]
            if body:
                head += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
            made.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
            first, *lines = (await made.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            made.status = int(first.split(" ", 2)[1])
            for line in filter(None, lines):
                name, value = line.split(":", 1)
                made.headers[name.lower()] = value.strip()
            return made
        except BaseException:
            made.close()
            raise

    def close(self):
        self.writer.close()

    def is_stream(self):
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def pieces(self):
        """The body as it comes; one that is cut short raises."""
        if "chunked" not in self.headers.get("transfer-encoding", ""):
            length = int(self.headers.get("content-length", 0))
            yield await self.reader.readexactly(length)
            return
        while size := int(await self.reader.readuntil(b"\r\n"), 16):
            yield (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readexactly(2)

    async def events(self):
        rest = b""
        async for piece in self.pieces():
            *blocks, rest = (rest + piece).split(b"\n\n")
            for block in blocks:
                event = Event(None, None, None)
                for line in block.decode().split("\n"):
                    name, _, value = line.partition(": ")
                    if name == "id":
                        event.id = value
                    elif name == "retry":
                        event.retry = int(value)
                    elif name == "data" and value:
                        event.data = json.loads(value)
                yield event

    async def message(self):
        """The answer to a request, in whichever form it is; none at the end of a stream without one."""
        try:
            if self.is_stream():
                async for event in self.events():
                    self.cursor = event.id or self.cursor
                    if event.data and "method" not in event.data:
                        return event.data
                return None
            whole = b"".join([piece async for piece in self.pieces()])
            return json.loads(whole) if whole else None
        finally:
            self.close()


class Session:
    """One of the gateway, by way of any replica; `token` is what its principal shows."""

    def __init__(self, path=PATH, token=None):
        self.id, self.number = None, 0
        self.path, self.token = path, token

    def headers(self, accept=BOTH):
        said = {"Accept": accept, "MCP-Protocol-Version": REVISION}
        if self.token:
            said["Authorization"] = f"Bearer {self.token}"
        return said | ({"Mcp-Session-Id": self.id} if self.id else {})

    def message(self, method, params):
        self.number += 1
        return {"jsonrpc": "2.0", "id": self.number, "method": method, "params": params}

    def call(self, tool, arguments, **meta):
        params = {"name": tool, "arguments": arguments}
        if meta:
            params["_meta"] = meta
        return self.message("tools/call", params)

    async def post(self, address, message, accept=BOTH):
        """The status, and what was said; a stream that was closed on the way is read on."""
        exchange = await Exchange.begin(address, "POST", self.headers(accept), message, self.path)
        said = await exchange.message()
        while said is None and exchange.status == 200 and exchange.cursor:
            await asyncio.sleep(0.1)
            headers = self.headers("text/event-stream") | {"Last-Event-ID": exchange.cursor}
            cursor = exchange.cursor
            exchange = await Exchange.begin(address, "GET", headers, path=self.path)
            exchange.cursor = cursor
            said = await exchange.message()
        self.id = self.id or exchange.headers.get("mcp-session-id")
        return exchange.status, said

    async def open(self, address):
        params = INITIALIZE["params"] | {"protocolVersion": REVISION}
        status, said = await self.post(address, self.message("initialize", params))
        if status == 200:
            done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
            status, said = await self.post(address, done)
        return status, said

    async def end(self, address):
        exchange = await Exchange.begin(address, "DELETE", self.headers(), path=self.path)
        await exchange.message()
        return exchange.status


async def sessions(count, addresses):
    """So many of them, opened in turn at these addresses."""
    gate = asyncio.Semaphore(8)

    async def one(number):
        async with gate:
            for _ in range(10):
                made = Session()
                status, said = await made.open(addresses[number % len(addresses)])
                if status == 202:
                    return made
                await asyncio.sleep(0.3)
        raise RuntimeError(f"initialize: {status} {said}")

    return await asyncio.gather(*(one(number) for number in range(count)))


class Balancer:
    """One that knows nothing of sessions: each connection goes to a replica that is ready.

    Where none is ready it refuses; in panic mode, as some balancers have it, it asks any.
    """

    def __init__(self, port, panics=False):
        self.address = f"127.0.0.1:{port}"
        self.panics, self.known = panics, []
        self.ready, self.turn, self.refused = [], 0, 0
        self.tasks = set()

    @contextlib.asynccontextmanager
    async def before(self, addresses):
        host, port = self.address.rsplit(":", 1)
        self.known = list(addresses)
        server = await asyncio.start_server(self.carry, host, int(port), backlog=1000)
        polls = [asyncio.create_task(self.poll(address)) for address in addresses]
        try:
            await asyncio.sleep(0.5)
            yield self
        finally:
            server.close()
            for task in [*polls, *self.tasks]:
                task.cancel()
            await asyncio.gather(*polls, *self.tasks, return_exceptions=True)

    async def poll(self, address):
        while True:
            is_there = False
            with contextlib.suppress(*BROKEN, TimeoutError):
                async with asyncio.timeout(1):
                    asked = await Exchange.begin(address, "GET", {}, path="/readyz")
                    asked.close()
                    is_there = asked.status == 200
            if is_there and address not in self.ready:
                self.ready.append(address)
            elif not is_there and address in self.ready:
                self.ready.remove(address)
            await asyncio.sleep(0.1)

    def cut(self):
        """Every connection breaks, on both of its sides; how many."""
        cut = list(self.tasks)
        for task in cut:
            task.cancel()
        return len(cut)

    async def carry(self, reader, writer):
        self.tasks.add(asyncio.current_task())
        try:
            up_reader, up_writer = await self.connect()
            back = asyncio.create_task(copy(up_reader, writer))
            self.tasks.add(back)
            back.add_done_callback(self.tasks.discard)
            there = asyncio.create_task(copy(reader, up_writer))
            await back
            there.cancel()
            up_writer.close()
        except (OSError, asyncio.CancelledError):
            # Also as the balancer ends: whoever called this looks for an exception.
            writer.transport.abort()
        finally:
            self.tasks.discard(asyncio.current_task())

    async def connect(self):
        """To the next one; where that refuses, at once to another."""
        for _ in range(2):
            ready = list(self.ready) or (self.known if self.panics else [])
            if not ready:
                break
            self.turn += 1
            host, port = ready[self.turn % len(ready)].rsplit(":", 1)
            with contextlib.suppress(ConnectionRefusedError):
                return await asyncio.open_connection(host, int(port))
            self.refused += 1
        raise ConnectionRefusedError("no replica is ready")


async def copy(reader, writer):
    """Until the one ends; as it ends, the other does."""
    try:
        while piece := await reader.read(65536):
            writer.write(piece)
            await writer.drain()
        writer.close()
    except OSError:
        writer.transport.abort()
