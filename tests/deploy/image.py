"""The images, started by a container runtime: image.py LOCKGATE

`python image.py LOCKGATE [NAME…]` builds both images if what they are made of has changed, and starts
containers of them with this binary. Needs root, buildah, debootstrap, runc, and the client of
tests/referees/requirements.txt.
"""

import asyncio
import contextlib
import json
import os
import signal
import stat
import sys
import tempfile
import time
import unittest
from pathlib import Path

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from containers import LANDLOCK, UIDS, Container, Images, seccomp

NPX = "@modelcontextprotocol/server-everything@2026.8.31"
UVX = "mcp-server-time"
NETWORK = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "HTTPS_PROXY", "NO_PROXY")
DEMO = {"command": "lockgate", "args": ["__demo"]}
OWN = 10001


def network():
    """What installers need on this machine, if anything."""
    families = ("NPM_CONFIG_", "UV_")
    return {name: text.replace("$", "$$") for name, text in os.environ.items()
            if name in NETWORK or name.upper().startswith(families)}


def tenants(servers, names="ab"):
    return {"version": 1, "tenants": {name: {"auth": {"mode": "none"}, "servers": servers}
                                      for name in names}}


def packages():
    env = network()
    return {"npx": {"command": "npx", "args": ["-y", NPX, "stdio"], "env": env},
            "uvx": {"command": "uvx", "args": [UVX], "env": env}}


async def call(url, tool, arguments):
    async with streamable_http_client(url) as streams:
        async with ClientSession(streams[0], streams[1]) as session:
            await session.initialize()
            result = await session.call_tool(tool, arguments)
            return result.content[0].text


def zombies(container):
    """Processes that its first process has not reaped. They are in no cgroup, so no runtime lists them."""
    first = min(container.processes())
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, rest = place.read_text().rsplit(")", 1)
        except OSError:
            continue
        state, parent = rest.split()[:2]
        if int(parent) == first and state == "Z":
            found.append(name)
    return found


class Case(unittest.TestCase):
    def setUp(self):
        kept = tempfile.TemporaryDirectory(prefix="lockgate-image-")
        self.addCleanup(kept.cleanup)
        self.folder = Path(kept.name)
        self.folder.chmod(0o755)
        self.data = self.volume("data", OWN, OWN, 0o700)

    def volume(self, name, uid, gid, mode):
        place = self.folder / name
        place.mkdir()
        os.chown(place, uid, gid)
        place.chmod(mode)
        return place

    def container(self, image, manifest, *, name="one", env=None, mounts=(), **more):
        bundle = self.folder / name
        bundle.mkdir()
        text = bundle / "manifest.json"
        text.write_text(json.dumps(manifest))
        env = {"LOCKGATE_HTTP__MAX_CONNECTIONS": "500", "LOCKGATE_HTTP__LISTEN": "127.0.0.1:0", "LOCKGATE_OPS__LISTEN": "127.0.0.1:19191",
               "LOCKGATE_APPLY": "/etc/lockgate/manifest.json"} | (env or {})
        mounts = [(self.data, "/var/lib/lockgate", "rw"),
                  (text, "/etc/lockgate/manifest.json", "ro"), *mounts]
        # Certificates of the network that this machine is in.
        bundle_of = os.environ.get("SSL_CERT_FILE")
        if image == "stdio" and bundle_of:
            mounts.append((bundle_of, bundle_of, "ro"))
        return Container(IMAGES, image, BINARY, bundle, env=env, mounts=mounts, **more)

    def warnings(self, container):
        return [line for line in container.lines() if line.get("level") in ("WARN", "ERROR")]

    def warned_keys(self, container):
        """Keys of the settings with a warning. A start that `ask` had to repeat has a line of its own."""
        found = self.warnings(container)
        self.assertEqual([], [line for line in found if "key" not in line and "server.name" not in line])
        return {line["key"] for line in found if "key" in line}

    def ask(self, container, path, tool, arguments, seconds=120):
        url = f"http://{container.ports()['http']}/t/{path}/mcp"
        end = time.monotonic() + seconds
        while True:
            try:
                return asyncio.run(call(url, tool, arguments))
            except Exception:
                # A first start that installs may take longer than a client is made to wait.
                if time.monotonic() > end:
                    print(container.output()[-4000:])
                    raise
                time.sleep(1)

    def use_packages(self, container):
        for tenant in "ab":
            self.assertEqual("Echo: hi", self.ask(container, f"{tenant}/npx", "echo", {"message": "hi"}))
            zone = {"timezone": "Europe/Berlin"}
            self.assertIn("Europe/Berlin", self.ask(container, f"{tenant}/uvx", "get_current_time", zone))


