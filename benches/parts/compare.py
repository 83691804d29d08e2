"""Compare: two builds of Lockgate in turn, each alone, over the same echo server."""

import os
import statistics
import subprocess
import sys
from pathlib import Path

from .common import BENCH_TARGET, ROOT, Report, gateway_open, load, p50, rps
from .speed import subject

# A build may be slower than the other by this much: what rounds differ by on a quiet machine.
TOLERANCE = 0.03
BIG = ("--payload-bytes", "65536")
# Name, sessions and concurrency, figure, whether less is better, more arguments of the load.
SHAPES = (
    ("req/s, 16 × 1", (16, 1), rps, False, ()),
    ("req/s, 1 × 32", (1, 32), rps, False, ()),
    ("p50 ms, 1 × 1", (1, 1), p50, True, ()),
    ("req/s, 64 KiB, 16 × 1", (16, 1), rps, False, BIG),
)
OPEN = "session open p50 ms"


def built(ref):
    """The binary of a commit, as it is deployed; or the file of that name."""
    if Path(ref).is_file():
        return Path(ref).resolve()
    command = ["git", "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if found.returncode != 0:
        sys.exit(f"compare: --with {ref}: neither a file nor a commit")
    tree = BENCH_TARGET / "compare"
    if not tree.exists():
        add = ["git", "worktree", "add", "--quiet", "--force", "--detach", str(tree)]
        subprocess.run([*add, found.stdout.strip()], cwd=ROOT, check=True)
    checkout = ["git", "checkout", "--quiet", "--force", "--detach", found.stdout.strip()]
    subprocess.run(checkout, cwd=tree, check=True)
    has_dist = "[profile.dist]" in (tree / "Cargo.toml").read_text()
    profile = "dist" if has_dist else "release"
    target = BENCH_TARGET / "compare-target"
    command = ["cargo", "build", "--locked", "--bin", "lockgate", "--profile", profile]
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    subprocess.run(command, cwd=tree, env=environment, check=True)
    return target / profile / "lockgate"


def one_round(binary, folder, seconds):
    """Every figure of one build, which has the machine for itself."""
    with subject("lockgate", binary, folder) as (url, _, _):
        figures = {
            name: figure(load(url, *shape, seconds, *more))
            for name, shape, figure, _, more in SHAPES
        }
        figures[OPEN] = gateway_open(url, 40)
    return figures


def row(name, pairs, is_less_better):
    """The median of the ratios; above 1 the build under test is the better one."""
    ratios = [other / this if is_less_better else this / other for this, other in pairs]
    this, other = (statistics.median(side) for side in zip(*pairs))
    middle, bound = statistics.median(ratios), 1 - TOLERANCE
    figures = f"{this:,.4g} / {other:,.4g}"
    return name, figures, f"{middle:.3f}", f"{min(ratios):.3f}", f"≥ {bound}", middle >= bound


def measure(options):
    if not options.other:
        sys.exit("compare: name the other build: --with COMMIT, or --with FILE")
    rounds, seconds = (4, 2) if options.quick else (10, 4)
    binaries = (options.binary, built(options.other))
    pairs = []
    for number in range(rounds):
        # Each is first in every other round: the first may find a cooler processor.
        order = (0, 1) if number % 2 == 0 else (1, 0)
        found = {at: one_round(binaries[at], options.folder, seconds) for at in order}
        pairs.append((found[0], found[1]))
    kinds = [(name, is_less_better) for name, _, _, is_less_better, _ in SHAPES] + [(OPEN, True)]
    rows = [
        row(name, [(this[name], other[name]) for this, other in pairs], is_less_better)
        for name, is_less_better in kinds
    ]
    text = (
        f"against {options.other}; {rounds} rounds of {seconds} s in turn, each build alone; medians,\n"
        "above 1 this build is the better one."
    )
    return Report(text, ["figure", "this / other", "median ratio", "worst round", "target"], rows)
