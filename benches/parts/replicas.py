"""Replicas: what a kill, an outage of Redis and a rolling restart cost."""

import asyncio
import collections
import contextlib
import itertools
import random
import statistics
import time

from .cluster import BROKEN, Balancer, Session, redis, sessions, two
from .common import CHILD, INITIALIZE, Report, free_port, percentile
from .history import Checked, History, Reader, check

OWNER_LOST = -31001
# From this count of kills on everything is as long as CONTRACT R2 to R4 and R10 say.
FULL = 50
JSON = "application/json"


def measure(options):
    rows, texts = [], []
    for part in (kills, outage, rolling):
        text, found = part(options)
        texts.append(text)
        rows += [[*cells] for cells in found]
    return Report("\n".join(texts), ["what", "figures", "result", "target"], rows)


def is_full(options):
    return (options.count or 0) >= FULL


def none_of(what, wrong, figures=""):
    """A row of what must not be."""
    if wrong:
        print(f"{what}: {wrong if isinstance(wrong, (int, dict)) else list(wrong)[:10]}", flush=True)
    count = wrong if isinstance(wrong, int) else len(wrong)
    return [what, figures, f"{count:,}", "0", count == 0]


# Kills (R2, R3)


def kills(options):
    rounds, streams = options.of(20, 2), 20 if options.quick else 100
    found, ends, wrong, unlike, split = Checked(), collections.defaultdict(list), [], [], []
    with redis() as store, two(options, store, CHILD) as replicas:
        for number in range(rounds):
            history = History(options.folder / "kills.jsonl")
            killed, kept, odd = asyncio.run(kill(store, replicas, number % 2, streams, history))
            lines = history.read()
            unlike += differences(lines, kept)
            split += odd
            check(lines, (OWNER_LOST,), found=found)
            for line in lines:
                if line["what"] in ("ok", "fail", "info") and line["at"] > killed:
                    group = line["stream"].split(" ")[0]
                    ends[group].append(line["at"] - killed)
                    is_answered = line["what"] != "info"
                    if is_answered != (group != "other"):
                        wrong.append(line)
            replicas.start(number % 2)
    text = (
        f"Kills: {rounds} × kill −9 of the replica that owns {streams} streams (`slow`, an event each 20 ms), half of\n"
        f"them by way of the other, which lives; {found.events:,} events, {found.cuts:,} streams cut and resumed."
    )
    again = found.again or [float("inf")]
    p99 = percentile(again, 0.99)
    rows = [
        none_of("kills: events lost", found.lost, f"{found.events:,}"),
        none_of("kills: streams of which the log had other events", unlike, f"{found.streams:,} calls"),
        none_of("kills: events twice", found.twice),
        none_of("kills: events out of order", found.reordered),
        none_of("kills: calls without an end", found.endless, f"{found.streams:,} calls"),
        none_of("kills: other answers", [*found.other, *wrong], plain({**found.ends, **found.tries})),
        none_of("kills: sessions that are not one child's at their first calls", split, f"{rounds * (streams // 10):,}, 4 calls at once"),
        ["kills: s from reconnect to first byte, p50 / p99", spread(again), f"{p99:.2f}", "≤ 2", p99 <= 2],
    ]
    for group in ("resumable", "forwarded", "other"):
        took = ends[group] or [float("inf")]
        name = f"kills: s to the end of a call, {group}, p99 / max"
        figures = f"{len(took):,} calls: {percentile(took, 0.99):.2f} / {max(took):.2f}"
        rows.append([name, figures, f"{max(took):.2f}", "≤ 10", max(took) <= 10])
    return text, rows


def differences(lines, kept):
    """Sessions whose streams had, in the log, other numbers of events than their clients got."""
    heard = collections.defaultdict(collections.Counter)
    of = {line["stream"]: line["session"] for line in lines if line["what"] == "invoke"}
    for line in lines:
        if line["what"] == "event":
            heard[of[line["stream"]]][line["stream"]] += 1
    told = {session: sorted(heard[session].values()) for session in kept}
    return [(session, told[session], had) for session, had in kept.items() if told[session] != had]


def plain(counted):
    return ", ".join(f"{name}: {count:,}" for name, count in counted.items())


