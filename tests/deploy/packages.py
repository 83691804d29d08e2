#!/usr/bin/env python3
"""The files of a release, and the Debian package on a machine with a real systemd.

packages.py OUT CACHE: OUT is what scripts/release made. Needs root and debootstrap.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

import machine

OUT, CACHE = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
HERE = pathlib.Path(__file__).resolve().parent
CHECKOUT = HERE.parent.parent
BASE = "http://127.0.0.1:8080"
# systemd-analyze security, of 0 to 100: it must not rise. Most of what is left are the capabilities and
# the control group that separate children; docs/install.md names each.
EXPOSURE = 36

# A server of a few lines, which says who it is: in a language whose code is compiled while it runs.
NODE = r"""
const lines = require('readline').createInterface({input: process.stdin});
let sum = 0;
for (let i = 0; i < 1e6; i++) sum = (sum + i * 3) % 1000003;
lines.on('line', line => {
  const {id, method, params} = JSON.parse(line);
  if (id === undefined) return;
  const fs = require('fs');
  const can = path => { try { fs.readFileSync(path); return true } catch { return false } };
  const seen = {
    uid: process.getuid(), env: Object.keys(process.env), private: process.env.TMPDIR,
    caps: /CapEff:\s*(\w+)/.exec(fs.readFileSync('/proc/self/status'))[1],
    cgroup: fs.readFileSync('/proc/self/cgroup').toString().trim(),
    reads: ['/etc/lockgate/lockgate.toml', '/var/lib/lockgate/master.key', '/etc/passwd',
            '/run/credentials/lockgate.service/admin_key'].filter(can),
  };
  const result = {
    initialize: {protocolVersion: params?.protocolVersion, capabilities: {tools: {}}, serverInfo: {name: 'n', version: '1'}},
    'tools/list': {tools: [{name: 'who', inputSchema: {type: 'object'}}]},
    'tools/call': {content: [{type: 'text', text: JSON.stringify(seen)}]},
  }[method] ?? {};
  console.log(JSON.stringify({jsonrpc: '2.0', id, result}));
});
"""

PYTHON = r"""
import json, os, sys
for line in sys.stdin:
    message = json.loads(line)
    if "id" not in message:
        continue
    seen = {"uid": os.getuid(), "secret": os.environ.get("TOKEN")}
    result = {
        "initialize": {"protocolVersion": message.get("params", {}).get("protocolVersion"), "capabilities": {"tools": {}},
                       "serverInfo": {"name": "p", "version": "1"}},
        "tools/list": {"tools": [{"name": "who", "inputSchema": {"type": "object"}}]},
        "tools/call": {"content": [{"type": "text", "text": json.dumps(seen)}]},
    }.get(message["method"], {})
    print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
"""

MANIFEST = """
version: 1
tenants:
  acme:
    auth: {mode: none}
    servers:
      demo: {command: lockgate, args: ["__demo"], limits: {pids: 64}}
      node: {command: node, args: [/opt/servers/node.js], sandbox: {read: [/opt/servers]}}
  globex:
    auth: {mode: none}
    servers:
      python:
        command: python3
        args: [/opt/servers/server.py]
        env: {TOKEN: "${file:/etc/lockgate/token}"}
        sandbox: {read: [/opt/servers]}
