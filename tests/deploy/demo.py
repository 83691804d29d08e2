"""scripts/demo by docs/demo.md, as it stands there: demo.py BINARY [--write]

The page runs in a network and processes of its own, with a real client that logs in through OAuth, and with
Prometheus, whose answers to the dashboard's queries have to show its calls. --write brings the times of the
steps and the transcript of this run into the page.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/docs"), str(ROOT / "deploy")]
sys.dont_write_bytecode = True

import run_pages  # noqa: E402
from pages import blocks  # noqa: E402

PAGE = ROOT / "docs/demo.md"
# Words a minute that are read, and that are typed, of five characters each.
READ, TYPED = 200, 40
# Minutes in all, on a machine with nothing else to do.
LIMIT = 10
# Panels whose cause is not on the page: a fault, a limit, the end of a session or of a child.
QUIET = {
    "Failed calls",
    "Ends of sessions",
    "Duration of sessions",
    "Resumed streams",
    "Ends of children",
    "Refused starts and open circuits",
    "Dropped messages",
    "Unenforced settings",
    "Limits",
    "Losses",
    "Failed operations",
    # Gauges of what waits: mostly nothing.
    "Kept events",
    "Queues",
}


def steps():
    """Each section of the way: its title, the words to read, the characters to type, the lines of its commands."""
    text = PAGE.read_text()
    way, _, _ = text.partition("\n## Differences")
    found = []
    for part in re.split(r"(?m)^(?=## )", way):
        title = re.match(r"## (.+)", part)
        first = way[: way.index(part)].count("\n") + 1
        last = first + part.count("\n")
        typed = [one.text for one in blocks(PAGE) if one.language == "sh" and one.mark != "hidden" and first <= one.line < last]
        prose = re.sub(r"(?ms)^```.*?^```$|<!--.*?-->", "", part)
        found.append({
            "title": title[1] if title else "Before it",
            "words": len(re.findall(r"[\w'’.-]*\w", prose)),
            "characters": sum(map(len, typed)),
            "lines": range(first, last),
        })
    return found


def table(measured):
    """The times of the page; those of the machine are measured, the others counted."""
    lines = [
        f"Reading at {READ} words a minute and typing at {TYPED}, in minutes; the machine in seconds, without the first build",
        "(275 s on two cores) and with npm's packages at hand (10 s). `tests/deploy/demo.py --write` measures it anew.",
        "",
        "| step | words | read | characters | typed | machine |",
        "|---|---|---|---|---|---|",
    ]
    sums = [0, 0.0, 0, 0.0, 0.0]
    for step in steps():
        read, typed = step["words"] / READ, step["characters"] / (TYPED * 5)
        row = [step["words"], read, step["characters"], typed, measured.get(step["title"], 0)]
        sums = [one + other for one, other in zip(sums, row)]
        lines.append(row_of(step["title"], row))
    lines.append(row_of("**together**", sums))
    lines += ["", f"**{sums[1] + sums[3] + sums[4] / 60:.1f} minutes** in all, of which {sums[1] + sums[3]:.1f} reading and typing."]
    return "\n".join(lines) + "\n", sums


def row_of(title, row):
    return f"| {title} | {row[0]} | {row[1]:.1f} | {row[2]} | {row[3]:.1f} | {row[4]:.1f} |"


def without_machine(text):
    """The table without what is measured."""
    text = re.sub(r"(?m)\| [\d.]+ \|$", "|", text)
    return re.sub(r"\*\*[\d.]+ minutes\*\* in all", "", text)


def typed(block):
    """A block as a shell shows it."""
    return "$ " + "\n> ".join(block.text.rstrip("\n").split("\n"))


def between(text, name):
    """A part of the page that --write makes."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
    return text[text.index(begin) + len(begin) : text.index(end)]