class Files(Case):
    def test_the_small_image_has_no_shell_and_no_privileged_program(self):
        root = IMAGES.root("lockgate")
        for name in ("bin/sh", "usr/bin/dash", "usr/bin/bash", "usr/bin/perl", "usr/bin/apt-get"):
            self.assertFalse((root / name).exists(), name)
        for image in ("lockgate", "stdio"):
            root = IMAGES.root(image)
            place = (root / "var/lib/lockgate").lstat()
            self.assertEqual((OWN, OWN, 0o700), (place.st_uid, place.st_gid, stat.S_IMODE(place.st_mode)))
        known = {path.name for path in (IMAGES.root("lockgate") / "var/lib/dpkg/status.d").iterdir()}
        self.assertLessEqual({"libc6", "ca-certificates", "tzdata"}, known)
        open_to_all = [path for path in IMAGES.root("lockgate").rglob("*")
                       if path.is_file() and not path.is_symlink() and path.stat().st_mode & 0o6002]
        self.assertEqual([], open_to_all)

    def test_settings(self):
        for image in ("lockgate", "stdio"):
            given = IMAGES.settings(image)
            self.assertEqual("10001:10001", given["User"])
            self.assertEqual("SIGTERM", given["StopSignal"])
            self.assertEqual(["CMD", "lockgate", "healthcheck"], given["Healthcheck"]["Test"])
            labels = {key.removeprefix("org.opencontainers.image."): text
                      for key, text in given["Labels"].items()}
            self.assertEqual(("Lockgate", "Apache-2.0", "1.2.3", "abc"), tuple(
                labels[name] for name in ("title", "licenses", "version", "revision")))


class Plain(Case):
    """Without any capability, as in the profile `restricted` of Kubernetes."""

    def test_two_tenants_with_npx_and_uvx(self):
        with self.container("stdio", tenants(packages())) as container:
            self.use_packages(container)
            container.exec("lockgate", "healthcheck")
            # The default allows any TCP, and no container may refuse single addresses. Servers have the gateway's user.
            self.assertEqual({"sandbox.tcp", "sandbox.separation"}, self.warned_keys(container))

    def test_two_tenants_in_the_small_image_with_one_warning(self):
        servers = {"demo": {**DEMO, "sandbox": {"tcp": False}}}
        with self.container("lockgate", tenants(servers)) as container:
            for tenant in "ab":
                self.assertIn("hi", self.ask(container, f"{tenant}/demo", "echo", {"text": "hi"}))
            # Of what the kernel counts per user: servers have the gateway's.
            self.assertEqual(["sandbox.separation"], [line.get("key") for line in self.warnings(container)])
            # Everything that was written is in the volume, for the gateway alone.
            modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in self.data.iterdir()}
            self.assertEqual({0}, {mode & 0o077 for mode in modes.values()}, modes)
        self.assertEqual(0, container.process.returncode, container.output()[-2000:])

    def test_without_landlock_a_second_tenant_is_refused(self):
        old = seccomp(*LANDLOCK)
        servers = {"demo": {**DEMO, "sandbox": {"profile": "open", "required": False}}}
        with self.container("lockgate", tenants(servers), profile=old) as container:
            code, said = container.ended()
            self.assertEqual(2, code)
            self.assertIn("sandbox.shared_uid", said)
        with self.container("lockgate", tenants(servers, "a"), profile=old, name="two") as container:
            self.assertIn("hi", self.ask(container, "a/demo", "echo", {"text": "hi"}))

    def test_uids_without_their_capabilities_are_refused(self):
        env = {"LOCKGATE_SANDBOX__UIDS": "100000-100999"}
        with self.container("lockgate", tenants({"demo": DEMO}), env=env) as container:
            code, said = container.ended()
            self.assertEqual(2, code)
            self.assertIn("sandbox.uids", said)
            self.assertIn("CAP_SETUID", said)


class Uids(Case):
    """As root with five capabilities: a user for each child."""

    def test_two_tenants_with_npx_and_uvx(self):
        work = self.volume("work", 0, 0, 0o711)
        env = {"LOCKGATE_SANDBOX__UIDS": "100000-100999", "LOCKGATE_WORK_DIR": "/work"}
        with self.container("stdio", tenants(packages()), env=env, user=(0, 0), caps=UIDS,
                            mounts=[(work, "/work", "rw")]) as container:
            self.use_packages(container)
            self.assertEqual({"sandbox.tcp"}, self.warned_keys(container))
            self.assertEqual([], [one for one in self.data.rglob("node_modules")])