"""


def only(pattern):
    found = list(OUT.glob(pattern))
    assert len(found) == 1, f"{pattern}: {found}"
    return found[0]


def output(*words, **more):
    return subprocess.run(words, check=True, capture_output=True, text=True, **more).stdout


class Files(unittest.TestCase):
    """The files themselves."""

    def test_sums_are_those_of_all_files(self):
        output("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=OUT)
        listed = {line.split()[1] for line in (OUT / "SHA256SUMS").read_text().splitlines()}
        there = {path.name for path in OUT.iterdir()} - {"SHA256SUMS", "RELEASE-NOTES.md"}
        self.assertEqual(listed, there)

    def test_the_archive_has_what_a_user_needs(self):
        with tarfile.open(only("*.tar.gz")) as archive:
            members = {member.name.split("/", 1)[-1]: member for member in archive}
            text = archive.extractfile(members["THIRD-PARTY"]).read().decode()
        for name in ("lockgate", "LICENSE", "README.md", "CHANGELOG.md", "completions/lockgate.bash",
                     "completions/_lockgate", "completions/lockgate.fish", "man/lockgate.1", "man/lockgate-serve.1",
                     "lockgate.service", "lockgate.sysusers", "config.default.toml"):
            self.assertIn(name, members)
            self.assertGreater(members[name].size, 20, name)
        self.assertTrue(all(member.uid == member.gid == 0 for member in members.values()))
        self.assertEqual(len({member.mtime for member in members.values()}), 1)
        # The licence of each crate, with the texts.
        for crate in ("aws-lc-sys", "tokio", "sqlx-core", "landlock"):
            self.assertRegex(text, rf"(?m)^  {crate} \d")
        self.assertIn("Permission is hereby granted", text)

    def test_the_bill_of_materials_has_every_crate_of_the_binary(self):
        text = only("*.cdx.json").read_text()
        bill = json.loads(text)
        self.assertEqual(bill["bomFormat"], "CycloneDX")
        self.assertNotIn(str(CHECKOUT), text)
        tree = output("cargo", "tree", "--locked", "--edges=normal,no-proc-macro", "--prefix=none", "--format={p}", cwd=CHECKOUT)
        crates = {tuple(line.split()[:2]) for line in tree.splitlines() if line} - {("lockgate", "v0.1.0")}
        crates = {(name, number.lstrip("v")) for name, number, *_ in crates if name != "lockgate"}
        listed = {(part["name"], part["version"]) for part in bill["components"]}
        self.assertEqual(crates - listed, set())
        self.assertTrue(all(part.get("licenses") for part in bill["components"]))

    def test_the_notes_are_those_of_the_changelog(self):
        notes = (OUT / "RELEASE-NOTES.md").read_text()
        changes = (CHECKOUT / "CHANGELOG.md").read_text()
        self.assertIn(notes.strip(), changes)
        self.assertGreater(len(notes), 100)
        self.assertNotRegex(notes, r"(?m)^## ")

    def test_the_floor_of_glibc_is_documented(self):
        floor = re.search(r"floor=([\d.]+)", (CHECKOUT / "scripts/check-binary").read_text())[1]
        self.assertIn(f"glibc {floor}", (CHECKOUT / "docs/install.md").read_text())
        control = output("dpkg-deb", "--field", only("*.deb"), "Depends")
        needed = re.search(r"libc6 \(>= ([\d.]+)\)", control)[1]
        parts = lambda text: [int(part) for part in text.split(".")]
        self.assertLessEqual(parts(needed), parts(floor))

    def test_a_binary_that_names_this_machine_is_refused(self):
        with tempfile.TemporaryDirectory() as place:
            with tarfile.open(only("*.tar.gz")) as archive:
                member = next(member for member in archive if member.name.endswith("/lockgate"))
                program = archive.extractfile(member).read()
            binary = pathlib.Path(place) / "lockgate"
            binary.write_bytes(program + str(CHECKOUT / "src/main.rs").encode())
            done = subprocess.run([CHECKOUT / "scripts/check-binary", binary], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertIn("contains the path", done.stderr)

    def test_the_same_input_makes_the_same_package(self):
        made = []
        for _ in range(2):
            with tempfile.TemporaryDirectory() as place:
                tree = pathlib.Path(place) / "tree"
                output("dpkg-deb", "--extract", only("*.deb"), tree)
                third = pathlib.Path(place) / "third"
                third.write_text("licences")
                env = {**os.environ, "DEB_COMPRESSION": "none", "SOURCE_DATE_EPOCH": "1700000000"}
                file = output(CHECKOUT / "scripts/deb", tree / "usr/bin/lockgate", third, place, env=env).strip()
                made.append(output("sha256sum", file).split()[0])
                time.sleep(1.1)
        self.assertEqual(made[0], made[1])


class Installed(unittest.TestCase):
    """The package on a machine, from its installation to its purge. The tests run in this order."""

    @classmethod
    def setUpClass(cls):
        cls.machine = machine.Machine(CACHE)
        cls.addClassCleanup(cls.machine.end)
        cls.machine.boot()
        cls.machine.put(only("*.deb"), "/tmp/lockgate.deb")

    def show(self, *properties):
        words = [f"--property={name}" for name in properties]
        shown = self.machine.run("systemctl", "show", "lockgate", *words).stdout
        return dict(line.split("=", 1) for line in shown.splitlines())

    def call(self, path, tool, arguments=None):
        """The text that a tool of a server returns, over HTTP from within the machine's network."""
        words = [sys.executable, HERE / "mcp_call.py", f"{BASE}/t/{path}/mcp", tool, json.dumps(arguments or {})]
        done = subprocess.run(["nsenter", "--net", f"--target={self.machine.pid}", "--", *words], capture_output=True, text=True)
        log = "" if done.returncode == 0 else self.log()
        self.assertEqual(done.returncode, 0, f"{done.stderr}\n{log}")
        return done.stdout.strip()

    def until(self, is_so):
        deadline = time.monotonic() + 20
        while not is_so():
            self.assertLess(time.monotonic(), deadline, self.log())
            time.sleep(0.1)

    def control(self, action):
        """`systemctl ACTION`, which has to succeed."""
        # The tests start it more often than the limit of systemd allows.
        self.machine.run("systemctl", "reset-failed", "lockgate", check=False)
        done = self.machine.run("systemctl", action, "lockgate", check=False)
        self.assertEqual(done.returncode, 0, self.log())

    def log(self):
        return self.machine.run("journalctl", "--unit=lockgate", "--no-pager", "--output=cat").stdout

    def test_0_lintian_finds_nothing(self):
        # That of the machine: another release judges by other rules.
        words = ["--allow-root", "--fail-on=error,warning", "/tmp/lockgate.deb"]
        done = self.machine.run("lintian", *words, check=False)
        self.assertEqual((done.returncode, done.stdout), (0, ""), done.stderr)

    def test_1_the_installation_starts_nothing(self):
        self.machine.run("dpkg", "--install", "/tmp/lockgate.deb")
        state = self.show("ActiveState", "UnitFileState", "LoadState")
        self.assertEqual(state, {"ActiveState": "inactive", "UnitFileState": "disabled", "LoadState": "loaded"})
        self.assertIn("/usr/sbin/nologin", self.machine.run("getent", "passwd", "lockgate").stdout)
        modes = self.machine.run("stat", "--format=%a %U %G", "/etc/lockgate", "/etc/lockgate/credentials").stdout
        self.assertEqual(modes.splitlines(), ["750 root lockgate", "700 root root"])
        self.machine.run("dpkg", "--verify", "lockgate")
        self.machine.run("bash", "-c", ". /usr/share/bash-completion/completions/lockgate && complete -p lockgate")

    def test_2_the_unit_is_right_and_hardened(self):
        said = self.machine.run("systemd-analyze", "verify", "--man=no", "lockgate.service")
        self.assertEqual(said.stdout + said.stderr, "")
        words = ["--offline=true", f"--threshold={EXPOSURE}", "/usr/lib/systemd/system/lockgate.service"]
        said = self.machine.run("systemd-analyze", "security", "--no-pager", *words, check=False)
        self.assertEqual(said.returncode, 0, said.stdout)

    def test_3_it_starts_as_it_is_installed(self):
        self.control("start")
        state = self.show("ActiveState", "StatusText", "Type", "User")
        self.assertEqual(state, {"ActiveState": "active", "StatusText": f"serving on {BASE}", "Type": "notify", "User": "lockgate"})
        # Without credentials it made keys of its own.
        modes = self.machine.run("stat", "--format=%a %U", "/var/lib/lockgate", "/var/lib/lockgate/master.key").stdout
        self.assertEqual(modes.splitlines(), ["700 lockgate", "600 lockgate"])
        self.machine.run("env", "LOCKGATE_CONFIG=/etc/lockgate/lockgate.toml", "lockgate", "tenant", "list")
        self.control("stop")
        self.machine.run("rm", "--recursive", "/var/lib/lockgate")

    def test_4_keys_are_credentials(self):
        key = self.machine.run("lockgate", "key", "new").stdout
        key = re.search(r"lgk_\S+", key)[0]
        self.machine.write("/etc/lockgate/credentials/admin_key", key, 0o600)
        master = output("openssl", "rand", "-base64", "32")
        self.machine.write("/etc/lockgate/credentials/master_key", master, 0o600)
        self.machine.run("mkdir", "--parents", "/opt/servers")
        self.machine.write("/opt/servers/node.js", NODE)
        self.machine.write("/opt/servers/server.py", PYTHON)
        self.machine.write("/etc/lockgate/token", "first\n")
        self.machine.write("/etc/lockgate/manifest.yaml", MANIFEST)
        self.control("start")
        listed = self.machine.run(
            "env", "LOCKGATE_KEY_FILE=/etc/lockgate/credentials/admin_key", "lockgate", "tenant", "list").stdout
        self.assertIn("acme", listed)
        data = self.machine.run("ls", "/var/lib/lockgate").stdout.split()
        self.assertIn("lockgate.db", data)
        self.assertNotIn("master.key", data)
        self.assertNotIn("admin.key", data)

    def test_5_servers_of_two_tenants_work_and_are_separated(self):
        self.assertEqual(self.call("acme/demo", "echo", {"text": "hello"}), "hello")
        node = json.loads(self.call("acme/node", "who"))
        python = json.loads(self.call("globex/python", "who"))
        for uid in (node["uid"], python["uid"]):
            self.assertIn(uid, range(1_900_000_000, 1_900_065_536))
        self.assertNotEqual(node["uid"], python["uid"])
        self.assertEqual(self.machine.run("stat", "--format=%a %U", "/var/cache/lockgate-work").stdout, "711 lockgate\n")
        self.assertRegex(node["private"], r"^/var/cache/lockgate-work/lg\.[-\w]{5}/")
        # `check` knows the directory too, and warns of no other, which this server could write.
        self.machine.write("/tmp/open.yaml", MANIFEST.replace("limits: {pids: 64}", "sandbox: {profile: open}"))
        said = self.machine.run("lockgate", "check", "--config", "/etc/lockgate/lockgate.toml", "--apply", "/tmp/open.yaml")
        self.assertNotIn("work_dir", said.stdout + said.stderr)
        self.assertEqual(int(node["caps"], 16), 0)
        self.assertEqual(node["reads"], ["/etc/passwd"])
        self.assertRegex(node["cgroup"], r"0::/system.slice/lockgate.service/.+/.+")
        self.assertEqual([name for name in node["env"] if name.startswith(("LOCKGATE", "NOTIFY", "CREDENTIALS", "WATCHDOG"))], [])
        self.assertEqual(python["secret"], "first")
        # Nothing that a manifest asks for is missing here.
        log = self.log()
        self.assertNotIn("not enforced", log)
        self.assertNotIn('"level":"ERROR"', log)

    def test_6_a_reload_applies_the_manifest(self):
        before = self.show("MainPID")
        self.machine.write("/etc/lockgate/token", "second\n")
        self.control("reload")
        # `reload` returns when the signal was sent.
        self.until(lambda: json.loads(self.call("globex/python", "who"))["secret"] == "second")
        self.machine.write("/etc/lockgate/manifest.yaml", MANIFEST + "  wrong: {servers: {x: {comand: a}}}\n")
        said = self.machine.run("systemctl", "reload", "lockgate", check=False)
        self.assertNotEqual(said.returncode, 0)
        self.assertIn("/etc/lockgate/manifest.yaml", self.log())
        self.assertEqual(self.call("acme/demo", "echo", {"text": "still"}), "still")
        self.assertEqual(self.show("MainPID", "ActiveState"), {**before, "ActiveState": "active"})
        self.machine.write("/etc/lockgate/manifest.yaml", MANIFEST)

    def test_7_it_is_replaced_when_it_dies_or_hangs(self):
        self.machine.run("mkdir", "--parents", "/run/systemd/system/lockgate.service.d")
        drop_in = "[Service]\nWatchdogSec=2\nTimeoutAbortSec=1\n"
        self.machine.write("/run/systemd/system/lockgate.service.d/watchdog.conf", drop_in)
        self.machine.run("systemctl", "daemon-reload")
        self.control("restart")
        # It feeds the watchdog for longer than that takes to bite.
        pid = self.show("MainPID")["MainPID"]
        time.sleep(3)
        self.assertEqual(self.show("MainPID", "ActiveState"), {"MainPID": pid, "ActiveState": "active"})
        for signal in ("KILL", "STOP"):
            pid = self.show("MainPID")["MainPID"]
            self.machine.run("systemctl", "kill", "--kill-who=main", f"--signal={signal}", "lockgate")
            self.until(lambda: self.show("ActiveState")["ActiveState"] == "active" and self.show("MainPID")["MainPID"] not in ("0", pid))
            self.assertEqual(self.call("acme/demo", "echo", {"text": "again"}), "again")
        self.assertEqual(self.show("NRestarts"), {"NRestarts": "2"})

    def test_7b_the_examples_of_drop_ins_work(self):
        folder = "/run/systemd/system/lockgate.service.d"
        settings = self.machine.run("cat", "/etc/lockgate/lockgate.toml").stdout
        examples = self.machine.run("ls", "/usr/share/doc/lockgate/examples").stdout.split()
        for name in examples:
            self.machine.run("rm", "--recursive", "--force", folder)
            self.machine.run("mkdir", "--parents", folder)
            self.machine.run("cp", f"/usr/share/doc/lockgate/examples/{name}", folder)
            said = self.machine.run("systemd-analyze", "verify", "--man=no", "lockgate.service")
            self.assertEqual(said.stdout + said.stderr, "", name)
            self.machine.run("systemctl", "daemon-reload")
            change = self.prepared_for(name)
            self.machine.write("/etc/lockgate/lockgate.toml", settings.replace(*change) if change else settings)
            with self.subTest(name):
                self.control("restart")
                if name == "low-port.conf":
                    self.assertIn('"http":"127.0.0.1:443"', self.log())
                else:
                    self.assertEqual(self.call("acme/demo", "echo", {"text": name}), name)
        self.assertEqual(len(examples), 4)
        self.machine.run("rm", "--recursive", folder)
        self.machine.write("/etc/lockgate/lockgate.toml", settings)
        self.machine.write("/etc/lockgate/manifest.yaml", MANIFEST)
        self.machine.run("systemctl", "daemon-reload")
        self.control("restart")

    def prepared_for(self, drop_in):
        """Does what a drop-in presupposes, and returns the change of the settings that it takes."""
        if drop_in == "low-port.conf":
            return "127.0.0.1:8080", "127.0.0.1:443"
        if drop_in == "without-capabilities.conf":
            # The number of processes is bounded by the user of a child, or by a controller that not every
            # machine of a test has.
            self.machine.write("/etc/lockgate/manifest.yaml", MANIFEST.replace(", limits: {pids: 64}", ""))
            return 'uids = "1900000000-1900065535"', 'uids = ""'
        if drop_in == "encrypted-credentials.conf":
            keys = "/etc/lockgate/credentials"
            self.machine.run("systemd-creds", "encrypt", "--with-key=host", "--name=master_key", f"{keys}/master_key", f"{keys}/master_key.cred")
        return None

    def test_8_an_upgrade_restarts_it_and_keeps_its_settings(self):
        self.machine.run("systemctl", "enable", "lockgate")
        pid = self.show("MainPID")["MainPID"]
        self.machine.run("dpkg", "--install", "--force-confold", "/tmp/lockgate.deb")
        state = self.show("MainPID", "ActiveState", "UnitFileState")
        self.assertEqual((state["ActiveState"], state["UnitFileState"]), ("active", "enabled"))
        self.assertNotEqual(state["MainPID"], pid)
        self.assertEqual(self.call("acme/demo", "echo", {"text": "new"}), "new")

    def test_9_it_stops_in_order_and_a_purge_leaves_nothing(self):
        self.control("stop")
        state = self.show("ActiveState", "Result", "ExecMainStatus", "ExecMainCode")
        self.assertEqual(state, {"ActiveState": "inactive", "Result": "success", "ExecMainStatus": "0", "ExecMainCode": "1"})
        self.assertIn("draining", self.log())
        # A mistake is not tried again.
        self.machine.write("/etc/lockgate/lockgate.toml", "nonsense = 1\n")
        self.machine.run("systemctl", "start", "lockgate", check=False)
        self.assertEqual(self.show("ActiveState", "NRestarts")["ActiveState"], "failed")
        self.machine.run("dpkg", "--remove", "lockgate")
        self.machine.run("test", "-e", "/etc/lockgate/lockgate.toml")
        # As docs/install.md advises: the file system is emptied, and keeps no purge from its end.
        self.machine.run("mount", "--types=tmpfs", "tmpfs", "/var/cache/lockgate-work")
        self.machine.run("mkdir", "/var/cache/lockgate-work/lg.abcde")
        self.machine.run("dpkg", "--purge", "lockgate")
        left = self.machine.run("find", "/etc/lockgate", "/var/lib/lockgate", "/var/cache/lockgate-work",
                                "/etc/default/lockgate", "/usr/bin/lockgate", "/etc/systemd/system/multi-user.target.wants/lockgate.service", check=False)
        self.assertEqual(left.stdout, "/etc/lockgate\n/etc/lockgate/token\n/var/cache/lockgate-work\n")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], failfast=True, verbosity=2)
