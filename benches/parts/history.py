"""What clients saw of streams, written down as it comes, and the checker that reads it afterwards."""

import asyncio
import collections
import dataclasses
import json
import time

from .cluster import BROKEN, Exchange


class History:
    """One JSON object a line: what, when, of which stream, and more."""

    def __init__(self, path):
        self.path = path
        self.file = open(path, "w", buffering=1 << 16)

    def note(self, what, stream, **more):
        line = {"what": what, "at": time.monotonic(), "stream": stream, **more}
        self.file.write(json.dumps(line) + "\n")

    def read(self):
        self.file.close()
        with open(self.path) as file:
            return [json.loads(line) for line in file]


def number_of(message):
    """The sequence number in what was notified."""
    params = message.get("params") or {}
    return params.get("progress", params.get("_meta", {}).get("data"))


class Reader:
    """Reads one stream on for as long as it goes on, with Last-Event-ID over any number of connections."""

    def __init__(self, history, session, name, elsewhere):
        self.history, self.session, self.name = history, session, name
        self.elsewhere = elsewhere
        self.cursor, self.retry, self.final, self.last = None, None, None, 0
        self.begun = asyncio.Event()

    async def call(self, address, message, **more):
        """A call, to its last message."""
        self.history.note("invoke", self.name, session=self.session.id, **more)
        exchange = None
        try:
            exchange = await Exchange.begin(address, "POST", self.session.headers(), message, self.session.path)
            if exchange.status != 200 or not exchange.is_stream():
                said = await exchange.message()
                self.end(exchange.status, said)
                return
        except BROKEN as error:
            if not self.cursor:
                self.history.note("info", self.name, why=repr(error))
                self.begun.set()
                return
        await self.read_on(exchange, lambda message: "method" not in message)

    async def listen(self, address):
        """The stream of what nobody asked for; until it is cancelled."""
        self.history.note("invoke", self.name, session=self.session.id)
        headers = self.session.headers("text/event-stream")
        exchange = await Exchange.begin(address, "GET", headers, path=self.session.path)
        if exchange.status != 200:
            self.end(exchange.status, await exchange.message())
            return
        await self.read_on(exchange, lambda message: False)

    async def read_on(self, exchange, is_last):
        while exchange and not await self.read(exchange, is_last):
            exchange = await self.resume()

    async def read(self, exchange, is_last):
        """Whether the stream is at its end."""
        how = "closed"
        try:
            async for event in exchange.events():
                self.retry = event.retry or self.retry
                self.cursor = event.id or self.cursor
                if event.data is None:
                    self.begun.set()
                    continue
                number = number_of(event.data)
                self.last = number or self.last
                self.history.note("event", self.name, id=event.id, number=number)
                self.begun.set()
                if is_last(event.data):
                    self.end(200, event.data)
                    return True
        except BROKEN:
            how = "reset"
        finally:
            exchange.close()
        self.history.note("cut", self.name, how=how, retry=self.retry)
        return False

    def end(self, status, message):
        message = message or {}
        code = message.get("error", {}).get("code")
        is_good = status == 200 and code is None
        self.final = "ok" if is_good else code if status == 200 else f"status {status}"
        said = None if is_good else message
        self.history.note("ok" if is_good else "fail", self.name, status=status, code=code, said=said)
        self.begun.set()

    async def resume(self, patience=15):
        """The rest of it, from any replica; none if nobody has it."""
        if self.retry:
            await asyncio.sleep(self.retry / 1000)
            self.retry = None
        began, tries = time.monotonic(), collections.Counter()
        while time.monotonic() < began + patience:
            headers = self.session.headers("text/event-stream")
            if self.cursor:
                headers["Last-Event-ID"] = self.cursor
            try:
                exchange = await Exchange.begin(self.elsewhere(), "GET", headers, path=self.session.path)
            except BROKEN as error:
                tries[type(error).__name__] += 1
                await asyncio.sleep(0.05)
                continue
            if exchange.status == 200:
                return self.timed(exchange, began, tries)
            tries[str(exchange.status)] += 1
            said = await exchange.message()
            if exchange.status != 503:
                self.history.note("again", self.name, tries=tries)
                self.end(exchange.status, said)
                return None
            await asyncio.sleep(min(0.25, float(exchange.headers.get("retry-after", 1))))
        self.history.note("again", self.name, tries=tries)
        self.end(0, {"gave up": dict(tries)})
        return None

    def timed(self, exchange, began, tries):
        """Notes when the first byte of the body comes."""
        pieces, history, name = exchange.pieces, self.history, self.name

        async def first():
            is_first = True
            async for piece in pieces():
                if is_first:
                    took = time.monotonic() - began
                    history.note("again", name, took=took, tries=tries)
                is_first = False
                yield piece

        exchange.pieces = first
        return exchange


@dataclasses.dataclass
class Checked:
    """What came of many streams; each list is of what is wrong."""

    streams: int = 0
    events: int = 0
    lost: list = dataclasses.field(default_factory=list)
    twice: list = dataclasses.field(default_factory=list)
    reordered: list = dataclasses.field(default_factory=list)
    endless: list = dataclasses.field(default_factory=list)
    other: list = dataclasses.field(default_factory=list)
    cuts: int = 0
    again: list = dataclasses.field(default_factory=list)
    tries: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    ends: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    broken: list = dataclasses.field(default_factory=list)
    ended: dict = dataclasses.field(default_factory=dict)


def check(lines, may_fail=(), is_endless=False, found=None):
    """Each stream's numbers are 1, 2, … without a gap, each once, in order, up to its end.

    A stream that is endless has those that are known to be stored.
    """
    found = found or Checked()
    streams = collections.defaultdict(list)
    for line in lines:
        streams[line["stream"]].append(line)
    for name, said in streams.items():
        found.streams += 1
        events = [line for line in said if line["what"] == "event"]
        found.events += len(events)
        ids = [line["id"] for line in events]
        numbers = [line["number"] for line in events if line["number"] is not None]
        if len(set(ids)) < len(ids) or None in ids or len(set(numbers)) < len(numbers):
            found.twice.append(name)
        if numbers != sorted(numbers):
            found.reordered.append(name)
        invoked = said[0]
        wanted = max(numbers, default=0)
        for line in said:
            if line["what"] == "again":
                found.tries.update(line["tries"])
                if "took" in line:
                    found.again.append(line["took"])
            if line["what"] == "ok" and "n" in invoked:
                wanted = invoked["n"]
        wanted = set(range(1, wanted + 1))
        if is_endless:
            # Of what was told to a listener, that of which it is known that it was said.
            wanted = {line["last"] for line in said if line["what"] == "stored"}
        missing = wanted - set(numbers)
        if missing:
            found.lost.append((name, sorted(missing)[:5], len(missing), max(wanted)))
        found.cuts += sum(line["what"] == "cut" for line in said)
        ends = [line for line in said if line["what"] in ("ok", "fail", "info")]
        if len(ends) != 1 and not (is_endless and not ends):
            found.endless.append(name)
        for line in ends:
            found.ended[name] = line["at"]
            end = "ok" if line["what"] == "ok" else str(line.get("code") or line.get("status"))
            found.ends[end] += 1
            if line["what"] == "info":
                found.broken.append(name)
            if line["what"] == "fail" and line["code"] not in may_fail:
                found.other.append((name, line["status"], line["said"]))
    return found
