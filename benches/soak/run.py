"""The soak from its begin to its report."""

import asyncio
import dataclasses
import json
import time
from pathlib import Path

from parts.common import Report, free_port, until
from parts.history import check
from parts.replicas import none_of, plain

from .faults import Faults
from .ledger import Ledger, kind
from .load import Load
from .watch import Watch, slope
from .world import world

# A replica's own in Redis: its heartbeat, what was claimed from it, the epoch, who is open, what master key it has, limits, wake-ups.
INFRASTRUCTURE = ("replica:", "claims:", "open", "epoch", "recovering", "deployment", "rate:", "seats:")
# Below this a slope of one percent an hour drowns in what an allocator keeps for a while.
FOR_SLOPES = 25


@dataclasses.dataclass
class Times:
    """Seconds; TTLs are a twelfth of their defaults in a soak of half an hour, and less in a shorter one."""

    whole: float
    idle: int
    log: int
    access: int
    child: int
    call: int
    away: float
    unread: float
    every: float
    chapter: float
    warm: float

    @classmethod
    def of(cls, minutes, faults):
        share = min(1.0, minutes / 30)
        whole = minutes * 60
        gap = whole / (faults + 1)
        return cls(
            whole,
            idle=max(5, round(150 * share)),
            log=max(5, round(50 * share)),
            access=max(10, round(75 * share)),
            child=max(5, round(50 * share)),
            call=max(5, round(10 * share)),
            away=max(3, round(15 * share)),
            unread=max(3, round(20 * share)),
            every=max(1.0, round(5 * share, 1)),
            chapter=gap,
            warm=whole * 0.3,
        )


@dataclasses.dataclass
class Outcome:
    """What is left of a soak to judge."""

    minutes: float
    times: Times
    ledger: Ledger
    watch: Watch
    chapters: list
    windows: list
    leftover: dict
    took: float
    began: float
    measured: tuple


def soak(options, minutes, size, child, logs, faults=None):
    """Runs it; the report, and everything that was measured."""
    names = [fault.name for fault in Faults(None, None, Times.of(minutes, 1)).all()]
    chosen = choose(names, minutes, faults)
    times = Times.of(minutes, len(chosen))
    with world(options, times, child, logs) as made:
        found = asyncio.run(live(made, times, minutes, size, chosen, Path(options.folder)))
    return report(found), details(found)


def choose(names, minutes, wanted):
    """All faults, or as many as there is time for: a gap of 15 s each."""
    if wanted is not None:
        return [name for name in names if any(part in name for part in wanted)]
    room = max(1, int(minutes * 60 / 15) - 1)
    if room >= len(names):
        return names
    # What costs most first; still in their order.
    first = ["killed (kill -9)", "Redis killed", "rolling", "children killed", "clients cut", "PostgreSQL", "Redis flushed"]
    first = [next(name for name in names if part in name) for part in first]
    chosen = set([*first, *names][:room])
    return [name for name in names if name in chosen]


async def live(made, times, minutes, size, chosen, folder):
    began, ledger = time.monotonic(), Ledger()
    load = Load(made, ledger, times, folder)
    faults = Faults(made, load, times)
    watch = Watch(made, began, times.every)
    async with made.balancer.before(made.addresses):
        watching = asyncio.create_task(watch.run())
        lanes = load.lanes(size)
        windows, ended = await trouble(faults, load, times, chosen, began, lanes)
        load.over.set()
        await ended_all(lanes, ledger)
        leftover = await empty(made, times)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    took = time.monotonic() - began
    return Outcome(minutes, times, ledger, watch, load.chapters.all, windows, leftover, took, began, ended)


async def ended_all(lanes, ledger):
    """Waits for the lanes; one that waits for ever has had no answer."""
    began = time.monotonic()
    done, stuck = await asyncio.wait(lanes, timeout=120)
    for lane in stuck:
        ledger.ill("end", began, time.monotonic(), "no answer", lane.get_coro().__qualname__)
        lane.cancel()
    await asyncio.gather(*stuck, return_exceptions=True)
    for lane in done:
        lane.result()


async def trouble(faults, load, times, chosen, began, lanes):
    """The faults at even distances; and between which times the first replica was one and the same."""
    windows, measured = [], (times.warm, times.whole)
    for number, fault in enumerate(one for one in faults.all() if one.name in chosen):
        due = began + (number + 1) * times.chapter
        while (left := due - time.monotonic()) > 0:
            await asyncio.sleep(min(left, 5))
            for lane in lanes:
                if lane.done():
                    lane.result()
        if fault.name.startswith("owner killed"):
            measured = (times.warm, time.monotonic() - began)
        load.chapters.turn()
        print(f"{time.monotonic() - began:7.1f} s  {fault.name}", flush=True)
        window = await faults.run(fault)
        windows.append(window)
        print(f"{time.monotonic() - began:7.1f} s    over; {len(load.ledger.unexplained())} unexplained {window.note}", flush=True)
    await asyncio.sleep(max(0, began + times.whole - time.monotonic()))
    return windows, measured


async def empty(made, times):
    """What is left when every session had time to expire: a session in Redis lives a minute longer."""
    patience = times.idle + times.log + 60 + 30
    began = time.monotonic()

    def left():
        prefix = "lockgate:v1:"
        keys = [key.removeprefix(prefix) for key in made.store.ask("KEYS", "*")]
        found = {"keys in Redis": [key for key in keys if not key.startswith(INFRASTRUCTURE)]}
        found["children"] = made.children()
        for name in ("lockgate_sessions", "lockgate_streams_open", "lockgate_children"):
            try:
                found[name] = int(sum(gateway.metric(name) for gateway in made.gateways))
            except OSError as error:
                found[name] = repr(error)
        return found

    while True:
        found = await asyncio.to_thread(left)
        if not any(found.values()) or time.monotonic() > began + patience:
            return found | {"s until then": round(time.monotonic() - began, 1)}
        await asyncio.sleep(1)


