"""The load of the soak: lanes, each a loop of what some kind of client does until the end."""

import asyncio
import contextlib
import http.client
import itertools
import json
import random
import time
from urllib.parse import parse_qs, urlencode, urlsplit

from parts.cluster import BROKEN, Exchange, Session
from parts.common import INITIALIZE
from parts.history import History, Reader
from parts.one_time import FORM, REDIRECT, Person

from . import world
from .ledger import kind

SHARED = "/t/bench/shared/mcp"
ECHO = "/t/acme/echo/mcp"
# A client that waits longer than this has been forgotten.
PATIENCE = 60


class Chapters:
    """Histories of streams, one for each stretch of time, so that none is too large to be checked."""

    def __init__(self, folder):
        self.folder, self.all = folder, []
        self.turn()

    def turn(self):
        number = len(self.all) + 1
        pair = [History(self.folder / f"{name}-{number}.jsonl") for name in ("calls", "listened")]
        self.all.append(pair)

    @property
    def now(self):
        return self.all[-1]


class Flaky(Reader):
    """A client whose connection breaks now and then, and which resumes."""

    def __init__(self, chance, *rest):
        super().__init__(*rest)
        self.chance = chance

    async def read(self, exchange, is_last):
        def cut():
            if self.cursor:
                exchange.writer.transport.abort()

        is_cut = random.random() < self.chance
        handle = asyncio.get_running_loop().call_later(random.uniform(0.1, 0.9), cut) if is_cut else None
        try:
            return await super().read(exchange, is_last)
        finally:
            if handle:
                handle.cancel()