class Way(run_pages.Page):
    """The page, with the time of each of its steps."""

    def __init__(self, binary):
        super().__init__("docs/demo.md", binary)
        # PostgreSQL runs as another user where this one is root.
        self.folder.chmod(0o711)
        (self.work / "scripts").symlink_to(ROOT / "scripts")
        self.environment |= {
            "DEMO_BINARY": str(Path(binary).resolve()),
            # npm packages of the provider are there already.
            "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
            "BROWSER_TRACE": str(self.folder / "browser"),
        }
        for name in ("POSTGRES_BIN", "VALKEY_SERVER", "REDIS_SERVER"):
            if name in os.environ:
                self.environment[name] = os.environ[name]
        self.took = {}
        self.runs = []

    def command(self, block):
        began = time.monotonic()
        shell = super().command(block)
        self.runs.append([block, shell, time.monotonic() - began, None])
        if shell.name == "main":
            self.runs[-1][3] = shell.said()
        return shell

    def compare(self, block, shell):
        began = time.monotonic()
        super().compare(block, shell)
        # What a terminal prints on its way.
        self.runs[-1][2] += time.monotonic() - began
        self.runs[-1][3] = shell.said()

    def stop(self, block):
        began, log = time.monotonic(), self.shells[block.of_mark].log
        seen = len(log.read_text())
        super().stop(block)
        self.runs.append([block, None, time.monotonic() - began, log.read_text()[seen:]])

    def measured(self):
        """The seconds of the machine in each step."""
        found = {}
        for block, _, seconds, _ in self.runs:
            title = next(step["title"] for step in steps() if block.line in step["lines"])
            found[title] = found.get(title, 0) + seconds
        return found

    def transcript(self):
        """What a reader would have seen, without secrets and without what only this test has."""
        said = []
        for block, _, seconds, text in self.runs:
            text = re.sub(r"/tmp/lockgate-docs-\w+/tmp/lockgate-demo-\d+", "/tmp/lockgate-demo-1000", text)
            text = re.sub(r"(, password ).+", r"\1…", text)
            lines = [one.rstrip() for one in text.splitlines() if not one.startswith("[mcp-inspector]")]
            lines = [one if len(one) < 120 else f"{one[:110]}…" for one in lines]
            shown = "^C" if block.mark == "stop" else typed(block)
            said += [shown, *lines, f"[{seconds:.1f} s]", ""]
        return "```text\n" + "\n".join(said).rstrip("\n") + "\n```\n"

    def demo(self, *words, **more):
        options = {"cwd": self.work, "env": self.environment, "text": True, "capture_output": True, "timeout": 60} | more
        return subprocess.run(["scripts/demo", *words], **options)