def histories(found):
    """Both kinds of streams, checked chapter by chapter."""
    calls = heard = None
    for call, listened in found.chapters:
        calls = check(call.read(), found=calls)
        heard = check(listened.read(), is_endless=True, found=heard)
    return calls, heard


def streams(found):
    """Rows of events; how streams ended that did not end well goes to the ledger, as all answers."""
    calls, heard = histories(found)
    for one in (calls, heard):
        ends = [(name, kind(status, said), said) for name, status, said in one.other]
        for name, what, said in [*ends, *((name, "broken", "") for name in one.broken)]:
            found.ledger.ill("streams", one.ended[name], one.ended[name], what, said)
    # A listener whose stream was ended has not heard what came after it.
    lost = [*calls.lost, *(one for one in heard.lost if one[0] not in heard.ended)]
    ended = len(heard.lost) + len(calls.lost) - len(lost)
    events, cuts = calls.events + heard.events, calls.cuts + heard.cuts
    return [
        none_of("events lost", lost, f"{events:,}" + f"; {ended} listeners were ended" * bool(ended)),
        none_of("events twice", [*calls.twice, *heard.twice], f"{cuts:,} cuts"),
        none_of("events out of order", [*calls.reordered, *heard.reordered]),
        none_of("calls without an end", calls.endless, f"{calls.streams:,} calls"),
    ]


def slopes(found):
    """Rows of what grows."""
    samples = found.watch.of(0, *found.measured)
    times = [one.at for one in samples]
    rows = []
    for name, field, bound in (("RSS", "rss_kib", 1.0), ("descriptors", "descriptors", 0.0), ("threads", "threads", 0.0)):
        made = slope(times, [getattr(one, field) for one in samples])
        if made is None:
            rows.append([f"slope of {name}", f"{len(samples)} samples", "too few", "", None])
            continue
        is_long = found.minutes >= FOR_SLOPES
        if name == "RSS":
            middle, low, high = made.relative()
            figures = f"median {made.middle:,.0f} KiB; 95 %: {low:+.2f} to {high:+.2f}; {made.count} samples"
            result, target = f"{middle:+.2f} % an hour", "≤ 1"
            is_good = middle <= bound
        else:
            figures = f"median {made.middle:.0f}; 95 %: {made.low:+.2f} to {made.high:+.2f}"
            result, target = f"{made.each_hour:+.2f} an hour", "0"
            # Counts go up and down with the load: a slope whose interval has 0 in it is none.
            is_good = made.each_hour <= bound or made.low <= bound
        rows.append([f"slope of {name}", figures, result, target if is_long else "", is_good if is_long else None])
    return rows


def report(found):
    ledger, counts = found.ledger, found.ledger.counts
    events = streams(found)
    odd = ledger.unexplained()
    is_5xx = [one for one in odd if one.what.removeprefix("oauth ").startswith("5")]
    others = [one for one in odd if one not in is_5xx]
    for one in odd[:30]:
        print(f"unexplained at {one.began - found.began:.1f} s for {one.ended - one.began:.2f} s: {one}", flush=True)
    good, zombies = sum(ledger.good.values()), found.watch.zombies()
    keys = found.leftover["keys in Redis"]
    others_left = {name: left for name, left in found.leftover.items() if left and name not in ("keys in Redis", "s until then")}
    explained = "; ".join(f"{name}: {plain(one)}" for name, one in ledger.explained().items())
    rows = [
        *slopes(found),
        none_of("replicas above a GiB", found.watch.eaters),
        none_of("zombies", zombies, f"{len(found.watch.samples):,} samples"),
        none_of("keys in Redis at the end", keys, f"{found.leftover['s until then']} s after the last request"),
        none_of("sessions, streams, children at the end", others_left),
        none_of("unexplained 5xx", [str(one) for one in is_5xx], f"{good:,} good answers"),
        none_of("other unexplained answers", [str(one) for one in others], f"{len(ledger.odd) - len(odd):,} explained"),
        *events,
    ]
    faults = ", ".join(f"{window.name}{f' ({window.note})' * bool(window.note)}" for window in found.windows)
    text = (
        f"{found.minutes:g} minutes, TTLs divided by {1800 / found.times.idle:g}, over two replicas with PostgreSQL and Redis:\n"
        f"{good:,} requests, {counts['sessions']:,} sessions ({counts['abandoned']:,} abandoned), {counts['exits']:,} servers that exit,\n"
        f"{counts['refreshes']:,} refreshes, {counts['log-ins']:,} log-ins, {counts['streams']:,} streams. {len(found.windows)} faults: {faults}.\n"
        f"Explained by them: {explained or 'nothing'}. Slopes are those of the replica that lives throughout, from\n"
        f"{found.measured[0] / 60:.1f} to {found.measured[1] / 60:.1f} min (Theil-Sen); one of a count whose interval has 0 in it is none."
    )
    return Report(text, ["what", "figures", "result", "target"], rows)


def details(found):
    """For the report as JSON."""
    return {
        "minutes": found.minutes,
        "times": dataclasses.asdict(found.times),
        "good": dict(found.ledger.good),
        "counts": dict(found.ledger.counts),
        "faults": [
            {"name": one.name, "began": round(one.began - found.began, 1), "ended": round(one.ended - found.began, 1), "note": one.note}
            for one in found.windows
        ],
        "explained": found.ledger.explained(),
        "unexplained": [dataclasses.asdict(one) for one in found.ledger.unexplained()],
        "left": found.leftover,
        "samples": [dataclasses.asdict(one) for one in found.watch.samples],
    }
