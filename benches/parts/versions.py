"""Versions: two builds of Lockgate in turn, over the same echo server."""

import contextlib
import statistics
import sys

from .common import Report, gateway_open, p50, rps, versus
from .speed import subject

# A build may be slower than the other by this much: what rounds differ by on a quiet machine.
TOLERANCE = 0.03


def row(name, pairs, is_better_low=False):
    """The median of the ratios; above 1 the build under test is the better one."""
    ratios = [theirs / ours if is_better_low else ours / theirs for ours, theirs in pairs]
    ours, theirs = (statistics.median(side) for side in zip(*pairs))
    middle = statistics.median(ratios)
    figures = f"{ours:,.4g} / {theirs:,.4g}"
    bound = 1 - TOLERANCE
    return name, figures, f"{middle:.3f}", f"{min(ratios):.3f}", f"≥ {bound}", middle >= bound


def measure(options):
    if not options.other:
        sys.exit("versions: name the other build by --other FILE")
    rounds, seconds = (5, 2) if options.quick else (15, 4)
    with contextlib.ExitStack() as stack:
        binaries = {"this": options.binary, "other": options.other}
        urls = {
            name: stack.enter_context(subject("lockgate", binary, options.folder))[0]
            for name, binary in binaries.items()
        }

        def pairs(shape, figure=rps, more=()):
            # Each is first in every other round: the first may find a cooler processor.
            there = versus(urls, "this", "other", shape, rounds // 2 + 1, seconds, figure, more)
            back = versus(urls, "other", "this", shape, rounds // 2, seconds, figure, more)
            return there + [pair[::-1] for pair in back]

        rows = [
            row("req/s, 16 × 1", pairs((16, 1))),
            row("req/s, 1 × 32", pairs((1, 32))),
            row("p50 ms, 1 × 1", pairs((1, 1), p50), is_better_low=True),
            row("req/s, 64 KiB, 16 × 1", pairs((16, 1), rps, ("--payload-bytes", "65536"))),
        ]
        opens = [[gateway_open(urls[kind], 40) for kind in ("this", "other")] for _ in range(rounds)]
    rows.append(row("session open p50 ms", opens, is_better_low=True))
    text = f"{rounds} rounds of {seconds} s in turn, medians; above 1 this build is the better one."
    columns = ["figure", "this / other", "median ratio", "worst round", "target"]
    return Report(text, columns, rows)
