"""A rolling upgrade as the chart would do it: no failed request, no lost session, no lost event.

    tests/deploy/rolling_upgrade.py LOCKGATE_BINARY

The Deployment of helm/lockgate/examples/replicated.yaml is rendered, and carried out by stand-ins for the
parts of Kubernetes: a kubelet for each pod (probes, preStop, SIGTERM, grace period, SIGKILL), the controller
of Deployments (maxSurge, maxUnavailable, minReadySeconds), the controller of EndpointSlices with a delay, and
a balancer of connections as kube-proxy is one. Each pod is a process at an address of its own; Valkey and
PostgreSQL are real. Its times are shortened by values of the chart alone.

Clients call a server in sessions of their own, each call through any replica, and read the log messages of
the server from a stream that they resume. Nothing is ever sent twice. A last check makes the balancer notice
later than the chart allows for, which has to fail requests: so the others could have failed."""

import base64
import http.client
import itertools
import json
import os
import random
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request
from pathlib import Path

import yaml

from cluster import CHART, Pod, only, render, variable
from stores import Stores, free_port, wait_for

BINARY = Path(sys.argv.pop(1)).resolve()
HERE = Path(__file__).resolve().parent
HELM = variable("HELM4")
SESSIONS = 12
# The seconds until a change of endpoints is in the rules of every node.
ENDPOINTS_DELAY = 0.5
ADDRESSES = itertools.count(42)


