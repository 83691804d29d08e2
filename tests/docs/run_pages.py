"""Runs the commands of pages as they stand: run_pages.py BINARY [PAGE…]

Each page has a network of its own (a namespace with loopback alone), processes, a home and a working directory, so
that its ports, paths and names are those that the reader types. Its blocks run in their order in one
shell; pages.py lists the marks. Every `sh` block of every page runs or is counted,
and its syntax and the commands and flags of lockgate in it are checked.
"""

import ctypes
import fcntl
import os
import re
import shlex
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from functools import cache
from pathlib import Path

from pages import ROOT, blocks
from services import SERVICES, wait_for

# The pages whose commands run, with the services that their readers have.
RUN = {
    "docs/quickstart.md": [],
    "docs/tutorial-team.md": ["certificate", "provider"],
    "docs/tutorial-replicas.md": ["postgres", "redis"],
    "docs/tutorial-kubernetes.md": [],
    "docs/deploying.md": [],
    "docs/troubleshooting.md": [],
    "docs/doctor.md": [],
    "docs/clients.md": [],
    "docs/configuration.md": [],
    "docs/access.md": [],
    "docs/secrets.md": [],
    "docs/upstreams.md": [],
    "docs/authorization.md": [],
    "docs/administration.md": [],
    "docs/replicas.md": [],
    "docs/operations.md": [],
    "docs/reliability.md": [],
}
# Blocks of pages from the root of the repository, which run elsewhere or not at all.
ELSEWHERE = {
    "README.md": (7, "tests/referees/ten-commands.sh runs those of \"Several tenants\"; quickstart.md and deploying.md have the others"),
    "docs/install.md": (8, "they change the machine; tests/deploy/packages.py installs the package and runs its unit on one of its own"),
    "docs/demo.md": (8, "tests/deploy/demo.py runs them, all but the installation of the servers"),
    "docs/containers.md": (6, "they need a container engine; tests/deploy/image.py builds both images and starts them"),
    "docs/kubernetes.md": (6, "they need a cluster; tests/deploy/chart.py renders the chart, rolling_upgrade.py carries it out"),
    "CONTRIBUTING.md": (3, "they change the machine, or need a checkout with a build"),
}
# How many blocks of these pages cannot run here. Each has its reason on the page.
NOT_RUN = {
    "docs/quickstart.md": 0,
    "docs/tutorial-team.md": 0,
    "docs/tutorial-replicas.md": 0,
    "docs/tutorial-kubernetes.md": 6,
    "docs/deploying.md": 3,
    "docs/troubleshooting.md": 0,
    "docs/doctor.md": 0,
    "docs/clients.md": 4,
    "docs/configuration.md": 0,
    "docs/access.md": 0,
    "docs/secrets.md": 0,
    "docs/authorization.md": 0,
    "docs/upstreams.md": 0,
    "docs/administration.md": 0,
    "docs/replicas.md": 1,
    "docs/operations.md": 0,
    "docs/reliability.md": 1,
}
# The seconds that a block may take, and those until a command that stays has printed what the page shows.
LIMIT, SHOWN = 60, 20
# What follows `lockgate` where it is a command: at the begin of a line, or behind what begins another command.
COMMAND = re.compile(r"(?m)(?:^|[;&|(]|\buntil|\bdo|\bexec(?:[ \t]+lockgate(?=[ \t]+lockgate))?|\bsudo|run --rm)[ \t]*(?:\w+=\S*[ \t]+)*lockgate[ \t]+([^\n]*)")


def matches(wanted, said):
    """Whether an output is what a page shows; "…" stands for any text."""
    pattern = "".join(".*?" if part == "…" else re.escape(part) for part in re.split("(…)", wanted.strip()))
    return re.fullmatch(pattern, said.strip(), re.DOTALL)