def alive(*but):
    """The processes of this namespace that have not ended, but these."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            state = re.search(r"State:\s+(\w)", (path / "status").read_text())[1]
            if state != "Z" and int(path.name) not in but:
                found[int(path.name)] = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:200]
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


class Demo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.way = Way(BINARY)
        cls.addClassCleanup(cls.way.end)

    def await_none(self, seconds):
        shells = [one.shell.pid for one in self.way.shells.values()]
        until = time.monotonic() + seconds
        while left := alive(os.getpid(), *shells):
            self.assertLess(time.monotonic(), until, f"still there: {left}")
            time.sleep(0.05)

    def start(self, *words):
        """The demo, until it has printed that everything runs; its process, and its output so far."""
        log = self.way.folder / "demo.out"
        with open(log, "wb") as out:
            process = subprocess.Popen(["scripts/demo", *words], cwd=self.way.work, env=self.way.environment,
                                       stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        until = time.monotonic() + 60
        while "Everything runs" not in log.read_text():
            self.assertIsNone(process.poll(), log.read_text())
            self.assertLess(time.monotonic(), until, log.read_text())
            time.sleep(0.05)
        return process, log

    def test_1_the_way_of_the_page(self):
        way = self.way
        try:
            way.run()
        except SystemExit as error:
            for shell in way.shells.values():
                shell.end()
            # What it has started ends after its shell, and is no fault of the tests behind this one.
            self.await_none(30)
            self.fail(str(error.code))
        self.assertEqual(1, len(way.not_run))
        self.await_none(5)
        self.assertEqual([], list((way.folder / "tmp").glob("lockgate*")))

        found = json.loads((way.work / "queries.json").read_text())
        self.check_panels(found["panels"])
        self.check_alerts(found["alerts"])
        self.assertEqual(["acme", "globex"], found["variables"]["tenant"])
        self.assertEqual(2, len(found["variables"]["instance"]))

        visits = [json.loads(line) for line in (way.folder / "browser").read_text().splitlines()]
        self.assertEqual([None], [one.get("error") for one in visits], visits)
        walked = " ".join(visits[0]["trace"])
        for step in ("POST /t/acme/oauth/consent 303", "POST provider /interaction/… 303", "GET /t/acme/oauth/callback/dex 302"):
            self.assertIn(step, walked)

        text, sums = table(way.measured())
        print(f"\n{text}")
        self.assertLess(sums[1] + sums[3] + sums[4] / 60, LIMIT)
        page = PAGE.read_text()
        for name, new in (("times", text), ("transcript", way.transcript())):
            if WRITE:
                page = page.replace(f"<!-- {name} -->\n{between(page, name)}", f"<!-- {name} -->\n{new}")
                PAGE.write_text(page)
        again = "demo.py --write brings times and transcript into the page"
        self.assertEqual(without_machine(between(page, "times")), without_machine(text), again)
        self.check_transcript(between(page, "transcript"), again)

    def check_transcript(self, text, again):
        """It has the commands of the page, and the outputs that the page shows and this run has printed."""
        rest, said = text, None
        for block in blocks(PAGE):
            if block.language == "sh" and block.mark not in ("hidden", "not run"):
                _, found, rest = rest.partition(f"{typed(block)}\n")
                self.assertTrue(found, f"{block.place}: not in the transcript; {again}")
                said = re.split(r"(?m)^\[[\d.]+ s\]$", rest)[0]
            elif block.mark == "output":
                self.assertTrue(run_pages.matches(block.text, said), f"{block.place}: {said}\n{again}")

    def check_panels(self, panels):
        titles = {one["panel"] for one in panels}
        self.assertGreater(len(titles), 25)
        self.assertLessEqual(QUIET, titles)
        silent = {one["panel"] for one in panels if not one["series"]}
        shown = {one["panel"] for one in panels if one["series"]}
        self.assertLessEqual(silent - shown, QUIET, "panels that show nothing of the calls")
        one = next(one for one in panels if one["panel"] == "HTTP requests")
        self.assertIn("mcp", [series["labels"].get("route") for series in one["series"]])
        one = next(one for one in panels if one["panel"] == "Busiest tools")
        self.assertIn(("acme", "demo", "slow"), [
            tuple(series["labels"][name] for name in ("tenant", "server", "gen_ai_tool_name")) for series in one["series"]
        ])

    def check_alerts(self, alerts):
        declared = (ROOT / "deploy/prometheus/alerts.yaml").read_text().count("- alert:")
        self.assertEqual(declared, len(alerts))
        for one in alerts:
            self.assertEqual(("ok", "", "inactive"), (one["health"], one.get("lastError", ""), one["state"]), one["name"])

    def test_2_a_kept_folder_goes_on_and_a_killed_demo_leaves_no_process(self):
        folder = self.way.folder / "kept"
        # A binary of another name, on a machine that separates no children.
        other = self.way.folder / "gateway"
        real, none = Path(BINARY).resolve(), "--set sandbox.separation=none"
        other.write_text(f'#!/bin/sh\ncase $1 in serve | check) exec {real} "$@" {none} ;; *) exec {real} "$@" ;; esac\n')
        other.chmod(0o755)
        with socket.socket() as taken:
            # The demo before it had this port.
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", 8080))
            taken.listen()
            process, log = self.start("--dir", folder, "--binary", other)
        address = re.search(r"http://localhost:(?!8080)\d+/t/acme/demo/mcp", log.read_text())[0]
        self.assertIn("sandbox.shared_uid", log.read_text())
        self.lockgate(folder, "tenant", "add", "globex")
        self.lockgate(folder, "server", "add", "globex", "demo", "--", "lockgate", "__demo")
        again = self.way.demo("--dir", folder)
        self.assertEqual(1, again.returncode)
        self.assertIn("runs already", again.stderr)
        for one in folder.iterdir():
            if one.is_file():
                self.assertFalse(one.stat().st_mode & 0o077 and one.name != "lock", one)
        process.send_signal(signal.SIGINT)
        self.assertEqual(0, process.wait(40))
        self.await_none(1)

        process, log = self.start("--dir", folder)
        self.assertNotIn("sandbox.shared_uid", log.read_text())
        self.assertIn(address, log.read_text())
        self.assertIn("globex", self.lockgate(folder, "tenant", "list"))
        self.restarted(folder, log)
        process.kill()
        process.wait()
        self.await_none(30)

    def restarted(self, folder, log):
        """As Compose does it, a service that ends is started again."""
        pid = int(re.search(r"lockgate-1 .* pid (\d+)", log.read_text())[1])
        os.kill(pid, signal.SIGKILL)
        run_pages.wait_for("the other life of lockgate-1", lambda: re.search(r"lockgate-1 .* ready again", log.read_text()))

    def lockgate(self, folder, *words):
        script = f'eval "$(scripts/demo env --dir {folder})"; exec lockgate "$@"'
        done = subprocess.run(["bash", "-c", script, "demo", *words], cwd=self.way.work, env=self.way.environment,
                              capture_output=True, text=True, timeout=30)
        self.assertEqual(0, done.returncode, done.stderr)
        return done.stdout

    def test_3_what_is_missing_has_its_command(self):
        bare = self.way.folder / "bare"
        bare.mkdir()
        (bare / "python3").symlink_to(shutil.which("python3"))
        environment = {name: value for name, value in self.way.environment.items() if name not in ("VALKEY_SERVER", "REDIS_SERVER")}
        done = self.way.demo(env=environment | {"PATH": str(bare)})
        self.assertEqual(1, done.returncode)
        self.assertRegex(done.stderr, r"missing: .*prometheus.*\n  sudo apt-get install .*prometheus")
        self.assertNotIn("Traceback", done.stderr)

    def test_4_an_error_shows_the_end_of_the_right_log(self):
        broken = self.way.folder / "broken"
        broken.write_text(f'#!/bin/sh\n[ "$1" = serve ] || exec {Path(BINARY).resolve()} "$@"\necho it will not start\nexit 3\n')
        broken.chmod(0o755)
        done = self.way.demo("--binary", broken)
        self.assertEqual(1, done.returncode)
        self.assertRegex(done.stderr, r"lockgate-1 ended with 3; the end of .*lockgate-1\.log:\n    it will not start\n")
        self.await_none(1)
        self.assertEqual([], list((self.way.folder / "tmp").glob("lockgate*")))

    def test_5_a_file_that_it_does_not_know_any_more_is_an_error(self):
        from bare.programs import Failed
        from bare.topology import substitute

        self.assertEqual("b", substitute("a", [("a", "b")], "it"))
        with self.assertRaisesRegex(Failed, "has no 'x' any more"):
            substitute("a", [("x", "b")], "it")


if __name__ == "__main__":
    WRITE = "--write" in sys.argv and not sys.argv.remove("--write")
    BINARY = sys.argv.pop(1)
    os.environ["PATH"] = f"{ROOT / 'tests/referees/node_modules/.bin'}:{os.environ['PATH']}"
    # Beside ten other steps of scripts/test.
    run_pages.LIMIT = run_pages.SHOWN = 180
    run_pages.private_network()
    unittest.main(verbosity=2)