def spread(values):
    return f"{statistics.median(values):.3f} / {percentile(values, 0.99):.3f}"


async def kill(store, replicas, dead, streams, history):
    """One round: when the replica was killed, what the log had for each session, what was counted wrong."""
    owner, other = replicas.addresses[dead], replicas.addresses[1 - dead]
    opened = await sessions(streams // 2, [owner])
    idle = await sessions(streams // 10, [owner])
    tasks, readers = [], []
    for at in range(streams):
        session, is_own = opened[at // 2], at % 2 == 0
        # Some end by themselves around the kill.
        count = 60 if at % 10 < 2 else 100_000
        name = f"{'resumable' if is_own else 'forwarded'} {at}"
        reader = Reader(history, session, name, lambda: other)
        message = session.call("slow", {"n": count, "ms": 20}, progressToken=f"t{at}")
        address = owner if is_own else other
        tasks.append(asyncio.create_task(reader.call(address, message, n=count)))
        readers.append(reader)
    for at in range(0, max(streams // 5, 2)):
        session, is_own = opened[at // 2], at % 2 == 0
        name = f"{'other' if is_own else 'forwarded'} json {at}"
        address = owner if is_own else other
        tasks.append(asyncio.create_task(held(history, session, name, address)))
    async with asyncio.timeout(60):
        await asyncio.gather(*(reader.begun.wait() for reader in readers))
    await asyncio.sleep(random.uniform(0.5, 1.5))
    process, _ = replicas.lives[dead]
    killed = time.monotonic()
    process.kill()
    counted = await asyncio.gather(*(at_once(session, other) for session in idle))
    done, late = await asyncio.wait(tasks, timeout=40)
    for task in late:
        task.cancel()
    for task in done:
        task.result()
    replicas.kill(dead)
    kept = {session.id: sorted(filter(None, store.kept(session.id))) for session in opened}
    for session in [*opened, *idle]:
        with contextlib.suppress(*BROKEN):
            await session.end(other)
    return killed, kept, [answers for answers in counted if not of_one_child(answers)]


def of_one_child(answers):
    """Whether those that were served were by one new child; what the dying replica took is lost."""
    served = [answer for answer in answers if answer.isdigit()]
    is_lost = (answer == f"200 {OWNER_LOST}" for answer in answers if not answer.isdigit())
    return served == [str(n + 1) for n in range(len(served))] and all(is_lost)


async def at_once(session, address):
    """What four calls that come together are told: one child counts them."""

    async def one():
        try:
            status, said = await session.post(address, session.call("counter", {}))
        except BROKEN as error:
            return repr(error)
        good = ((said or {}).get("result") or {}).get("content")
        code = ((said or {}).get("error") or {}).get("code")
        return good[0]["text"] if good else f"{status} {code or said}"

    return sorted(await asyncio.gather(*(one() for _ in range(4))))


async def held(history, session, name, address):
    """A call whose client takes JSON alone."""
    history.note("invoke", name, session=session.id)
    try:
        status, said = await session.post(address, session.call("hang", {}), JSON)
    except BROKEN as error:
        history.note("info", name, why=repr(error))
        return
    code = ((said or {}).get("error") or {}).get("code")
    history.note("fail", name, status=status, code=code, said=said)


# An outage of Redis (R10)


class Tally:
    """What requests of a steady load were told."""

    def __init__(self):
        self.answers = []  # when it was sent, how long it took, the status or what broke
        self.wrong = []

    def counted(self):
        return collections.Counter(status for _, _, status in self.answers)


async def steadily(rate, seconds, act):
    """Starts `act(number)` at an even pace, whatever becomes of them; waits for all of them."""
    began, tasks = time.monotonic(), []
    for number in range(int(rate * seconds)):
        await asyncio.sleep(began + number / rate - time.monotonic())
        tasks.append(asyncio.create_task(act(number)))
    await asyncio.gather(*tasks)


def outage(options):
    seconds = 3 if options.quick else 60 if is_full(options) else 10
    with redis() as store, two(options, store, CHILD) as replicas:
        tally, paused, resumed = asyncio.run(without_redis(store, replicas, seconds))
    text = (
        f"Outage: Redis stopped for {seconds} s under 100 requests/s in 20 sessions by way of both replicas, and\n"
        f"2 `initialize` a second; {len(tally.answers):,} requests."
    )
    other = {status: n for status, n in tally.counted().items() if status not in (200, 503)}
    refused = [took * 1000 for _, took, status in tally.answers if status == 503] or [float("inf")]
    late = [sent - resumed for sent, _, status in tally.answers if status != 200 and sent > resumed]
    normal, p99 = max(late, default=0), percentile(refused, 0.99)
    before = [1 for sent, _, status in tally.answers if status != 200 and sent < paused - 0.5]
    outside = plain(tally.counted())
    rows = [
        none_of("outage: other statuses than 200 and 503", other, outside),
        none_of("outage: refused before it", len(before)),
        none_of("outage: children that died, wrong answers", tally.wrong),
        ["outage: ms of a 503, p50 / p99", spread(refused), f"{p99:.0f}", "≤ 750", p99 <= 750],
        ["outage: s until the last 503 after it", "", f"{normal:.2f}", "≤ 2", normal <= 2],
    ]
    return text, rows


async def without_redis(store, replicas, seconds):
    tally, seen = Tally(), collections.defaultdict(list)
    opened = await sessions(20, replicas.addresses)
    fresh = []

    async def act(number):
        session = opened[number % 20]
        # Each session by way of each of the two.
        address = replicas.addresses[number // 20 % 2]
        sent = time.monotonic()
        if number % 50 == 0:
            session = Session()
        try:
            async with asyncio.timeout(seconds + 40):
                if session.id is None:
                    message = session.message("initialize", INITIALIZE["params"])
                    status, said = await session.post(address, message)
                    fresh.append(session)
                else:
                    status, said = await session.post(address, session.call("counter", {}))
        except (*BROKEN, TimeoutError) as error:
            status, said = repr(error), None
        tally.answers.append((sent, time.monotonic() - sent, status))
        if status != 200:
            return
        if "result" not in (said or {}):
            tally.wrong.append((number, round(time.monotonic() - sent, 2), said))
        elif session not in fresh:
            seen[session].append(int(said["result"]["content"][0]["text"]))

    whole = asyncio.create_task(steadily(100, seconds + 8, act))
    await asyncio.sleep(3)
    paused = time.monotonic()
    store.pause()
    try:
        await asyncio.sleep(seconds)
    finally:
        store.resume()
    resumed = time.monotonic()
    await whole
    # A child that died would have begun at 1 again.
    for session, numbers in seen.items():
        if len(set(numbers)) < len(numbers):
            tally.wrong.append((session.id[:8], "another child", sorted(numbers)[:5]))
    for session in [*opened, *fresh]:
        if session.id:
            await session.end(replicas.addresses[0])
    return tally, paused, resumed


# Rolling restarts (R4)


def rolling(options):
    restarts = 2 if options.quick else 20 if is_full(options) else 10
    rate, streams = (200, 100) if is_full(options) else (100, 20 if options.quick else 50)
    balancer = Balancer(free_port())
    with redis() as store, two(options, store, CHILD, balancer.address) as replicas:
        calls, listened = (History(options.folder / f"{name}.jsonl") for name in ("calls", "listened"))
        work = Rolling(balancer, calls, listened)
        took = asyncio.run(work.run(replicas, restarts, (rate, streams)))
    found = check(calls.read())
    heard = check(listened.read(), is_endless=True)
    text = (
        f"Rolling: {restarts} restarts in turn at {rate} requests/s in 20 sessions and {streams} streams (calls of 25 events\n"
        f"in 1 s, one after the other, and a fifth of them listeners), through a balancer that polls /readyz each\n"
        f"100 ms; {len(work.tally.answers):,} requests, {found.streams:,} calls over SSE with {found.events:,} events, {heard.events:,} events of listeners."
    )
    failed = {status: n for status, n in work.tally.counted().items() if status != 200}
    cuts, tries = found.cuts + heard.cuts, plain(found.tries + heard.tries)
    rows = [
        none_of("rolling: failed requests", sum(failed.values()), plain(failed)),
        none_of("rolling: wrong answers, lost sessions", work.tally.wrong),
        none_of("rolling: calls that failed", [*found.other, *found.endless, *heard.other], plain(found.ends)),
        none_of("rolling: resumes that failed", sum((found.tries + heard.tries).values()), tries),
        none_of("rolling: events lost", [*found.lost, *heard.lost], f"{cuts:,} cuts"),
        none_of("rolling: events twice or out of order", [*found.twice, *found.reordered, *heard.twice, *heard.reordered]),
        ["rolling: s from SIGTERM to the exit, median / max", "", f"{statistics.median(took):.2f} / {max(took):.2f}", "", None],
    ]
    return text, rows


def why(said):
    return ((said or {}).get("error") or {}).get("message", said)


class Rolling:
    """The load, and what came of it."""

    def __init__(self, balancer, calls, listened):
        self.balancer, self.calls, self.listened = balancer, calls, listened
        self.tally, self.names = Tally(), itertools.count()
        self.is_over, self.told = False, {}

    async def run(self, replicas, restarts, load):
        """Returns how long each replica took to end. The load is requests a second, and streams."""
        rate, streams = load
        async with self.balancer.before(replicas.addresses):
            opened = await sessions(20 + streams, [self.balancer.address])
            steady, others = opened[:20], opened[20:]
            listeners = others[: streams // 5]
            ears = [Reader(self.listened, one, one.id, lambda: self.balancer.address) for one in listeners]
            readers = [asyncio.create_task(ear.listen(self.balancer.address)) for ear in ears]
            lanes = [asyncio.create_task(self.call(session)) for session in others[len(listeners) :]]
            lanes += [asyncio.create_task(self.tell(session)) for session in listeners]
            lanes.append(asyncio.create_task(self.ask(steady, rate)))
            took = []
            await asyncio.sleep(2)
            for number in range(restarts):
                took.append(await asyncio.to_thread(replicas.stop, number % 2))
                await asyncio.to_thread(replicas.start, number % 2)
                await asyncio.sleep(1)
            self.is_over = True
            await asyncio.wait_for(asyncio.gather(*lanes), 60)
            # What was told last may be on its way.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(15):
                    while any(ear.last < self.told.get(ear.name, 0) for ear in ears):
                        await asyncio.sleep(0.1)
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            for session in opened:
                with contextlib.suppress(*BROKEN):
                    await session.end(self.balancer.address)
        return took

    async def ask(self, opened, rate):
        began, tasks = time.monotonic(), set()
        for number in itertools.count():
            if self.is_over:
                break
            await asyncio.sleep(began + number / rate - time.monotonic())
            task = asyncio.create_task(self.one(opened[number % len(opened)], "echo", {"text": f"t{number}"}))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
        await asyncio.gather(*tasks)

    async def one(self, session, tool, arguments):
        """A request; its text, if it is good."""
        sent = time.monotonic()
        try:
            async with asyncio.timeout(60):
                status, said = await session.post(self.balancer.address, session.call(tool, arguments))
        except (*BROKEN, TimeoutError) as error:
            status, said = repr(error), None
        self.tally.answers.append((sent, time.monotonic() - sent, status))
        text = ((said or {}).get("result") or {}).get("content", [{}])[0].get("text")
        if status == 200 and text != arguments.get("text", "sent"):
            self.tally.wrong.append((session.id[:8], tool, why(said)))
        elif status == 404:
            self.tally.wrong.append((session.id[:8], tool, status))
        return text

    async def call(self, session):
        while not self.is_over:
            name = f"call {next(self.names)}"
            reader = Reader(self.calls, session, name, lambda: self.balancer.address)
            message = session.call("slow", {"n": 25, "ms": 40}, progressToken=name)
            await reader.call(self.balancer.address, message, n=25)

    async def tell(self, session):
        """What the listener has to hear: numbers, each told until it is known to be said."""
        await asyncio.sleep(1)
        for number in itertools.count(1):
            if self.is_over:
                break
            params = {"_meta": {"data": number}}
            arguments = {"method": "notifications/tools/list_changed", "params": params}
            if await self.one(session, "notify", arguments) == "sent":
                self.listened.note("stored", session.id, last=number)
                self.told[session.id] = number
            await asyncio.sleep(0.1)
