"""Real packages behind `prepare`: packages.py LOCKGATE [--sessions N] [--after FILE]

One npx and one uvx server, installed once. Each session's child is without any TCP, so that whatever
works downloads nothing. Prints how long an `initialize` takes on the bare program and through the
gateway, in turns, and how much more that is than for a copy of the same program that needs no preparation;
before it measures it waits for the file, if one is named.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

NPX = "@modelcontextprotocol/server-everything@2026.8.31"
UVX = "mcp-server-time"
MINUTES = 5
ALONE = 15
# What preparation may add to a session. The gateway's other parts, guard and sandbox, slow the program itself too;
# they are measured in the same run by the copy.
OWN = 0.006
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "packages", "version": "1"},
    },
}
# What installers need on this machine, if anything.
SETTINGS = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "NO_PROXY")


def uvx():
    beside = Path(sys.executable).with_name("uvx")
    return str(beside) if beside.exists() else shutil.which("uvx")


def settings():
    """What of this environment the servers get, started by whomever."""
    env = {name: os.environ[name] for name in SETTINGS if name in os.environ}
    families = ("NPM_CONFIG_", "UV_")
    return env | {name: text for name, text in os.environ.items() if name.upper().startswith(families)}


def copied(store, copy):
    """Copies a store, and returns what starts its server there."""
    shutil.copytree(store, copy, symlinks=True)
    if store.joinpath("node_modules").exists():
        return ["node", f"{copy}/node_modules/.bin/mcp-server-everything", "stdio"]
    # A link, to a script whose first line names the Python of the store.
    script = copy / store.joinpath("bin", UVX).resolve().relative_to(store)
    return [str(script.with_name("python")), str(script)]


def environment():
    return {name: text.replace("$", "$$") for name, text in settings().items()}


def manifest(servers):
    return {"version": 1, "tenants": {"a": {"auth": {"mode": "none"}, "servers": servers}}}


def prepared():
    env = environment()
    walls = {"tcp": False, "required": False}
    return {
        "npx": {"command": "npx", "args": ["-y", NPX, "stdio"], "env": env, "sandbox": walls},
        "uvx": {"command": uvx(), "args": [UVX], "env": env, "sandbox": walls},
    }


def without_preparation(words, folder):
    walls = {"tcp": False, "required": False, "read": [str(folder)]}
    return {"command": words[0], "args": words[1:], "env": environment(), "sandbox": walls}


class Gateway:
    def __init__(self, binary, folder, servers):
        self.folder = folder
        self.log = open(folder / "log", "w")
        (folder / "manifest.json").write_text(json.dumps(manifest(servers)))
        sets = [f"data_dir={folder}/data", "http.listen=127.0.0.1:0", "ops.listen=127.0.0.1:0"]
        words = [binary, "serve", "--apply", str(folder / "manifest.json")]
        words += [word for one in sets for word in ("--set", one)]
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)

    def listens(self):
        ended = "it listens, or has ended"
        until(ended, lambda: self.lines("listening") or self.process.poll() is not None)
        line = self.lines("listening")[0]
        self.http, self.ops = line["http"], line["ops"]

    def lines(self, event):
        texts = (self.folder / "log").read_text().splitlines()
        lines = [json.loads(text) for text in texts if text.startswith("{")]
        return [line for line in lines if line.get("event") == event]

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()

    def seen(self, path):
        with urllib.request.urlopen(f"http://{self.ops}{path}", timeout=30) as answer:
            return json.load(answer)

    def post(self, server, message, session=None):
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        if session:
            headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
        url = f"http://{self.http}/t/a/{server}/mcp"
        body = json.dumps(message).encode()
        request = urllib.request.Request(url, body, headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.headers.get("Mcp-Session-Id"), answer.read().decode()

    def open(self, server):
        began = time.perf_counter()
        session, text = self.post(server, INITIALIZE)
        took = time.perf_counter() - began
        assert session and "serverInfo" in text, text
        return session, took

    def open_in_turn(self, server):
        """The same on a busy machine: a start that waited too long is told when to come again."""
        until_then = time.monotonic() + 60 * MINUTES
        while True:
            try:
                return self.open(server)[0]
            except urllib.error.HTTPError as refused:
                after = refused.headers.get("Retry-After")
                if refused.code != 503 or after is None or time.monotonic() > until_then:
                    raise
                time.sleep(int(after))

    def close(self, server, session):
        url = f"http://{self.http}/t/a/{server}/mcp"
        headers = {"Mcp-Session-Id": session}
        request = urllib.request.Request(url, headers=headers, method="DELETE")
        urllib.request.urlopen(request, timeout=60).close()


def until(what, check, seconds=60 * MINUTES):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(0.05)
    raise AssertionError(f"deadline: {what}")


def bare(words, folder):
    """How long the program itself takes to its answer."""
    home = tempfile.mkdtemp(dir=folder)
    # The same as through the gateway: Node alone takes 100 ms to read NODE_EXTRA_CA_CERTS.
    env = settings() | {"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home}
    env |= {"LANG": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1"}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    began = time.perf_counter()
    with subprocess.Popen(words, env=env, cwd=home, **pipes) as child:
        child.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        child.stdin.flush()
        line = child.stdout.readline()
        took = time.perf_counter() - began
        child.kill()
    assert b"serverInfo" in line, line
    return took


def content(store):
    """Every file of a store with its time and its mode."""
    found = {}
    for folder, _, files in os.walk(store):
        for name in [".", *files]:
            status = os.lstat(Path(folder) / name)
            found[f"{folder}/{name}"] = (status.st_mtime_ns, status.st_mode, status.st_size)
    return found


def children(gateway, server):
    return [one for one in gateway.seen("/children") if one["server"] == server]


def told(pid):
    """The environment of a server; the first process of a namespace is none."""
    while below := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = below[0]
    pairs = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def asked(gateway, session):
    """The environment that the npx server says it has: Node writes over what /proc shows."""
    params = {"name": "get-env", "arguments": {}}
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    _, text = gateway.post("npx", call, session)
    lines = [line.removeprefix("data: ") for line in text.splitlines()]
    answer = next(json.loads(line) for line in lines if '"content"' in line)
    return json.loads(answer["result"]["content"][0]["text"])


def ten_sessions(gateway, server, store):
    before = content(store)
    with ThreadPoolExecutor(10) as pool:
        sessions = list(pool.map(lambda _: gateway.open_in_turn(server), range(10)))
    pids = [one["pid"] for one in children(gateway, server)]
    assert len(pids) == 10, pids
    if server == "npx":
        known = [asked(gateway, session) for session in sessions]
    else:
        known = [told(pid) for pid in pids]
    for env in known:
        assert env["LOCKGATE_PREPARED"] == str(store), env
    for name in ("HOME", "TMPDIR"):
        assert len({env[name] for env in known}) == 10, name
    for session in sessions:
        gateway.close(server, session)
    assert content(store) == before, "something was written to the store"
    until("the end of its children", lambda: not children(gateway, server))
    print(f"{server}: ten sessions without TCP share {store.name[:8]} and write nothing to it")


def others_wanted():
    """Processes that want a processor, beyond those that there are."""
    with open("/proc/loadavg") as load:
        running = int(load.read().split()[3].split("/")[0])
    return max(0, running - os.cpu_count())


def opened(gateway, server):
    session, took = gateway.open(server)
    gateway.close(server, session)
    until("the end of its child", lambda: not children(gateway, server))
    return took


def measured(gateway, beside, server, words, count):
    own, added, plain, wanted = [], [], [], []
    for _ in range(count):
        own.append(bare(words, gateway.folder))
        wanted.append(others_wanted())
        added.append(opened(gateway, server) - own[-1])
        plain.append(opened(beside, server) - own[-1])
    # A busy machine differs from itself by more than what is measured: both ways are measured in turn, and how far
    # their difference lies from itself says how much it is worth.
    difference = [one - other for one, other in zip(added, plain)]
    lower, _, upper = statistics.quantiles(difference, n=4)
    middle, cost, base, more = map(statistics.median, (own, added, plain, difference))
    print(
        f"{server}: bare p50 {middle * 1e3:.1f} ms, through the gateway {cost * 1e3:+.1f} ms, a copy without "
        f"preparation {base * 1e3:+.1f} ms; the difference {more * 1e3:+.1f} ms (quartiles {(upper - lower) * 1e3:.1f} ms apart)"
    )
    # Where other processes wait for a processor, as with a build beside it, the gateway's own processes wait for
    # their turns too.
    waiting = statistics.median(wanted)
    bound = max(OWN, upper - lower) + (middle if waiting > 0 else 0)
    assert more <= bound, f"preparation costs too much ({waiting} processes waited)"


def story(gateway, start, sessions, after):
    def over():
        found = gateway.seen("/prepared")
        states = [one["state"] for one in found]
        return found if len(found) == 2 and "preparing" not in states else None

    found = {one["servers"][0].split("/")[1]: one for one in until("both are prepared", over)}
    for server, one in found.items():
        assert one["state"] == "ready", one
        print(f"{server}: {one['subject']} is {one['version']}")
        assert one["version"], one
    assert found["npx"]["version"] == NPX.rsplit("@", 1)[1]
    stores = gateway.folder / "data" / "prepared"
    # As deep as the stores, with names as long: Node takes milliseconds more behind a longer path.
    folder, words, copies = gateway.folder / "copy", {}, {}
    for server in found:
        store = (stores / found[server]["digest"]).resolve()
        ten_sessions(gateway, server, store)
        copy = folder / "prepared" / store.name
        words[server] = copied(store, copy)
        copies[server] = without_preparation(words[server], copy)
    until("the machine for itself", lambda: after is None or after.exists(), 60 * ALONE)
    beside = start(folder, copies)
    for server in found:
        measured(gateway, beside, server, words[server], sessions)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("--sessions", type=int, default=15)
    parser.add_argument("--after", type=Path)
    given = parser.parse_args()
    assert uvx(), "no uvx beside this Python or on PATH"
    with tempfile.TemporaryDirectory(prefix="lockgate-packages-") as folder:
        with contextlib.ExitStack() as ends:

            def start(folder, servers):
                gateway = Gateway(given.binary, folder, servers)
                ends.callback(gateway.end)
                gateway.listens()
                return gateway

            # A time limit from outside ends the gateways too.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
            try:
                gateway = start(Path(folder), prepared())
                story(gateway, start, given.sessions, given.after)
            except BaseException:
                for log in Path(folder).glob("**/log"):
                    print(f"{log}: {log.read_text()[-4000:]}")
                raise


if __name__ == "__main__":
    main()
