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


def kind(status, said):
    """What an answer is that is not good: the reason that it gives, else its code or status."""
    error = (said or {}).get("error") or {}
    if status == 200:
        return (error.get("data") or {}).get("reason") or str(error.get("code") or "wrong")
    if status == 503 and error.get("code") != -31004:
        return "503 that does not say -31004"
    return str(status) if status else "no answer"


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