class Namespaces(Case):
    """With a runtime that permits user namespaces and masks nothing of /proc."""

    def test_two_tenants(self):
        profile = {"defaultAction": "SCMP_ACT_ALLOW"}
        servers = {"demo": {**DEMO, "sandbox": {"tcp": False}}}
        env = {"LOCKGATE_SANDBOX__SEPARATION": "namespace"}
        with self.container("lockgate", tenants(servers), profile=profile, is_masked=False,
                            env=env) as container:
            for tenant in "ab":
                self.assertIn("hi", self.ask(container, f"{tenant}/demo", "echo", {"text": "hi"}))
            self.assertEqual(["sandbox.separation"], [line.get("key") for line in self.warnings(container)])

    def test_are_refused_in_a_default_container(self):
        env = {"LOCKGATE_SANDBOX__SEPARATION": "namespace"}
        with self.container("lockgate", tenants({"demo": DEMO}), env=env) as container:
            code, said = container.ended()
            self.assertEqual(2, code)
            self.assertIn("namespaces cannot be made here", said)


class Volumes(Case):
    def kubelet(self, place):
        """What a node does with fsGroup at each mount: the group gets access to everything."""
        for path in [place, *place.rglob("*")]:
            if not path.is_symlink():
                os.chown(path, -1, OWN)
                path.chmod(stat.S_IMODE(path.stat().st_mode) | (0o2770 if path.is_dir() else 0o660))

    def test_a_volume_of_root_for_the_group_of_the_gateway(self):
        for name, mode in (("claim", 0o755), ("emptyDir", 0o777)):
            own = self.folder / name / "lockgate"
            self.data = self.volume(name, 0, 0, mode)
            for time_ in ("first", "second"):
                self.kubelet(self.data)
                servers = {"demo": {**DEMO, "sandbox": {"tcp": False}}}
                with self.container("lockgate", tenants(servers), name=f"{name}-{time_}") as container:
                    self.assertIn("hi", self.ask(container, "a/demo", "echo", {"text": "hi"}))
                    found = {path.name: path.stat() for path in own.iterdir()}
                    self.assertLessEqual({"lockgate.db", "master.key", "admin.key"}, set(found))
                    # The kubelet opens it for the group each time, and the gateway closes it again.
                    self.assertEqual(0o700, stat.S_IMODE(own.stat().st_mode) & 0o777)
                    if time_ == "first":
                        modes = {key: oct(one.st_mode & 0o077) for key, one in found.items()}
                        self.assertEqual({"0o0"}, set(modes.values()), modes)
                    self.assertEqual({OWN}, {one.st_uid for one in found.values()})

    def test_a_volume_of_root_with_files_of_others_is_refused(self):
        self.data = self.volume("root", 0, 0, 0o777)
        (self.data / "index.html").touch()
        with self.container("lockgate", tenants({"demo": DEMO})) as container:
            code, said = container.ended()
            self.assertEqual(2, code)
            self.assertIn("data_dir: /var/lib/lockgate belongs to another user", said)


class FirstProcess(Case):
    def test_orphans_of_a_killed_guard_are_reaped(self):
        servers = {"demo": {**DEMO, "sandbox": {"tcp": False}}}
        with self.container("lockgate", tenants(servers, "a")) as container:
            self.ask(container, "a/demo", "echo", {"text": "hi"})
            async def killed():
                url = f"http://{container.ports()['http']}/t/a/demo/mcp"
                async with streamable_http_client(url) as streams:
                    async with ClientSession(streams[0], streams[1]) as session:
                        await session.initialize()
                        killed = 0
                        for pid in container.processes():
                            # Some processes end meanwhile.
                            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                                name = Path(f"/proc/{pid}/comm").read_text().strip()
                                if name == "lockgate-guard":
                                    os.kill(pid, signal.SIGKILL)
                                    killed += 1
                        self.assertGreater(killed, 0)
                        await asyncio.sleep(2)
                        return zombies(container)

            self.assertEqual([], asyncio.run(killed()))


if __name__ == "__main__":
    BINARY = Path(sys.argv.pop(1)).resolve()
    IMAGES = Images(os.environ.get("cache", Path.home() / ".cache/lockgate"), BINARY)
    unittest.main(verbosity=2)