class Load:
    """Every lane, and what they share."""

    def __init__(self, made, ledger, times, folder):
        self.world, self.ledger, self.times = made, ledger, times
        self.address = made.balancer.address
        self.chapters = Chapters(folder)
        self.over = asyncio.Event()
        self.names = itertools.count(1)
        self.deaf = 1

    def lanes(self, size):
        """As tasks; `size` is how much of everything."""
        many = lambda count: range(max(1, round(count * size)))  # noqa: E731
        lanes = [self.steady(None if at % 3 else SHARED) for at in many(18)]
        lanes += [self.churn() for _ in many(2)]
        lanes += [self.stream() for _ in many(6)]
        lanes += [self.listen() for _ in many(4)]
        lanes += [self.crash() for _ in many(2)]
        lanes += [self.person(name) for name, _ in zip(world.PEOPLE, many(3))]
        lanes.append(self.unread())
        return [asyncio.create_task(lane) for lane in lanes]

    async def rest(self, seconds):
        """Whether the soak goes on after so long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.over.wait()
        return not self.over.is_set()

    async def said(self, lane, session, message, is_good=lambda said: "result" in said, expected=()):
        """The answer to a request, if it is good; else it is noted, unless it was to be expected."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                status, said = await session.post(self.address, message)
        except TimeoutError:
            return self.ill(lane, began, "no answer", message.get("method"))
        except BROKEN as error:
            return self.ill(lane, began, "broken", repr(error))
        if status in (200, 202) and (status == 202 or (said and is_good(said))):
            self.ledger.well(lane)
            return said or {}
        what = kind(status, said)
        if what in expected:
            self.ledger.well(lane)
            return None
        return self.ill(lane, began, what, said)

    def ill(self, lane, began, what, said):
        self.ledger.ill(lane, began, time.monotonic(), what, said)

    async def open(self, lane, path=None, token=None):
        """A session; tries until there is one, or the end."""
        while not self.over.is_set():
            session = Session(path, token) if path else Session(token=token)
            params = INITIALIZE["params"] | {"protocolVersion": "2025-11-25"}
            if await self.said(lane, session, session.message("initialize", params)):
                done = {"jsonrpc": "2.0", "method": "notifications/initialized"}
                if await self.said(lane, session, done) is not None:
                    self.ledger.count("sessions")
                    return session
                await self.end(lane, session)
            await self.rest(0.5)
        return None

    async def end(self, lane, session):
        """DELETE, as polite clients do."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(PATIENCE):
                status = await session.end(self.address)
        except (*BROKEN, TimeoutError) as error:
            return self.ill(lane, began, "broken", repr(error))
        if status != 204:
            self.ill(lane, began, f"{status}", "DELETE")
        self.ledger.count("deleted")

    async def leave(self, lane, session):
        """Half of the clients say goodbye."""
        if random.random() < 0.5:
            await self.end(lane, session)
        else:
            self.ledger.count("abandoned")

    async def echo(self, lane, session, expected=()):
        text = f"text {next(self.names)}"
        is_mine = lambda said: said.get("result", {}).get("content", [{}])[0].get("text") == text  # noqa: E731
        return await self.said(lane, session, session.call("echo", {"text": text}), is_mine, expected)

    # Lanes

    async def steady(self, path):
        """Calls of all sizes at a steady pace, in sessions of some seconds to a minute."""
        lane = "shared" if path else "steady"
        while session := await self.open(lane, path):
            for number in range(random.randint(10, 60)):
                if not await self.rest(random.uniform(0.3, 0.9)):
                    return await self.leave(lane, session)
                if number % 10 == 9:
                    await self.said(lane, session, session.message("tools/list", {}))
                elif number % 10 == 4:
                    await self.said(lane, session, session.call("big", {"bytes": 50_000}))
                else:
                    await self.echo(lane, session)
            await self.leave(lane, session)

    async def churn(self):
        """Sessions of one call; most are abandoned."""
        while session := await self.open("churn"):
            await self.echo("churn", session)
            if random.random() < 0.3:
                await self.end("churn", session)
            else:
                self.ledger.count("abandoned")
            if not await self.rest(random.uniform(0.3, 0.9)):
                return

    async def stream(self):
        """Calls with progress, one after the other, over connections that break."""
        while session := await self.open("stream"):
            for _ in range(random.randint(5, 20)):
                name = f"call {next(self.names)}"
                reader = Flaky(0.3, self.chapters.now[0], session, name, lambda: self.address)
                message = session.call("slow", {"n": 25, "ms": 40}, progressToken=name)
                await reader.call(self.address, message, n=25)
                self.ledger.count("streams")
                if self.over.is_set() or str(reader.final).startswith("status 4"):
                    break
            await self.leave("stream", session)
            if self.over.is_set():
                return

    async def listen(self):
        """A listener that is told numbers by its own calls, and must hear each once."""
        while session := await self.open("listen"):
            _, history = self.chapters.now
            name = f"listener {next(self.names)}"
            ear = Flaky(0.1, history, session, name, lambda: self.address)
            hearing = asyncio.create_task(self.hear(ear))
            told = await self.tell(session, history, ear)
            # What was told last may be on its way.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(20):
                    while ear.last < told and not hearing.done():
                        await asyncio.sleep(0.1)
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
            self.ledger.count("listeners")
            await self.leave("listen", session)
            if self.over.is_set():
                return

    async def hear(self, ear):
        """Until it has been heard; a connection that breaks before anything was heard is made again."""
        while not self.over.is_set():
            began = time.monotonic()
            try:
                return await ear.listen(self.address)
            except BROKEN as error:
                self.ill("listen", began, "broken", repr(error))
                await asyncio.sleep(0.2)

    async def tell(self, session, history, ear):
        """For some time; the number that was told last."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(10):
                await ear.begun.wait()
        told, until = 0, time.monotonic() + self.times.chapter
        for number in itertools.count(1):
            if time.monotonic() > until or ear.final or not await self.rest(0.25):
                return told
            params = {"_meta": {"data": number}}
            arguments = {"method": "notifications/tools/list_changed", "params": params}
            if await self.said("listen", session, session.call("notify", arguments)):
                history.note("stored", ear.name, last=number)
                told = number
        return told

    async def crash(self):
        """Servers that exit in the middle of a call; the session goes on with another."""
        while session := await self.open("crash"):
            for _ in range(3):
                await self.said("crash", session, session.call("exit", {"code": 1}), lambda _: False, ["backend_exited"])
                self.ledger.count("exits")
                await self.echo("crash", session)
                if not await self.rest(random.uniform(0.5, 1.5)):
                    break
            await self.leave("crash", session)
            if self.over.is_set():
                return

    async def person(self, name):
        """Logs in, uses its token, and refreshes it; sometimes logs in anew."""
        while not self.over.is_set():
            grant = await self.logged_in(name)
            for _ in range(40):
                if grant is None or self.over.is_set():
                    break
                session = await self.open("person", ECHO, grant["access_token"])
                if session is None:
                    return
                await self.echo("person", session)
                await self.leave("person", session)
                grant = await self.refreshed(grant)
                await self.rest(random.uniform(0.5, 1.5))
            await self.rest(1)

    async def logged_in(self, name):
        """A grant, or none."""
        began = time.monotonic()
        try:
            grant = await asyncio.to_thread(log_in, self.address, name)
        except Unavailable as error:
            return self.ill("person", began, f"oauth {error}", "log-in")
        except (OSError, http.client.HTTPException) as error:
            return self.ill("person", began, "oauth broken", repr(error))
        except Exception as error:  # A page that is not what it should be.
            return self.ill("person", began, "oauth wrong", repr(error))
        self.ledger.count("log-ins")
        return grant

    async def refreshed(self, grant):
        """The next grant; the same request again while the answer is 503, or lost."""
        fields = {"grant_type": "refresh_token", "refresh_token": grant["refresh_token"]}
        fields["client_id"] = grant["client_id"]
        first = time.monotonic()
        while time.monotonic() < first + PATIENCE:
            began = time.monotonic()
            try:
                status, said = await asyncio.to_thread(token, self.address, fields)
            except (OSError, http.client.HTTPException) as error:
                self.ill("person", began, "oauth broken", repr(error))
                status = 0
            if status == 200:
                self.ledger.well("refresh")
                self.ledger.count("refreshes")
                return said | {"client_id": grant["client_id"]}
            if status:
                self.ill("person", began, f"oauth {status}", said)
            if status not in (0, 503):
                return None
            await asyncio.sleep(1)
        return self.ill("person", first, "oauth gave up", "refresh")

    async def unread(self):
        """Clients that send and never read; they let go after a while."""
        while not self.over.is_set():
            held = []
            for _ in range(self.deaf):
                session = await self.open("unread")
                if session is None:
                    break
                with contextlib.suppress(*BROKEN):
                    message = session.call("burst", {"n": 2000, "text": "x" * 500}, progressToken="p")
                    body = json.dumps(message).encode()
                    reader, writer = await asyncio.open_connection(*self.address.rsplit(":", 1), limit=1024)
                    head = [f"POST {session.path} HTTP/1.1", f"Host: {self.address}", "Content-Type: application/json"]
                    head += [f"{name}: {value}" for name, value in session.headers().items()]
                    head.append(f"Content-Length: {len(body)}")
                    writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + body)
                    # The transport is read by nobody from here on.
                    writer.transport.pause_reading()
                    held.append(writer)
                    self.ledger.count("clients that never read")
            await self.rest(self.times.unread)
            for writer in held:
                writer.transport.abort()


class Unavailable(Exception):
    """503 on the way through a log-in."""


def log_in(address, name):
    """A person with a browser and a client of its own: registration, log-in, consent, code, tokens."""
    seen = []

    class Watched(Person):
        def ask(self, *words):
            answer = super().ask(*words)
            seen.append(answer)
            if answer[0] >= 500:
                raise Unavailable(answer[0])
            return answer

    person = Watched(address, name, world.PASSWORD)
    codes = [headers.get("Location", "") for _, headers, _ in seen]
    (code,) = [parse_qs(urlsplit(one).query)["code"][0] for one in codes if one.startswith(REDIRECT)]
    fields = {"grant_type": "authorization_code", "code": code, "client_id": person.client}
    fields |= {"redirect_uri": REDIRECT, "code_verifier": person.verifier}
    status, said = token(address, fields)
    if status >= 500:
        raise Unavailable(status)
    if status != 200:
        raise RuntimeError(f"{status} {said}")
    return said | {"client_id": person.client}


def token(address, fields):
    connection = http.client.HTTPConnection(address, timeout=30)
    with contextlib.closing(connection):
        connection.request("POST", "/t/acme/oauth/token", urlencode(fields), FORM)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or b"{}")
