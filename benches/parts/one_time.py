"""One-time use: codes and refresh tokens, each used ten times at once on two processes."""

import asyncio
import base64
import collections
import contextlib
import hashlib
import html
import http.client
import json
import re
import secrets
import tempfile
import time
from pathlib import Path
from urllib.parse import parse_qs, urlencode, urlsplit

from .common import ECHO, Report, free_port, listening, running
from .postgres import postgres

AT_ONCE = 10
LANES = 6
# A person has 100 grants to a client, and 1,000 in all.
OF_CLIENT = 80
PEOPLE = 25
# A site: the consent of a public client that returns to this machine is not remembered.
REDIRECT = "https://client.example/callback"
PASSWORD = secrets.token_urlsafe(16)
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


def measure(options):
    count = options.of(10_000, 400)
    with postgres() as database, two(options, database) as gateways:
        clients = range(count // OF_CLIENT + 1)
        people = [Person(gateways[0].http, f"person{number % PEOPLE}") for number in clients]
        asyncio.run(race(gateways, people, 50))  # connections and pools are warm
        grants = int(database.ask("SELECT count(*) FROM grants"))
        began = time.monotonic()
        found = asyncio.run(race(gateways, people, count))
        took = time.monotonic() - began
        grants = int(database.ask("SELECT count(*) FROM grants")) - grants
        # A family is one chain: whatever was used led to one successor, and one token is not used.
        forked = int(
            database.ask(
                "SELECT count(*) FROM (SELECT grant_id FROM refresh_tokens GROUP BY grant_id"
                " HAVING count(*) FILTER (WHERE used_ms IS NULL) <> 1 OR count(*) <> 2) AS forked"
            )
        )
    uses = AT_ONCE * count
    text = (
        f"Two processes over one PostgreSQL (without fsync), each use {AT_ONCE} times at once, half of them on\n"
        f"either process: a code from `/authorize` with a remembered consent, then the refresh token that it\n"
        f"gave. {took:.0f} s, {(2 * uses + count) / took:,.0f} requests a second in all."
    )
    wanted = [
        ("uses of codes", uses, found.codes, lambda it: it == uses),
        ("codes redeemed twice", 0, found.double, lambda it: it == 0),
        ("codes never redeemed", 0, found.lost, lambda it: it == 0),
        ("grants in the database", count, grants, lambda it: it == count),
        ("uses of refresh tokens", uses, found.refreshes, lambda it: it == uses),
        ("refresh tokens with two successors", 0, found.forks, lambda it: it == 0),
        ("refresh tokens without a successor", 0, found.ended, lambda it: it == 0),
        ("families in the database that forked", 0, forked, lambda it: it == 0),
        ("other answers", 0, sum(found.other.values()), lambda it: it == 0),
    ]
    if found.other:
        print(found.other)
    rows = [[what, f"{is_:,}", f"{target:,}", check(is_)] for what, target, is_, check in wanted]
    return Report(text, ["what", "found", "target"], rows)


@contextlib.contextmanager
def two(options, database):
    """Two processes that are one gateway: one database, one master key, one public URL."""
    tenant = {
        "auth": {"mode": "builtin"},
        "users": {f"person{number}": {"password": PASSWORD} for number in range(PEOPLE)},
        "servers": {"echo": {"command": str(ECHO), "sandbox": {"profile": "open"}}},
    }
    key, public = base64.b64encode(secrets.token_bytes(32)).decode(), free_port()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder, contextlib.ExitStack() as stack:
        folder = Path(folder)
        manifest = folder / "manifest.json"
        manifest.write_text(json.dumps({"version": 1, "tenants": {"acme": tenant}}))
        found = []
        for number in range(2):
            port = public if number == 0 else free_port()
            sets = [f"http.listen=127.0.0.1:{port}", "ops.listen=127.0.0.1:0", f"master_key={key}"]
            sets += [f"data_dir={folder / str(number)}", f"sql.url={database.url}"]
            sets += [f"public_url=http://127.0.0.1:{public}", "oauth.failures=1000000000", "oauth.writes=1000000000"]
            sets += [f"oauth.registrations{of}=1000000" for of in ("_address", "_host", "")]
            sets += ["telemetry.log=warn,lockgate::cli=info", "sandbox.separation=none"]
            sets += ["sandbox.shared_uid=true"]
            command = [str(options.binary), "serve", "--apply", str(manifest)]
            for one in sets:
                command += ["--set", one]
            log = folder / f"log-{number}"
            process = stack.enter_context(running(command, log))
            found.append(listening(process, log))
        yield found


class Person:
    """Registers a client, logs in once and allows it: from then on each request gives a code at once."""

    def __init__(self, address, name="ada", password=PASSWORD):
        self.address = address
        self.cookies = {}
        self.verifier = secrets.token_urlsafe(48)
        digest = hashlib.sha256(self.verifier.encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        asked = {"redirect_uris": [REDIRECT], "token_endpoint_auth_method": "none"}
        headers = {"Content-Type": "application/json"}
        status, _, text = self.ask("POST", "/t/acme/oauth/register", json.dumps(asked), headers)
        if status != 201:
            raise RuntimeError(f"registration: {status} {text}")
        self.client = json.loads(text)["client_id"]
        parameters = {
            "response_type": "code",
            "client_id": self.client,
            "redirect_uri": REDIRECT,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
            "resource": f"http://{address}/t/acme/echo/mcp",
        }
        self.authorize = f"/t/acme/oauth/authorize?{urlencode(parameters)}"
        _, _, page = self.ask("GET", self.authorize)
        status, headers, page = self.send("login", page, username=name, password=password)
        if status == 303:
            parts = urlsplit(headers["Location"])
            _, _, page = self.ask("GET", f"{parts.path}?{parts.query}")
        status, headers, page = self.send("consent", page, decision="allow")
        if not headers.get("Location", "").startswith(REDIRECT):
            raise RuntimeError(f"consent: {status} {page}")

    def send(self, endpoint, page, **fields):
        sealed = re.search(r'name="form" value="([^"]+)"', page)
        if not sealed:
            raise RuntimeError(f"no form before {endpoint}: {page}")
        body = urlencode({"form": html.unescape(sealed.group(1)), **fields})
        return self.ask("POST", f"/t/acme/oauth/{endpoint}", body, FORM)

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection(self.address, timeout=30)
        cookie = {"Cookie": self.cookie()} if self.cookies else {}
        connection.request(method, path, body, (headers or {}) | cookie)
        answer = connection.getresponse()
        for line in answer.headers.get_all("Set-Cookie") or []:
            name, value = line.split(";", 1)[0].split("=", 1)
            self.cookies[name] = value
        text = answer.read().decode()
        connection.close()
        return answer.status, answer.headers, text

    def cookie(self):
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())


class Line:
    """One connection to one process, with nothing hidden."""

    def __init__(self, address, reader, writer):
        self.address, self.reader, self.writer = address, reader, writer

    @classmethod
    async def to(cls, address):
        host, port = address.rsplit(":", 1)
        return cls(address, *await asyncio.open_connection(host, int(port)))

    def send(self, method, path, body="", *more):
        head = [f"{method} {path} HTTP/1.1", f"Host: {self.address}", *more]
        if body:
            head += ["Content-Type: application/x-www-form-urlencoded", f"Content-Length: {len(body)}"]
        self.writer.write(("\r\n".join(head) + "\r\n\r\n" + body).encode())

    async def answer(self):
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status = int(head.split(" ", 2)[1])
        length = re.search(r"(?i)^content-length: (\d+)", head, re.MULTILINE)
        body = await self.reader.readexactly(int(length.group(1))) if length else b""
        return status, head, body


class Found:
    def __init__(self):
        self.codes = self.double = self.lost = self.refreshes = self.forks = self.ended = 0
        self.other = collections.Counter()


async def race(gateways, people, count):
    found, numbers = Found(), iter(range(count))
    await asyncio.gather(*(lane(gateways, people, numbers, found) for _ in range(LANES)))
    return found


async def lane(gateways, people, numbers, found):
    """One code after the other, each with its refresh token."""
    lines = [await Line.to(gateways[at % 2].http) for at in range(AT_ONCE)]
    for number in numbers:
        asked, person = lines[number % AT_ONCE], people[number % len(people)]
        asked.send("GET", person.authorize, "", f"Cookie: {person.cookie()}")
        status, head, body = await asked.answer()
        location = re.search(r"(?i)^location: (\S+)", head, re.MULTILINE)
        if not location:
            found.other[f"/authorize {status} {body[:200]}"] += 1
            continue
        (code,) = parse_qs(urlsplit(location.group(1)).query)["code"]
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "client_id": person.client,
            "redirect_uri": REDIRECT,
            "code_verifier": person.verifier,
        }
        good = await at_once(lines, body, found)
        found.codes += AT_ONCE
        found.double += len(good) > 1
        found.lost += not good
        if not good:
            continue
        token = good[0]["refresh_token"]
        body = {"grant_type": "refresh_token", "refresh_token": token, "client_id": person.client}
        good = await at_once(lines, body, found)
        found.refreshes += AT_ONCE
        successors = {one["refresh_token"] for one in good}
        found.forks += len(successors) > 1 or token in successors
        found.ended += not successors
    for line in lines:
        line.writer.close()


async def at_once(lines, body, found):
    """The good answers; anything but those and `invalid_grant` is counted."""
    body = urlencode(body)
    for line in lines:
        line.send("POST", "/t/acme/oauth/token", body)
    good = []
    for line in lines:
        status, _, text = await line.answer()
        said = json.loads(text)
        if status == 200:
            good.append(said)
        elif (status, said.get("error")) != (400, "invalid_grant"):
            found.other[f"/token {status} {text[:200]}"] += 1
    return good
