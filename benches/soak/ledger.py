"""What the requests of the soak were told, and which fault explains what was not good."""

import collections
import dataclasses
import threading


@dataclasses.dataclass
class Odd:
    """An answer that is not the one that was asked for."""

    began: float
    ended: float
    lane: str
    what: str
    said: str


@dataclasses.dataclass
class Window:
    """The time in which a fault, and what it takes to recover from it, explains answers."""

    name: str
    allows: set
    began: float
    ended: float | None = None
    after: float = 0.0
    note: str = ""

    def explains(self, odd):
        ended = float("inf") if self.ended is None else self.ended + self.after
        return odd.what in self.allows and odd.ended >= self.began and odd.began <= ended


class Ledger:
    """Counts of what was good, and each answer that was not."""

    def __init__(self):
        self.good, self.odd = collections.Counter(), []
        self.counts = collections.Counter()
        self.windows = []
        self.lock = threading.Lock()

    def well(self, lane):
        with self.lock:
            self.good[lane] += 1

    def ill(self, lane, began, ended, what, said=""):
        with self.lock:
            self.odd.append(Odd(began, ended, lane, what, str(said)[:300]))

    def count(self, what, by=1):
        with self.lock:
            self.counts[what] += by

    def unexplained(self):
        return [odd for odd in self.odd if not any(window.explains(odd) for window in self.windows)]

    def explained(self):
        """By fault, what it explains."""
        found = collections.defaultdict(collections.Counter)
        for odd in self.odd:
            for window in self.windows:
                if window.explains(odd):
                    found[window.name][odd.what] += 1
                    break
        return {name: dict(counts) for name, counts in found.items()}