class Shell:
    """One terminal of the reader."""

    def __init__(self, name, folder, environment):
        self.name = name
        self.folder = folder
        self.log = folder / f".{name}.out"
        self.log.touch()
        self.shell = subprocess.Popen(
            ["bash", "--norc", "-eu"], stdin=subprocess.PIPE, cwd=folder, env=environment, text=True, start_new_session=True
        )

    def begin(self, block):
        source, self.status = (self.folder / f".{self.name}.{end}" for end in ("sh", "status"))
        source.write_text(block.text)
        self.log.write_text("")
        self.status.unlink(missing_ok=True)
        # What the reader types, if the command asks.
        typed = self.folder / ".stdin"
        typed = typed if typed.exists() else "/dev/null"
        run = f". {shlex.quote(str(source))} <{typed} >{shlex.quote(str(self.log))} 2>&1"
        # A block that ought to fail must not end the shell.
        run = f"if ( {run} ); then echo 0; else echo 1; fi" if block.mark == "fails" else f"{run}; echo 0"
        self.shell.stdin.write(f"{{ {run}; }} >{shlex.quote(str(self.status))}.part; mv {self.status}.part {self.status}\n")
        self.shell.stdin.flush()

    def said(self):
        return self.log.read_text(errors="replace")

    def finish(self, block):
        until = time.monotonic() + LIMIT
        while not self.status.exists():
            if self.shell.poll() is not None:
                raise SystemExit(f"{block.place}: failed:\n{block.text}\n{self.said()}")
            if time.monotonic() > until:
                raise SystemExit(f"{block.place}: did not end within {LIMIT} s:\n{block.text}\n{self.said()}")
            time.sleep(0.01)
        failed = self.status.read_text().strip() != "0"
        if failed != (block.mark == "fails"):
            raise SystemExit(f"{block.place}: {'failed' if failed else 'did not fail'}:\n{block.text}\n{self.said()}")

    def interrupt(self, place):
        """Ctrl-C: the command gets SIGINT, and the shell lives on."""
        children = Path(f"/proc/{self.shell.pid}/task/{self.shell.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGINT)
        until = time.monotonic() + 60
        while not self.status.exists():
            if self.shell.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{place}: {self.name} did not end with 0 at Ctrl-C:\n{self.said()}")
            time.sleep(0.02)

    def end(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.shell.pid, number)
                self.shell.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue


def answers(url):
    import ssl

    try:
        # Whether it is up; the page's own commands check the certificate.
        context = ssl._create_unverified_context() if url.startswith("https") else None
        with urllib.request.urlopen(url, timeout=2, context=context) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


class Page:
    def __init__(self, name, binary):
        self.name = name
        self.path = ROOT / name
        self.folder = Path(tempfile.mkdtemp(prefix="lockgate-docs-"))
        self.services = [SERVICES[one](self.folder) for one in RUN.get(name, [])]
        # Servers run as other users where this one is root, and read the reader's files.
        self.folder.chmod(0o711)
        home = self.folder / "home"
        self.work = home / "work"
        self.work.mkdir(parents=True)
        # npx takes packages from here, at the versions of the lock file, before it asks a registry.
        packages = ROOT / "tests/referees/node_modules"
        (self.work / "node_modules").symlink_to(packages.resolve())
        # The chart of the reader's checkout.
        (self.work / "helm").symlink_to(ROOT / "helm")
        temporary = self.folder / "tmp"
        temporary.mkdir()
        programs = self.folder / "bin"
        programs.mkdir()
        (programs / "lockgate").symlink_to(Path(binary).resolve())
        # The Python that has the SDK of the lock file.
        python = [str(Path(os.environ["REFEREE_PYTHON"]).parent)] if "REFEREE_PYTHON" in os.environ else []
        self.environment = {
            "PATH": ":".join([str(programs), f"{packages.resolve()}/.bin", *python, os.environ["PATH"]]),
            "HOME": str(home),
            "TMPDIR": str(temporary),
            "LANG": "C.UTF-8",
            "NO_COLOR": "1",
            "SAID": str(self.folder / "said"),
        }
        self.said = self.folder / "said"
        self.values = {}
        for service in self.services:
            self.values |= service.values
            self.environment |= getattr(service, "environment", {})
        self.shells = {}
        self.ran = 0
        self.not_run = []

    def shell(self, name):
        if name not in self.shells:
            self.shells[name] = Shell(name, self.work, self.environment)
        return self.shells[name]

    def run(self):
        last = None
        for block in blocks(self.path):
            if block.mark == "stop":
                self.stop(block)
            elif block.mark == "output":
                if last is None:
                    raise SystemExit(f"{block.place}: an output without a command")
                self.compare(block, last)
            elif block.mark == "file":
                name, _, yours = block.of_mark.partition(", yours ")
                self.fill(block, yours)
                target = self.work / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_text(block.text)
            elif block.mark == "not run":
                check_syntax(block)
                self.not_run.append(f"{block.place}: {block.of_mark}")
            elif block.mark == "hidden":
                if last is not None:
                    shutil.copyfile(last.log, self.said)
                shell = self.shell("main")
                shell.begin(block)
                shell.finish(block)
            elif block.language == "sh":
                last = self.command(block)
                self.ran += 1

    def stop(self, block):
        self.shells[block.of_mark].interrupt(block.place)
        self.shells.pop(block.of_mark).end()

    def command(self, block):
        if block.mark == "terminal":
            name, _, url = block.of_mark.partition(" until ")
            shell = self.shell(name)
            shell.begin(block)
            until = time.monotonic() + 60
            while not answers(url):
                if shell.shell.poll() is not None or shell.status.exists() or time.monotonic() > until:
                    raise SystemExit(f"{block.place}: {url} does not answer:\n{shell.said()}")
                time.sleep(0.05)
            return shell
        shell = self.shell("main")
        if block.mark == "yours":
            self.fill(block, block.of_mark)
        shell.begin(block)
        shell.finish(block)
        return shell

    def fill(self, block, names):
        """The test's values in place of the reader's: `NAME=…` in shell, `NAME: …` in YAML."""
        for name in names.split():
            value = self.values[name]
            block.text, count = re.subn(
                rf"(?m)\b{name}(=|: )\S+", lambda hit: f"{name}{hit[1]}{shlex.quote(value)}", block.text
            )
            if count != 1:
                raise SystemExit(f"{block.place}: {name} is set {count} times")

    def compare(self, block, shell):
        # A command that stays may print the rest yet.
        until = time.monotonic() + SHOWN
        while not matches(block.text, shell.said()):
            if time.monotonic() > until:
                raise SystemExit(f"{block.place}: the page shows\n{block.text}\nbut the command printed\n{shell.said()}")
            time.sleep(0.05)

    def end(self):
        for shell in self.shells.values():
            shell.end()
        for service in self.services:
            service.end()
        shutil.rmtree(self.folder, ignore_errors=True)


def private_network():
    """A network with loopback alone, host names and processes of its own: what the pages call mcp.example.com is
    here, what they find by name is theirs, and nothing that they started outlives them."""
    flags = 0x40000000 | 0x00020000 | 0x20000000  # CLONE_NEWNET, CLONE_NEWNS, CLONE_NEWPID
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.geteuid(), os.getegid()
    if uid != 0:
        flags |= 0x10000000  # CLONE_NEWUSER
    if libc.unshare(flags):
        raise SystemExit(f"namespaces: {os.strerror(ctypes.get_errno())}; run it as root, or allow user namespaces")
    if uid != 0:
        # As the same user: PostgreSQL refuses to run as root, also as the root of a namespace.
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
        # The pages that listen on port 443 say that it takes root.
        Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").write_text("0")
    # ip link set lo up
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        fcntl.ioctl(control, 0x8914, struct.pack("16sh", b"lo", 0x1 | 0x40))
    handle, hosts = tempfile.mkstemp(prefix="lockgate-hosts-")
    os.write(handle, b"127.0.0.1 localhost mcp.example.com\n")
    os.fchmod(handle, 0o644)
    os.close(handle)
    # MS_REC|MS_PRIVATE, then MS_BIND: nothing of it is seen outside.
    if libc.mount(b"none", b"/", None, 0x4000 | 0x40000, None) or libc.mount(
        hosts.encode(), b"/etc/hosts", None, 0x1000, None
    ):
        raise SystemExit(f"/etc/hosts: {os.strerror(ctypes.get_errno())}")
    # What is mounted needs no name.
    os.unlink(hosts)
    # The first process of the namespace: all others end with it.
    first = os.fork()
    if first:
        status = os.waitpid(first, 0)[1]
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    # MS_NOSUID, MS_NODEV, MS_NOEXEC
    if libc.mount(b"proc", b"/proc", b"proc", 0x2 | 0x4 | 0x8, None):
        raise SystemExit(f"/proc: {os.strerror(ctypes.get_errno())}")


@cache
def help_of(binary, *words):
    done = subprocess.run([binary, *words, "--help"], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else None


def check_syntax(block):
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{block.place}: {done.stderr}")


def check_flags(binary, block):
    """The commands and flags of lockgate that a block names exist."""
    count = 0
    for said in COMMAND.findall(block.text.replace("\\\n", " ")):
        try:
            words = shlex.split(said, comments=True)
        except ValueError:
            words = said.split()
        for stop in ("|", "||", "&&", ";", "--", ">", "&", "<"):
            words = words[: words.index(stop)] if stop in words else words
        command = []
        for word in words:
            if not re.fullmatch("[a-z]+(-[a-z]+)*", word) or help_of(binary, *command, word) is None or len(command) == 2:
                break
            command.append(word)
        if words and not command and not words[0].startswith(("-", "__")):
            raise SystemExit(f"{block.place}: no such command: lockgate {words[0]}")
        text = help_of(binary, *command)
        count += 1
        for word in words:
            flag = word.split("=")[0]
            if re.fullmatch("--[a-z-]+", flag) and not re.search(rf"{flag}\b", text):
                raise SystemExit(f"{block.place}: lockgate {' '.join(command)} has no {flag}")
    return count


def check_all(binary):
    """Every block of every page runs, or is counted; and its commands and flags exist."""
    commands = 0
    for page in [*sorted((ROOT / "docs").glob("*.md")), *sorted(ROOT.glob("*.md"))]:
        name, count = str(page.relative_to(ROOT)), 0
        for block in blocks(page):
            if block.language in ("bash", "shell", "console"):
                raise SystemExit(f"{block.place}: write sh, so that it runs")
            if block.language == "sh":
                check_syntax(block)
                commands += check_flags(binary, block)
                count += block.mark != "hidden"
        if name not in RUN and count != ELSEWHERE.get(name, (0,))[0]:
            raise SystemExit(f"{name} has {count} blocks of commands: add it to RUN, or count them in ELSEWHERE")
        if name in ELSEWHERE:
            print(f"not run: {count} of {name}: {ELSEWHERE[name][1]}")
    print(f"{commands} commands of lockgate by their flags: ok")


def run(name, binary):
    began = time.monotonic()
    private_network()
    page = Page(name, binary)
    try:
        page.run()
    except SystemExit as error:
        # What the browser saw tells why a log-in did not come to its end.
        for trace in page.folder.glob("browser"):
            error.code = f"{error.code}\nthe browser:\n{trace.read_text()}"
        raise
    finally:
        page.end()
    for one in page.not_run:
        print(f"not run: {one}")
    if len(page.not_run) != NOT_RUN[name]:
        raise SystemExit(f"{name}: {len(page.not_run)} blocks are not run in place of {NOT_RUN[name]}")
    print(f"{name}: {page.ran} blocks, {time.monotonic() - began:.1f} s", flush=True)


def main():
    # node of the lock file, for the services and for npx.
    os.environ["PATH"] = f"{ROOT / 'tests/referees/node_modules/.bin'}:{os.environ['PATH']}"
    if "HELM4" in os.environ:
        os.environ["PATH"] = f"{Path(os.environ['HELM4']).parent}:{os.environ['PATH']}"
    binary, *names = sys.argv[1:]
    missing = [name for name in ("bash", "curl", "openssl", "node", "npx", "haproxy", "helm") if not shutil.which(name)]
    if missing:
        sys.exit(f"the pages need: {', '.join(missing)}")
    if not names:
        check_all(binary)
    failed = []
    for name in names or RUN:
        # A process of its own, because a namespace is for good.
        child = os.fork()
        if child == 0:
            try:
                run(name, binary)
            except SystemExit as error:
                print(error.code, flush=True)
                os._exit(1)
            except BaseException:
                import traceback

                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        if os.waitpid(child, 0)[1]:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
