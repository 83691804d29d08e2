"""The report of a part: as a table, and in its section of docs/performance.md."""

import datetime
import os
import platform
import resource
from pathlib import Path

from .common import ROOT


def table(report, command):
    model = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    today = datetime.date.today().isoformat()
    lines = [
        f"`{command}`, {today}, {os.cpu_count()} cores of {model}, Linux {platform.release()};",
        report.text,
        "",
        "| " + " | ".join([*report.columns, "reached"]) + " |",
        "|---" * (len(report.columns) + 1) + "|",
    ]
    for *cells, reached in report.rows:
        verdict = {True: "yes", False: "**no**", None: ""}[reached]
        lines.append("| " + " | ".join([*cells, verdict]) + " |")
    return "\n".join(lines) + "\n"


def write(part, title, text):
    """Replaces what stands between the marks of the part in docs/performance.md."""
    page = ROOT / "docs" / "performance.md"
    begin, end = f"<!-- bench {part} -->", f"<!-- /bench {part} -->"
    old = page.read_text() if page.exists() else "# Performance\n"
    if begin not in old or end not in old:
        old = f"{old.rstrip()}\n\n## {title}\n\n{begin}\n{end}\n"
    head, rest = old.split(begin, 1)
    tail = rest.split(end, 1)[1]
    page.parent.mkdir(exist_ok=True)
    page.write_text(f"{head}{begin}\n{text}{end}{tail}")


def many_files():
    """Thousands of connections, on both of their ends."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