def values(balancer, key_hash, **changes):
    """What this machine needs: its own URLs and secrets, a server without packages, and short times."""
    demo = {"command": sys.executable, "args": [str(HERE / "counter.py")], "idle": "10m",
            "env": {"TOKEN": "${file:/run/secrets/manifest/lockgate-acme/client-secret}"},
            "sandbox": {"read": [str(HERE), sys.prefix, sys.base_prefix]}}
    tenant = {"auth": {"mode": "keys"}, "api_keys": {"load": {"hash": key_hash, "subject": "load", "servers": ["counter"]}},
              "servers": {"counter": demo}}
    own = {
        "publicUrl": f"http://localhost:{balancer.port}",
        "image": {"tag": "1"},
        "secrets": {"redisCa": {"existingSecret": ""}},
        "config": {"stream": {"retry": "200ms"}, "http": {"max_connections": 1000}, "sandbox": {"shared_uid": True}},
        "manifest": {"content": {"version": 1, "tenants": {"load": tenant}}},
        "ingress": {"tls": {"secretName": ""}},
        "drain": {"preStopSeconds": 1, "delaySeconds": 1, "timeoutSeconds": 10},
        "minReadySeconds": 1,
        # A machine that is busy with other tests may be slow to answer a probe.
        "probes": {"readiness": {"periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 3}, "startup": {"periodSeconds": 1}},
    }
    for name, value in changes.items():
        own[name] = {**own.get(name, {}), **value}
    example = yaml.safe_load((CHART / "examples" / "replicated.yaml").read_text())
    # The tenants of the example need an identity provider.
    example["manifest"]["content"] = {}
    return merged(example, own)


def merged(one, other):
    both = one | other
    for name in one.keys() & other.keys():
        if isinstance(one[name], dict) and isinstance(other[name], dict):
            both[name] = merged(one[name], other[name])
    return both


class Balancer:
    """Gives each connection to the next endpoint, as kube-proxy does: without a second try, and without an
    end for connections whose endpoint is gone."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port = self.listener.getsockname()[1]
        self.endpoints, self.turn, self.refused = [], itertools.count(), []
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.connect, args=(near,), daemon=True).start()

    def connect(self, near):
        endpoints = self.endpoints
        try:
            far = socket.create_connection(endpoints[next(self.turn) % len(endpoints)], 5)
        except (OSError, ZeroDivisionError) as error:
            self.refused.append(error)
            near.close()
            return
        with near, far:
            far.settimeout(None)
            other = {near: far, far: near}
            open_ends = {near, far}
            while open_ends:
                for end in select.select(list(open_ends), [], [])[0]:
                    try:
                        piece = end.recv(65536)
                        if piece:
                            other[end].sendall(piece)
                            continue
                        other[end].shutdown(socket.SHUT_WR)
                    except OSError:
                        return
                    open_ends.discard(end)


class Kubelet(threading.Thread):
    """One pod: starts its process, probes it, and ends it as its template says."""

    def __init__(self, pod, revision, log):
        super().__init__(daemon=True)
        self.pod, self.revision, self.log = pod, revision, log
        self.is_ready, self.is_started, self.ready_since = False, False, None
        self.is_deleted, self.killed, self.restarts = threading.Event(), False, 0
        env = {"PATH": os.environ["PATH"], **pod.environment()}
        with open(log, "ab") as out:
            self.process = subprocess.Popen([BINARY, *pod.arguments()], env=env, stdout=out, stderr=out)
        self.start()

    def answers(self, kind):
        port, path, times = self.pod.probe(kind)
        try:
            url = f"http://{self.pod.address}:{port}{path}"
            with urllib.request.urlopen(url, timeout=times.get("timeoutSeconds", 1)) as answer:
                return 200 <= answer.status < 400
        except OSError:
            return False

    def run(self):
        watch = threading.Thread(target=self.probe, daemon=True)
        watch.start()
        self.is_deleted.wait()
        # The sleep of preStop is a part of the grace period.
        end = time.monotonic() + self.pod.grace()
        time.sleep(self.pod.before_stop())
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(end - time.monotonic())
        except subprocess.TimeoutExpired:
            self.killed = True
            self.process.kill()
            self.process.wait()
        self.is_ready = False

    def probe(self):
        failures = {"startup": 0, "liveness": 0, "readiness": 0}
        due = {kind: 0.0 for kind in failures}
        while self.process.poll() is None:
            for kind in ["liveness", "readiness"] if self.is_started else ["startup"]:
                _, _, times = self.pod.probe(kind)
                if time.monotonic() < due[kind]:
                    continue
                due[kind] = time.monotonic() + times["periodSeconds"]
                is_well = self.answers(kind)
                failures[kind] = 0 if is_well else failures[kind] + 1
                is_out = failures[kind] >= times["failureThreshold"]
                if kind == "readiness" and (is_well or is_out):
                    if is_well and not self.is_ready:
                        self.ready_since = time.monotonic()
                    self.is_ready = is_well
                elif kind == "startup":
                    self.is_started = is_well
                if kind != "readiness" and is_out and not self.is_deleted.is_set():
                    self.restarts += 1
                    self.process.kill()
            time.sleep(0.02)
        self.is_ready = False

    def is_available(self, seconds):
        return self.is_ready and not self.is_deleted.is_set() and time.monotonic() - self.ready_since >= seconds


class Cluster:
    """The pods of a Deployment, and what follows them."""

    def __init__(self, directory, balancer, secrets, replicas, delay=ENDPOINTS_DELAY):
        self.directory, self.balancer, self.secrets = Path(directory), balancer, secrets
        self.replicas, self.delay, self.pods, self.gone = replicas, delay, [], []
        self.is_over = threading.Event()
        threading.Thread(target=self.follow, daemon=True).start()

    def follow(self):
        """The endpoints: pods that are ready and not about to end. Each change arrives after a delay."""
        changes, last = [], None
        while not self.is_over.wait(0.02):
            now = [(one.pod.address, one.pod.container["ports"][0]["containerPort"])
                   for one in list(self.pods) if one.is_ready and not one.is_deleted.is_set()]
            if now != last:
                changes.append((time.monotonic() + self.delay, now))
                last = now
            while changes and changes[0][0] <= time.monotonic():
                self.balancer.endpoints = changes.pop(0)[1]

    def begin(self, revision, objects):
        number = next(ADDRESSES)
        template = only(objects, "Deployment")["spec"]["template"]
        place = self.directory / f"pod-{number}"
        place.mkdir()
        pod = Pod(place, template, objects, self.secrets, address=f"127.0.0.{number}")
        self.pods.append(Kubelet(pod, revision, self.directory / f"pod-{number}.log"))

    def roll_out(self, revision, objects):
        """Carries out a rollout: surges, waits, and ends old pods while enough are available."""
        spec = only(objects, "Deployment")["spec"]
        strategy, ready = spec["strategy"]["rollingUpdate"], spec["minReadySeconds"]
        most, least = self.replicas + strategy["maxSurge"], self.replicas - strategy["maxUnavailable"]
        end = time.monotonic() + 180
        while True:
            ended = [one for one in self.pods if one.process.poll() is not None and not one.is_deleted.is_set()]
            assert time.monotonic() < end and not ended, self.logs()
            for one in [one for one in self.pods if not one.is_alive()]:
                self.pods.remove(one)
                self.gone.append(one)
            living = [one for one in self.pods if not one.is_deleted.is_set()]
            old = [one for one in living if one.revision != revision]
            available = [one for one in living if one.is_available(ready)]
            new = len(living) - len(old)
            if not old and len(available) >= self.replicas:
                return
            if new < self.replicas and len(living) < most:
                self.begin(revision, objects)
            elif old and len(available) > least:
                random.choice(old).is_deleted.set()
            time.sleep(0.02)

    def settled(self):
        """Waits until all old pods are gone."""
        wait_for("the end of old pods", lambda: not any(one.is_deleted.is_set() and one.is_alive() for one in self.pods), 120)
        self.gone += [one for one in self.pods if one.is_deleted.is_set()]
        self.pods = [one for one in self.pods if not one.is_deleted.is_set()]

    def end(self):
        self.is_over.set()
        for one in self.pods:
            one.process.kill()
            one.process.wait()

    def logs(self):
        texts = []
        for path in sorted(self.directory.glob("pod-*.log")):
            lines = path.read_text().splitlines()
            told = [line for line in lines[:-15] if '"level":"INFO"' not in line]
            texts += [f"{path.name}: {line}" for line in told[:15] + lines[-15:]]
        return "\n".join(texts)


class Event:
    """An event of a stream."""

    def __init__(self, fields):
        self.id, retry = fields.get("id"), fields.get("retry")
        self.retry = int(retry) / 1000 if retry else None
        self.message = json.loads(fields["data"]) if fields.get("data") else {}


def events(answer):
    """The events of a stream, to its end. The gateway writes the data of an event as one line."""
    fields = {}
    for line in answer:
        name, _, value = line.decode().rstrip("\r\n").partition(":")
        if name:
            fields[name] = value.removeprefix(" ")
        elif not value and fields:
            yield Event(fields)
            fields = {}


def number_of(message):
    """The number in a log message of the server."""
    return message["params"]["data"] if message.get("method") == "notifications/message" else None


class Client:
    """A client of one session: a thread that calls, and one that listens."""

    def __init__(self, port, key, number):
        self.port, self.key, self.number = port, key, number
        self.failures, self.said, self.heard, self.resumed = [], [], [], 0
        self.session, self.is_over, self.is_heard = None, threading.Event(), threading.Event()
        self.slowest = 0.0

    def ask(self, method, body=None, accept="application/json, text/event-stream", **headers):
        """One request over a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers |= {"Host": f"localhost:{self.port}", "Authorization": f"Bearer {self.key}", "Accept": accept,
                    "Connection": "close"}
        if self.session:
            headers |= {"Mcp-Session-Id": self.session, "MCP-Protocol-Version": "2025-11-25"}
        if body is not None:
            body = json.dumps({"jsonrpc": "2.0", **body})
            headers["Content-Type"] = "application/json"
        connection.request(method, "/t/load/counter/mcp", body, headers)
        return connection.getresponse()

    def begin(self):
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "load", "version": "1"}}
        answer = self.ask("POST", {"id": 0, "method": "initialize", "params": params})
        assert answer.status == 200, (answer.status, answer.read())
        answer.read()
        self.session = answer.headers["Mcp-Session-Id"]
        self.ask("POST", {"method": "notifications/initialized"}).read()
        self.threads = [threading.Thread(target=one, daemon=True) for one in (self.calls, self.listens)]
        for thread in self.threads:
            thread.start()

    def calls(self):
        number = 0
        while not self.is_over.is_set():
            number += 1
            # Every tenth takes two seconds, and so ends while its replica drains.
            wait = 2000 if number % 10 == self.number % 10 else 0
            began = time.monotonic()
            try:
                text = self.call(number, wait)
            except (OSError, http.client.HTTPException, ValueError) as error:
                text = repr(error)
            if text == str(number):
                self.said.append(number)
                self.slowest = max(self.slowest, time.monotonic() - began - wait / 1000)
            else:
                self.failures.append(f"call {number} of client {self.number}: {text}")
            time.sleep(0.05)

    def call(self, number, wait):
        arguments = {"number": number, "wait": wait}
        answer = self.ask("POST", {"id": number, "method": "tools/call", "params": {"name": "count", "arguments": arguments}})
        if answer.status != 200:
            return f"{answer.status}: {answer.read().decode()}"
        if answer.headers["Content-Type"].startswith("text/event-stream"):
            messages = [event.message for event in events(answer) if event.message]
            # What belongs to the call may come with its answer.
            self.heard += [number for number in map(number_of, messages) if number]
            message = next((one for one in messages if one.get("id") == number), {"error": "no answer"})
        else:
            message = json.loads(answer.read())
        return message["result"]["content"][0]["text"] if "result" in message else str(message["error"])

    def listens(self):
        cursor, retry = None, 0.2
        while not self.is_heard.is_set():
            headers = {"Last-Event-ID": cursor} if cursor else {}
            try:
                answer = self.ask("GET", accept="text/event-stream", **headers)
                if answer.status != 200:
                    self.failures.append(f"stream of client {self.number}: {answer.status} {answer.read()}")
                else:
                    self.resumed += cursor is not None
                    for event in events(answer):
                        cursor, retry = event.id or cursor, event.retry or retry
                        if number := number_of(event.message):
                            self.heard.append(number)
                        if self.is_heard.is_set():
                            return answer.close()
            except (OSError, http.client.HTTPException) as error:
                if not isinstance(error, http.client.IncompleteRead):
                    self.failures.append(f"stream of client {self.number}: {error!r}")
            self.is_heard.wait(retry)

    def end(self):
        """Waits for the last call, and until everything is heard that was said."""
        self.threads[0].join(60)
        end = time.monotonic() + 20
        while set(self.said) - set(self.heard) and time.monotonic() < end:
            time.sleep(0.05)
        self.is_heard.set()
        lost = sorted(set(self.said) - set(self.heard))
        if lost:
            self.failures.append(f"client {self.number} has not heard {lost}")
        repeated = len(self.heard) - len(set(self.heard))
        if repeated:
            self.failures.append(f"client {self.number} has heard {repeated} messages twice")


