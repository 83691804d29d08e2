"""Asymmetry: what one request at the body limit costs the gateway, by what it costs its client."""

import json
import secrets
import socket
import time
from pathlib import Path

from .common import ECHO, Report, serving

LIMIT = 4 << 20
MEMORY = 4
PROCESSOR = 10
SETS = (
    "default.tenant=local",
    "default.server=main",
    "sandbox.separation=none",
    "sandbox.shared_uid=true",
    "oauth.failures=1000000000",
    "oauth.writes=1000000000",
)


def measure(options):
    repeats = options.of(50, 10)
    server = {"main": {"command": str(ECHO), "sandbox": {"profile": "open"}}}
    tenants = {
        "local": {"auth": {"mode": "none"}, "servers": server},
        "acme": {
            "auth": {"mode": "builtin"},
            "users": {"ada": {"password": secrets.token_urlsafe(16)}},
            "servers": server,
        },
    }
    rows, limit_mib = [], LIMIT >> 20
    with serving(options, tenants, *SETS) as gateway:
        client = Client(gateway.http)
        ordinary = client.message(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
        for _ in range(500):
            client.send(ordinary)
        before = kib(gateway.pid, "VmRSS")
        for what, request in bodies(client):
            for _ in range(5):
                status = client.send(request)
            memory, processor = one(gateway.pid, before, client, request, repeats)
            is_fine = memory <= MEMORY * limit_mib and processor <= PROCESSOR
            size = f"{len(request) / 1024:,.1f} KiB"
            cells = [what, size, status, f"{memory:.1f} MiB", f"{processor:.1f}"]
            rows.append([*cells, is_fine and gateway.process.poll() is None])
    text = (
        f"Each request {repeats} times, one at a time over one connection, to one session whose server echoes. The\n"
        f"client sends bytes that it has made before, and reads the answer. Memory: the highest that the gateway\n"
        f"reached above what it had before all of them, ≤ {MEMORY} × the body limit of {limit_mib} MiB. Processor: the time of the\n"
        f"gateway by that of the client, ≤ {PROCESSOR}."
    )
    return Report(text, ["request", "size", "status", "memory", "processor"], rows)


def one(pid, before, client, request, repeats):
    """MiB above the memory before all, and the gateway's processor time by the client's."""
    Path(f"/proc/{pid}/clear_refs").write_text("5")
    used, own = nanoseconds(pid), time.process_time_ns()
    for _ in range(repeats):
        client.send(request)
    own = time.process_time_ns() - own
    # What the gateway does behind the answer counts too.
    time.sleep(0.2)
    used = nanoseconds(pid) - used
    return (kib(pid, "VmHWM") - before) / 1024, used / own


def kib(pid, name):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    raise RuntimeError(f"no {name}")


def nanoseconds(pid):
    """Processor time of all threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


class Client:
    """One session over one connection, on a bare socket."""

    def __init__(self, address):
        self.address = address
        self.socket = None
        initialize = {
            "protocolVersion": "2025-03-26",
            "capabilities": {},
            "clientInfo": {"name": "bench", "version": "1"},
        }
        self.session = None
        first = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": initialize}
        self.send(self.message(json.dumps(first).encode()))
        lines = self.head.split("\r\n")
        self.session = next(
            line.split(": ")[1] for line in lines if line.lower().startswith("mcp-session-id")
        )
        self.send(self.message(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'))

    def message(self, body, **more):
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        return self.request("POST", "/mcp", body, headers | more)

    def chunked(self, parts):
        head, _ = self.message(b"").split(b"Content-Length")
        return head + b"Transfer-Encoding: chunked\r\n\r\n" + parts

    def request(self, method, path, body, headers):
        head = [f"{method} {path} HTTP/1.1", f"Host: {self.address}"]
        if self.session:
            head.append(f"Mcp-Session-Id: {self.session}")
        head += [f"{name}: {value}" for name, value in headers.items()]
        head.append(f"Content-Length: {len(body)}")
        return ("\r\n".join(head) + "\r\n\r\n").encode() + body

    def send(self, request):
        """The status of the answer, which is read to its end."""
        if self.socket is None:
            host, port = self.address.rsplit(":", 1)
            self.socket = socket.create_connection((host, int(port)), 60)
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self.socket.sendall(request)
        except OSError:
            pass  # a refusal came first
        return self.answer()

    def answer(self):
        data, end = b"", -1
        while end < 0:
            more = self.receive()
            if not more:
                return "closed"
            data += more
            end = data.find(b"\r\n\r\n")
        self.head = data[:end].decode()
        lowered = self.head.lower()
        length = next((int(line[15:]) for line in lowered.split("\r\n") if line.startswith("content-length:")), None)
        if length is not None:
            missing = length - (len(data) - end - 4)
            while missing > 0 and (more := self.receive()):
                missing -= len(more)
        elif "transfer-encoding: chunked" in lowered:
            tail = data[end + 4 :]
            while not tail.endswith(b"0\r\n\r\n") and (more := self.receive()):
                tail = tail[-8:] + more
        if "connection: close" in lowered and self.socket:
            self.socket.close()
            self.socket = None
        return self.head.split(" ")[1]

    def receive(self):
        try:
            data = self.socket.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            self.socket.close()
            self.socket = None
        return data


def filled(before, unit, behind, size=LIMIT):
    """A text of at most `size` bytes, with as many of `unit` as fit."""
    count = (size - len(before) - len(behind)) // len(unit)
    return before + unit * count + behind


def bodies(client):
    """The costliest requests that are known."""
    call = b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"echo","arguments":'
    deep = b"[" * 100 + b"]" * 100 + b","
    keys = b"".join(b'"k%06d":%d,' % (at, at) for at in range(240_000))
    item = b'{"jsonrpc":"2.0","id":1,"method":"ping","params":{"x":"%s"}},' % (b"y" * 41_000)
    notes = b'{"jsonrpc":"2.0","method":"x"},'
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    token = "/t/acme/oauth/token"
    yield "ping", client.message(b'{"jsonrpc":"2.0","id":1,"method":"ping"}')
    yield "call, a text that comes back", client.message(filled(call + b'{"text":"', b"x", b'"}}}'))
    yield "call, a text of escapes", client.message(filled(call + b'{"text":"', b"\\u0041", b'"}}}'))
    yield "call, a name of escapes", client.message(
        filled(b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"', b"\\u0041", b'"}}')
    )
    yield "a method of escapes", client.message(filled(b'{"jsonrpc":"2.0","id":7,"method":"', b"\\n", b'"}'))
    yield "an id of 4 MiB", client.message(filled(b'{"jsonrpc":"2.0","method":"ping","id":"', b"x", b'"}'))
    yield "brackets without end", client.message(filled(call, b"[", b""))
    yield "brackets to the depth that is allowed", client.message(filled(call + b"[", deep, b"0]}}"))
    yield "an array of numbers", client.message(filled(call + b"[", b"1,", b"1]}}"))
    yield "an object of many keys", client.message(call + b"{" + keys + b'"z":0}}}')
    yield "members beside the known ones", client.message(
        b'{"jsonrpc":"2.0","id":7,"method":"ping",' + keys + b'"z":0}'
    )
    yield "members whose names are escapes", client.message(
        filled(b'{"jsonrpc":"2.0","id":7,"method":"ping",', b'"\\u0069x":0,', b'"z":0}')
    )
    yield "one key again and again", client.message(
        filled(b'{"jsonrpc":"2.0","id":7,"method":"ping",', b'"params":{},', b'"z":0}')
    )
    yield "keys of `_meta`", client.message(
        b'{"jsonrpc":"2.0","id":7,"method":"ping","params":{"_meta":{' + keys + b'"z":0}}}'
    )
    yield "line ends between tokens", client.message(
        filled(b'{"jsonrpc":"2.0","id":7,"method":"ping"', b"\r\n", b"}")
    )
    text = filled(call + b'{"text":"', b"x", b'"}}}')
    parts = b"".join(b"1\r\n%c\r\n" % byte for byte in text)
    yield "call, in parts of one byte", client.chunked(parts + b"0\r\n\r\n")
    parts = b"".join(b"140\r\n%b\r\n" % text[at : at + 320] for at in range(0, len(text) // 320 * 320, 320))
    parts += b"%x\r\n%b\r\n" % (len(text) % 320, text[-(len(text) % 320) :])
    yield "call, in as many parts as may come", client.chunked(parts + b"0\r\n\r\n")
    yield "a batch of 100 requests", client.message(b"[" + (item * 100)[:-1] + b"]")
    yield "a batch of small notifications", client.message(filled(b"[", notes, notes[:-1] + b"]"))
    yield "bytes that are no text", client.message(filled(call + b'{"text":"', b"\xc3\xa9", b'\xff"}}}'))
    yield "an event id of 15 KiB", client.request(
        "GET", "/mcp", b"", {"Accept": "text/event-stream", "Last-Event-ID": "A" * (15 << 10)}
    )
    yield "100 event ids", client.request(
        "GET", "/mcp", b"", {"Accept": "text/event-stream"} | {f"X-{at}": "A" * 150 for at in range(90)}
        | {"Last-Event-ID": ",".join(["A" * 32] * 100)},
    )
    yield "a form of 100 fields", client.request("POST", token, filled(b"", b"a=%41&", b"", 600), form)
    yield "a form of 64 KiB", client.request("POST", token, filled(b"grant_type=x&code=", b"%41", b"", 64 << 10), form)
    yield "a form of 4 MiB", client.request("POST", token, filled(b"", b"a=%41&", b""), form)
    yield "a registration of 4 MiB", client.request(
        "POST", "/t/acme/oauth/register", filled(b'{"redirect_uris":[', b'"https://app.test/cb",', b'""]}'),
        {"Content-Type": "application/json"},
    )
