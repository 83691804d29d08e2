"""The servers of docs/servers.md, as they stand there: servers.py LOCKGATE [NAME…]

Each is prepared from its registry, started in the default profile, and has to answer `initialize`, `tools/list` and a
call. `/srv` is a directory of the run. What installers need on this machine is passed on, as in packages.py. Prints a
line for each server; the last line is "N passed, N failed".
"""

import contextlib
import http.server
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import packages

PAGE = Path(__file__).resolve().parents[2] / "docs/servers.md"
MINUTES = 8
TEXT = "a page of this run"
# Of a cluster that nobody has to run: what it is asked for is in this file.
CLUSTER = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "run", "cluster": {"server": "https://127.0.0.1:1"}}],
    "users": [{"name": "ada", "user": {"token": "none"}}],
    "contexts": [{"name": "run", "context": {"cluster": "run", "user": "ada"}}],
    "current-context": "run",
}


def manifest(folder):
    """The manifest of the page, with the directories, programs and registries of this machine."""
    text = re.search(r"<!-- file servers\.yaml -->\n```yaml\n(.*?)```", PAGE.read_text(), re.S)[1]
    text = text.replace("/srv/", f"{folder}/srv/").replace("command: uvx", f"command: {packages.uvx()}")
    # The page that it fetches is one of this machine.
    text = re.sub(r'("mcp-server-fetch@[^"]*")', r'\1, "--allow-private-ips"', text)
    return text.replace("/usr/bin/chromium", os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium")


def furnish(folder):
    """What the servers serve."""
    for name in ("memory", "files", "repository", "kubernetes"):
        (folder / "srv" / name).mkdir(parents=True)
    (folder / "srv/files/hello.txt").write_text("hello from a file\n")
    (folder / "srv/kubernetes/config").write_text(json.dumps(CLUSTER))
    git = ["git", "-C", str(folder / "srv/repository")]
    subprocess.run([*git, "init", "-q"], check=True)
    who = ["-c", "user.name=ci", "-c", "user.email=ci@example.com"]
    subprocess.run([*git, *who, "commit", "-q", "--allow-empty", "-m", "the first commit"], check=True)


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        known = self.path == "/"
        body = f"<html><title>Run</title><body><h1>{TEXT}</h1></body></html>".encode()
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def site():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()


def calls(folder, url):
    """For each server: its calls, and a text in the answer of each."""
    ada = {"name": "Ada", "entityType": "person", "observations": ["writes programs"]}
    thought = {"thought": "one", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
    return {
        "everything": [("echo", {"message": "hi"}, "Echo: hi")],
        "memory": [("create_entities", {"entities": [ada]}, "Ada"), ("read_graph", {}, "writes programs")],
        "filesystem": [
            ("read_text_file", {"path": f"{folder}/srv/files/hello.txt"}, "hello from a file"),
            ("write_file", {"path": f"{folder}/srv/files/new.txt", "content": "x"}, "new.txt"),
        ],
        "thinking": [("sequentialthinking", thought, "thoughtNumber")],
        "git": [("git_log", {"repo_path": f"{folder}/srv/repository"}, "the first commit")],
        "fetch": [("fetch", {"url": url, "raw": True}, TEXT)],
        "time": [("get_current_time", {"timezone": "UTC"}, "UTC")],
        "browser": [("browser_navigate", {"url": url}, "Page Title: Run")],
        "kubernetes": [("configuration_view", {}, "server: https://127.0.0.1:1")],
        "nushell": [
            ("evaluate", {"input": "[1 2 3] | math sum"}, '"output": 6'),
            ("evaluate", {"input": f"open {folder}/srv/files/hello.txt"}, "hello from a file"),
        ],
    }


class Gateway:
    def __init__(self, binary, folder):
        self.binary, self.folder = binary, folder
        (folder / "servers.yaml").write_text(manifest(folder))
        settings = packages.settings()
        shared = json.dumps([f"{name}={text}" for name, text in settings.items()])
        sets = [
            f"data_dir={folder}/data",
            "http.listen=127.0.0.1:0",
            "ops.listen=127.0.0.1:0",
            "outbound.probe=[]",
            f"children.env={shared}",
        ]
        words = [binary, "serve", "--apply", str(folder / "servers.yaml")]
        words += [word for one in sets for word in ("--set", one)]
        self.log = open(folder / "log", "w")
        self.process = subprocess.Popen(words, stdout=self.log, stderr=self.log)
        try:
            packages.until("it listens, or has ended", lambda: self.line() or self.process.poll() is not None)
            assert self.line(), (folder / "log").read_text()
            self.http, self.ops = self.line()["http"], self.line()["ops"]
            self.key = self.made_key()
        except BaseException:
            self.end()
            raise

    def line(self):
        texts = (self.folder / "log").read_text().splitlines()
        lines = [json.loads(text) for text in texts if text.startswith("{")]
        return next((line for line in lines if line.get("event") == "listening"), None)

    def made_key(self):
        operator = (self.folder / "data/admin.key").read_text().strip()
        body = {"name": "ci", "subject": "ci", "servers": ["*"], "scopes": []}
        headers = {"Authorization": f"Bearer {operator}", "Content-Type": "application/json"}
        url = f"http://{self.http}/api/v1/tenants/acme/api-keys"
        request = urllib.request.Request(url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)["key"]

    def post(self, server, message, session=None):
        headers = {
            "Authorization": f"Bearer {self.key}",
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        if session:
            headers |= {"Mcp-Session-Id": session, "MCP-Protocol-Version": "2025-11-25"}
        url = f"http://{self.http}/t/acme/{server}/mcp"
        request = urllib.request.Request(url, json.dumps(message).encode(), headers)
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.headers.get("Mcp-Session-Id"), answer.read().decode()

    def ask(self, server, method, params, session):
        message = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
        _, text = self.post(server, message, session)
        lines = (line.removeprefix("data: ") for line in text.splitlines())
        answers = (json.loads(line) for line in lines if line.startswith("{"))
        answer = next(answer for answer in answers if answer.get("id") == 7)
        assert "result" in answer, answer
        return answer["result"]

    def open(self, server):
        """A session, as soon as the server is prepared."""
        end = time.monotonic() + 60 * MINUTES
        while True:
            try:
                session, text = self.post(server, packages.INITIALIZE)
            except urllib.error.HTTPError as refused:
                after = refused.headers.get("Retry-After")
                if refused.code != 503 or after is None or time.monotonic() > end:
                    raise AssertionError(f"{refused.code}: {refused.read().decode()}") from refused
                time.sleep(int(after))
                continue
            assert session and "serverInfo" in text, text
            self.post(server, {"jsonrpc": "2.0", "method": "notifications/initialized"}, session)
            return session

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.log.close()

    def prepared(self):
        with urllib.request.urlopen(f"http://{self.ops}/prepared", timeout=30) as answer:
            return json.load(answer)


def tried(gateway, server, its_calls):
    session = gateway.open(server)
    tools = {tool["name"] for tool in gateway.ask(server, "tools/list", {}, session)["tools"]}
    for name, arguments, wanted in its_calls:
        assert name in tools, f"no tool {name}: {sorted(tools)}"
        result = gateway.ask(server, "tools/call", {"name": name, "arguments": arguments}, session)
        assert wanted in json.dumps(result) and not result.get("isError"), result
    if server == "memory":
        # What it knows survives the end of its session and of its child.
        other = gateway.open(server)
        assert "Ada" in json.dumps(gateway.ask(server, "tools/call", {"name": "read_graph", "arguments": {}}, other))
    return len(tools)


def main():
    binary, *names = sys.argv[1:]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as folder, site() as url:
        folder = Path(folder)
        furnish(folder)
        all_calls = calls(folder, url)
        named = re.findall(r"^      ([a-z]+):$", manifest(folder), re.M)
        assert named == list(all_calls), f"the page has {named}"
        gateway = Gateway(binary, folder)
        try:
            for server in names or named:
                began = time.monotonic()
                try:
                    tools = tried(gateway, server, all_calls[server])
                    print(f"ok {server}: {tools} tools, {time.monotonic() - began:.1f} s", flush=True)
                    passed += 1
                except Exception as error:
                    print(f"FAILED {server}: {error}", flush=True)
                    failed += 1
            if failed:
                print(json.dumps(gateway.prepared(), indent=1))
                print((folder / "log").read_text()[-8000:])
        finally:
            gateway.end()
    print(f"{passed} passed, {failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