def end(clients):
    for client in clients:
        client.is_over.set()
    for client in clients:
        client.end()


class RollingUpgrade(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.place = tempfile.TemporaryDirectory(prefix="lockgate-upgrade-")
        cls.directory = Path(cls.place.name)
        (cls.directory / "stores").mkdir()
        cls.stores = Stores(cls.directory / "stores")

    @classmethod
    def tearDownClass(cls):
        cls.stores.end()
        cls.place.cleanup()

    def setUp(self):
        said = subprocess.run([BINARY, "key", "new"], capture_output=True, text=True, check=True).stdout
        self.key, self.hash = re.search(r"^key: *(\S+)$", said, re.M)[1], re.search(r"^hash: *(\S+)$", said, re.M)[1]
        admin = subprocess.run([BINARY, "key", "new"], capture_output=True, text=True, check=True).stdout
        self.secrets = {
            "lockgate": {"master-key": base64.b64encode(bytes(range(32))).decode(),
                         "admin-key": re.search(r"^key: *(\S+)$", admin, re.M)[1]},
            "lockgate-database-app": {"uri": self.stores.sql},
            "lockgate-redis": {"url": self.stores.redis},
            "lockgate-acme": {"client-secret": "secret"},
        }
        self.balancer = Balancer()
        self.addCleanup(self.balancer.listener.close)

    def rendered(self, **changes):
        file = self.directory / "values.json"
        # The name of keys in Redis: another deployment for each test.
        changes["config"] = {**changes.get("config", {}), "redis": {"prefix": self.id().rsplit(".", 1)[1]}}
        file.write_text(json.dumps(values(self.balancer, self.hash, **changes)))
        return render(HELM, "--values", file)

    def cluster(self, objects, **options):
        """The Deployment in its first revision, and clients."""
        replicas = only(objects, "HorizontalPodAutoscaler")["spec"]["minReplicas"]
        place = self.directory / self.id().rsplit(".", 1)[1]
        place.mkdir()
        cluster = Cluster(place, self.balancer, self.secrets, replicas, **options)
        self.addCleanup(cluster.end)
        cluster.roll_out(0, objects)
        wait_for("endpoints", lambda: len(self.balancer.endpoints) == replicas)
        clients = [Client(self.balancer.port, self.key, number) for number in range(SESSIONS)]
        for client in clients:
            client.begin()
        return cluster, clients

    def test_upgrades_fail_no_request_and_lose_no_session(self):
        first = self.rendered()
        cluster, clients = self.cluster(first)
        pod = cluster.pods[0].pod
        times = (pod.before_stop(), pod.grace())
        self.assertEqual(times, (1, 36))
        # As by kubectl exec.
        env = {"PATH": os.environ["PATH"], **pod.environment()}
        listed = subprocess.run([BINARY, "tenant", "list"], env=env, capture_output=True, text=True)
        self.assertIn("load", listed.stdout, listed.stderr)
        time.sleep(2)
        began = time.monotonic()
        revisions = [
            # Other settings, another image, and back again: a rollback is an upgrade too.
            self.rendered(config={"session": {"idle": "1h"}}),
            self.rendered(image={"tag": "2"}),
            first,
        ]
        template = only(first, "Deployment")["spec"]["template"]
        for revision, objects in enumerate(revisions, 1):
            following = only(objects, "Deployment")["spec"]["template"]
            self.assertNotEqual(template, following, "an upgrade that changes no pod")
            template = following
            cluster.roll_out(revision, objects)
        cluster.settled()
        seconds = time.monotonic() - began
        end(clients)
        ended = {one.pod.address: (one.process.returncode, one.killed, one.restarts) for one in cluster.gone}
        self.assertEqual(set(ended.values()), {(0, False, 0)}, cluster.logs())
        self.assertEqual(len(ended), 3 * cluster.replicas)
        self.assertEqual([one.restarts for one in cluster.pods], [0] * cluster.replicas)
        failures = [failure for client in clients for failure in client.failures]
        self.assertFalse(failures, "\n".join([*failures[:20], cluster.logs()]))
        self.assertEqual(self.balancer.refused, [])
        calls = sum(len(client.said) for client in clients)
        resumed = sum(client.resumed for client in clients)
        self.assertGreater(calls, SESSIONS * 50)
        self.assertGreaterEqual(resumed, SESSIONS)
        slowest = max(client.slowest for client in clients)
        print(f"3 upgrades of {cluster.replicas} replicas in {seconds:.0f} s: {calls} calls, none failed; {SESSIONS} sessions, "
              f"none lost; {resumed} streams resumed; slowest call {slowest:.2f} s")

    def test_a_balancer_that_notices_too_late_fails_requests(self):
        """4 s, where preStop and drain.delay are 1 s each: the proof that the check above sees failures."""
        first = self.rendered()
        cluster, clients = self.cluster(first, delay=4)
        cluster.roll_out(1, self.rendered(image={"tag": "2"}))
        cluster.settled()
        end(clients)
        self.assertTrue(self.balancer.refused)
        self.assertTrue([failure for client in clients for failure in client.failures])


if __name__ == "__main__":
    unittest.main(verbosity=1, warnings="ignore")
